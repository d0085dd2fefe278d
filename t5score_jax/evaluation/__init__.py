"""How far metrics agree with people: statistics, tests, tables.

Nothing in this folder computes a metric and nothing imports JAX: it takes
numbers that a metric and human raters have already given.
"""
