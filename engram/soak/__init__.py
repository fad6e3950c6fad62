"""Soak: trains while breaking things on purpose, and says which promises held."""
