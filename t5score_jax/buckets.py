"""Which text goes into which batch, and which shapes have to be compiled.

XLA compiles one program a shape, in about the time that it takes to score a few
hundred segments with a small model. So lengths are rounded up to the rungs of a
ladder, and a rung is used only where the padding that it saves is worth its
compilation. Pure NumPy: nothing here knows of models or devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

# Steps of half an octave: at most a third of a row is padding.
_RUNGS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

# A call with so few items gets batches of this many rows, so that scoring one
# sentence does not pay for a batch of a hundred.
SMALL_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Batch:
  """Targets that are decoded together.

  Attributes:
    pairs: int [n], indices into the planned pairs; n <= rows.
    input_rows: int [n], for each pair the row of its input in the pool.
    rows: rows of the compiled batch.
    length: tokens a row of the compiled batch.
  """

  pairs: np.ndarray
  input_rows: np.ndarray
  rows: int
  length: int


@dataclasses.dataclass(frozen=True)
class Pool:
  """Inputs that are encoded together, once, and all that is decoded from them.

  Attributes:
    inputs: int [n], indices into the planned inputs; n <= rows.
    rows: rows of the compiled batch.
    length: tokens a row of the compiled batch.
    batches: cover every pair of these inputs.
  """

  inputs: np.ndarray
  rows: int
  length: int
  batches: tuple[Batch, ...]

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...]:
    """What has to be compiled: (rows, length), then each decoder's shape."""
    decoders = {
      (self.rows, self.length, b.rows, b.length): None for b in self.batches
    }
    return ((self.rows, self.length), *decoders)


def ladder(max_length: int) -> tuple[int, ...]:
  """The lengths that batches may have, ascending; the last is max_length."""
  rungs = [r for r in _RUNGS if r < max_length]
  rung = 1536
  while rung < max_length:
    rungs.append(rung)
    rung = rung * 4 // 3 if rung % 3 == 0 else rung * 3 // 2
  return (*rungs, max_length)


def choose_rungs(
  weights: Mapping[int, float],
  compile_cost: float,
  ready: Collection[int] = (),
) -> tuple[int, ...]:
  """Chooses the rungs to use: least padding plus compilation.

  Minimises sum over items of (rung used) plus compile_cost for every chosen
  rung that is not ready, exactly, by dynamic programming over the ladder.

  Args:
    weights: for each rung, the number of items whose length needs it.
    compile_cost: cost of one more rung, in tokens computed.
    ready: rungs that cost nothing because they are compiled already.

  Returns:
    The chosen rungs, ascending; the last is at least the longest needed.
  """
  longest = max(weights)
  rungs = sorted({*weights, *ready})
  cost_of = [0.0 if r in ready else compile_cost for r in rungs]
  # best[j]: least cost of all items up to rungs[j] with rungs[j] chosen.
  best: list[float] = []
  before: list[int] = []
  for j, rung in enumerate(rungs):
    options = []
    for i in range(-1, j):
      items = sum(weights.get(r, 0) for r in rungs[i + 1 : j + 1])
      options.append((best[i] if i >= 0 else 0.0) + items * rung)
    choice = int(np.argmin(options))
    best.append(options[choice] + cost_of[j])
    before.append(choice - 1)
  ends = [j for j, r in enumerate(rungs) if r >= longest]
  j = min(ends, key=lambda end: best[end])
  chosen = []
  while j >= 0:
    chosen.append(rungs[j])
    j = before[j]
  return tuple(reversed(chosen))


