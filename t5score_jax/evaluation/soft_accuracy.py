"""Soft pairwise accuracy of systems (Thompson et al. 2024), WMT24's statistic.

Pairwise accuracy counts whether human and metric scores order two systems
alike. Soft pairwise accuracy compares their confidence: 1 minus the mean
absolute difference of their p-values over all pairs of systems, each p-value
from a paired permutation test over segments. `swap_tests.permute_soft_accuracy`
compares metrics under it.

Two systems are compared on the segments with human ratings of both. This holds
for human and metric scores, so that uneven ratings cannot bias the comparison.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation

PERMUTATIONS = 1000
# Signs are drawn in chunks of about this many numbers, to bound the memory.
_CHUNK_NUMBERS = 1 << 22


@dataclasses.dataclass(frozen=True)
class SystemPairs:
  """All pairs of S systems, and the segments on which each is compared.

  Attributes:
    first: Index of one system, int [Q].
    second: Index of the other, int [Q].
    common: Segments rated for both, bool [Q, N].
  """

  first: np.ndarray
  second: np.ndarray
  common: np.ndarray

  @functools.cached_property
  def even(self) -> bool:
    """Whether every pair is compared on the same segments."""
    return bool((self.common == self.common[:1]).all())

  def contrasts(self, scores: np.ndarray) -> np.ndarray:
    """Differences of the pairs' segment scores, [S, N] -> [Q, N].

    0 where the pair is not compared.
    """
    scores = np.where(np.isfinite(scores), scores, 0.0)
    return np.where(self.common, scores[self.first] - scores[self.second], 0.0)


def system_pairs(human: np.ndarray) -> SystemPairs:
  """Returns the pairs of systems and the segments rated for both.

  Args:
    human: Human scores [S, N], NaN where not rated.

  Raises:
    InputError: Fewer than two systems, or a pair without a common segment.
  """
  human = np.asarray(human, np.float64)
  if human.ndim != 2 or len(human) < 2:
    raise InputError(
      'soft pairwise accuracy needs the segment scores of two systems, [S, N]; '
      f'these are {human.shape}'
    )
  rated = ~np.isnan(human)
  first, second = np.triu_indices(len(human), 1)
  common = rated[first] & rated[second]
  alone = np.flatnonzero(~common.any(axis=1))
  if alone.size:
    raise InputError(
      f'systems {first[alone[0]]} and {second[alone[0]]} have no rated segment '
      'in common'
    )
  return SystemPairs(first, second, common)


def sign_draws(
  segments: int, permutations: int, seed: int
) -> Iterator[np.ndarray]:
  """Random signs in chunks: float64 [k, N] of -1 and 1.

  Raises:
    InputError: No permutation.
  """
  if permutations < 1:
    raise InputError(
      f'the number of permutations must be 1 or more: {permutations}'
    )
  generator = np.random.default_rng(seed)
  step = max(1, _CHUNK_NUMBERS // max(segments, 1))
  for start in range(0, permutations, step):
    rows = min(step, permutations - start)
    bits = generator.integers(0, 2, size=(rows, segments), dtype=np.int8)
    yield bits * 2.0 - 1.0


def p_values(
  contrasts: np.ndarray,
  permutations: int = PERMUTATIONS,
  seed: int = 12345,
) -> np.ndarray:
  """One-sided p-values of "the first system of the pair is better".

  A permutation exchanges the two systems' scores on random segments: the share
  of permutations whose difference is at least the observed one (count / K, as
  published, so it can be 0).

  Args:
    contrasts: Differences of segment scores, first minus second, [Q, N]; 0
      where a pair has no scores.
    permutations: K.
    seed: Of the permutations, which all pairs share.

  Returns:
    p-values [Q], in [0, 1].

  Raises:
    InputError: A difference that is not finite, no permutation.
  """
  return _p_values(
    contrasts, sign_draws(contrasts.shape[1], permutations, seed)
  )


def _p_values(
  contrasts: np.ndarray, pieces: Iterable[np.ndarray]
) -> np.ndarray:
  if not np.isfinite(contrasts).all():
    raise InputError('a segment has no finite score')
  seen = contrasts.sum(axis=1)
  # Rounding must not turn an equal difference into a smaller one.
  slack = 1e-9 * np.abs(contrasts).sum(axis=1)
  count = np.zeros(len(contrasts), np.int64)
  permutations = 0
  for signs in pieces:
    count += np.count_nonzero(signs @ contrasts.T >= seen - slack, axis=0)
    permutations += len(signs)
  return count / permutations


def soft_pairwise_accuracy(
  human: np.ndarray,
  metric: np.ndarray,
  *,
  permutations: int = PERMUTATIONS,
  seed: int = 12345,
) -> float:
  """1 - mean over system pairs of |p_human - p_metric|, in [0, 1].

  Args:
    human: Human scores [S, N], NaN where not rated.
    metric: Metric scores [S, N], finite wherever `human` is rated.
    permutations: The number of permutations for each p-value.
    seed: Of the permutations, the same for human and metric scores.

  Raises:
    InputError: Shapes differ, missing scores, or as `system_pairs`.
  """
  return soft_accuracies(
    human, {'metric': metric}, permutations=permutations, seed=seed
  )['metric']


def soft_accuracies(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  *,
  permutations: int = PERMUTATIONS,
  seed: int = 12345,
) -> dict[str, float]:
  """`soft_pairwise_accuracy` of several metrics, by name."""
  human = np.asarray(human, np.float64)
  pairs = system_pairs(human)
  if np.isinf(human).any():
    raise InputError('human scores hold an infinite value')
  if np.ptp(human[~np.isnan(human)]) == 0:
    correlation.warn_constant('the first scores')
    return dict.fromkeys(metrics, 0.0)
  # Human scores and all metrics share the signs.
  signs = list(sign_draws(human.shape[1], permutations, seed))
  gold = _p_values(pairs.contrasts(human), signs)
  accuracies = {}
  for name, scores in metrics.items():
    checked = correlation.check_rated(human, scores, name)
    if np.ptp(checked[~np.isnan(human)]) == 0:
      # Else the value would depend on the order of the systems.
      correlation.warn_constant('the second scores')
      accuracies[name] = 0.0
      continue
    predicted = _p_values(pairs.contrasts(checked), signs)
    accuracies[name] = float(1.0 - np.abs(gold - predicted).mean())
  return accuracies
