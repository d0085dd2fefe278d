"""Ahead-of-time compilation for a topology that is absent."""
