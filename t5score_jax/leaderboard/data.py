"""A board's numbers in memory: one array [generators, examples] per metric.

Decides which references are used and which human texts are references
themselves. Statistics of these arrays are in `ranking.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from t5score_jax.leaderboard import changes, ensemble
from t5score_jax.leaderboard.entries import GIVEN, BoardError, Generator, Metric
from t5score_jax.leaderboard.store import Store

#: How a metric combines several references (M.3): its own way, or the maximum
#: or mean of its scores with single references.
SEVERAL = ('own', 'max', 'mean')


@dataclasses.dataclass(frozen=True)
class Data:
  """I generators, J metrics, K examples.

  Attributes:
    generators: The I generators.
    metrics: The J metrics.
    scores: Metric -> float64 [I, K]; NaN if missing. Higher is better.
    human: Ratings, float64 [I, K]; NaN if missing.
    is_reference: Whether a generator's texts are among the references, [I];
      its scores are then meaningless.
    reference_set: The references.
    several: How several references were combined.
  """

  generators: list[Generator]
  metrics: list[Metric]
  scores: dict[str, np.ndarray]
  human: np.ndarray
  is_reference: np.ndarray
  reference_set: str
  several: str = 'own'

  def comparable(self) -> np.ndarray:
    """Ratings of the generators that are not references; NaN elsewhere."""
    return np.where(self.is_reference[:, None], np.nan, self.human)

  def candidates(self) -> list[str]:
    """The metrics an ensemble may combine: scores of all rated outputs."""
    rated = ~np.isnan(self.comparable())
    return [
      m.name
      for m in self.metrics
      if m.kind != 'ensemble'
      and rated.any()
      and not np.isnan(self.scores[m.name][rated]).any()
      and ensemble.varies(self.scores[m.name][rated])
    ]


def load(
  store: Store,
  reference_set: str | None = None,
  several: str = 'own',
  human: str | None = None,
) -> Data:
  """Reads a board's numbers.

  Args:
    store: The board.
    reference_set: Labels joined by '+'; None for the board's own.
    several: One of `SEVERAL`.
    human: Name of the ratings; None for the board's default.

  Returns:
    The data. A metric without scores for these references (it uses none, or
    its scores were imported) has the scores that exist.

  Raises:
    BoardError: The references or ratings do not exist.
  """
  if several not in SEVERAL:
    raise BoardError(f'several must be one of {SEVERAL}, not {several!r}')
  board = store.board()
  reference_set = reference_set or board.reference_set
  changes.check_reference_set(store, reference_set)
  if human is not None:
    changes.check_known(human, store.rating_names(), 'ratings')
  generators, metrics = store.generators(), store.metrics()
  return Data(
    generators,
    metrics,
    {m.name: metric_scores(store, m, reference_set, several) for m in metrics},
    stacked(store, store.ratings(human or board.human or '')),
    _references(store, generators, reference_set),
    reference_set,
    several,
  )


def metric_scores(
  store: Store, metric: Metric, reference_set: str, several: str = 'own'
) -> np.ndarray:
  """Scores of one metric, [I, K]; see `load` for the references used."""
  labels = reference_set.split('+')
  if several != 'own' and len(labels) > 1:
    columns = np.stack(
      [stacked(store, store.scores(metric.id, label)) for label in labels]
    )
    if not np.isnan(columns).all():
      return combine(columns, several)
  scores = stacked(store, store.scores(metric.id, reference_set))
  if np.isnan(scores).all():
    return stacked(store, store.scores(metric.id, GIVEN))
  return scores


def combine(scores: np.ndarray, several: str) -> np.ndarray:
  """The maximum ('max') or the mean over the first axis, references (M.3)."""
  return scores.max(axis=0) if several == 'max' else scores.mean(axis=0)


def stacked(
  store: Store, columns: Iterable[tuple[int, np.ndarray]]
) -> np.ndarray:
  """Columns by generator as [I, K]; NaN where there is none."""
  rows = store.rows('SELECT id FROM generator ORDER BY id')
  index = {key: n for n, (key,) in enumerate(rows)}
  values = np.full((len(index), store.size()), np.nan)
  for key, column in columns:
    values[index[key]] = column
  return values


def _references(
  store: Store, generators: Sequence[Generator], reference_set: str
) -> np.ndarray:
  """Which generators' texts are among the references, [I]."""
  copied = np.zeros(len(generators), dtype=bool)
  if reference_set == GIVEN:
    return copied
  references = store.references()
  for n, generator in enumerate(generators):
    if generator.human and generator.has_outputs:
      outputs = store.outputs(generator.id) or []
      for label in reference_set.split('+'):
        pairs = zip(outputs, references[label], strict=True)
        copied[n] |= 2 * sum(a == b for a, b in pairs) > len(outputs)
  return copied


def reference_sets(store: Store) -> list[str]:
  """The reference sets that reference-based metrics are run with.

  These are all references together, each reference alone (for the maximum or
  mean over references and the effect of their number), and those of roles.
  """
  labels = list(store.references())
  if not labels:
    return []
  roles = [references for _, references in store.roles().values()]
  return list(dict.fromkeys([store.board().reference_set, *labels, *roles]))


def subsets(
  labels: Sequence[str], size: int, most: int = 20
) -> list[tuple[str, ...]]:
  """Subsets of one size; at most `most`, evenly spread."""
  every = list(itertools.combinations(labels, size))
  if len(every) <= most:
    return every
  at = np.linspace(0, len(every) - 1, most).round().astype(int)
  return [every[i] for i in at]
