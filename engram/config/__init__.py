"""Settings of a run: YAML groups and overrides make one typed model, validated before anything is built."""
