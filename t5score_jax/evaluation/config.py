"""The configuration of an agreement report: statistic, systems, tests.

Checks that the options fit together. `agreement` does the measuring.
"""

from __future__ import annotations

import dataclasses
import re

from t5score_jax.data import humans
from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation, permutation
from t5score_jax.evaluation.darr import MIN_GAP, NamedPairs

LEVELS = ('segment', 'system')
# Statistics that are not functions of two lists, and their only level.
SPECIAL = {
  'darr': 'segment',
  'calibrated-accuracy': 'segment',
  'soft-accuracy': 'system',
}
STATISTICS = (*SPECIAL, *correlation.STATISTICS)
TESTS = ('bootstrap', 'permutation')


@dataclasses.dataclass(frozen=True)
class AgreementConfig:
  """Defines one agreement report.

  Attributes:
    level: 'segment' or 'system'.
    statistic: 'darr' or 'calibrated-accuracy' (segment level only),
      'soft-accuracy' (system level only), or a name in
      `correlation.STATISTICS`.
    group: How segment-level entries are grouped, see `correlation.grouped`.
    constant: How groups without variation count, a name in
      `correlation.CONSTANT_RULES`.
    ties: The tie rule of 'darr'.
    min_gap: The least difference of raw ratings that ranks a pair ('darr'
      without published pairs).
    pairs: Published ranked pairs; then 'darr' needs no human scores.
    exclude: Regular expression (searched) of systems to leave out; '' keeps
      all.
    outliers: Leave out systems whose human mean is further than this from
      the median, in robust standard deviations; None keeps them. Mathur et
      al. (2020) use 2.5. See `outliers.are_outliers`.
    top_k: Only the k systems with the best human mean, by language pair.
    resamples: Bootstrap draws for intervals and comparisons; 0 for none.
    unit: What is drawn for 'darr': 'segment' or 'pair'.
    seed: Of the draws.
    baseline: The metric that the others are compared with, or None.
    test: How all metrics are compared with each other: 'bootstrap' (from
      `resamples`), 'permutation', or None for not at all.
    permutations: Swaps of the permutation test, and permutations within each
      p-value of 'soft-accuracy'.
    swap: What a permutation swaps, a name in `permutation.UNITS`; 'both' is
      PERM-BOTH, 'system-scores' is for correlations of systems and the only
      one without segments.
    early_stop: Whether a slow permutation test stops where it is decided.
    unsupervised: Metrics that have seen no human judgment, for the marks;
      None prints no marks.
    intersect: Leave out entries that some metric lacks (and count them)
      instead of raising.
  """

  level: str = 'segment'
  statistic: str = 'pearson'
  group: str = 'none'
  constant: str = 'skip'
  ties: str = 'discordant'
  min_gap: float = MIN_GAP
  pairs: NamedPairs | None = None
  exclude: str = humans.HUMAN_SYSTEMS
  outliers: float | None = None
  top_k: int | None = None
  resamples: int = 0
  unit: str = 'segment'
  seed: int = 12345
  baseline: str | None = None
  test: str | None = None
  permutations: int = 1000
  swap: str = 'both'
  early_stop: bool = True
  unsupervised: tuple[str, ...] | None = None
  intersect: bool = False

  def __post_init__(self) -> None:
    if self.level not in LEVELS:
      raise InputError(f'unknown level {self.level!r}; {" or ".join(LEVELS)}')
    if self.statistic not in STATISTICS:
      raise InputError(
        f'unknown statistic {self.statistic!r}; there are '
        + ', '.join(STATISTICS)
      )
    only = SPECIAL.get(self.statistic, self.level)
    if only != self.level:
      raise InputError(
        f'{self.statistic} has no {self.level} level: it is of {only}s'
      )
    if self.level == 'system' and self.group != 'none':
      raise InputError('grouping is for the segment level')
    if self.outliers is not None and not self.outliers > 0:
      raise InputError(f'outliers must be above 0, not {self.outliers}')
    if self.pairs is not None and self.statistic != 'darr':
      raise InputError('ranked pairs serve the statistic darr only')
    if self.top_k is not None and self.top_k < 2:
      raise InputError(f'top_k must be 2 or more, not {self.top_k}')
    if self.resamples < 0:
      raise InputError(f'resamples must be 0 or more, not {self.resamples}')
    if self.baseline is not None and not self.resamples:
      raise InputError('a comparison with a baseline needs resamples above 0')
    self._check_test()
    try:
      re.compile(self.exclude)
    except re.error as error:
      raise InputError(
        f'{self.exclude!r} is not a regular expression: {error}'
      ) from error

  def _check_test(self) -> None:
    if self.test not in (None, *TESTS):
      raise InputError(
        f'unknown test {self.test!r}; there are {", ".join(TESTS)}'
      )
    if self.test == 'bootstrap' and not self.resamples:
      raise InputError('the test bootstrap needs resamples above 0')
    if self.permutations < 1:
      raise InputError(
        f'permutations must be 1 or more, not {self.permutations}'
      )
    if self.swap not in permutation.UNITS:
      raise InputError(
        f'unknown swap {self.swap!r}; there are {", ".join(permutation.UNITS)}'
      )
    if self.swap == 'system-scores' and (
      self.level != 'system' or self.statistic in SPECIAL
    ):
      raise InputError(
        "swap 'system-scores' is for correlations of systems: level 'system'"
      )
    if self.unsupervised is not None and self.test is None:
      raise InputError('marks need a test: bootstrap or permutation')
