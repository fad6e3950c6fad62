"""Settings of a run: YAML groups and overrides composed into one closed, typed model before anything is built."""
