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
class Costs:
  """What work costs, all in one unit, for example seconds.

  Attributes:
    encoder_token: computing a token of an input.
    decoder_token: computing a token of a target.
    encoder: compiling the encoder for one more shape.
    decoder: compiling the decoder for one more shape.
  """

  encoder_token: float
  decoder_token: float
  encoder: float
  decoder: float


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
  program_cost: float,
  ready: Collection[int] = (),
) -> tuple[int, ...]:
  """Chooses the rungs to use: least padding plus compilation.

  Minimises sum over needed rungs of weight times (rung used) plus
  program_cost for every chosen rung that is not ready, exactly, by dynamic
  programming over the ladder.

  Args:
    weights: for each needed rung, what a token of all items that need it costs.
    program_cost: cost of one more rung, in the same unit.
    ready: rungs that cost nothing because they are compiled already.

  Returns:
    The chosen rungs, ascending; the last is at least the longest needed.
  """
  longest = max(weights)
  rungs = sorted({*weights, *ready})
  cost_of = [0.0 if r in ready else program_cost for r in rungs]
  # best[j]: least cost of all items up to rungs[j] with rungs[j] chosen.
  best: list[float] = []
  before: list[int] = []
  for j, rung in enumerate(rungs):
    options = []
    for i in range(-1, j):
      weight = sum(weights.get(r, 0) for r in rungs[i + 1 : j + 1])
      options.append((best[i] if i >= 0 else 0.0) + weight * rung)
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
  costs: Costs,
  row_multiple: int = 1,
  ready: Collection[tuple[int, ...]] = (),
) -> list[Pool]:
  """Arranges pairs into pools of inputs and batches of targets.

  Texts that belong together are often of like length, and then one rung for an
  input and all its targets saves programs; a document and its summary are not,
  and then rungs of their own save padding. Both ways are planned, and the one
  of less cost is taken.

  Args:
    input_of_pair: int [P], the input of each pair.
    input_lengths: int [U], tokens of each input, each at most max_length.
    target_lengths: int [P], tokens of each pair's target, likewise.
    max_length: the last rung.
    batch_tokens: tokens a batch, padding included: rows times the longer of
      input and target.
    costs: what is weighed against what.
    row_multiple: rows are a multiple of this (the number of devices).
    ready: shapes (see ``Pool.shapes``) that are compiled already.

  Returns:
    Pools that hold every pair exactly once, longest inputs first.
  """
  if len(input_of_pair) == 0:
    return []
  rungs = np.asarray(ladder(max_length))
  problem = _Problem(
    input_of_pair,
    target_lengths,
    rungs[np.searchsorted(rungs, input_lengths)],
    rungs[np.searchsorted(rungs, target_lengths)],
    batch_tokens,
    costs,
    row_multiple,
    frozenset(ready),
  )
  plans = [problem.solve(shared_rungs=shared) for shared in (True, False)]
  return min(plans, key=problem.cost_of)


