"""Paired tests of the difference between two systems under a metric.

The paired bootstrap (Koehn 2004) and approximate randomisation (Riezler and
Maxwell 2005), which sacrebleu and comet-compare offer too. If a metric computes
a system's value from sums over segments (BLEU, chrF, TER), the sums are
resampled, not the mean of segment scores. With the same seed the draws are
those of sacrebleu. `bootstrap` and `permutation` compare metrics instead.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import bootstrap

BOOTSTRAP_DRAWS = 1000
RANDOMISATIONS = 10000
#: Rules for the p-value of the bootstrap, see `compare`.
RULES = ('centred', 'sacrebleu')
# Rounding must not turn an equal difference into a smaller one.
_SLACK = 1e-9


@dataclasses.dataclass(frozen=True)
class System:
  """One system's scores on N segments.

  Attributes:
    name: The system.
    values: Segment scores, [N].
    statistics: The sufficient statistics of each segment, [N, K].
    aggregate: Computes the system's value from their sum [K].
  """

  name: str
  values: np.ndarray
  statistics: np.ndarray
  aggregate: Callable[[np.ndarray], float]

  @property
  def value(self) -> float:
    """The system's value."""
    return float(self.aggregate(self.statistics.sum(axis=0)))


def of_means(name: str, values: np.ndarray) -> System:
  """A system whose value is the mean of its segment scores [N].

  Raises:
    InputError: A score that is not finite, or none.
  """
  values = np.asarray(values, np.float64)
  if not values.size or not np.isfinite(values).all():
    raise InputError(f'{name}: every segment must have a finite score')
  count = len(values)
  return System(
    name, values, values[:, None], lambda total: float(total[0]) / count
  )


