"""Compares and mines texts of two languages without parallel data."""
