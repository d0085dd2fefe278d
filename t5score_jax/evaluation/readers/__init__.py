"""Readers: files of human judgments and of scores to grids."""
