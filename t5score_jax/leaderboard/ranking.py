"""Ranks of metrics and generators, with intervals; the Pareto front.

Kasai et al. (2022), section 2.1: metrics are ranked by their correlation with
human ratings, generators by the best metric. The default is the paper's
(instance-level Pearson, M.2); `Rule` has the alternatives of section 2.4. All
statistics come from `evaluation/`. Functions of arrays; `analysis.py` reads
them from a board.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import scipy

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation as agreement
from t5score_jax.evaluation import outliers
from t5score_jax.evaluation.bootstrap import segment_draws

STATISTICS = ('pearson', 'spearman', 'kendall')
LEVELS = ('instance', 'system')
DIRECTIONS = ('higher', 'either')
RESAMPLES = 1000
SEED = 12345


@dataclasses.dataclass(frozen=True)
class Rule:
  """The ranking rule of metrics.

  Attributes:
    statistic: One of `STATISTICS` (M.2).
    level: 'instance' for all rated outputs, 'system' for the means of
      generators (M.2).
    direction: 'higher' if metrics should increase with quality (M.1);
      'either' if strong negative correlations rank high as well.
    outliers: Whether outlying generators are included (M.2).
  """

  statistic: str = 'pearson'
  level: str = 'instance'
  direction: str = 'higher'
  outliers: bool = True

  def __post_init__(self) -> None:
    for value, known in (
      (self.statistic, STATISTICS),
      (self.level, LEVELS),
      (self.direction, DIRECTIONS),
    ):
      if value not in known:
        raise InputError(f'{value!r} is not one of {", ".join(known)}')


def correlation(
  scores: np.ndarray, ratings: np.ndarray, rule: Rule | None = None
) -> float | None:
  """Correlates a metric with human ratings.

  Args:
    scores: Scores [I, K]; NaN if missing.
    ratings: Ratings [I, K]; NaN if missing.
    rule: The ranking rule; None for the paper's.

  Returns:
    The correlation, in [-1, 1], over outputs with both; None if there are
    fewer than two, or if either is constant.
  """
  rule = rule or Rule()
  used = ~np.isnan(scores) & ~np.isnan(ratings)
  if rule.level == 'system':
    rows = used.any(axis=1)
    x = agreement.system_means(np.where(used, scores, np.nan))[rows]
    y = agreement.system_means(np.where(used, ratings, np.nan))[rows]
  else:
    x, y = scores[used], ratings[used]
  if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return None
  return agreement.STATISTICS[rule.statistic](x, y)


def without_outliers(ratings: np.ndarray) -> np.ndarray:
  """Sets the ratings of outlying generators to NaN (Mathur et al. 2020a)."""
  averages = agreement.system_means(ratings)
  rated = ~np.isnan(averages)
  far = np.zeros(len(ratings), dtype=bool)
  far[rated] = outliers.are_outliers(averages[rated], scale=outliers.MAD_SCALE)
  return np.where(far[:, None], np.nan, ratings)


def means(scores: np.ndarray) -> list[float | None]:
  """Mean score of each generator, [I, K] -> I values (section 2.1)."""
  averages = agreement.system_means(scores).tolist()
  return [None if math.isnan(mean) else mean for mean in averages]


def ranks(values: Mapping[str, float | None]) -> dict[str, int | None]:
  """Ranks names by descending value.

  Returns:
    Name -> rank, in that order. Ties share the best of their ranks (1, 1, 3)
    and are ordered by name; names without a value come last, without a rank.
  """
  known = [n for n, value in values.items() if value is not None]
  places = _places(np.array([values[n] for n in known], dtype=np.float64))
  order = sorted(zip(places.tolist(), known, strict=True))
  return {
    **{name: int(place) for place, name in order},
    **dict.fromkeys(sorted(n for n in values if values[n] is None)),
  }


def _places(values: np.ndarray) -> np.ndarray:
  """Ranks along the last axis, the largest first; ties get the smallest."""
  # 40 bits: rounding errors do not break ties.
  mantissa, exponent = np.frexp(values)
  rounded = np.ldexp(np.round(np.ldexp(mantissa, 40)), exponent - 40)
  return scipy.stats.rankdata(-rounded, axis=-1, method='min')


class Interval(TypedDict):
  """95% intervals of a value and its rank, by bootstrap over examples."""

  low: float
  high: float
  rank_low: int
  rank_high: int


def _intervals(
  names: list[str], values: np.ndarray, strength: np.ndarray
) -> dict[str, Interval]:
  """Intervals of resampled values and of ranks by strength, [resamples, N]."""
  ranks = _places(strength)
  low, high = np.percentile(values, [2.5, 97.5], axis=0).tolist()
  first, last = np.percentile(ranks, [2.5, 97.5], axis=0, method='nearest')
  return {
    name: Interval(
      low=low[n], high=high[n], rank_low=int(first[n]), rank_high=int(last[n])
    )
    for n, name in enumerate(names)
  }


def metric_intervals(
  columns: Mapping[str, np.ndarray],
  ratings: np.ndarray,
  rule: Rule | None = None,
  resamples: int = RESAMPLES,
  seed: int = SEED,
) -> dict[str, Interval]:
  """Intervals of metrics' Pearson correlations and ranks.

  Examples are resampled with replacement, with the outputs of all generators.
  Rank correlations have no intervals: each resample would need a sort.

  Args:
    columns: Metric -> scores [I, K].
    ratings: Ratings [I, K].
    rule: The ranking rule.
    resamples: The number of resamples; 0 for no intervals.
    seed: The seed of the resamples.

  Returns:
    Metric -> intervals, for metrics that have a correlation.
  """
  rule = rule or Rule()
  names = [
    name
    for name, scores in columns.items()
    if correlation(scores, ratings, rule) is not None
  ]
  if rule.statistic != 'pearson' or not names or not resamples:
    return {}
  weights = draw_examples(ratings.shape[1], resamples, seed)
  values = np.stack(
    [
      resample_correlation(columns[n], ratings, weights, rule.level)
      for n in names
    ],
    axis=1,
  )
  either = rule.direction == 'either'
  return _intervals(names, values, np.abs(values) if either else values)


def draw_examples(count: int, resamples: int, seed: int) -> np.ndarray:
  """How often each resample contains each example, [resamples, K]."""
  return np.concatenate(list(segment_draws(count, resamples, seed, least=1)))


def resample_correlation(
  scores: np.ndarray, ratings: np.ndarray, weights: np.ndarray, level: str
) -> np.ndarray:
  """Pearson's correlation in each resample.

  Args:
    scores: Scores [I, K]; NaN if missing.
    ratings: Ratings [I, K]; NaN if missing.
    weights: How often each resample contains each example, [resamples, K].
    level: One of `LEVELS`.

  Returns:
    The correlations, [resamples]; 0 if either is constant.
  """
  used = ~np.isnan(scores) & ~np.isnan(ratings)
  # Centred, so that sums of squares lose no digits.
  x = np.where(used, scores - scores[used].mean(), 0.0)
  y = np.where(used, ratings - ratings[used].mean(), 0.0)
  if level == 'instance':
    columns = [used.astype(np.float64), x, y, x * x, y * y, x * y]
    # [resamples, K] @ [K, 6]
    sums = weights @ np.stack([c.sum(axis=0) for c in columns], axis=1)
    return agreement.pearson_of_sums(*sums.T)
  count = weights @ used.T.astype(np.float64)  # [resamples, I]
  there = count > 0
  n = there.sum(axis=1)

  def means(values: np.ndarray) -> np.ndarray:
    """Means of generators, centred in each resample, [resamples, I]."""
    mean = weights @ values.T / np.maximum(count, 1)
    return np.where(there, mean - (mean.sum(axis=1) / n)[:, None], 0.0)

  x, y = means(x), means(y)
  products = (x, y, x * x, y * y, x * y)
  return agreement.pearson_of_sums(n, *(p.sum(axis=1) for p in products))


def generator_intervals(
  names: list[str],
  scores: np.ndarray,
  resamples: int = RESAMPLES,
  seed: int = SEED,
) -> dict[str, Interval]:
  """Intervals of generators' mean scores and of their ranks.

  Args:
    names: Names of the I generators.
    scores: Scores by the metric that ranks them, [I, K].
    resamples: The number of resamples of examples; 0 for no intervals.
    seed: The seed of the resamples.

  Returns:
    Generator -> intervals, for generators with all K scores.
  """
  whole = ~np.isnan(scores).any(axis=1)
  if not whole.any() or not resamples:
    return {}
  weights = draw_examples(scores.shape[1], resamples, seed)
  # [resamples, K] @ [K, I]
  values = weights @ scores[whole].T / scores.shape[1]
  kept = [name for name, w in zip(names, whole, strict=True) if w]
  return _intervals(kept, values, values)


def pareto(goodness: np.ndarray, costs: np.ndarray) -> np.ndarray:
  """Finds the Pareto front of N entries.

  Args:
    goodness: The quality of each entry, [N]; NaN is never on the front.
    costs: The cost of each entry, [N]; NaN (unknown) is never on the front.

  Returns:
    bool [N]: whether no other entry is at least as good and at most as costly,
    and strictly better in one of the two.
  """
  known = ~np.isnan(goodness) & ~np.isnan(costs)
  front = np.zeros(len(goodness), dtype=bool)
  for i in np.flatnonzero(known):
    better = (
      known
      & (goodness >= goodness[i])
      & (costs <= costs[i])
      & ((goodness > goodness[i]) | (costs < costs[i]))
    )
    front[i] = not better.any()
  return front
