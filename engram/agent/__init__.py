"""Policies: encoders, recurrent cores and heads, memory, and the ways to assemble them."""
