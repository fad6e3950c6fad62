"""Environments: their specs, one adapter per kind, and the vectorised environment that steps many of them as rows.

Nothing is imported here, so that `engram.env.settings` stays light and workers start fast.
"""
