"""Engram and other systems at the same work: what they are, how they are installed, and the race."""
