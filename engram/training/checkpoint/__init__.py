"""Checkpoints: written, read, retained, resumed from."""
