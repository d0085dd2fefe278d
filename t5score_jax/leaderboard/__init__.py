"""Billboards: leaderboards on which generators and metrics compete.

Implements Kasai et al. (2022), "Bidimensional Leaderboards". `store` keeps a
board in one SQLite file; `ranking`, `ensemble` and `overrating` analyse it;
`web/` shows it and takes submissions. Nothing here imports JAX: metrics are
loaded by name.
"""
