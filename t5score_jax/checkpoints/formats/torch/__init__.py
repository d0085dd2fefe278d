"""Reads and writes PyTorch's files without PyTorch."""