@dataclasses.dataclass(frozen=True)
class Compared:
  """The comparison of a system with a baseline, first minus second.

  Attributes:
    first: The system.
    second: The baseline.
    difference: The difference of their values.
    low: Lower end of the 95% bootstrap interval of the difference.
    high: Its upper end.
    bootstrap_p: Two-sided p-value of the paired bootstrap; None with fewer
      than `bootstrap.FEWEST_SEGMENTS` segments.
    randomisation_p: Two-sided p-value of approximate randomisation, exact if
      all exchanges were made; None without that test.
    wins: Shares of the resamples in which the first is better, worse and
      equal; they sum to 1.
    segments: Numbers of segments on which the first is better, worse and
      equal.
  """

  first: str
  second: str
  difference: float
  low: float
  high: float
  bootstrap_p: float | None
  randomisation_p: float | None
  wins: tuple[float, float, float]
  segments: tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All systems of one language pair.

  Attributes:
    systems: Their names.
    values: The value of each, [S].
    intervals: 95% bootstrap intervals, [S, 2].
    rows: The comparisons.
    segments: The number of segments.
    notes: Limits of the tests, one sentence each.
  """

  systems: tuple[str, ...]
  values: np.ndarray
  intervals: np.ndarray
  rows: tuple[Compared, ...]
  segments: int
  notes: tuple[str, ...] = ()


def compare(
  systems: Sequence[System],
  against: Sequence[tuple[int, int]],
  *,
  resamples: int = BOOTSTRAP_DRAWS,
  randomisations: int = RANDOMISATIONS,
  seed: int = 12345,
  rule: str = 'centred',
) -> Comparison:
  """Compares systems on the same segments.

  The bootstrap's p-value is the share (1 + count) / (1 + B) of resampled
  differences at least as large as the observed one d. Resampled differences r
  are shifted to the null hypothesis first: |r - mean(r)| >= |d| ('centred').
  sacrebleu and Moses count |r| - mean(|r|) >= |d| instead ('sacrebleu'), which
  rejects about 12% of true null hypotheses at p < .05. Unlike there, a resample
  that equals the observed difference counts, so that equal systems have p = 1.
  Randomisation makes all 2^N exchanges if these are no more than
  `randomisations`.

  Args:
    systems: Two or more.
    against: Pairs of indices in `systems`: a system and its baseline.
    resamples: The number of bootstrap draws.
    randomisations: The number of random exchanges; 0 skips that test.
    seed: The seed of each test.
    rule: A name in `RULES`.

  Raises:
    InputError: Fewer than two systems or segments, systems of different
      length, a number that is too small, an unknown rule.
  """
  if len(systems) < 2:
    raise InputError(f'{len(systems)} system(s): a comparison needs two')
  lengths = {len(system.values) for system in systems}
  if len(lengths) > 1:
    raise InputError(
      f'the systems have different numbers of segments: {lengths}'
    )
  if randomisations < 0:
    raise InputError(f'randomisations must be 0 or more: {randomisations}')
  if rule not in RULES:
    raise InputError(f'unknown rule {rule!r}; there are {", ".join(RULES)}')
  count = lengths.pop()
  draws = _bootstrap(systems, resamples, seed)
  values = np.array([system.value for system in systems])
  rows = []
  for first, second in against:
    one, other = systems[first], systems[second]
    difference = values[first] - values[second]
    drawn = draws[:, first] - draws[:, second]
    low, high = np.quantile(drawn, [0.025, 0.975])
    rows.append(
      Compared(
        one.name,
        other.name,
        float(difference),
        float(low),
        float(high),
        _bootstrap_p(drawn, abs(difference), rule)
        if count >= bootstrap.FEWEST_SEGMENTS
        else None,
        _randomise(one, other, abs(difference), randomisations, seed)
        if randomisations
        else None,
        _shares(drawn),
        _segments(one.values - other.values),
      )
    )
  return Comparison(
    tuple(system.name for system in systems),
    values,
    np.quantile(draws, [0.025, 0.975], axis=0).T,
    tuple(rows),
    count,
    _notes(count, randomisations),
  )


def _notes(count: int, randomisations: int) -> tuple[str, ...]:
  few = bootstrap.few_segments(count)
  if not few:
    return ()
  if not randomisations:
    return (few,)
  if count < bootstrap.FEWEST_SEGMENTS:
    return (f'{few}; no randomisation has p below {2 / 2**count:g}',)
  return (f'{few}; use the p-value of the randomisation',)


def _bootstrap(
  systems: Sequence[System], resamples: int, seed: int
) -> np.ndarray:
  # [B, S]; the draws are those of sacrebleu's generator.
  pieces = []
  count = len(systems[0].values)
  for taken in bootstrap.segment_draws(count, resamples, seed):
    piece = np.empty((len(taken), len(systems)))
    for k, system in enumerate(systems):
      totals = taken @ system.statistics
      piece[:, k] = [system.aggregate(total) for total in totals]
    pieces.append(piece)
  return np.concatenate(pieces)


def _bootstrap_p(drawn: np.ndarray, seen: float, rule: str) -> float:
  if rule == 'centred':
    sizes = np.abs(drawn - drawn.mean())
  else:
    sizes = np.abs(drawn) - np.abs(drawn).mean()
  beyond = np.count_nonzero(sizes >= seen - _SLACK)
  return float((1 + beyond) / (1 + len(drawn)))


def _randomise(
  one: System, other: System, seen: float, trials: int, seed: int
) -> float:
  count = len(one.values)
  exact = count < 63 and 2**count <= trials
  if exact:
    kept = np.array(list(itertools.product((False, True), repeat=count)))
    trials = len(kept)
  else:
    generator = np.random.default_rng(seed)
    kept = generator.integers(2, size=(trials, count), dtype=bool)
  total = one.statistics.sum(axis=0) + other.statistics.sum(axis=0)
  beyond = 0
  step = max(1, (1 << 22) // count)
  for start in range(0, trials, step):
    # What is kept from the baseline, and exchanged with the other system.
    chosen = kept[start : start + step].astype(np.float64)
    mixed = chosen @ (other.statistics - one.statistics)
    mixed += one.statistics.sum(axis=0)
    for sums in mixed:
      difference = one.aggregate(sums) - one.aggregate(total - sums)
      beyond += abs(difference) >= seen - _SLACK
  return beyond / trials if exact else (1 + beyond) / (1 + trials)


def _shares(drawn: np.ndarray) -> tuple[float, float, float]:
  return (
    float(np.mean(drawn > 0)),
    float(np.mean(drawn < 0)),
    float(np.mean(drawn == 0)),
  )


def _segments(difference: np.ndarray) -> tuple[int, int, int]:
  return (
    int(np.count_nonzero(difference > 0)),
    int(np.count_nonzero(difference < 0)),
    int(np.count_nonzero(difference == 0)),
  )
