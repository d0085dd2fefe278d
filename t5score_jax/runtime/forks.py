"""JAX does not work after a fork: says so, where it would hang for ever.

XLA's threads are not there in a forked child, which waits for them. A process
that puts a model on devices, or scores with one, claims that here first; a
child that was forked afterwards is refused. Spawned processes begin anew.
Imports no JAX. Not here: runs of many processes (`runtime/processes.py`).
"""

from __future__ import annotations

import os

from t5score_jax.errors import T5ScoreError

# The process that uses JAX; a forked child inherits its parent's.
_owner: int | None = None


class ForkError(T5ScoreError, RuntimeError):
  """This process was forked from one that used JAX before."""


def claim() -> None:
  """Says that this process is about to use JAX.

  Raises:
    ForkError: It was forked from one that had.
  """
  global _owner
  if _owner is None:
    _owner = os.getpid()
  if _owner != os.getpid():
    raise ForkError(
      f'process {os.getpid()} was forked from process {_owner}, in which JAX '
      'ran already: it would hang here; start workers by '
      "multiprocessing.get_context('spawn') or 'forkserver', or load no model "
      'before they are forked'
    )
