"""Batches of pairs of texts, and the shapes that have to be compiled.

XLA compiles one program per shape, in about the time that scoring a few
hundred segments with a small model takes. Lengths are therefore rounded up to
a few bucket boundaries, and a boundary is used only where the padding that it
saves is worth its compilation. NumPy only; independent of models and devices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

# A call with so few items gets batches of this many rows, so that scoring one
# sentence does not cost a batch of a hundred.
SMALL_ROWS = 8


def rows_of(items: int, most: int) -> int:
  """Rows of a batch for a call with few items: a power of two, or `most`.

  Args:
    items: The number of items.
    most: Maximum number of rows that fit in memory.
  """
  return min(most, max(SMALL_ROWS, 1 << (items - 1).bit_length()))


@dataclasses.dataclass(frozen=True)
class Costs:
  """Costs of work, all in one unit, for example seconds.

  Attributes:
    encoder_token: The cost of one token of an input.
    decoder_token: The cost of one token of a target.
    encoder: The cost of compiling the encoder for one more shape.
    decoder: The cost of compiling the decoder for one more shape.
    vocabulary_token: The cost of one token's product with the vocabulary, if
      it is a separate program (`packing.py`).
    vocabulary: The cost of compiling that program for one more shape.
  """

  encoder_token: float
  decoder_token: float
  encoder: float
  decoder: float
  vocabulary_token: float = 0.0
  vocabulary: float = 0.0


@dataclasses.dataclass(frozen=True)
class Batch:
  """Targets that are decoded together.

  Attributes:
    pairs: Indices into the planned pairs, int [n]; n <= rows.
    input_rows: The row of each pair's input in the pool, int [n].
    rows: Rows of the compiled batch.
    length: Tokens per row of the compiled batch.
  """

  pairs: np.ndarray
  input_rows: np.ndarray
  rows: int
  length: int


@dataclasses.dataclass(frozen=True)
class Pool:
  """Inputs that are encoded together, once, and the batches of their targets.

  Attributes:
    inputs: Indices into the planned inputs, int [n]; n <= rows.
    rows: Rows of the compiled batch.
    length: Tokens per row of the compiled batch.
    batches: The batches of all pairs of these inputs.
  """

  inputs: np.ndarray
  rows: int
  length: int
  batches: tuple[Batch, ...]

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...]:
    """The shapes to compile: (rows, length), then each decoder's."""
    decoders = {
      (self.rows, self.length, b.rows, b.length): None for b in self.batches
    }
    return ((self.rows, self.length), *decoders)


