"""Stacks batches for calls of several steps, and prefetches them.

Batches come from `inputs/datasets.py`; `training/partitioning.py` shards them.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t5score_jax.inputs import datasets


def calls(
  batches: Iterator[datasets.Batch],
  start: int,
  stop: int,
  steps_per_call: int,
  intervals: Sequence[int],
) -> Iterator[datasets.Batch]:
  """Stacks batches for functions that run several steps in one call.

  Args:
    batches: The batches from step `start` on.
    start: The first step.
    stop: The step after the last.
    steps_per_call: Number of batches to stack; where that is impossible, they
      come one by one, so that only two programs are compiled.
    intervals: No call crosses a multiple of any of these steps.

  Yields:
    Batches with a leading axis of steps, [K, B, ...], K = 1 or
    `steps_per_call`.
  """
  step = start
  while step < stop:
    limit = min([stop, *(step - step % every + every for every in intervals)])
    size = steps_per_call if limit - step >= steps_per_call else 1
    group = list(itertools.islice(batches, size))
    if not group:
      raise datasets.DatasetError(f'the data ended at step {step} of {stop}')
    shapes = {tuple((k, v.shape) for k, v in sorted(b.items())) for b in group}
    whole = len(group) == size and len(shapes) == 1
    for part in [group] if whole else [[batch] for batch in group]:
      yield {key: np.stack([b[key] for b in part]) for key in part[0]}
    step += len(group)


def prefetch(
  batches: Iterator[datasets.Batch],
  place: Callable[[datasets.Batch], Any],
  size: int = 4,
) -> Iterator[Any]:
  """Reads batches and moves them to the devices in a thread.

  Args:
    batches: The batches.
    place: Moves a batch to the devices.
    size: Number of batches to hold ready.

  Yields:
    The results of `place`, in order. Errors of the thread are raised here.
  """
  ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(size)
  stopped = threading.Event()
  end = object()

  def put(item: tuple[Any, BaseException | None]) -> bool:
    while not stopped.is_set():
      try:
        ready.put(item, timeout=0.1)
        return True
      except queue.Full:
        continue
    return False

  def read() -> None:
    try:
      for batch in batches:
        if not put((place(batch), None)):
          return
      put((end, None))
    except BaseException as error:  # noqa: BLE001 (raised by the reader)
      put((end, error))

  thread = threading.Thread(target=read, name='prefetch', daemon=True)
  thread.start()
  try:
    while True:
      item, error = ready.get()
      if error is not None:
        raise error
      if item is end:
        return
      yield item
  finally:
    stopped.set()
    thread.join(timeout=5)
