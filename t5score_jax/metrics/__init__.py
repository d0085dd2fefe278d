"""Metrics: one file each, loaded by name with `registry.load_metric`."""
