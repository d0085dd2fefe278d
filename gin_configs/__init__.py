"""Gin files: models, runs and recipes; installed as t5score_jax.gin_configs.

The package holds data, no code: it exists so that an installed library finds
its own configuration files.
"""