def plan(
  input_of_pair: np.ndarray,
  input_lengths: np.ndarray,
  target_lengths: np.ndarray,
  *,
  max_length: int,
  batch_tokens: int,
  compile_cost: float,
  row_multiple: int = 1,
  ready: Collection[tuple[int, ...]] = (),
) -> list[Pool]:
  """Arranges pairs into pools of inputs and batches of targets.

  Args:
    input_of_pair: int [P], the input of each pair.
    input_lengths: int [U], tokens of each input, each at most max_length.
    target_lengths: int [P], tokens of each pair's target, likewise.
    max_length: the last rung.
    batch_tokens: tokens a batch, padding included: rows times the longer of
      input and target.
    compile_cost: cost of compiling one shape, in tokens computed.
    row_multiple: rows are a multiple of this (the number of devices).
    ready: shapes (see ``Pool.shapes``) that are compiled already.

  Returns:
    Pools that hold every pair exactly once, longest inputs first.
  """
  if len(input_of_pair) == 0:
    return []
  rungs = np.asarray(ladder(max_length))
  need_in = rungs[np.searchsorted(rungs, input_lengths)]
  need_out = rungs[np.searchsorted(rungs, target_lengths)]

  def rows_for(length: int, items: int) -> int:
    rows = max(1, batch_tokens // length)
    if items <= SMALL_ROWS:
      rows = min(rows, SMALL_ROWS)
    return -(-rows // row_multiple) * row_multiple

  items = len(input_of_pair)
  ready_in = {
    s[1] for s in ready if len(s) == 2 and s[0] == rows_for(s[1], items)
  }
  # A rung for inputs costs an encoder and at least one decoder.
  rungs_in = np.asarray(
    choose_rungs(_counts(need_in), 2 * compile_cost, ready_in)
  )
  length_in = rungs_in[np.searchsorted(rungs_in, need_in)]
  # Inputs whose targets are of like length share a pool.
  reach = np.zeros(len(input_lengths), np.int64)
  np.maximum.at(reach, input_of_pair, need_out)
  order = np.lexsort((-reach, -length_in))
  pools: list[tuple[int, np.ndarray]] = []
  pool_length = np.zeros(len(input_lengths), np.int64)
  start = 0
  while start < len(order):
    length = int(length_in[order[start]])
    inputs = order[start : start + rows_for(length, items)]
    pool_length[inputs] = length
    pools.append((length, inputs))
    start += len(inputs)

  pairs_of = _group(input_of_pair, np.arange(items))
  planned = []
  rungs_out: dict[int, np.ndarray] = {}
  for length, inputs in pools:

    def rows_out(rung: int, length: int = length) -> int:
      return rows_for(max(rung, length), items)

    pool_rows = rows_for(length, items)
    if length not in rungs_out:
      ready_out = {
        s[3]
        for s in ready
        if len(s) == 4 and s == (pool_rows, length, rows_out(s[3]), s[3])
      }
      counts = _counts(need_out[pool_length[input_of_pair] == length])
      rungs_out[length] = np.asarray(
        choose_rungs(counts, compile_cost, ready_out)
      )
    batches = _batches(
      [pairs_of[int(i)] for i in inputs],
      target_lengths,
      rungs_out[length],
      rows_out,
    )
    planned.append(Pool(inputs, pool_rows, length, batches))
  return planned


def _batches(
  pairs_of_row: Sequence[np.ndarray],
  target_lengths: np.ndarray,
  rungs: np.ndarray,
  rows_for: Callable[[int], int],
) -> tuple[Batch, ...]:
  """Cuts a pool's pairs, longest first, so that only the last is not full."""
  pairs = np.concatenate(pairs_of_row)
  input_rows = np.repeat(
    np.arange(len(pairs_of_row)), [len(p) for p in pairs_of_row]
  )
  order = np.argsort(-target_lengths[pairs], kind='stable')
  pairs, input_rows = pairs[order], input_rows[order]
  batches = []
  start = 0
  while start < len(pairs):
    longest = target_lengths[pairs[start]]
    rung = int(rungs[np.searchsorted(rungs, longest)])
    rows = rows_for(rung)
    stop = start + rows
    batches.append(Batch(pairs[start:stop], input_rows[start:stop], rows, rung))
    start = stop
  return tuple(batches)


def _counts(values: np.ndarray) -> dict[int, float]:
  rungs, counts = np.unique(values, return_counts=True)
  return {int(r): float(c) for r, c in zip(rungs, counts, strict=True)}


def _group(keys: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
  """Splits ``values`` by ``keys``."""
  order = np.argsort(keys, kind='stable')
  unique, starts = np.unique(keys[order], return_index=True)
  parts = np.split(values[order], starts[1:])
  return {int(k): part for k, part in zip(unique, parts, strict=True)}
