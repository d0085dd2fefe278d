"""Hugging Face's folder formats."""
