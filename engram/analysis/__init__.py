"""What an agent remembers: recorded episodes, counterfactuals, probes and interventions. Computes; `display` shows."""
