"""Readers of files of human judgments and scores."""
