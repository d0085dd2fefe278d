"""Agreement of metrics with human judgments: statistics, tests, tables.

Takes scores of metrics and of human annotators. Computes no metric and never
imports JAX.
"""