class _Problem:
  """What `plan` is given, with lengths rounded up to the ladder's rungs."""

  def __init__(
    self,
    input_of_pair: np.ndarray,
    target_lengths: np.ndarray,
    need_in: np.ndarray,
    need_out: np.ndarray,
    batch_tokens: int,
    costs: Costs,
    row_multiple: int,
    ready: frozenset[tuple[int, ...]],
  ):
    self.input_of_pair = input_of_pair
    self.target_lengths = target_lengths
    self.need_in = need_in
    self.need_out = need_out
    self.batch_tokens = batch_tokens
    self.costs = costs
    self.row_multiple = row_multiple
    self.ready = ready
    items = len(input_of_pair)
    self.pairs_of = _group(input_of_pair, np.arange(items))
    self.targets = np.bincount(input_of_pair, minlength=len(need_in))
    # The longest target of each input.
    self.reach = np.zeros(len(need_in), np.int64)
    np.maximum.at(self.reach, input_of_pair, need_out)

  def rows_for(self, length: int) -> int:
    rows = max(1, self.batch_tokens // length)
    if len(self.input_of_pair) <= SMALL_ROWS:
      rows = min(rows, SMALL_ROWS)
    return -(-rows // self.row_multiple) * self.row_multiple

  def cost_of(self, pools: Sequence[Pool]) -> float:
    """Of computing the pools, and of compiling what they need."""
    costs = self.costs
    total = 0.0
    for pool in pools:
      total += costs.encoder_token * pool.rows * pool.length
      for batch in pool.batches:
        total += costs.decoder_token * batch.rows * batch.length
    shapes = {s for pool in pools for s in pool.shapes} - self.ready
    for shape in shapes:
      total += costs.encoder if len(shape) == 2 else costs.decoder
    return total

  def solve(self, shared_rungs: bool) -> list[Pool]:
    """Plans with one rung for inputs and their targets, or with two."""
    costs = self.costs
    need = (
      np.maximum(self.need_in, self.reach) if shared_rungs else self.need_in
    )
    weights = np.full(len(need), costs.encoder_token)
    if shared_rungs:
      weights += self.targets * costs.decoder_token
    ready = {
      s[1] for s in self.ready if len(s) == 2 and s[0] == self.rows_for(s[1])
    }
    # A rung for inputs needs an encoder and at least one decoder.
    chosen = choose_rungs(
      _sums(need, weights), costs.encoder + costs.decoder, ready
    )
    rung_of = np.asarray(chosen)[np.searchsorted(chosen, need)]
    pools: list[Pool] = []
    for length in reversed(chosen):
      # Inputs whose targets are of like length share a pool.
      inputs = np.flatnonzero(rung_of == length)
      inputs = inputs[np.argsort(-self.reach[inputs], kind='stable')]
      if len(inputs):
        pools += self._pools(inputs, length)
    return pools

  def _pools(self, inputs: np.ndarray, length: int) -> list[Pool]:
    """Cuts inputs of one rung into pools."""
    rows = self.rows_for(length)

    def rows_out(rung: int) -> int:
      return self.rows_for(max(rung, length))

    of_rung = np.zeros(len(self.need_in), bool)
    of_rung[inputs] = True
    needed = self.need_out[of_rung[self.input_of_pair]]
    ready = {
      s[3]
      for s in self.ready
      if len(s) == 4 and s == (rows, length, rows_out(s[3]), s[3])
    }
    rungs = np.asarray(
      choose_rungs(
        _sums(needed, np.full(len(needed), self.costs.decoder_token)),
        self.costs.decoder,
        ready,
      )
    )
    pools = []
    while len(inputs):
      rung = int(rungs[np.searchsorted(rungs, self.reach[inputs[0]])])
      stop = self._cut(inputs, rows, length, rows_out(rung), rung)
      pairs = [self.pairs_of[int(i)] for i in inputs[:stop]]
      batches = _batches(pairs, self.target_lengths, rungs, rows_out)
      pools.append(Pool(inputs[:stop], rows, length, batches))
      inputs = inputs[stop:]
    return pools

  def _cut(
    self, inputs: np.ndarray, rows: int, length: int, rows_out: int, rung: int
  ) -> int:
    """How many of the inputs to pool: so many that their batches are full.

    With 1.1 targets an input, a pool of 80 inputs has 88 targets, and eight of
    these would be computed as a batch of 80. It is better to leave a few rows
    of the encoder empty.
    """
    most = min(rows, len(inputs))
    if most == len(inputs):
      return most
    pairs = np.cumsum(self.targets[inputs[:most]])

    def use(count: int) -> float:
      """Needed tokens a unit of cost."""
      batches = -(-int(pairs[count - 1]) // rows_out)
      per_input = self.costs.encoder_token * length
      per_target = self.costs.decoder_token * rung
      gain = per_input * count + per_target * pairs[count - 1]
      return gain / (per_input * rows + per_target * rows_out * batches)

    full = int(pairs[-1]) // rows_out * rows_out
    fewer = int(np.searchsorted(pairs, full, side='right'))
    return max({max(1, fewer), most}, key=lambda n: (use(n), n))


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


def _sums(keys: np.ndarray, values: np.ndarray) -> dict[int, float]:
  """Sums values by key."""
  unique, places = np.unique(keys, return_inverse=True)
  sums = np.bincount(places, values)
  return {int(k): float(v) for k, v in zip(unique, sums, strict=True)}


def _group(keys: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
  """Splits ``values`` by ``keys``."""
  order = np.argsort(keys, kind='stable')
  unique, starts = np.unique(keys[order], return_index=True)
  parts = np.split(values[order], starts[1:])
  return {int(k): part for k, part in zip(unique, parts, strict=True)}
