"""The Python interface: `engram.train`, `open`, `load`, `evaluate`, `audit` and `make_env`.

Nothing is imported here, so that `import engram` stays light.
"""
