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

import numpy as np
from scipy import stats

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


def order(values: Mapping[str, float | None]) -> list[str]:
  """Sorts names by descending value, None last; ties by name."""
  return sorted(
    values,
    key=lambda n: (values[n] is None, -(values[n] or 0.0), n),
  )


@dataclasses.dataclass(frozen=True)
class Interval:
  """95% intervals of a value and its rank, by bootstrap over examples."""

  low: float
  high: float
  rank_low: int
  rank_high: int


def _intervals(
  names: list[str], values: np.ndarray, sign: np.ndarray
) -> dict[str, Interval]:
  """Intervals from resampled values [resamples, N]; rank 1 is the largest."""
  places = stats.rankdata(-values * sign, axis=1, method='min')
  low, high = np.percentile(values, [2.5, 97.5], axis=0)
  first, last = np.percentile(places, [2.5, 97.5], axis=0, method='nearest')
  return {
    name: Interval(float(low[n]), float(high[n]), int(first[n]), int(last[n]))
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
    resamples: The number of resamples.
    seed: The seed of the resamples.

  Returns:
    Metric -> intervals, for metrics that have a correlation.
  """
  rule = rule or Rule()
  if rule.statistic != 'pearson':
    return {}
  weights = draw_examples(ratings.shape[1], resamples, seed)
  names, values = [], []
  for name, scores in columns.items():
    point = correlation(scores, ratings, rule)
    if point is None:
      continue
    resampled = resample_correlation(scores, ratings, weights, rule.level)
    names.append(name)
    values.append(resampled)
  if not names:
    return {}
  stacked = np.stack(values, axis=1)
  sign = np.ones_like(stacked)
  if rule.direction == 'either':
    sign = np.sign(stacked)
  return _intervals(names, stacked, sign)


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
  if level == 'instance':
    return _resampled_instance(scores, ratings, weights)
  return _resampled_system(scores, ratings, weights)


def _resampled_instance(
  scores: np.ndarray, ratings: np.ndarray, weights: np.ndarray
) -> np.ndarray:
  used = ~np.isnan(scores) & ~np.isnan(ratings)
  # Centred, so that sums of squares lose no digits.
  x = np.where(used, scores - scores[used].mean(), 0.0)
  y = np.where(used, ratings - ratings[used].mean(), 0.0)
  columns = [used.astype(np.float64), x, y, x * x, y * y, x * y]
  # [resamples, K] @ [K, 6]
  sums = weights @ np.stack([c.sum(axis=0) for c in columns], axis=1)
  return agreement.pearson_of_sums(*sums.T)


def _resampled_system(
  scores: np.ndarray, ratings: np.ndarray, weights: np.ndarray
) -> np.ndarray:
  used = ~np.isnan(scores) & ~np.isnan(ratings)
  rows = used.any(axis=1)
  used = used[rows]
  x = np.where(used, scores[rows], 0.0)
  y = np.where(used, ratings[rows], 0.0)
  with np.errstate(all='ignore'):
    count = weights @ used.T.astype(np.float64)  # [resamples, I]
    mean_x, mean_y = weights @ x.T / count, weights @ y.T / count
  there = count > 0
  mean_x = np.where(there, mean_x, 0.0)
  mean_y = np.where(there, mean_y, 0.0)
  n = there.sum(axis=1)
  center = (mean_x.sum(axis=1) / n, mean_y.sum(axis=1) / n)
  mean_x = np.where(there, mean_x - center[0][:, None], 0.0)
  mean_y = np.where(there, mean_y - center[1][:, None], 0.0)
  return agreement.pearson_of_sums(
    n,
    mean_x.sum(axis=1),
    mean_y.sum(axis=1),
    (mean_x**2).sum(axis=1),
    (mean_y**2).sum(axis=1),
    (mean_x * mean_y).sum(axis=1),
  )


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
    resamples: The number of resamples of examples.
    seed: The seed of the resamples.

  Returns:
    Generator -> intervals, for generators with all K scores.
  """
  whole = ~np.isnan(scores).any(axis=1)
  if not whole.any():
    return {}
  weights = draw_examples(scores.shape[1], resamples, seed)
  # [resamples, K] @ [K, I]
  values = weights @ scores[whole].T / scores.shape[1]
  kept = [name for name, w in zip(names, whole, strict=True) if w]
  return _intervals(kept, values, np.ones_like(values))


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
