"""T5Score in JAX: text evaluation by generation."""

__version__ = '0.1.0'
