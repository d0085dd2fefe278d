"""Utilities for chrF and BLEU that count the n-grams of each text once.

The matches of a pair are the sum over n-grams g of min(c_h(g), c_r(g)). This
equals the sum over t >= 1 of the number of g with c_h(g) >= t and c_r(g) >= t,
which takes a few matrix products for all pairs of a group. sacrebleu computes
scores from the same counts. For averaged references c_r is the mean of the
references' counts (DeNero et al. 2009; Vamvas and Sennrich 2024).

Not a metric by itself (hence the underscore).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from t5score_jax.metrics import _utilities

#: Splits a text into sequences, each with the order of its longest n-grams.
Split = Callable[[str], Sequence[tuple[Sequence[Hashable], int]]]


@dataclasses.dataclass(frozen=True)
class Counts:
  """Counts of each n-gram of one order in each of T texts.

  Attributes:
    text: The text of each entry, int [E].
    gram: The n-gram of each entry, int [E], from 0 to `size` - 1.
    count: How often it occurs in the text, at least 1, int [E].
    size: Number of distinct n-grams.
    totals: Number of n-grams of each text, float64 [T].
  """

  text: np.ndarray
  gram: np.ndarray
  count: np.ndarray
  size: int
  totals: np.ndarray

  def matches(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The matches of texts int [a] with texts int [b], float64 [a, b]."""
    found = np.zeros((len(rows), len(columns)))
    symmetric = np.array_equal(rows, columns)
    # An n-gram that occurs in one text only matches only that text itself.
    shared = np.bincount(self.gram, minlength=self.size) > 1
    chosen = shared[self.gram]
    text, gram, count = (
      part[chosen] for part in (self.text, self.gram, self.count)
    )
    while len(text):
      kinds, column = np.unique(gram, return_inverse=True)
      # Whole numbers below 2^24 are exact in float32.
      present = np.zeros((len(self.totals), len(kinds)), np.float32)
      present[text, column] = 1
      left = present[rows]
      # A matrix times its own transpose takes half the time.
      right = left if symmetric else present[columns]
      found += left @ right.T
      chosen = count > 1
      text, gram, count = text[chosen], gram[chosen], count[chosen] - 1
    same = rows[:, None] == columns
    return np.where(same, self.totals[columns], found)

  def mean_matches(self, weights: np.ndarray) -> np.ndarray:
    """Statistics of all texts against a weighted mean of texts, [T, 3].

    Args:
      weights: The weight of each text in the mean, [T], summing to 1.

    Returns:
      Hypothesis n-grams, reference n-grams and matches, as sacrebleu counts.
    """
    mean = np.bincount(self.gram, self.count * weights[self.text], self.size)
    common = np.minimum(self.count, mean[self.gram])
    found = np.bincount(self.text, common, len(self.totals))
    total = np.full(len(found), mean.sum())
    return np.stack([self.totals, total, found], axis=-1)


def count(
  sequences: Sequence[Sequence[Hashable]], highest: int
) -> list[Counts]:
  """Counts the n-grams of T sequences, for orders 1 to `highest`."""
  numbers: dict[Hashable, int] = {}
  lengths = np.array([len(sequence) for sequence in sequences], np.int64)
  ids = np.array(
    [
      numbers.setdefault(item, len(numbers))
      for sequence in sequences
      for item in sequence
    ],
    np.int64,
  )
  text = np.repeat(np.arange(len(sequences)), lengths)
  # Items from this one to the end of the same text.
  left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))
  start = np.arange(len(ids))
  gram = ids
  found = []
  for order in range(1, highest + 1):
    if order > 1:
      keep = left[start] >= order
      start = start[keep]
      # An n-gram is an (n-1)-gram and one more item.
      joined = gram[keep] * max(1, len(numbers)) + ids[start + order - 1]
      _, gram = np.unique(joined, return_inverse=True)
    found.append(_counts(text[start], gram, len(sequences)))
  return found


def _counts(text: np.ndarray, gram: np.ndarray, texts: int) -> Counts:
  size = int(gram.max()) + 1 if len(gram) else 0
  entries, counts = np.unique(text * max(1, size) + gram, return_counts=True)
  owner, kind = np.divmod(entries, max(1, size))
  totals = np.bincount(text, minlength=texts).astype(np.float64)
  return Counts(owner, kind, counts, size, totals)


class Utilities(_utilities.Utilities):
  """Utilities for a metric that scores n-gram counts.

  Args:
    metric: The metric.
    groups: The groups.
    split: Splits a text.
    score: Computes scores from statistics [..., orders, 3]: n-grams of the
      hypothesis, of the reference, and matches.
    averages: Whether the metric is defined for averaged counts.
  """

  def __init__(
    self,
    metric: Any,
    groups: Sequence[_utilities.Group],
    split: Split,
    score: Callable[[np.ndarray], np.ndarray],
    averages: bool,
  ):
    super().__init__(metric, groups)
    self._split = split
    self._score_counts = score
    self._averages = averages

  def matrices(
    self, rows: _utilities.Indices, columns: _utilities.Indices
  ) -> list[np.ndarray]:
    """See `_utilities.Utilities.matrices`."""
    found = []
    for n, (row, column) in enumerate(zip(rows, columns, strict=True)):
      shape = len(row), len(column)
      found.append(
        self._matrix(n, row, column) if row.size else np.zeros(shape)
      )
    return found

  def _matrix(self, n: int, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    group = self.groups[n]
    texts = _texts(group)
    counts = self._counts(texts)
    hypotheses = np.array([texts[group.candidates[i]] for i in row])
    references = np.array([texts[group.references[j]] for j in column])
    stats = np.empty((len(row), len(column), len(counts), 3))
    for order, one in enumerate(counts):
      stats[:, :, order, 0] = one.totals[hypotheses, None]
      stats[:, :, order, 1] = one.totals[references]
      stats[:, :, order, 2] = one.matches(hypotheses, references)
    return self._score_counts(stats)

  def aggregated(
    self, rows: _utilities.Indices, weights: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """See `_utilities.Utilities.aggregated`."""
    if not self._averages:
      return super().aggregated(rows, weights)
    found = []
    for group, row, weight in zip(self.groups, rows, weights, strict=True):
      texts = _texts(group)
      shares = np.zeros(len(texts))
      for reference, share in zip(group.references, weight, strict=True):
        shares[texts[reference]] += share
      counts = self._counts(texts)
      # [T, orders, 3]
      stats = np.stack([one.mean_matches(shares) for one in counts], axis=1)
      own = [texts[group.candidates[i]] for i in row]
      found.append(self._score_counts(stats[own]))
    return found

  def _counts(self, texts: dict[str, int]) -> list[Counts]:
    split = [self._split(text) for text in texts]
    return [
      one
      for part, (_, highest) in enumerate(split[0])
      for one in count([sequences[part][0] for sequences in split], highest)
    ]


def _texts(group: _utilities.Group) -> dict[str, int]:
  """The distinct texts of a group, with their indices."""
  every = dict.fromkeys([*group.candidates, *group.references])
  return {text: n for n, text in enumerate(every)}
