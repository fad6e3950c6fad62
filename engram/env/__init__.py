"""Environments: what a policy may know of one, the adapters to each kind, and many of them stepped as rows.

Nothing is imported here, so that `engram.env.settings` stays light and workers start fast.
"""
