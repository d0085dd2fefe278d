"""Gin files for T5X's programs; data, no code.

A package, so that gin finds `t5score_jax/gin_configs/t5x/NAME.gin` wherever the
library is installed. docs/t5x.md describes them.
"""
