"""Analysis of an agent's memory: recorded episodes, counterfactuals, probes and interventions. `display` shows it."""
