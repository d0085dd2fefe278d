"""The paired bootstrap over segments, for metrics and for systems.

Every statistic is resampled over segments. A segment is drawn with all its
systems or ranked pairs, because those are not independent. All metrics share
the draws, which makes the comparison paired (Koehn 2004; Graham et al. 2014;
T5Score section 4.2 uses p < .05).

Resamples are not materialised: a draw is the number of times that each segment
was taken. Most statistics are functions of sums over segments, so one matrix
product computes all draws of all metrics. `pair_bootstrap` resamples statistics
that count pairs of translations. `permutation` has tests that swap two metrics'
scores instead of resampling segments.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation

# With fewer segments no exchange of scores reaches p < .05 (2 / 2^5 = .0625),
# and resamples hardly vary.
FEWEST_SEGMENTS = 6
# With fewer, the bootstrap rejects true null hypotheses too often: at p < .05
# about 17% with 6 segments, 12% with 8, 10% with 12 (normal scores).
FEW_SEGMENTS = 30
# Draws are made in chunks of about this many numbers, to bound the memory.
CHUNK_NUMBERS = 1 << 22


@dataclasses.dataclass(frozen=True)
class Replicates:
  """A statistic of several metrics and its values on resampled segments.

  Attributes:
    names: The metrics, M of them.
    values: The statistic on the data themselves, [M].
    draws: The statistic on each resample, [B, M]; one row is one resample,
      the same for all metrics.
    seed: The seed of the draws.
  """

  names: tuple[str, ...]
  values: np.ndarray
  draws: np.ndarray
  seed: int

  def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval that holds `level` of the resamples."""
    tail = (1 - level) / 2
    column = self.draws[:, self.names.index(name)]
    low, high = np.quantile(column, [tail, 1 - tail])
    return float(low), float(high)

  def compare(self, first: str, second: str) -> Comparison:
    """Compares two of the metrics; see `Comparison`."""
    i, j = self.names.index(first), self.names.index(second)
    return compare_draws(
      first,
      second,
      float(self.values[i] - self.values[j]),
      self.draws[:, i] - self.draws[:, j],
    )

  def p_values(self) -> np.ndarray:
    """One-sided p-values of "i is better than j", [M, M]; see `Comparison`."""
    not_better = np.array(
      [np.count_nonzero(self.draws.T <= row, axis=1) for row in self.draws.T]
    ).T
    p_values = (1 + not_better) / (1 + len(self.draws))
    np.fill_diagonal(p_values, 1.0)
    return p_values


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The difference `first - second` of one statistic and its significance.

  Attributes:
    first: The metric.
    second: The metric it is compared with.
    difference: First minus second, on the data.
    low: Lower end of the 95% interval of the difference.
    high: Its upper end.
    p_value: One-sided: the share of resamples in which the first is not
      better, (1 + count) / (1 + B), so never 0.
  """

  first: str
  second: str
  difference: float
  low: float
  high: float
  p_value: float


def compare_draws(
  first: str, second: str, difference: float, draws: np.ndarray
) -> Comparison:
  """Makes a `Comparison` from resampled differences `draws` [B]."""
  low, high = np.quantile(draws, [0.025, 0.975])
  not_better = np.count_nonzero(draws <= 0)
  p_value = (1 + not_better) / (1 + len(draws))
  return Comparison(first, second, difference, float(low), float(high), p_value)


def average(
  parts: Sequence[Replicates], weights: Sequence[float] | None = None
) -> Replicates:
  """Averages the values, and each draw, over language pairs.

  The language pairs must have been drawn with different seeds, so that their
  draws are independent of each other. Without `weights` all count equally.

  Raises:
    InputError: No part, or parts with other metrics or another draw count.
  """
  if not parts:
    raise InputError('no replicates to average')
  if any(
    part.names != parts[0].names or part.draws.shape != parts[0].draws.shape
    for part in parts
  ):
    raise InputError('only replicates of the same metrics and number average')
  return Replicates(
    parts[0].names,
    np.average([part.values for part in parts], axis=0, weights=weights),
    np.average([part.draws for part in parts], axis=0, weights=weights),
    parts[0].seed,
  )


def segment_draws(
  segments: int, resamples: int, seed: int, least: int = 2
) -> Iterator[np.ndarray]:
  """Yields how often each resample contains each segment, in chunks [b, N].

  All bootstraps of this library draw here.

  Args:
    segments: N, the number of segments.
    resamples: The number of resamples.
    seed: The seed of the draws.
    least: The fewest segments that may be resampled.

  Raises:
    InputError: Fewer than `least` segments, or no resample.
  """
  if segments < least:
    raise InputError(
      f'{segments} segment(s) cannot be resampled; the bootstrap needs '
      'segment scores of at least two'
    )
  if resamples < 1:
    raise InputError(f'the number of resamples must be 1 or more: {resamples}')
  generator = np.random.default_rng(seed)
  step = max(1, CHUNK_NUMBERS // segments)
  for start in range(0, resamples, step):
    rows = min(step, resamples - start)
    taken = generator.integers(0, segments, size=(rows, segments))
    taken += np.arange(rows)[:, None] * segments
    yield (
      np.bincount(taken.ravel(), minlength=rows * segments)
      .reshape(rows, segments)
      .astype(np.float64)
    )


def few_segments(count: int) -> str:
  """A note if there are few segments to resample; '' if there are enough."""
  if count < FEWEST_SEGMENTS:
    return (
      f'{count} segment{"s" * (count > 1)} cannot show significance: below '
      f'{FEWEST_SEGMENTS} the bootstrap has no p-values, and its intervals '
      'mean little'
    )
  if count < FEW_SEGMENTS:
    return (
      f'{count} segments are few: bootstrap intervals are too narrow, and too '
      'many differences are significant'
    )
  return ''


def stack(
  metrics: dict[str, np.ndarray],
) -> tuple[tuple[str, ...], np.ndarray]:
  """The names of the metrics, and their scores as one float64 array.

  Raises:
    InputError: There is no metric.
  """
  if not metrics:
    raise InputError('no metric to resample')
  return tuple(metrics), np.stack(
    [np.asarray(scores, np.float64) for scores in metrics.values()]
  )


def run_sums(
  names: tuple[str, ...],
  sums: np.ndarray,
  finish: Callable[[np.ndarray], np.ndarray],
  resamples: int,
  seed: int,
) -> Replicates:
  """Resamples a statistic that is a function of sums over segments.

  Args:
    names: M metrics.
    sums: What each segment adds, [N, ...].
    finish: Computes the statistic from sums, [b, ...] -> [b, M].
    resamples: How many draws of segments.
    seed: Of the draws.

  Raises:
    InputError: Fewer than two segments or no resample.
  """
  flat = sums.reshape(len(sums), -1)
  draws = [
    finish((counts @ flat).reshape(len(counts), *sums.shape[1:]))
    for counts in segment_draws(len(sums), resamples, seed)
  ]
  values = finish(sums.sum(axis=0)[None])[0]
  return Replicates(names, values, np.concatenate(draws), seed)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
  """Divides; a resample with nothing to count has the value 0 by definition."""
  safe = np.where(denominator > 0, denominator, 1.0)
  return np.where(denominator > 0, numerator / safe, 0.0)


def ratio_of_sums(totals: np.ndarray) -> np.ndarray:
  """The `ratio` of numerators and denominators, [..., 2] -> [...]."""
  return ratio(totals[..., 0], totals[..., 1])


def bootstrap_pearson(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples the pooled segment-level Pearson correlation.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, finite wherever `human` is rated.
    resamples: How many draws of segments.
    seed: Of the draws.

  Raises:
    InputError: Missing scores or fewer than two segments.
  """
  names, scores = stack(metrics)
  rated = ~np.isnan(human)
  if not np.isfinite(scores[:, rated]).all():
    raise InputError('a rated entry has no finite score under some metric')
  keep = rated.any(axis=0)
  human, scores, rated = human[:, keep], scores[:, :, keep], rated[:, keep]
  # Centred and scaled first, so that sums of squares lose no digits; this
  # leaves the correlation unchanged.
  y, *rest = (
    np.where(rated, correlation.standardise(np.where(rated, v, np.nan)), 0.0)
    for v in (human, *scores)
  )
  x = np.stack(rest)
  parts = np.stack(
    np.broadcast_arrays(rated.astype(np.float64), y, y * y, x, x * x, x * y),
    axis=-1,
  )
  # [M, S, N, 6] -> [N, M, 6]
  sums = parts.sum(axis=1).transpose(1, 0, 2)

  def finish(totals: np.ndarray) -> np.ndarray:
    count, sy, syy, sx, sxx, sxy = np.moveaxis(totals, -1, 0)
    return correlation.pearson_of_sums(count, sx, sy, sxx, syy, sxy)

  return run_sums(names, sums, finish, resamples, seed)


