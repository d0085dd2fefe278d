"""Networks in Flax Linen: arrays in, arrays out; no data, no training."""
