"""Separate batches of inputs and of targets, for one CPU.

Encoder states of many inputs are held in memory, and a batch of targets takes
the rows that it needs. Inputs and targets are sorted by length independently,
so most batches are full. Pools (`inference/buckets.py`) cannot do this, because
their states are one array on the devices. Not here: models, devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from t5score_jax.inference import buckets, placement

# Tokens of inputs whose states are held at a time, in batches.
_HELD = 64

# Results that wait while the next batches are prepared.
_IN_FLIGHT = 2


@dataclasses.dataclass(frozen=True)
class Encode:
  """Inputs, int [n], that are encoded together as [rows, length]; n <= rows."""

  inputs: np.ndarray
  rows: int
  length: int

  @property
  def shape(self) -> tuple[int, ...]:
    """What is compiled."""
    return self.rows, self.length


@dataclasses.dataclass(frozen=True)
class Decode:
  """Pairs, int [n], whose targets are decoded together; n <= rows.

  The states of their inputs are [rows, input_length], one row per pair.
  """

  pairs: np.ndarray
  rows: int
  input_length: int
  length: int

  @property
  def shape(self) -> tuple[int, ...]:
    """What is compiled."""
    return self.rows, self.input_length, self.rows, self.length


@dataclasses.dataclass(frozen=True)
class Part:
  """Inputs whose states are held at a time, and all their targets."""

  encodes: tuple[Encode, ...]
  decodes: tuple[Decode, ...]

  @property
  def shapes(self) -> list[tuple[int, ...]]:
    """What is compiled, in the order of its use."""
    encodes = [batch.shape for batch in self.encodes]
    return encodes + [batch.shape for batch in self.decodes]


def plan(
  input_of_pair: np.ndarray,
  input_lengths: np.ndarray,
  target_lengths: np.ndarray,
  *,
  max_length: int,
  batch_tokens: int,
  costs: buckets.Costs,
  ready: Collection[tuple[int, ...]] = (),
) -> list[Part]:
  """Arranges inputs and targets into batches; see `buckets.plan`.

  Args:
    input_of_pair: The input of each pair, int [P].
    input_lengths: Tokens of each input, int [U], at most max_length.
    target_lengths: Tokens of each pair's target, int [P], at most max_length.
    max_length: The last boundary.
    batch_tokens: Tokens per batch, padding included.
    costs: The costs to minimise.
    ready: Shapes that are compiled already.

  Returns:
    Parts that hold every input and every pair exactly once, longest first.
  """
  if len(input_of_pair) == 0:
    return []
  most = len(input_of_pair)
  few = (
    buckets.SMALL_ROWS if most <= buckets.SMALL_ROWS else most + batch_tokens
  )

  def rows_for(length: int) -> int:
    return min(few, max(1, batch_tokens // length))

  def chosen(lengths: np.ndarray, token: float, side: int) -> np.ndarray:
    """The boundaries of some texts, rounded up to those worth compiling."""
    needed = buckets.round_up(lengths, buckets.boundaries(max_length, steps=4))
    unique, counts = np.unique(needed, return_counts=True)
    weights = dict(zip(unique.tolist(), (token * counts).tolist(), strict=True))
    compiled = {shape[side] for shape in ready if len(shape) == side + 1}
    cost = costs.encoder if side == 1 else costs.decoder
    return buckets.round_up(
      lengths, buckets.choose_boundaries(weights, cost, compiled)
    )

  encoded = chosen(input_lengths, costs.encoder_token, 1)
  decoded = chosen(target_lengths, costs.decoder_token, 3)
  # Decoders are compiled for few lengths of inputs, which cost little there.
  octaves = buckets.boundaries(max_length, steps=1)
  order = np.argsort(-input_lengths, kind='stable')
  held = np.cumsum(input_lengths[order]) // (_HELD * batch_tokens)
  part_of = np.empty(len(order), np.int64)
  part_of[order] = held
  parts = []
  for part in np.unique(held):
    inputs = order[held == part]
    encodes = []
    while len(inputs):
      length = int(encoded[inputs[0]])
      rows = rows_for(length)
      encodes.append(Encode(inputs[:rows], rows, length))
      inputs = inputs[rows:]
    pairs = np.flatnonzero(part_of[input_of_pair] == part)
    given = input_lengths[input_of_pair[pairs]]
    pairs = pairs[np.lexsort((-given, -decoded[pairs]))]
    decodes = []
    while len(pairs):
      length = int(decoded[pairs[0]])
      longest = input_lengths[input_of_pair[pairs[: rows_for(length)]]].max()
      input_length = int(buckets.round_up(longest, octaves))
      rows = rows_for(max(length, input_length))
      decodes.append(Decode(pairs[:rows], rows, input_length, length))
      pairs = pairs[rows:]
    parts.append(Part(tuple(encodes), tuple(decodes)))
  return parts


def states(
  parts: Sequence[Part],
  inputs: Sequence[np.ndarray],
  targets: Sequence[np.ndarray],
  input_of_pair: np.ndarray,
  encode: Callable[[np.ndarray], Any],
  decode: Callable[..., Any],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Computes the hidden states before each target token.

  Args:
    parts: From `plan`.
    inputs: Ids of each input.
    targets: Ids of each pair's target.
    input_of_pair: The input of each pair, int [P].
    encode: Computes states [rows, length, width] from ids int32 [rows, length].
    decode: Computes target states [rows, length, width] from input states
      [rows, input_length, width], the inputs' ids, each target's input row,
      int32 [rows], and the targets' ids.

  Yields:
    Pairs, int [n], and their states [n, length, width].
  """

  def encodings(part: Part) -> Iterator[tuple[np.ndarray, Any]]:
    for batch in part.encodes:
      ids = [inputs[i] for i in batch.inputs]
      yield batch.inputs, encode(placement.padded(ids, *batch.shape))

  def decodings(
    part: Part, held: dict[int, np.ndarray]
  ) -> Iterator[tuple[np.ndarray, Any]]:
    for batch in part.decodes:
      used = input_of_pair[batch.pairs].tolist()
      row = held[used[0]]
      shape = (batch.rows, batch.input_length)
      encoded = np.zeros((*shape, row.shape[-1]), row.dtype)
      for n, i in enumerate(used):
        encoded[n, : len(held[i])] = held[i]
      ids = [targets[pair] for pair in batch.pairs]
      yield (
        batch.pairs,
        decode(
          encoded,
          placement.padded([inputs[i] for i in used], *shape),
          np.arange(batch.rows, dtype=np.int32),
          placement.padded(ids, batch.rows, batch.length),
        ),
      )

  for part in parts:
    held = {}
    for chosen, result in placement.fetched(encodings(part), _IN_FLIGHT):
      for i, row in zip(chosen.tolist(), result, strict=True):
        held[i] = row[: len(inputs[i])]
    yield from placement.fetched(decodings(part, held), _IN_FLIGHT)
