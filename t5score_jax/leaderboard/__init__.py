"""Billboards: leaderboards on which generators and metrics compete.

`store` keeps a board in one SQLite file, `ranking`, `ensemble` and `overrating`
analyse it, `page` shows it, `server` takes submissions. After Kasai et al.
(2022), "Bidimensional Leaderboards". No JAX: metrics are loaded by name.
"""
