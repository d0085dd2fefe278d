"""The training loop (`loop.train`) and what it calls.

Scoring never imports this package.
"""
