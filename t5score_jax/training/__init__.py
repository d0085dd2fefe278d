"""Training: one trunk (`loop.train`), what it calls, and nothing else.

Scoring never imports this package.
"""
