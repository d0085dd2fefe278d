"""Multiplies target tokens of several batches by the vocabulary together.

The product with a large vocabulary is most of the work of scoring. On a CPU it
is a separate program: the hidden states of target tokens, without padding, are
copied into chunks of few sizes, across batches. Which tokens form a chunk
depends only on the plan, not on the order in which batches are computed. Not
here: networks, devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

_LEAST = 64


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Targets whose tokens are computed together.

  Attributes:
    pairs: Their pairs, int [n].
    size: Number of tokens of the compiled program; at least that of the pairs.
  """

  pairs: np.ndarray
  size: int


def plan(
  pairs: np.ndarray,
  lengths: np.ndarray,
  *,
  most: int,
  token_cost: float,
  program_cost: float,
  ready: Collection[int] = (),
) -> list[Chunk]:
  """Divides targets into chunks, in order, without splitting a target.

  Args:
    pairs: The pairs, int [n].
    lengths: Tokens of each pair's target, int [P].
    most: Tokens of a full chunk; more if a single target is longer.
    token_cost: The cost of one token.
    program_cost: The cost of compiling for one more size, in the same unit.
    ready: Sizes that are compiled already.
  """
  lengths = lengths[pairs]
  most = max(most, int(lengths.max(initial=0)))
  groups: list[list[int]] = []
  room = 0
  for row, length in enumerate(lengths.tolist()):
    if length > room:
      groups.append([])
      room = most
    groups[-1].append(row)
    room -= length
  chunks = [Chunk(pairs[rows], most) for rows in groups]
  if chunks:
    # Only the last one may have far fewer tokens.
    compiled = {*ready, *([most] if groups[1:] else [])}
    tokens = int(lengths[groups[-1]].sum())
    sizes = {min(most, max(_LEAST, 1 << (tokens - 1).bit_length()))}
    sizes |= {size for size in compiled if size >= tokens}

    def cost(size: int) -> float:
      return token_cost * size + program_cost * (size not in compiled)

    chunks[-1] = Chunk(pairs[groups[-1]], min(sorted(sizes), key=cost))
  return chunks


def packed(
  batches: Iterable[tuple[np.ndarray, np.ndarray]],
  chunks: Sequence[Chunk],
  targets: Sequence[np.ndarray],
  compute: Callable[[np.ndarray, np.ndarray], Any],
) -> Iterator[tuple[np.ndarray, Any]]:
  """Computes each chunk as soon as the states of its targets are available.

  Args:
    batches: Yields pairs, int [n], and hidden states [n, length, width], in
      any order.
    chunks: Hold every pair once.
    targets: Ids of each pair's target.
    compute: Computes the result, a row per token, from hidden states [size,
      width] and ids int32 [size], 0 at the end of a chunk that is not full.

  Yields:
    The pair of each token of a chunk, int [tokens], and its result.
  """
  chunk_of = {
    int(pair): chunk for chunk in chunks for pair in chunk.pairs.tolist()
  }
  waiting = {id(chunk): len(chunk.pairs) for chunk in chunks}
  states: dict[int, np.ndarray] = {}
  for pairs, hidden in batches:
    for pair, row in zip(pairs.tolist(), hidden, strict=True):
      states[pair] = row[: len(targets[pair])]
      chunk = chunk_of[pair]
      waiting[id(chunk)] -= 1
      if waiting[id(chunk)]:
        continue
      rows = [states.pop(pair) for pair in chunk.pairs.tolist()]
      tokens = sum(map(len, rows))
      joined = np.zeros((chunk.size, row.shape[-1]), row.dtype)
      np.concatenate(rows, out=joined[:tokens])
      ids = np.zeros(chunk.size, np.int32)
      np.concatenate([targets[p] for p in chunk.pairs], out=ids[:tokens])
      of_token = np.repeat(chunk.pairs, list(map(len, rows)))
      yield of_token, compute(joined, ids)


def by_pair(
  of_token: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Arranges token values by pair.

  Args:
    of_token: The pair of each token, int [tokens]; a pair's are adjacent.
    values: Float [tokens].

  Returns:
    The pairs, int [n], and float [n, longest], 0 on padding.
  """
  starts = np.flatnonzero(np.diff(of_token, prepend=-1))
  lengths = np.diff(starts, append=len(of_token))
  rows = np.zeros((len(starts), lengths.max()), values.dtype)
  rows[np.arange(rows.shape[1]) < lengths[:, None]] = values
  return of_token[starts], rows
