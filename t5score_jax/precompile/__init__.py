"""Ahead-of-time compilation for absent topologies."""
