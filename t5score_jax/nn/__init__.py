"""Flax Linen networks: arrays in, arrays out; no data, no training."""
