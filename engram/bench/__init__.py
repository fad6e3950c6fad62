"""Measurements: how fast Engram is, against what it is built from and against others, side by side in one run."""
