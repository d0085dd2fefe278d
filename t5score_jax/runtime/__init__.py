"""Processes of a run, forks, the compilation cache, TensorFlow's settings."""
