"""Ranks of metrics and generators, with intervals; the Pareto front.

Kasai et al. (2022), section 2.1: metrics by their correlation with people,
generators by the metric that correlates best. The default is the paper's
(instance-level Pearson, M.2); the alternatives that section 2.4 discusses are
switches of `Rule`. Functions of arrays; what a board is made of is
`analysis`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from scipy import stats

STATISTICS = ('pearson', 'spearman', 'kendall')
LEVELS = ('instance', 'system')
DIRECTIONS = ('higher', 'either')
RESAMPLES = 1000
SEED = 12345
#: A generator is an outlier where its mean rating is further from the median
#: than so many scaled median absolute deviations (Mathur et al. 2020a).
OUTLIER = 2.5


@dataclasses.dataclass(frozen=True)
class Rule:
  """How metrics are ranked.

  Attributes:
    statistic: One of `STATISTICS` (M.2).
    level: 'instance': over all rated outputs; 'system': over the means of
      generators (M.2).
    direction: 'higher': metrics are expected to rise with quality (M.1);
      'either': a strong negative correlation counts as well.
    outliers: Whether outlying generators count (M.2).
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
        raise ValueError(f'{value!r} is none of {", ".join(known)}')


def correlation(
  scores: np.ndarray, ratings: np.ndarray, rule: Rule | None = None
) -> float | None:
  """A metric's correlation with people.

  Args:
    scores: [I, K]; NaN where there is none.
    ratings: [I, K]; NaN where there is none.
    rule: How; None for the paper's.

  Returns:
    In [-1, 1], over the outputs that have both; None where there are fewer
    than two, or where either doesn't vary.
  """
  rule = rule or Rule()
  used = ~np.isnan(scores) & ~np.isnan(ratings)
  if rule.level == 'system':
    rows = used.any(axis=1)
    count = used.sum(axis=1)[rows]
    x = np.where(used, scores, 0.0).sum(axis=1)[rows] / count
    y = np.where(used, ratings, 0.0).sum(axis=1)[rows] / count
  else:
    x, y = scores[used], ratings[used]
  if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return None
  if rule.statistic == 'pearson':
    x, y = x - x.mean(), y - y.mean()
    spread = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / spread, -1, 1)) if spread > 0 else None
  if rule.statistic == 'spearman':
    return float(stats.spearmanr(x, y).statistic)
  return float(stats.kendalltau(x, y).statistic)


def without_outliers(ratings: np.ndarray) -> np.ndarray:
  """The ratings without those of outlying generators (NaN there)."""
  count = (~np.isnan(ratings)).sum(axis=1)
  rated = count > 0
  means = np.nansum(ratings, axis=1)[rated] / count[rated]
  middle = np.median(means)
  spread = 1.4826 * np.median(np.abs(means - middle))
  far = np.zeros(len(ratings), dtype=bool)
  if spread > 0:
    far[np.flatnonzero(rated)] = np.abs(means - middle) / spread > OUTLIER
  return np.where(far[:, None], np.nan, ratings)


def means(scores: np.ndarray) -> list[float | None]:
  """The aggregate score of each generator: [I, K] -> I means (section 2.1)."""
  has = ~np.isnan(scores)
  count = has.sum(axis=1)
  total = np.where(has, scores, 0.0).sum(axis=1)
  return [
    float(t / c) if c else None for t, c in zip(total, count, strict=True)
  ]


def order(values: Mapping[str, float | None]) -> list[str]:
  """Names by falling value; those without one last; ties by name."""
  return sorted(
    values,
    key=lambda n: (values[n] is None, -(values[n] or 0.0), n),
  )


@dataclasses.dataclass(frozen=True)
class Interval:
  """A value's and a rank's 95% intervals from a bootstrap over examples."""

  low: float
  high: float
  rank_low: int
  rank_high: int


def _draws(count: int, resamples: int, seed: int) -> np.ndarray:
  """How often each example is drawn: [resamples, K], float64."""
  rng = np.random.default_rng(seed)
  return rng.multinomial(
    count, np.full(count, 1 / count), size=resamples
  ).astype(np.float64)


def _intervals(
  names: list[str], values: np.ndarray, sign: np.ndarray
) -> dict[str, Interval]:
  """From resampled values [resamples, N]; rank 1 is the greatest."""
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
  """Intervals of metrics' Pearson correlations and of their ranks.

  Examples are drawn with replacement, with all generators' outputs for them.
  Other statistics than Pearson have none: they cost a sort for each draw.

  Args:
    columns: Metric -> scores [I, K].
    ratings: [I, K].
    rule: How metrics are ranked.
    resamples: How many draws.
    seed: Of the draws.

  Returns:
    Metric -> intervals, for those that correlate at all.
  """
  rule = rule or Rule()
  if rule.statistic != 'pearson':
    return {}
  weights = _draws(ratings.shape[1], resamples, seed)
  names, values = [], []
  for name, scores in columns.items():
    point = correlation(scores, ratings, rule)
    if point is None:
      continue
    if rule.level == 'instance':
      found = _resampled_instance(scores, ratings, weights)
    else:
      found = _resampled_system(scores, ratings, weights)
    names.append(name)
    values.append(np.where(np.isfinite(found), found, 0.0))
  if not names:
    return {}
  stacked = np.stack(values, axis=1)
  sign = np.ones_like(stacked)
  if rule.direction == 'either':
    sign = np.sign(stacked)
  return _intervals(names, stacked, sign)


def _pearson(
  n: np.ndarray,
  x: np.ndarray,
  y: np.ndarray,
  xx: np.ndarray,
  yy: np.ndarray,
  xy: np.ndarray,
) -> np.ndarray:
  """From sums; the warnings of an empty draw are the caller's zeros."""
  with np.errstate(all='ignore'):
    return (xy - x * y / n) / np.sqrt((xx - x * x / n) * (yy - y * y / n))


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
  return _pearson(*sums.T)


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
  return _pearson(
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
    names: Of the I generators.
    scores: Of the metric that ranks them, [I, K].
    resamples: How many draws of examples.
    seed: Of the draws.

  Returns:
    Generator -> intervals, for those that have all K scores.
  """
  whole = ~np.isnan(scores).any(axis=1)
  if not whole.any():
    return {}
  weights = _draws(scores.shape[1], resamples, seed)
  # [resamples, K] @ [K, I]
  values = weights @ scores[whole].T / scores.shape[1]
  kept = [name for name, w in zip(names, whole, strict=True) if w]
  return _intervals(kept, values, np.ones_like(values))


def pareto(goodness: np.ndarray, costs: np.ndarray) -> np.ndarray:
  """Which of N entries no other beats at no greater cost.

  Args:
    goodness: [N]; NaN is never on the front.
    costs: [N]; NaN (unknown) is never on the front.

  Returns:
    Bool [N]: no other entry is at least as good and at most as costly, and
    better in one of the two.
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
