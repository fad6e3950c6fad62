"""Diagnosis: why a run does not learn, from its metrics and settings alone."""
