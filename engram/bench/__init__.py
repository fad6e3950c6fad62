"""Benchmarks that users run on their own machine: cores, policies, environments, training, scaling."""
