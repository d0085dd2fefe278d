"""Utilities of many text pairs, for minimum Bayes risk decoding.

A group holds a segment's candidates and pseudo-references. The utility of a
pair is the metric's score of the candidate against that one reference. A metric
that can prepare each text once, or average references, has its own subclass of
`Utilities`.

Not a metric by itself (hence the underscore); decoding is in `mbr/`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError

# Maximum pairs scored in one call, unless a single group has more.
_PAIRS = 1 << 16

#: For each group, rows or columns of its matrix, int [n].
Indices = Sequence[np.ndarray]


class Metric(Protocol):
  """The part of `base.Metric` that utilities need."""

  name: str

  def score_segments(self, segments: Sequence[Segment]) -> Any:
    """See `base.Metric.score_segments`."""


@dataclasses.dataclass(frozen=True)
class Group:
  """One segment's texts.

  Attributes:
    candidates: The A candidate texts.
    references: The B pseudo-references.
    source: The source text, for metrics that read it.
    name: The segment's id, for errors.
  """

  candidates: tuple[str, ...]
  references: tuple[str, ...]
  source: str | None = None
  name: str | None = None


class Utilities:
  """Utilities of pairs within groups; this class scores pair by pair.

  Attributes:
    cut: Number of texts so far that exceeded the metric's maximum length; a
      text in several groups may count several times.
  """

  def __init__(self, metric: Metric, groups: Sequence[Group]):
    """Takes the groups of one shard.

    Args:
      metric: The metric.
      groups: The groups.
    """
    self.metric = metric
    self.groups = groups
    self.cut = 0

  def matrices(self, rows: Indices, columns: Indices) -> list[np.ndarray]:
    """Scores candidates against references.

    Args:
      rows: For each group the candidates, int [a].
      columns: For each group the references, int [b].

    Returns:
      For each group the utilities, float64 [a, b].
    """
    sizes = [len(a) * len(b) for a, b in zip(rows, columns, strict=True)]
    found: list[np.ndarray] = []
    start = 0
    while start < len(sizes):
      end, total = start + 1, sizes[start]
      while end < len(sizes) and total + sizes[end] <= _PAIRS:
        total += sizes[end]
        end += 1
      chosen = range(start, end)
      found += self._score([(n, rows[n], columns[n]) for n in chosen])
      start = end
    return found

  def aggregated(
    self, rows: Indices, weights: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Scores candidates against the weighted mean of all references.

    Args:
      rows: For each group the candidates, int [a].
      weights: For each group the references' weights, [B], sum 1.

    Returns:
      For each group the utilities, float64 [a].

    Raises:
      OptionError: The metric cannot average references.
    """
    raise OptionError(
      f'{self.metric.name} cannot average references: use another method than '
      'aggregate'
    )

  def _score(
    self, wanted: Sequence[tuple[int, np.ndarray, np.ndarray]]
  ) -> list[np.ndarray]:
    segments = []
    for number, rows, columns in wanted:
      group = self.groups[number]
      segments += [
        Segment(
          group.candidates[row],
          source=group.source,
          references=(group.references[column],),
          segment=group.name,
        )
        for row, column in itertools.product(rows, columns)
      ]
    if not segments:
      return [
        np.zeros((len(rows), len(columns))) for _, rows, columns in wanted
      ]
    scores = self.metric.score_segments(segments)
    self.cut += scores.truncated
    ends = np.cumsum([len(rows) * len(columns) for _, rows, columns in wanted])
    parts = np.split(np.asarray(scores.values, np.float64), ends[:-1])
    return [
      part.reshape(len(rows), len(columns))
      for part, (_, rows, columns) in zip(parts, wanted, strict=True)
    ]
