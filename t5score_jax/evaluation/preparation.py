"""Prepares one language pair: its entries and its tests.

Checks that the scores are complete, and chooses how each statistic is resampled
and tested. `selection` excludes systems. The statistics are in `correlation`,
`tie_calibration` and `soft_accuracy`, the tests in `bootstrap`, `permutation`
and `swap_tests`. `agreement` combines the language pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation import (
  bootstrap,
  correlation,
  pair_bootstrap,
  permutation,
  soft_accuracy,
  swap_tests,
  tie_calibration,
)
from t5score_jax.evaluation.config import AgreementConfig
from t5score_jax.evaluation.darr import (
  RankedPairs,
  pairs_from_ratings,
  place_pairs,
)
from t5score_jax.evaluation.scores import ScoreGrid


@dataclasses.dataclass(frozen=True)
class Prepared:
  """One language pair with its statistic and its tests.

  Attributes:
    metrics: Scores [S, N] by metric.
    count: The number of pairs, entries, groups or systems behind a value.
    function: Computes the statistic of a metric's scores [S, N].
    resample: Bootstraps all metrics with a seed.
    permute: Tests all metrics against each other with a seed.
  """

  metrics: dict[str, np.ndarray]
  count: int
  function: Callable[[np.ndarray], float]
  resample: Callable[[int], bootstrap.Replicates]
  permute: Callable[[int], permutation.PermutationResult]


def prepare(
  grid: ScoreGrid, dropped: list[str], config: AgreementConfig, notes: list[str]
) -> Prepared:
  """Prepares one language pair.

  Args:
    grid: The scores of the systems that count.
    dropped: The systems that were excluded.
    config: The configuration.
    notes: Receives one sentence about each further exclusion.

  Raises:
    InputError: Too few systems or segments.
    files.RecordError: Missing entries (without `intersect`).
  """
  _note_unrated(grid, config, notes)
  if config.statistic == 'darr':
    return _prepare_darr(grid, dropped, config, notes)
  if config.level == 'system' and config.statistic != 'soft-accuracy':
    return _prepare_systems(grid, config, notes)
  rated = ~np.isnan(grid.human)
  if not rated.any():
    raise InputError(f'{grid.prefix}no system and segment has a human score')
  given = _given(grid)
  _check_complete(grid, rated & ~given, config, notes)
  human = np.where(given, grid.human, np.nan)
  if config.statistic == 'soft-accuracy':
    return _prepare_soft(grid, human, config)
  if config.statistic == 'calibrated-accuracy':
    return _prepare_calibrated(grid, human, config, notes)
  return _prepare_segments(grid, human, config, notes)


def _note_unrated(
  grid: ScoreGrid, config: AgreementConfig, notes: list[str]
) -> None:
  if config.pairs is not None:
    return
  unrated = np.isnan(grid.human) & _given(grid)
  if count := int(np.count_nonzero(unrated)):
    means = config.level == 'system' and config.statistic != 'soft-accuracy'
    notes.append(
      f'{grid.prefix}{count} of {grid.human.size} (system, segment) entries '
      'without a human score '
      + ("count in metrics' means only" if means else 'left out')
    )


def _prepare_segments(
  grid: ScoreGrid, human: np.ndarray, config: AgreementConfig, notes: list[str]
) -> Prepared:
  group, statistic = config.group, config.statistic

  def grouped(gold: np.ndarray, scores: np.ndarray) -> correlation.Grouped:
    return correlation.grouped(gold, scores, statistic, group, config.constant)

  def function(scores: np.ndarray) -> float:
    return grouped(human, scores).value

  def resample(seed: int) -> bootstrap.Replicates:
    options = {'resamples': config.resamples, 'seed': seed}
    if group == 'none' and statistic == 'pearson':
      return bootstrap.bootstrap_pearson(human, grid.metrics, **options)
    if group == 'item':
      return bootstrap.bootstrap_items(
        human, grid.metrics, statistic, constant=config.constant, **options
      )
    return bootstrap.bootstrap_any(
      human,
      grid.metrics,
      lambda h, m: grouped(h, m).value,
      **options,
    )

  def permute(seed: int) -> permutation.PermutationResult:
    if group == 'none' and statistic == 'pearson':
      return permutation.permute_pearson(
        human,
        grid.metrics,
        unit=config.swap,
        resamples=config.permutations,
        seed=seed,
      )
    needed = ~np.isnan(human)
    return _permute_any(needed, grid.metrics, function, config, seed)

  count = int(np.count_nonzero(~np.isnan(human)))
  if group != 'none':
    results = {name: grouped(human, m) for name, m in grid.metrics.items()}
    count = max(result.groups for result in results.values())
    notes += _group_notes(grid.prefix, results, config)
  return Prepared(grid.metrics, count, function, resample, permute)


def _group_notes(
  where: str,
  results: Mapping[str, correlation.Grouped],
  config: AgreementConfig,
) -> list[str]:
  first = next(iter(results.values()))
  fewer = np.count_nonzero(np.isnan(first.per_group)) - (
    first.constant if config.constant == 'skip' else 0
  )
  notes = []
  if fewer:
    notes.append(
      f'{where}{fewer} {config.group} groups left out: fewer than two rated '
      'entries'
    )
  if any(result.constant for result in results.values()):
    notes.append(
      f'{where}{config.group} groups that '
      + ('count 0' if config.constant == 'zero' else 'do not count')
      + ', because human or metric scores do not vary: '
      + ', '.join(f'{n} {r.constant}' for n, r in results.items() if r.constant)
      + f' of {len(first.per_group)}'
    )
  return notes


def _permute_any(
  needed: np.ndarray,
  metrics: Mapping[str, np.ndarray],
  function: Callable[[np.ndarray], float],
  config: AgreementConfig,
  seed: int,
) -> permutation.PermutationResult:
  return swap_tests.permute_any(
    needed,
    dict(metrics),
    function,
    unit=config.swap,
    resamples=config.permutations,
    seed=seed,
    early_stop=config.early_stop,
  )


def _prepare_calibrated(
  grid: ScoreGrid, human: np.ndarray, config: AgreementConfig, notes: list[str]
) -> Prepared:
  pairs = tie_calibration.rated_pairs(human, config.group)
  calibrated = {
    name: tie_calibration.calibrate(human, scores, pairs=pairs)
    for name, scores in grid.metrics.items()
  }
  notes.append(
    f'{grid.prefix}thresholds of ties: '
    + ', '.join(f'{name} {c.threshold:.4g}' for name, c in calibrated.items())
  )

  def resample(seed: int) -> bootstrap.Replicates:
    if config.group != 'item':
      raise InputError(
        'calibrated-accuracy is resampled by item only: add --group item'
      )
    # The thresholds stay those of all the data, as in the permutation test.
    return pair_bootstrap.bootstrap_correct_pairs(
      grid.human.shape[1],
      {
        name: tie_calibration.correct_pairs(
          scores, pairs, calibrated[name].threshold
        )
        for name, scores in grid.metrics.items()
      },
      pairs.first % grid.human.shape[1],
      pairs.weights,
      resamples=config.resamples,
      seed=seed,
    )

  def permute(seed: int) -> permutation.PermutationResult:
    return swap_tests.permute_correct_pairs(
      {
        name: tie_calibration.correct_pairs(
          scores, pairs, calibrated[name].threshold
        )
        for name, scores in grid.metrics.items()
      },
      pairs.weights,
      resamples=config.permutations,
      seed=seed,
    )

  return Prepared(
    grid.metrics,
    len(pairs),
    lambda scores: tie_calibration.calibrate(human, scores, pairs=pairs).value,
    resample,
    permute,
  )


def _prepare_soft(
  grid: ScoreGrid, human: np.ndarray, config: AgreementConfig
) -> Prepared:
  if len(grid.segments) < 2:
    raise InputError(
      f'{grid.prefix}soft-accuracy permutes segments, and there is only one; '
      'give scores of segments, or take --stat accuracy for whole systems'
    )

  # The permutations within p-values use the configured seed, so that the value
  # does not depend on the draws of the test.
  def accuracy(gold: np.ndarray, scores: np.ndarray) -> float:
    return soft_accuracy.soft_pairwise_accuracy(
      gold, scores, permutations=config.permutations, seed=config.seed
    )

  return Prepared(
    grid.metrics,
    len(grid.systems),
    lambda scores: accuracy(human, scores),
    lambda seed: bootstrap.bootstrap_any(
      human, grid.metrics, accuracy, resamples=config.resamples, seed=seed
    ),
    lambda seed: swap_tests.permute_soft_accuracy(
      human,
      grid.metrics,
      unit=config.swap,
      resamples=config.permutations,
      seed=seed,
      permutations=config.permutations,
      early_stop=config.early_stop,
    ),
  )


def _given(grid: ScoreGrid) -> np.ndarray:
  # [S, N]: every metric has a score.
  return np.isfinite(np.stack(list(grid.metrics.values()))).all(axis=0)


def _check_complete(
  grid: ScoreGrid,
  missing: np.ndarray,
  config: AgreementConfig,
  notes: list[str],
) -> None:
  count = int(np.count_nonzero(missing))
  if not count:
    return
  if config.intersect:
    notes.append(
      f'{grid.prefix}{count} (system, segment) entries left out, because '
      'some metric has no score there'
    )
    return
  system, segment = np.argwhere(missing)[0]
  without = [
    name
    for name, scores in grid.metrics.items()
    if not np.isfinite(scores[system, segment])
  ]
  raise files.RecordError(
    f'{grid.prefix}{count} (system, segment) entries have no score; the '
    f'first is {grid.systems[system]!r}, {grid.segments[segment]!r} under '
    f'{", ".join(without)}. Complete the scores, or ask for the intersection '
    '(--intersect)'
  )


def _prepare_systems(
  grid: ScoreGrid, config: AgreementConfig, notes: list[str]
) -> Prepared:
  given = _given(grid)
  missing = ~given
  if missing.any():
    _check_complete(grid, missing, config, notes)
    if len(grid.segments) == 1:
      # A file of system scores: the missing entry is a system.
      whole = given[:, 0]
      names = zip(grid.systems, whole, strict=True)
      grid = grid.with_systems([name for name, there in names if there])
    else:
      # The systems must be compared on the same segments.
      grid = grid.with_segments(np.all(given, axis=0))
  if len(grid.systems) < 2 or not grid.segments:
    raise InputError(
      f'{grid.prefix}{len(grid.systems)} system(s) on {len(grid.segments)} '
      'segment(s): a system-level correlation needs two systems'
    )
  human = correlation.system_means(grid.human)
  if np.isnan(human).any():
    raise InputError(
      f'{grid.prefix}no rated segment is left of '
      f'{grid.systems[int(np.flatnonzero(np.isnan(human))[0])]}'
    )
  statistic = correlation.STATISTICS[config.statistic]
  return Prepared(
    grid.metrics,
    len(grid.systems),
    lambda scores: statistic(human, correlation.system_means(scores)),
    lambda seed: bootstrap.bootstrap_systems(
      grid.human,
      grid.metrics,
      config.statistic,
      resamples=config.resamples,
      seed=seed,
    ),
    lambda seed: permutation.permute_systems(
      grid.human,
      grid.metrics,
      config.statistic,
      unit=config.swap,
      resamples=config.permutations,
      seed=seed,
    ),
  )


def _prepare_darr(
  grid: ScoreGrid, dropped: list[str], config: AgreementConfig, notes: list[str]
) -> Prepared:
  if config.pairs is None:
    pairs = pairs_from_ratings(grid.human, config.min_gap)
  else:
    pairs, lost = place_pairs(
      grid, config.pairs, dropped, intersect=config.intersect
    )
    if lost:
      notes.append(
        f'{grid.prefix}{lost} of {lost + len(pairs)} ranked pairs left out: '
        'a system or segment of theirs is not among those measured'
      )
  missing = pairs.entries(grid.human.shape) & ~_given(grid)
  _check_complete(grid, missing, config, notes)
  keep = ~(
    missing[pairs.better, pairs.segments] | missing[pairs.worse, pairs.segments]
  )
  pairs = RankedPairs(
    pairs.segments[keep], pairs.better[keep], pairs.worse[keep]
  )
  if not len(pairs):
    raise InputError(
      f'{grid.prefix}no ranked pair is left; are the human scores raw '
      f'ratings, and is a gap of {config.min_gap:g} right for their scale?'
    )

  def function(scores: np.ndarray) -> float:
    return correlation.darr_tau(
      scores[pairs.better, pairs.segments],
      scores[pairs.worse, pairs.segments],
      config.ties,
    )

  def permute(seed: int) -> permutation.PermutationResult:
    if config.ties == 'excluded':
      needed = pairs.entries(grid.human.shape)
      return _permute_any(needed, grid.metrics, function, config, seed)
    return swap_tests.permute_darr(
      pairs,
      grid.metrics,
      ties=config.ties,
      unit=config.swap,
      resamples=config.permutations,
      seed=seed,
    )

  return Prepared(
    grid.metrics,
    len(pairs),
    function,
    lambda seed: pair_bootstrap.bootstrap_darr(
      pairs,
      grid.metrics,
      resamples=config.resamples,
      seed=seed,
      ties=config.ties,
      unit=config.unit,
    ),
    permute,
  )
