"""Reads past the batches that a resumed run has trained on, with progress.

SeqIO's pipelines have no random access and recompute every batch. For long runs
this takes a while, so progress is printed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from t5score_jax.runtime import processes

_LOGGER = logging.getLogger(__name__)
# `t5score train` silences what libraries log.
_LOGGER.setLevel(logging.WARNING)


def skip(
  batches: Iterator[Any], count: int, patience: float = 10.0
) -> Iterator[Any]:
  """Drops the first `count` batches.

  Args:
    batches: The batches of a run from its beginning.
    count: Number of batches to drop.
    patience: Seconds between lines of progress, by process 0.
  """
  start = last = time.monotonic()
  for done in range(1, count + 1):
    if next(batches, None) is None:
      return
    now = time.monotonic()
    if now - last >= patience and processes.is_first():
      last = now
      left = (now - start) / done * (count - done)
      _LOGGER.warning(
        'resuming: read past %d of %d batches, about %.0f s left; data cached '
        'as arrays (scripts/prepare/cache_batches.py) need no such reading',
        done,
        count,
        left,
      )
  yield from batches
