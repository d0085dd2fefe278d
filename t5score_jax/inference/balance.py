"""Splits work across processes by cost and gathers the results.

Every process sees all of the work, computes the same split, does its own share
and sends the results to the others. Processes communicate over the network;
they share no files except the inputs. Not here: how processes start and end
(`runtime/processes.py`), how a training batch is split (`inputs/shares.py`).
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from t5score_jax.runtime import processes

# Bytes per part of a message.
_PART = 1 << 26


def owners(costs: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
  """Assigns items to processes so that their costs are about equal.

  Assigns the costliest item first, each to the process with the least load. The
  result is at most a third above the optimum (Graham 1969), and close to it for
  many items.

  Args:
    costs: The cost of each item, at least 0, [N].
    count: Number of processes.

  Returns:
    The process of each item, int [N]; the same in every process.
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
  """All-gathers data: returns those of all processes, in order, to each.

  Args:
    data: This process's bytes; lengths may differ.

  Raises:
    RuntimeError: Raised by JAX if a process is lost; see
      `processes.explain_loss`.
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
    # Powers of two, so few programs are compiled.
    padded = np.zeros(max(256, 1 << (left - 1).bit_length()), np.uint8)
    own = np.frombuffer(data[start : start + _PART], np.uint8)
    padded[: len(own)] = own
    whole = np.asarray(multihost_utils.process_allgather(padded), np.uint8)
    for process, size in enumerate(sizes):
      end = int(np.clip(size - start, 0, left))
      parts[process].append(whole[process, :end].tobytes())
  return [b''.join(part) for part in parts]


def exchange(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
  """Adds the rows that other processes have computed.

  Args:
    values: [N, ...], of which the rows that this process owns are defined.
    owner: The process of each row, int [N].

  Returns:
    [N, ...] of the same dtype, the same in all processes.

  Raises:
    RuntimeError: Raised by JAX if a process is lost.
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
    processes.ProcessError: They do not.
  """
  if processes.count() == 1:
    return
  digest = 0
  for text in texts:
    digest = zlib.crc32(repr(text).encode('utf-8', 'surrogatepass'), digest)
  processes.agree(digest, what)