def boundaries(max_length: int, steps: int = 2) -> tuple[int, ...]:
  """The lengths that batches may have, ascending; the last is max_length.

  Args:
    max_length: The longest text.
    steps: Lengths per octave, 1, 2 or 4: at most half, a third or a fifth of a
      row is padding. Use 4 if `choose_boundaries` selects among them.
  """
  octaves = range(2, max(3, max_length.bit_length()))
  lengths = [
    step * 2**octave for octave in octaves for step in range(4, 8, 4 // steps)
  ]
  return (*(length for length in lengths if length < max_length), max_length)


def round_up(lengths: np.ndarray | int, bounds: Sequence[int]) -> np.ndarray:
  """Rounds lengths up to ascending bucket boundaries, int [N]."""
  return np.asarray(bounds)[np.searchsorted(bounds, lengths)]


def choose_boundaries(
  weights: Mapping[int, float],
  program_cost: float,
  ready: Collection[int] = (),
) -> tuple[int, ...]:
  """Chooses the boundaries with the least cost of padding and compilation.

  Dynamic programming finds the exact minimum of the sum, over needed
  boundaries, of weight times the boundary used, plus `program_cost` for every
  chosen boundary that is not ready.

  Args:
    weights: For each needed boundary, the cost of one token of all its items.
    program_cost: The cost of one more boundary, in the same unit.
    ready: Boundaries that are compiled already and cost nothing.

  Returns:
    The chosen boundaries, ascending; the last is at least the longest needed.
  """
  longest = max(weights)
  bounds = sorted({*weights, *ready})
  cost_of = [0.0 if b in ready else program_cost for b in bounds]
  # best[j]: minimum cost of all items up to bounds[j] with bounds[j] chosen.
  best: list[float] = []
  before: list[int] = []
  for j, bound in enumerate(bounds):
    options = []
    for i in range(-1, j):
      weight = sum(weights.get(b, 0) for b in bounds[i + 1 : j + 1])
      options.append((best[i] if i >= 0 else 0.0) + weight * bound)
    choice = int(np.argmin(options))
    best.append(options[choice] + cost_of[j])
    before.append(choice - 1)
  ends = [j for j, b in enumerate(bounds) if b >= longest]
  j = min(ends, key=lambda end: best[end])
  chosen = []
  while j >= 0:
    chosen.append(bounds[j])
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

  An input and its targets often have similar lengths; one bucket for both then
  saves programs. A document and its summary do not; separate buckets then save
  padding. Both plans are computed, and the cheaper one is returned.

  Args:
    input_of_pair: The input of each pair, int [P].
    input_lengths: Tokens of each input, int [U], at most max_length.
    target_lengths: Tokens of each pair's target, int [P], at most max_length.
    max_length: The last boundary.
    batch_tokens: Tokens per batch, padding included: rows times the longer of
      input and target.
    costs: The costs to minimise.
    row_multiple: Rows are a multiple of this (the number of replicas).
    ready: Shapes (see `Pool.shapes`) that are compiled already.

  Returns:
    Pools that hold every pair exactly once, longest inputs first.
  """
  if len(input_of_pair) == 0:
    return []
  bounds = boundaries(max_length, steps=4)
  problem = _Problem(
    input_of_pair,
    target_lengths,
    round_up(input_lengths, bounds),
    round_up(target_lengths, bounds),
    batch_tokens,
    costs,
    row_multiple,
    frozenset(ready),
  )
  plans = [problem.solve(shared) for shared in (True, False)]
  return min(plans, key=problem.cost_of)


@dataclasses.dataclass(frozen=True)
class _Problem:
  """The arguments of `plan`, with lengths rounded up to boundaries."""

  input_of_pair: np.ndarray
  target_lengths: np.ndarray
  need_in: np.ndarray
  need_out: np.ndarray
  batch_tokens: int
  costs: Costs
  row_multiple: int
  ready: frozenset[tuple[int, ...]]

  @functools.cached_property
  def pairs_of(self) -> dict[int, np.ndarray]:
    """The pairs of each input."""
    return _group(self.input_of_pair)

  @functools.cached_property
  def targets(self) -> np.ndarray:
    """Number of targets of each input."""
    return np.bincount(self.input_of_pair, minlength=len(self.need_in))

  @functools.cached_property
  def reach(self) -> np.ndarray:
    """Length of the longest target of each input."""
    reach = np.zeros(len(self.need_in), np.int64)
    np.maximum.at(reach, self.input_of_pair, self.need_out)
    return reach

  def rows_for(self, length: int) -> int:
    rows = max(1, self.batch_tokens // length)
    rows = rows_of(len(self.input_of_pair), rows)
    return -(-rows // self.row_multiple) * self.row_multiple

  def cost_of(self, pools: Sequence[Pool]) -> float:
    """The cost of computing the pools and of compiling their shapes."""
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

  def solve(self, shared: bool) -> list[Pool]:
    """Plans one bucket for inputs and their targets, or separate ones."""
    costs = self.costs
    need = np.maximum(self.need_in, self.reach) if shared else self.need_in
    weights = np.full(len(need), costs.encoder_token)
    if shared:
      weights += self.targets * costs.decoder_token
    ready = {
      s[1] for s in self.ready if len(s) == 2 and s[0] == self.rows_for(s[1])
    }
    # A bucket of inputs needs an encoder and at least one decoder.
    chosen = choose_boundaries(
      sums(need, weights), costs.encoder + costs.decoder, ready
    )
    length_of = round_up(need, chosen)
    # Inputs whose targets have similar lengths share a pool.
    left = np.lexsort((-self.reach, -length_of))
    waiting = np.ones(len(left), bool)
    pools: list[Pool] = []
    for length in reversed(chosen):
      count = int(np.sum(length_of[left] == length))
      if count:
        made = self._pools(left[:count], left[count:], length)
        waiting[np.concatenate([pool.inputs for pool in made])] = False
        left = left[waiting[left]]
        pools += made
    return pools

  def _pools(
    self, inputs: np.ndarray, shorter: np.ndarray, length: int
  ) -> list[Pool]:
    """Divides the inputs of one bucket into pools.

    Instead of being computed half empty, the last pool is filled with inputs of
    the next buckets, `shorter`.
    """
    rows = self.rows_for(length)

    def rows_out(target_length: int) -> int:
      return self.rows_for(max(target_length, length))

    inside = np.zeros(len(self.need_in), bool)
    inside[inputs] = True
    needed = self.need_out[inside[self.input_of_pair]]
    ready = {
      s[3]
      for s in self.ready
      if len(s) == 4 and s == (rows, length, rows_out(s[3]), s[3])
    }
    chosen = choose_boundaries(
      sums(needed, np.full(len(needed), self.costs.decoder_token)),
      self.costs.decoder,
      ready,
    )
    shorter = shorter[self.reach[shorter] <= chosen[-1]]
    pools = []
    while len(inputs):
      longest = int(round_up(self.reach[inputs[0]], chosen))
      least = len(inputs) if len(inputs) <= rows else 1
      some = np.concatenate([inputs, shorter])[:rows]
      stop = self._cut(some, rows, length, rows_out(longest), longest, least)
      pairs = [self.pairs_of[int(i)] for i in some[:stop]]
      batches = _batches(pairs, self.target_lengths, chosen, rows_out)
      pools.append(Pool(some[:stop], rows, length, batches))
      inputs = inputs[stop:]
    return pools

  def _cut(
    self,
    inputs: np.ndarray,
    rows: int,
    length: int,
    rows_out: int,
    target_length: int,
    least: int,
  ) -> int:
    """Returns the number of inputs to pool so that their batches are full.

    With 1.1 targets per input, a pool of 80 inputs has 88 targets, of which
    eight would be computed as a batch of 80. Leaving a few rows of the encoder
    empty is cheaper.
    """
    most = len(inputs)
    pairs = np.cumsum(self.targets[inputs])

    def use(count: int) -> float:
      """Needed tokens per unit of cost."""
      batches = -(-int(pairs[count - 1]) // rows_out)
      per_input = self.costs.encoder_token * length
      per_target = self.costs.decoder_token * target_length
      gain = per_input * count + per_target * pairs[count - 1]
      return gain / (per_input * rows + per_target * rows_out * batches)

    full = int(pairs[-1]) // rows_out * rows_out
    fewer = int(np.searchsorted(pairs, full, side='right'))
    return max({max(least, fewer), most}, key=lambda n: (use(n), n))


def _batches(
  pairs_of_row: Sequence[np.ndarray],
  target_lengths: np.ndarray,
  bounds: Sequence[int],
  rows_for: Callable[[int], int],
) -> tuple[Batch, ...]:
  """Batches a pool's pairs, longest first; only the last is not full."""
  pairs = np.concatenate(pairs_of_row)
  input_rows = np.repeat(
    np.arange(len(pairs_of_row)), [len(p) for p in pairs_of_row]
  )
  order = np.argsort(-target_lengths[pairs], kind='stable')
  pairs, input_rows = pairs[order], input_rows[order]
  batches = []
  start = 0
  while start < len(pairs):
    length = int(round_up(target_lengths[pairs[start]], bounds))
    rows = rows_for(length)
    inside = slice(start, start + rows)
    batches.append(Batch(pairs[inside], input_rows[inside], rows, length))
    start += rows
  return tuple(batches)


def sums(keys: np.ndarray, values: np.ndarray) -> dict[int, float]:
  """Sums values, [N], by key, int [N]."""
  unique, places = np.unique(keys, return_inverse=True)
  sums = np.bincount(places, values)
  return {int(k): float(v) for k, v in zip(unique, sums, strict=True)}


def _group(keys: np.ndarray) -> dict[int, np.ndarray]:
  """The indices of each key."""
  order = np.argsort(keys, kind='stable')
  unique, starts = np.unique(keys[order], return_index=True)
  parts = np.split(order, starts[1:])
  return {int(k): part for k, part in zip(unique, parts, strict=True)}
