"""Adapters: how policies of Engram and of other libraries are called by the audit."""