def bootstrap_items(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  statistic: str = 'pearson',
  *,
  constant: str = 'skip',
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples `correlation.grouped(..., by='item')`.

  A segment's correlation is the same in every draw; only the number of times
  that it enters the mean varies.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, finite wherever `human` is rated.
    statistic: A name in `correlation.STATISTICS`.
    constant: A name in `correlation.CONSTANT_RULES`.
    resamples: How many draws of segments.
    seed: Of the draws.

  Raises:
    InputError: As `correlation.grouped`, and for fewer than two segments.
  """
  names, scores = stack(metrics)
  each = np.stack(
    [
      correlation.grouped(human, metric, statistic, 'item', constant).per_group
      for metric in scores
    ],
    axis=1,
  )
  counted = ~np.isnan(each)
  sums = np.stack(
    [np.where(counted, each, 0.0), counted.astype(np.float64)], axis=-1
  )
  return run_sums(
    names,
    sums,
    ratio_of_sums,
    resamples,
    seed,
  )


def bootstrap_systems(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  statistic: str = 'pearson',
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples a system-level correlation by drawing segments.

  Each draw averages the drawn segments' human scores (those rated) and metric
  scores (those given) by system and correlates the means.

  Args:
    human: Human scores [S, N], NaN where not rated; every system needs one.
    metrics: Scores [S, N] by metric, NaN where not given.
    statistic: A name in `correlation.STATISTICS`.
    resamples: How many draws.
    seed: Of the draws.

  Raises:
    InputError: Fewer than two segments, an unknown statistic.
  """
  names, scores = stack(metrics)
  every = np.concatenate([np.asarray(human, np.float64)[None], scores])
  given = np.isfinite(every)
  # [M + 1, S, N] -> [N, M + 1, S, 2]
  sums = np.stack(
    [np.where(given, every, 0.0), given.astype(np.float64)], axis=-1
  ).transpose(2, 0, 1, 3)
  function = correlation.STATISTICS[statistic]

  def finish(totals: np.ndarray) -> np.ndarray:
    # [b, M + 1, S]: the human means come first.
    means = ratio_of_sums(totals)
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', correlation.ConstantInputWarning)
      return np.array(
        [[function(draw[0], metric) for metric in draw[1:]] for draw in means]
      )

  return run_sums(names, sums, finish, resamples, seed)


def bootstrap_any(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  function: Callable[[np.ndarray, np.ndarray], float],
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples any segment-level statistic, one call a draw and metric.

  Slow; for rank correlations over pooled segments, which are not functions of
  sums.

  Args:
    human: Human scores [S, N].
    metrics: Scores [S, N] by metric.
    function: (human [S, N], metric [S, N]) -> float.
    resamples: How many draws of segments.
    seed: Of the draws.

  Raises:
    InputError: Fewer than two segments, or whatever `function` raises.
  """
  names, scores = stack(metrics)
  draws = []
  for counts in segment_draws(human.shape[1], resamples, seed):
    for row in counts.astype(np.int64):
      taken = np.repeat(np.arange(human.shape[1]), row)
      draws.append([function(human[:, taken], m[:, taken]) for m in scores])
  values = np.array([function(human, metric) for metric in scores])
  return Replicates(names, values, np.array(draws), seed)
