"""Permutation tests of the difference between two metrics.

Under the null hypothesis the (standardised) scores of two metrics are
exchangeable, so random swaps often give a difference in correlation as large
as the observed one (Deutsch et al. 2021, "A statistical analysis of
summarization evaluation metrics"). PERM-BOTH swaps each (system, segment)
entry independently, PERM-SYS whole systems, PERM-INPUT whole segments.
mt-metrics-eval tests system-level correlations on systems' scores, standardised
over systems and swapped system by system ('system-scores').

If there are few enough distinct swaps, all are made and p-values are exact.

All metrics share the swaps. The swapped scores of metrics a and b are
b + r (a - b) with r in {0, 1}, so one matrix product gives the sums of all
metrics, whatever the number of metric pairs. This module tests Pearson's
correlation and system-level correlations; `swap_tests` tests the other
statistics; `bootstrap` resamples segments instead.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation

UNITS = ('both', 'systems', 'segments', 'system-scores')
# All swaps are made if there are no more of them than this, or than asked for.
EXACT = 4096

# WMT's early stopping: after each block of swaps, a pair of metrics whose
# p-value lies outside these bounds is decided.
EARLY_LOW, EARLY_HIGH = 0.02, 0.50
BLOCK = 100

# Swaps are made in chunks of about this many numbers, to bound the memory.
_CHUNK_NUMBERS = 1 << 22


@dataclasses.dataclass(frozen=True)
class PermutationResult:
  """Results of permutation tests among M metrics.

  Attributes:
    names: The metrics.
    values: The statistic of each, [M].
    p_values: [M, M]; entry (i, j) is the one-sided p-value of "i is better
      than j": the share of swaps whose difference is at least the observed one,
      (1 + count) / (1 + R), never 0; count / R if `exact`. The diagonal is 1.
    resamples: R, the largest number of swaps of any pair.
    seed: The seed of the swaps.
    draws: R of each pair, [M, M]; less than `resamples` for pairs that were
      decided early.
    exact: Whether all possible swaps were made.
  """

  names: tuple[str, ...]
  values: np.ndarray
  p_values: np.ndarray
  resamples: int
  seed: int
  draws: np.ndarray
  exact: bool = False

  def p_value(self, first: str, second: str) -> float:
    """The one-sided p-value of "the first is better than the second"."""
    return float(
      self.p_values[self.names.index(first), self.names.index(second)]
    )


class Swaps:
  """The swaps of one test.

  Attributes:
    exact: Whether these are all distinct swaps, each once.
    count: How many swaps there are.
  """

  def __init__(
    self,
    shape: tuple[int, ...],
    unit: str,
    resamples: int,
    seed: int,
    sampled: bool = False,
  ):
    """Takes shape, unit, number and seed of the swaps.

    Args:
      shape: S systems, N segments.
      unit: 'both', 'systems' or 'segments'.
      resamples: How many swaps, if there are more than `EXACT` of them.
      seed: Of the swaps.
      sampled: Whether to draw swaps even if all could be made.

    Raises:
      InputError: An unknown unit or no resample.
    """
    systems, segments = shape
    shapes = {
      'both': (systems, segments),
      'systems': (systems, 1),
      'segments': (1, segments),
    }
    if unit not in shapes:
      raise InputError(f'unknown unit {unit!r}; there are {", ".join(shapes)}')
    if resamples < 1:
      raise InputError(
        f'the number of resamples must be 1 or more: {resamples}'
      )
    self._shape, self._size = shapes[unit], (systems, segments)
    self._seed = seed
    units = math.prod(self._shape)
    most = max(resamples, EXACT)
    self.exact = not sampled and units < 63 and 2**units <= most
    self.count = 2**units if self.exact else resamples

  def __iter__(self) -> Iterator[np.ndarray]:
    """Yields the entries to swap, in chunks: float64 [r, S, N] of 0 and 1."""
    generator = np.random.default_rng(self._seed)
    step = max(1, _CHUNK_NUMBERS // math.prod(self._size))
    for start in range(0, self.count, step):
      shape = (min(step, self.count - start), *self._shape)
      if self.exact:
        numbers = np.arange(start, start + shape[0])[:, None]
        bits = numbers >> np.arange(math.prod(self._shape)) & 1
      else:
        bits = generator.integers(0, 2, size=shape, dtype=np.int8)
      yield np.broadcast_to(
        bits.reshape(shape), (shape[0], *self._size)
      ).astype(np.float64)


def standard_scores(
  metrics: dict[str, np.ndarray], needed: np.ndarray
) -> np.ndarray:
  """Standardised scores [M, S, N], 0 where they are not `needed` [S, N].

  Raises:
    InputError: One metric only, or a needed entry without a finite score.
  """
  if len(metrics) < 2:
    raise InputError('a permutation test needs two metrics')
  scores = np.stack(
    [correlation.standardise(scores) for scores in metrics.values()]
  )
  if not np.isfinite(scores[:, needed]).all():
    raise InputError('an entry has no finite score under some metric')
  return np.where(needed, scores, 0.0)


class PairCounts:
  """Counts the swaps with at least the observed difference, per metric pair.

  Attributes:
    first: The first metric of each pair, int [Q].
    second: The second, int [Q]; always after the first.
    going: The pairs that are still undecided, bool [Q].
  """

  def __init__(
    self,
    values: np.ndarray,
    early_stop: bool = False,
    slack: float = 1e-12,
    exact: bool = False,
  ):
    """Starts the counts.

    Args:
      values: The statistic of each metric on the data, [M].
      early_stop: Whether to stop testing a pair once it is decided: WMT's
        rule, p below .02 or above .50 at the end of a block.
      slack: Tolerance within which differences are equal.
      exact: Whether all swaps are made; then no pair stops early.
    """
    self._values = values
    self.first, self.second = np.triu_indices(len(values), 1)
    self._seen = values[self.first] - values[self.second]
    self._at_least = np.zeros(len(self.first), np.int64)
    self._at_most = np.zeros(len(self.first), np.int64)
    self._draws = np.zeros(len(self.first), np.int64)
    self._early_stop = early_stop and not exact
    self._exact = exact
    self._slack = slack
    self.going = np.ones(len(self.first), bool)

  def add(self, which: np.ndarray, differences: np.ndarray) -> None:
    """Counts `differences` [r, len(which)] of the pairs `which` (indices)."""
    seen = self._seen[which]
    self._at_least[which] += np.count_nonzero(
      differences >= seen - self._slack, axis=0
    )
    self._at_most[which] += np.count_nonzero(
      differences <= seen + self._slack, axis=0
    )
    self._draws[which] += len(differences)

  def end_block(self) -> None:
    """Stops decided pairs; call it after each block of draws."""
    if self._early_stop:
      better = np.where(self._seen >= 0, self._at_least, self._at_most)
      p_value = better / np.maximum(self._draws, 1)
      self.going &= (p_value >= EARLY_LOW) & (p_value <= EARLY_HIGH)

  def result(self, names: Sequence[str], seed: int) -> PermutationResult:
    """The p-values."""
    size = len(self._values)
    p_values = np.ones((size, size))
    draws = np.zeros((size, size), np.int64)
    i, j = self.first, self.second
    # Random swaps exclude the data themselves; all swaps include them.
    own = 0 if self._exact else 1
    p_values[i, j] = (own + self._at_least) / (own + self._draws)
    p_values[j, i] = (own + self._at_most) / (own + self._draws)
    draws[i, j] = draws[j, i] = self._draws
    most = int(self._draws.max(initial=0))
    return PermutationResult(
      tuple(names), self._values, p_values, most, seed, draws, self._exact
    )


def _collect(
  metrics: dict[str, np.ndarray],
  values: np.ndarray,
  pieces: Iterator[tuple[np.ndarray, np.ndarray]],
  seed: int,
  exact: bool,
) -> PermutationResult:
  # pieces: statistics of the first and second metric of every pair (i < j)
  # under swaps, each [r, pairs].
  counts = PairCounts(values, exact=exact)
  everything = np.arange(len(counts.first))
  for swapped_first, swapped_second in pieces:
    counts.add(everything, swapped_first - swapped_second)
  return counts.result(tuple(metrics), seed)


def permute_systems(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  statistic: str = 'pearson',
  *,
  unit: str = 'both',
  resamples: int = 1000,
  seed: int = 12345,
) -> PermutationResult:
  """Tests system-level correlations; a system's score is its segments' mean.

  Segment scores are standardised and swapped; with the unit 'system-scores' the
  systems' scores are, as in mt-metrics-eval.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, complete.
    statistic: A name in `correlation.STATISTICS`.
    unit: What is swapped together, a name in `UNITS`.
    resamples: How many swaps.
    seed: Of the swaps.

  Raises:
    InputError: Incomplete scores, a system without rating, one metric only.
  """
  gold = correlation.system_means(human)
  if np.isnan(gold).any():
    raise InputError('a system has no human rating')
  if unit == 'system-scores':
    unit = 'systems'
    metrics = {
      name: correlation.system_means(m)[:, None] for name, m in metrics.items()
    }
  shape = next(iter(metrics.values())).shape
  scores = standard_scores(metrics, np.ones(shape, bool))
  all_swaps = Swaps(shape, unit, resamples, seed)
  first, second = np.triu_indices(len(scores), 1)
  function = correlation.STATISTICS[statistic]
  means = scores.mean(axis=2)

  def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # [S, N, M]
    columns = np.ascontiguousarray(scores.transpose(1, 2, 0))
    for bits in all_swaps:
      # [S, r, N] @ [S, N, M] -> [S, r, M] -> [r, M, S]
      kept = (bits.transpose(1, 0, 2) @ columns).transpose(1, 2, 0)
      kept /= shape[1]
      moved = kept[:, first] - kept[:, second]
      yield (
        _statistics(function, gold, means[second] + moved),
        _statistics(function, gold, means[first] - moved),
      )

  values = _statistics(function, gold, means[None])[0]
  return _collect(metrics, values, pieces(), seed, all_swaps.exact)


def _statistics(
  function: Callable[[object, object], float],
  gold: np.ndarray,
  scores: np.ndarray,
) -> np.ndarray:
  # [..., S] -> [...]
  if function is correlation.pearson:
    return _pearson(gold, scores)
  flat = scores.reshape(-1, scores.shape[-1])
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', correlation.ConstantInputWarning)
    return np.array([function(gold, row) for row in flat]).reshape(
      scores.shape[:-1]
    )


def _pearson(gold: np.ndarray, scores: np.ndarray) -> np.ndarray:
  # [S], [..., S] -> [...]; no variation gives 0.
  x = gold - gold.mean()
  y = scores - scores.mean(axis=-1, keepdims=True)
  norm = np.sqrt((x * x).sum() * (y * y).sum(axis=-1))
  safe = np.where(norm > 1e-12, norm, 1.0)
  return np.where(norm > 1e-12, (y @ x) / safe, 0.0)


def permute_pearson(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  *,
  unit: str = 'both',
  resamples: int = 1000,
  seed: int = 12345,
) -> PermutationResult:
  """Tests the pooled segment-level Pearson correlation.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, finite wherever `human` is rated.
    unit: What is swapped together, a name in `UNITS`.
    resamples: How many swaps.
    seed: Of the swaps.

  Raises:
    InputError: Missing scores, one metric only.
  """
  rated = ~np.isnan(human)
  gold = np.where(rated, correlation.standardise(human), 0.0)
  scores = standard_scores(
    {n: np.where(rated, m, np.nan) for n, m in metrics.items()}, rated
  )
  count = np.count_nonzero(rated)
  first, second = np.triu_indices(len(scores), 1)
  flat = scores.reshape(len(scores), -1)
  all_swaps = Swaps(human.shape, unit, resamples, seed)
  # What a swap adds to the sums of x, x*x and x*gold: linear in the bits.
  parts = np.stack([flat, flat * flat, flat * gold.ravel()])
  totals = parts.sum(axis=2)

  def correlate(sums: np.ndarray) -> np.ndarray:
    # [3, ...] -> [...]; gold has mean 0 and variance 1.
    sx, sxx, sxy = sums
    variance = np.maximum(sxx / count - (sx / count) ** 2, 0.0)
    safe = np.where(variance > 1e-12, variance, 1.0)
    return np.where(variance > 1e-12, sxy / count / np.sqrt(safe), 0.0)

  def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    columns = np.ascontiguousarray(parts.reshape(-1, parts.shape[2]).T)
    for bits in all_swaps:
      kept = (bits.reshape(len(bits), -1) @ columns).T
      kept = kept.reshape(3, len(scores), -1)
      moved = (kept[:, first] - kept[:, second]).transpose(0, 2, 1)
      yield (
        correlate(totals[:, None, second] + moved),
        correlate(totals[:, None, first] - moved),
      )

  return _collect(metrics, correlate(totals), pieces(), seed, all_swaps.exact)
