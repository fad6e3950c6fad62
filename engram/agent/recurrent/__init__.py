"""Recurrent cores with exact episode boundaries, and the memory store."""
