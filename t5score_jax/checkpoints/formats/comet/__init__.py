"""Unbabel COMET's checkpoints."""
