"""The paired bootstrap for statistics that count pairs of translations.

A draw takes segments with all their pairs. The draws are those of `bootstrap`.
Not here: the paired bootstrap that compares two systems (`paired_tests.py`).
"""

from __future__ import annotations

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation
from t5score_jax.evaluation.bootstrap import (
  Replicates,
  ratio_of_sums,
  run_sums,
  stack,
)
from t5score_jax.evaluation.darr import RankedPairs


def _sums_by_segment(
  place: np.ndarray,
  numerators: np.ndarray,
  denominators: np.ndarray,
  segments: int = 0,
) -> np.ndarray:
  # The segment of each pair [P], two terms of each metric and pair [M, P] ->
  # their sums [N, M, 2].
  sums = np.stack(
    [
      [np.bincount(place, row, segments) for row in terms]
      for terms in (numerators, denominators)
    ]
  )
  return np.ascontiguousarray(sums.transpose(2, 1, 0))


def bootstrap_darr(
  pairs: RankedPairs,
  metrics: dict[str, np.ndarray],
  *,
  resamples: int = 1000,
  seed: int = 12345,
  ties: str = 'discordant',
  unit: str = 'segment',
) -> Replicates:
  """Resamples `correlation.darr_tau`.

  Args:
    pairs: P ranked pairs.
    metrics: Scores [S, N] by metric, finite wherever a pair needs them.
    resamples: How many draws.
    seed: Of the draws.
    ties: A name in `correlation.TIE_RULES`.
    unit: 'segment' draws segments with all their pairs; 'pair' draws pairs as
      if they were independent, as WMT did (the intervals are too narrow).

  Raises:
    InputError: No pairs, missing scores, an unknown rule or unit.
  """
  names, scores = stack(metrics)
  if unit not in ('segment', 'pair'):
    raise InputError(f"unknown unit {unit!r}; 'segment' or 'pair'")
  if ties not in correlation.TIE_RULES:
    raise InputError(f'unknown tie rule {ties!r}')
  if not len(pairs):
    raise InputError('there are no ranked pairs to resample')
  # [M, P]: above 0 where the metric agrees.
  margin = (
    scores[:, pairs.better, pairs.segments]
    - scores[:, pairs.worse, pairs.segments]
  )
  if not np.isfinite(margin).all():
    raise InputError('a ranked pair has no finite score under some metric')
  numerator, denominator = correlation.TIE_RULES[ties]
  tied = margin == 0
  parts = (
    np.where(tied, numerator, np.sign(margin)),
    np.where(tied, denominator, 1.0),
  )
  if unit == 'pair':
    sums = np.stack(parts, axis=-1).transpose(1, 0, 2)
  else:
    _, place = np.unique(pairs.segments, return_inverse=True)
    sums = _sums_by_segment(place, *parts)
  return run_sums(
    names,
    sums,
    ratio_of_sums,
    resamples,
    seed,
  )


def bootstrap_agreement(
  segments: np.ndarray,
  agreements: dict[str, np.ndarray],
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples the tau over ranked pairs when only agreement is known.

  Args:
    segments: The segment of each pair, [P].
    agreements: 1 where the metric agrees with a pair and -1 where it does
      not, [P] by metric.
    resamples: How many draws of segments, each with all its pairs.
    seed: Of the draws.

  Raises:
    InputError: Fewer than two segments, a value that is not finite.
  """
  names, signs = stack(agreements)
  if not np.isfinite(signs).all():
    raise InputError('a pair has no agreement under some metric')
  _, place = np.unique(segments, return_inverse=True)
  sums = _sums_by_segment(place, signs, np.ones_like(signs))
  return run_sums(
    names,
    sums,
    ratio_of_sums,
    resamples,
    seed,
  )


def bootstrap_correct_pairs(
  segments: int,
  correct: dict[str, np.ndarray],
  places: np.ndarray,
  weights: np.ndarray,
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> Replicates:
  """Resamples the weighted share of pairs that a metric orders correctly.

  Args:
    segments: N, the number of segments; each pair belongs to one.
    correct: Which pairs a metric orders correctly, bool [P] by metric.
    places: The segment of each pair, int [P].
    weights: The weight of each pair, [P].
    resamples: How many draws of segments.
    seed: Of the draws.

  Raises:
    InputError: Fewer than two segments with a pair, no metric.
  """
  names, right = stack(correct)
  sums = _sums_by_segment(
    places, right * weights, np.broadcast_to(weights, right.shape), segments
  )
  sums = sums[sums[:, 0, 1] > 0]
  return run_sums(
    names,
    sums,
    ratio_of_sums,
    resamples,
    seed,
  )
