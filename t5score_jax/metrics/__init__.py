"""Metrics: one file each, loaded by name with `base.load_metric`."""
