"""A board's numbers in memory: one array [generators, examples] per metric.

Decides which references are used and which human texts are references
themselves. Statistics of these arrays are in `ranking.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

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
  """Scores of one metric, [I, K]; see `load` for the references used."""
  labels = [] if reference_set == GIVEN else reference_set.split('+')
  if several != 'own' and len(labels) > 1:
    columns = [_column(store, metric, x, place, shape) for x in labels]
    if not all(np.isnan(c).all() for c in columns):
      together = np.stack(columns)
      return together.max(axis=0) if several == 'max' else together.mean(axis=0)
  scores = _column(store, metric, reference_set, place, shape)
  if np.isnan(scores).all() and reference_set != GIVEN:
    return _column(store, metric, GIVEN, place, shape)
  return scores


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
  """Which generators' texts are among the references, [I]."""
  copied = np.zeros(len(generators), dtype=bool)
  humans = [n for n, g in enumerate(generators) if g.human and g.has_outputs]
  if not humans or reference_set == GIVEN:
    return copied
  references = store.references()
  for n in humans:
    outputs = store.outputs(generators[n].id) or []
    for label in reference_set.split('+'):
      same = sum(
        a == b for a, b in zip(outputs, references[label], strict=True)
      )
      copied[n] |= 2 * same > len(outputs)
  return copied


def reference_sets(store: Store) -> list[str]:
  """The reference sets that reference-based metrics are run with.

  These are all references together, each reference alone (for the maximum or
  mean over references and the effect of their number), and those of roles.
  """
  board = store.board()
  labels = list(store.references())
  if not labels:
    return []
  sets = [board.reference_set, *labels]
  sets += [references for _, references in store.roles().values()]
  return list(dict.fromkeys(sets))


def subsets(
  labels: Sequence[str], size: int, most: int = 20
) -> list[tuple[str, ...]]:
  """Subsets of one size; at most `most`, evenly spread."""
  every = list(itertools.combinations(labels, size))
  if len(every) <= most:
    return every
  at = np.linspace(0, len(every) - 1, most).round().astype(int)
  return [every[i] for i in at]
