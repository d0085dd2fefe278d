"""Batches that are full of tokens, for encoders that compute little padding.

Plans what `nn/ragged.py` computes: which texts make a batch, and its room. If
padding is computed, batches are those of `buckets.py`. NumPy only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from t5score_jax.inference import buckets

# With padding, `fill` makes a batch at most this many times as large as its
# room; starting a batch costs as much as some tokens.
_MOST_PADDING = 3
_BATCH_COST = 64


@dataclasses.dataclass(frozen=True)
class Filled:
  """Texts whose padding is computed only in attention (`nn/ragged.py`).

  Attributes:
    texts: Indices of the texts, int [n]; n <= rows.
    shape: (rows, length, room) of the compiled batch; its texts have at most
      `room` tokens in total.
  """

  texts: np.ndarray
  shape: tuple[int, int, int]


def fill(
  lengths: np.ndarray,
  *,
  max_length: int,
  batch_tokens: int,
  token_cost: float,
  attention_cost: float,
  program_cost: float,
  ready: Collection[tuple[int, int, int]] = (),
) -> list[Filled]:
  """Arranges texts in batches that are full of tokens, the longest first.

  Length costs little here, so few boundaries are worth compiling. The texts of
  a boundary are dealt to its batches like cards. All batches then have about
  the same number of tokens, which is their room.

  Args:
    lengths: Tokens of each text, int [N], at most max_length.
    max_length: The last boundary.
    batch_tokens: Tokens of a full batch, padding excluded; more if a single
      text is longer. With padding, a batch has at most three times as many.
    token_cost: The cost of one token of room.
    attention_cost: The cost of one pair of positions in a row.
    program_cost: The cost of compiling for one more shape, in the same unit.
    ready: Shapes that are compiled already.
  """
  if not len(lengths):
    return []
  few = len(lengths) <= buckets.SMALL_ROWS
  needed = buckets.round_up(
    lengths, buckets.boundaries(max_length, 1 if few else 2)
  )
  chosen = buckets.choose_boundaries(
    buckets.sums(needed, 2 * attention_cost * needed),
    program_cost,
    {s[1] for s in ready},
  )
  length_of = buckets.round_up(lengths, chosen)
  most = max(batch_tokens, int(length_of.max()))
  sizes = (*buckets.boundaries(most // 2, 1 if few else 2), *_eighths(most))
  order = np.argsort(-lengths, kind='stable')
  known = dict.fromkeys(ready)
  batches: list[Filled] = []
  for length in reversed(chosen):
    texts = order[length_of[order] == length]
    if not len(texts):
      continue
    rows = _MOST_PADDING * most // length
    options = [
      _Dealt.least(lengths, texts, shape)
      for shape in known
      if shape[1] >= length and shape[2] >= lengths[texts[0]]
    ]
    options += _new_shapes(lengths, texts, (rows, length, most), sizes)

    def cost_of(option: _Dealt) -> float:
      rows, length, room = option.shape
      each = token_cost * (room + _BATCH_COST)
      each += attention_cost * rows * length**2
      new = option.shape not in known
      return len(option.parts) * each + program_cost * new

    best = min(options, key=cost_of)
    known[best.shape] = None
    batches += [Filled(part, best.shape) for part in best.parts]
  return batches


@dataclasses.dataclass(frozen=True)
class _Dealt:
  """Texts in batches of one shape; `loads` are the tokens of each batch."""

  parts: list[np.ndarray]
  loads: np.ndarray
  shape: tuple[int, int, int]

  @classmethod
  def least(
    cls,
    lengths: np.ndarray,
    texts: np.ndarray,
    shape: tuple[int, int, int],
    count: int = 1,
  ) -> _Dealt:
    """As few batches as the shape allows, at least `count`."""
    rows, _, room = shape
    total = int(lengths[texts].sum())
    count = max(count, -(-len(texts) // rows), -(-total // room))
    while True:
      turn, place = np.divmod(np.arange(len(texts)), count)
      # Every other turn goes the other way round, or the first batch would
      # have the longest text of all turns.
      place = np.where(turn % 2, count - 1 - place, place)
      loads = np.bincount(place, lengths[texts])
      if loads.max() <= room:
        return cls([texts[place == n] for n in range(count)], loads, shape)
      count += 1


def _new_shapes(
  lengths: np.ndarray,
  texts: np.ndarray,
  most: tuple[int, int, int],
  sizes: Sequence[int],
) -> list[_Dealt]:
  """Shapes no larger than `most`, for the fewest batches and one more."""
  first = _Dealt.least(lengths, texts, most)
  second = _Dealt.least(lengths, texts, most, len(first.parts) + 1)
  options = []
  for dealt in (first, second):
    rows = max(min(buckets.SMALL_ROWS, most[0]), *map(len, dealt.parts))
    # Steps of an eighth to a fifth, so that other texts find them ready.
    rows = (
      int(buckets.round_up(4 * rows, buckets.boundaries(4 * most[0], 4))) // 4
    )
    room = min(int(buckets.round_up(dealt.loads.max(), sizes)), rows * most[1])
    options.append(dataclasses.replace(dealt, shape=(rows, most[1], room)))
  return options


def _eighths(most: int) -> tuple[int, ...]:
  """The rooms of more than half of the most tokens."""
  return tuple(sorted({most * k // 8 for k in (5, 6, 7, 8)}))
