"""Work divided over processes by what it costs, and results put together.

Every process sees all of the work, computes the same division, does its own
part and tells it to the others: nothing is shared but the network, and no file
but the inputs. How processes start and end is ``runtime/processes.py``; how a
training batch is divided is no question of cost, and not here.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from t5score_jax.runtime import processes

# A message is sent in parts of so many bytes.
_PART = 1 << 26


def owners(costs: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
  """Divides items so that all processes have about the same to do.

  The costliest first, each to the process that has the least: at most a third
  above the best division (Graham 1969), and close to it for many items.

  Args:
    costs: [N], of each item, at least 0.
    count: processes.

  Returns:
    int [N], the process of each item; the same wherever it is computed.
  """
  costs = np.asarray(costs, np.float64)
  if count == 1:
    return np.zeros(len(costs), np.int64)
  owner = np.empty(len(costs), np.int64)
  loads = [(0.0, process) for process in range(count)]
  for item in np.argsort(-costs, kind='stable'):
    load, process = loads[0]
    owner[item] = process
    heapq.heapreplace(loads, (load + float(costs[item]), process))
  return owner


def gather(data: bytes) -> list[bytes]:
  """Gives every process what each of them passes, in their order.

  Args:
    data: Of any length, which may differ.

  Raises:
    RuntimeError: JAX's, when a process is gone; `processes.explain_loss` has
      words for it.
  """
  if processes.count() == 1:
    return [data]
  from jax.experimental import multihost_utils

  sizes = processes.all_gather(
    np.asarray([len(data)], np.int64), processes.count()
  )
  parts: list[list[bytes]] = [[] for _ in sizes]
  for start in range(0, int(sizes.max()), _PART):
    left = int(min(_PART, sizes.max() - start))
    # Few sizes, so that few programs are compiled.
    padded = np.zeros(max(256, 1 << (left - 1).bit_length()), np.uint8)
    own = np.frombuffer(data[start : start + _PART], np.uint8)
    padded[: len(own)] = own
    whole = np.asarray(multihost_utils.process_allgather(padded), np.uint8)
    for process, size in enumerate(sizes):
      end = int(np.clip(size - start, 0, left))
      parts[process].append(whole[process, :end].tobytes())
  return [b''.join(part) for part in parts]


def exchange(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
  """Fills in the rows that other processes have computed.

  Args:
    values: [N, ...], of which this process knows the rows that it owns.
    owner: int [N], the process of each row.

  Returns:
    [N, ...] of the same dtype, the same in all processes.

  Raises:
    RuntimeError: JAX's, when a process is gone.
  """
  if processes.count() == 1:
    return values
  whole = values.copy()
  own = np.ascontiguousarray(values[owner == processes.index()])
  for process, data in enumerate(gather(own.tobytes())):
    rows = np.frombuffer(data, values.dtype).reshape(-1, *values.shape[1:])
    whole[owner == process] = rows
  return whole


def agree(texts: Iterable[Any], what: str) -> None:
  """Checks that all processes have the same texts, or other plain values.

  Raises:
    processes.ProcessError: They don't.
  """
  if processes.count() == 1:
    return
  digest = 0
  for text in texts:
    digest = zlib.crc32(repr(text).encode('utf-8', 'surrogatepass'), digest)
  processes.agree(digest, what)
