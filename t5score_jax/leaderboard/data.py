"""A board's numbers in memory: generators by examples, one array a metric.

For the analyses, which take arrays. Decides which references count, and which
human texts may stand beside machines'. Not here: statistics (`ranking`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from t5score_jax.leaderboard import changes, ensemble
from t5score_jax.leaderboard.entries import GIVEN, BoardError, Generator, Metric
from t5score_jax.leaderboard.store import Store

#: How several references make one score (M.3): the metric's own way where it
#: has one, the greatest or the mean of scores with one reference each.
SEVERAL = ('own', 'max', 'mean')


@dataclasses.dataclass(frozen=True)
class Data:
  """I generators, J metrics, K examples.

  Attributes:
    generators: The I generators.
    metrics: The J metrics.
    scores: Metric -> float64 [I, K]; NaN where there is none. Higher is better.
    human: Ratings, float64 [I, K]; NaN where there is none.
    is_reference: Whether a generator's texts are among the references that the
      scores were computed with: then its scores say nothing, [I].
    reference_set: The references.
    several: How several references made one score.
  """

  generators: list[Generator]
  metrics: list[Metric]
  scores: dict[str, np.ndarray]
  human: np.ndarray
  is_reference: np.ndarray
  reference_set: str
  several: str = 'own'

  def comparable(self) -> np.ndarray:
    """Ratings of the generators that are no references; NaN elsewhere."""
    return np.where(self.is_reference[:, None], np.nan, self.human)

  def candidates(self) -> list[str]:
    """The metrics that an ensemble may combine: scored wherever rated."""
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
    human: Which ratings; None for those that count.

  Returns:
    The data. A metric that has no scores with these references (it needs
    none, or its scores came as a table) stands with those it has.

  Raises:
    BoardError: There are no such references or ratings.
  """
  if several not in SEVERAL:
    raise BoardError(f'several must be one of {SEVERAL}, not {several!r}')
  board = store.board()
  reference_set = reference_set or board.reference_set
  changes.check_reference_set(store, reference_set)
  generators, metrics = store.generators(), store.metrics()
  place = {g.id: n for n, g in enumerate(generators)}
  shape = (len(generators), store.size())
  ratings = np.full(shape, np.nan)
  name = human or board.human
  if human is not None and human not in store.rating_names():
    raise BoardError(
      f'no ratings {human!r}; there are: '
      + (', '.join(store.rating_names()) or 'none')
    )
  for key, values in store.ratings(name) if name else ():
    ratings[place[key]] = values
  scores = {
    m.name: metric_scores(store, m, reference_set, several, place, shape)
    for m in metrics
  }
  return Data(
    generators,
    metrics,
    scores,
    ratings,
    _references(store, generators, reference_set),
    reference_set,
    several,
  )


def metric_scores(
  store: Store,
  metric: Metric,
  reference_set: str,
  several: str,
  place: dict[int, int],
  shape: tuple[int, int],
) -> np.ndarray:
  """One metric's scores, [I, K]; `load` says with which references."""
  labels = [] if reference_set == GIVEN else reference_set.split('+')
  if several != 'own' and len(labels) > 1:
    columns = [_column(store, metric, x, place, shape) for x in labels]
    if not all(np.isnan(c).all() for c in columns):
      together = np.stack(columns)
      return together.max(axis=0) if several == 'max' else together.mean(axis=0)
  found = _column(store, metric, reference_set, place, shape)
  if np.isnan(found).all() and reference_set != GIVEN:
    return _column(store, metric, GIVEN, place, shape)
  return found


def _column(
  store: Store,
  metric: Metric,
  reference_set: str,
  place: dict[int, int],
  shape: tuple[int, int],
) -> np.ndarray:
  values = np.full(shape, np.nan)
  for generator, column in store.scores(metric.id, reference_set):
    values[place[generator]] = column
  return values


def _references(
  store: Store, generators: Sequence[Generator], reference_set: str
) -> np.ndarray:
  """Which generators' texts stand among the references."""
  found = np.zeros(len(generators), dtype=bool)
  people = [n for n, g in enumerate(generators) if g.human and g.has_outputs]
  if not people or reference_set == GIVEN:
    return found
  references = store.references()
  for n in people:
    outputs = store.outputs(generators[n].id) or []
    for label in reference_set.split('+'):
      same = sum(
        a == b for a, b in zip(outputs, references[label], strict=True)
      )
      found[n] |= 2 * same > len(outputs)
  return found


def reference_sets(store: Store) -> list[str]:
  """The sets that reference-based metrics are run with.

  All references together, each alone (for the greatest or the mean over
  references, and for the effect of their number), and those of human roles.
  """
  board = store.board()
  labels = list(store.references())
  if not labels:
    return []
  sets = [board.reference_set, *labels]
  sets += [found for _, found in store.roles().values()]
  return list(dict.fromkeys(sets))


def subsets(
  labels: Sequence[str], size: int, most: int = 20
) -> list[tuple[str, ...]]:
  """Subsets of the labels of one size; evenly spread ones if there are many."""
  found = list(itertools.combinations(labels, size))
  if len(found) <= most:
    return found
  at = np.linspace(0, len(found) - 1, most).round().astype(int)
  return [found[i] for i in at]
