"""Policies assembled from YAML: a graph of named components, the same modules that the Python policies are made of."""
