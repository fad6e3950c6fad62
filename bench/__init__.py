"""Races against other systems, and the figures of the documentation. Not part of the package: run it from a clone."""
