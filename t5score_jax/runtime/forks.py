"""Raises an error instead of hanging when JAX is used after a fork.

XLA's threads do not exist in a forked child, which would wait for them forever.
A process calls `claim` before it puts a model on devices or scores with one; a
child that was forked later gets an error. Spawned processes start afresh.
Imports no JAX. Not here: runs of many processes (`runtime/processes.py`).
"""

from __future__ import annotations

import os

from t5score_jax.errors import T5ScoreError

# The id of the process that uses JAX; a forked child inherits the value.
_owner: int | None = None


class ForkError(T5ScoreError, RuntimeError):
  """This process was forked from a process that uses JAX."""


def claim() -> None:
  """Declares that this process is about to use JAX.

  Raises:
    ForkError: It was forked from a process that had declared so.
  """
  global _owner
  if _owner is None:
    _owner = os.getpid()
  if _owner != os.getpid():
    raise ForkError(
      f'process {os.getpid()} was forked from process {_owner}, which uses '
      'JAX, and would hang: start workers with '
      "multiprocessing.get_context('spawn') or 'forkserver', or load models "
      'only after forking'
    )
