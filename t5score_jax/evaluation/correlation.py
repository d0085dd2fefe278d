"""Correlation statistics of a metric with human judgments.

Functions of arrays. `agreement` handles language pairs and systems, `bootstrap`
and `permutation` test differences.

Two rules hold for every statistic. A value that is not finite raises
`InputError`. Constant input, or fewer than two values, has no correlation: the
result is 0.0, with a `ConstantInputWarning`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
import scipy

from t5score_jax.errors import InputError

# How a metric's tie on a human-ranked pair counts, by name:
# (value in the numerator, value in the denominator).
TIE_RULES = {
  # WMT12, WMT17 to WMT20, and T5Score: a tie is an error.
  'discordant': (-1.0, 1.0),
  # WMT14 to WMT16: a tie earns nothing and still counts as a pair.
  'neutral': (0.0, 1.0),
  # WMT13: ties are left out altogether.
  'excluded': (0.0, 0.0),
}


class ConstantInputWarning(UserWarning):
  """Values do not vary, so that their correlation is defined as 0."""


def warn_constant(which: str) -> None:
  """Warns that the scores called `which` do not vary."""
  warnings.warn(
    f'{which} do not vary, so that they have no correlation; the result is 0.0',
    ConstantInputWarning,
    stacklevel=3,
  )


def check_scores(values: object, name: str = 'scores') -> np.ndarray:
  """Returns `values` as a float64 vector.

  Args:
    values: Numbers, any sequence of one dimension.
    name: A name for the error message.

  Returns:
    A float64 array [N].

  Raises:
    InputError: More than one dimension, or a value that is not finite; the
      message names the first position.
  """
  array = np.asarray(values, dtype=np.float64)
  if array.ndim != 1:
    raise InputError(
      f'{name} must have one dimension, not the shape {array.shape}'
    )
  bad = np.flatnonzero(~np.isfinite(array))
  if bad.size:
    raise InputError(
      f'{name} hold {array[bad[0]]} at position {bad[0]} ({bad.size} such '
      'values): remove or repair them before correlating'
    )
  return array


def _check_two(x: object, y: object) -> tuple[np.ndarray, np.ndarray, bool]:
  x = check_scores(x, 'the first scores')
  y = check_scores(y, 'the second scores')
  if x.shape != y.shape:
    raise InputError(
      f'the two score lists differ in length: {len(x)} and {len(y)}'
    )
  for values, which in ((x, 'the first scores'), (y, 'the second scores')):
    if len(values) < 2 or np.ptp(values) == 0:
      warn_constant(which)
      return x, y, False
  return x, y, True


def darr_tau(
  better_scores: object, worse_scores: object, ties: str = 'discordant'
) -> float:
  """Kendall-like tau over human-ranked pairs (WMT20, T5Score 4.2).

  tau = (concordant - discordant) / (concordant + discordant), over pairs of
  translations of one segment of which human annotators preferred the first.

  Args:
    better_scores: The metric's scores of the better translations, [P].
    worse_scores: Those of the worse translations, [P], same order.
    ties: How equal metric scores count: 'discordant' (the rule of WMT20 and
      of T5Score), 'neutral' (WMT14) or 'excluded' (WMT13).

  Returns:
    A float in [-1, 1]; 0.0 with a warning where no pair counts.

  Raises:
    InputError: Unequal lengths, values that are not finite, an unknown rule.

  >>> darr_tau([0.9, 0.5, 0.4], [0.1, 0.5, 0.3])  # one tie
  0.3333333333333333
  >>> darr_tau([0.9, 0.5, 0.4], [0.1, 0.5, 0.3], ties='neutral')
  0.6666666666666666
  """
  if ties not in TIE_RULES:
    raise InputError(
      f'unknown tie rule {ties!r}; there are {", ".join(sorted(TIE_RULES))}'
    )
  better = check_scores(better_scores, 'scores of the better translations')
  worse = check_scores(worse_scores, 'scores of the worse translations')
  if better.shape != worse.shape:
    raise InputError(
      f'{len(better)} scores of better and {len(worse)} of worse translations'
    )
  concordant = np.count_nonzero(better > worse)
  tied = np.count_nonzero(better == worse)
  discordant = len(better) - concordant - tied
  numerator, denominator = TIE_RULES[ties]
  pairs = concordant + discordant + denominator * tied
  if pairs == 0:
    warn_constant('scores over these pairs')
    return 0.0
  return float((concordant - discordant + numerator * tied) / pairs)


def pearson(x: object, y: object) -> float:
  """Pearson's correlation of two score lists [N], in [-1, 1].

  Raises:
    InputError: Unequal lengths or values that are not finite.
  """
  x, y, varies = _check_two(x, y)
  return float(_pearson_rows(x[None], y[None])[0]) if varies else 0.0


def _pearson_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  # [R, N], [R, N] -> [R]; no row may be constant. Scaled before squaring, so
  # that neither tiny nor huge scores leave the range of a float.
  def centred(values: np.ndarray) -> np.ndarray:
    values = values / np.abs(values).max(axis=1, keepdims=True)
    values = values - values.mean(axis=1, keepdims=True)
    values = values / np.abs(values).max(axis=1, keepdims=True)
    return values / np.sqrt((values**2).sum(axis=1, keepdims=True))

  return np.clip((centred(x) * centred(y)).sum(axis=1), -1.0, 1.0)


def pearson_of_sums(
  count: np.ndarray,
  x: np.ndarray,
  y: np.ndarray,
  xx: np.ndarray,
  yy: np.ndarray,
  xy: np.ndarray,
) -> np.ndarray:
  """Pearson's correlations from sums of x, y, x², y² and xy, any shape.

  For resampling: every resample's sums come from one matrix product. Centre
  the scores first, so that the sums of squares lose no digits. Values that do
  not vary have correlation 0.
  """
  count = np.maximum(count, 1.0)
  variance = np.maximum(xx - x * x / count, 0) * np.maximum(
    yy - y * y / count, 0
  )
  safe = np.where(variance > 0, np.sqrt(variance), 1.0)
  values = np.where(variance > 0, (xy - x * y / count) / safe, 0.0)
  return np.clip(values, -1.0, 1.0)


def spearman(x: object, y: object) -> float:
  """Spearman's rank correlation (ties share their mean rank), in [-1, 1].

  Raises:
    InputError: Unequal lengths or values that are not finite.
  """
  x, y, varies = _check_two(x, y)
  if not varies:
    return 0.0
  return pearson(scipy.stats.rankdata(x), scipy.stats.rankdata(y))


def kendall(x: object, y: object, variant: str = 'b') -> float:
  """Kendall's tau-b (the papers' sys-k) or tau-c, in [-1, 1].

  Raises:
    InputError: Unequal lengths, values that are not finite, an unknown
      variant.
  """
  if variant not in ('b', 'c'):
    raise InputError(f"unknown variant {variant!r} of Kendall's tau; b or c")
  x, y, varies = _check_two(x, y)
  if not varies:
    return 0.0
  return float(scipy.stats.kendalltau(x, y, variant=variant).statistic)


def kendall_c(x: object, y: object) -> float:
  """Kendall's tau-c; see `kendall`."""
  return kendall(x, y, variant='c')


def pairwise_accuracy(x: object, y: object) -> float:
  """Share of pairs that both lists order alike (Kocmi et al. 2021), in [0, 1].

  Ties count as WMT22 counts them: a pair that both lists tie is right, a pair
  that one of them ties is wrong. Constant lists are therefore no special
  case; fewer than two values give 0.0 with a warning.

  Raises:
    InputError: Unequal lengths or values that are not finite.
  """
  x = check_scores(x, 'the first scores')
  y = check_scores(y, 'the second scores')
  if x.shape != y.shape:
    raise InputError(
      f'the two score lists differ in length: {len(x)} and {len(y)}'
    )
  if len(x) < 2:
    warn_constant('fewer than two scores')
    return 0.0
  agreeing = 0
  # Row by row: a full [N, N] table of 36,000 segments would need gigabytes.
  # Compared, not subtracted: a difference can vanish where numbers differ.
  for i in range(len(x) - 1):
    above_x, below_x = x[i] > x[i + 1 :], x[i] < x[i + 1 :]
    above_y, below_y = y[i] > y[i + 1 :], y[i] < y[i + 1 :]
    alike = (above_x == above_y) & (below_x == below_y)
    agreeing += int(np.count_nonzero(alike))
  return float(agreeing / (len(x) * (len(x) - 1) / 2))


# The statistics of two score lists that need nothing else, by the name that
# the command line gives them.
STATISTICS: dict[str, Callable[[object, object], float]] = {
  'pearson': pearson,
  'spearman': spearman,
  'kendall': kendall,
  'kendall-c': kendall_c,
  'accuracy': pairwise_accuracy,
}

GROUPINGS = ('none', 'item', 'system')


@dataclasses.dataclass(frozen=True)
class Grouped:
  """A correlation averaged over groups.

  Attributes:
    value: The mean over the groups that count.
    groups: How many groups count.
    left_out: How many do not: fewer than two rated entries, or human scores
      that do not vary.
    per_group: The value of each group, NaN where it is left out, [groups].
  """

  value: float
  groups: int
  left_out: int
  per_group: np.ndarray


def grouped(
  human: np.ndarray,
  metric: np.ndarray,
  statistic: str = 'pearson',
  by: str = 'none',
) -> Grouped:
  """A segment-level correlation with one of the three ways of grouping.

  'none' pools all (system, segment) entries; 'item' correlates the systems of
  each segment and averages over segments; 'system' correlates the segments of
  each system and averages over systems (Deutsch et al. 2023, section 2).
  A group whose human scores do not vary is left out and counted. A metric
  that does not vary in a group whose human scores do gets 0.

  Args:
    human: Human scores [S, N], NaN where an entry is not rated.
    metric: Metric scores [S, N]; needed wherever `human` is rated.
    statistic: A name in `STATISTICS`.
    by: A name in `GROUPINGS`.

  Returns:
    A `Grouped`; its value is 0.0 with a warning where no group counts.

  Raises:
    InputError: Shapes differ, an unknown name, a rated entry without a finite
      metric score.
  """
  human = np.asarray(human, np.float64)
  metric = np.asarray(metric, np.float64)
  if human.shape != metric.shape or human.ndim != 2:
    raise InputError(
      'human and metric scores must share one shape [systems, segments], not '
      f'{human.shape} and {metric.shape}'
    )
  if statistic not in STATISTICS:
    raise InputError(
      f'unknown statistic {statistic!r}; there are {", ".join(STATISTICS)}'
    )
  if by not in GROUPINGS:
    raise InputError(
      f'unknown grouping {by!r}; there are {", ".join(GROUPINGS)}'
    )
  rated = ~np.isnan(human)
  missing = rated & ~np.isfinite(metric)
  if missing.any():
    system, segment = np.argwhere(missing)[0]
    raise InputError(
      f'{np.count_nonzero(missing)} rated entries have no finite metric '
      f'score; the first is system {system}, segment {segment}'
    )
  if by == 'none':
    value = STATISTICS[statistic](human[rated], metric[rated])
    return Grouped(value, 1, 0, np.array([value]))
  if by == 'item':
    human, metric, rated = human.T, metric.T, rated.T
  per_group = _each_group(human, metric, rated, statistic)
  counted = per_group[~np.isnan(per_group)]
  if not counted.size:
    warn_constant('human scores of every group')
    return Grouped(0.0, 0, len(per_group), per_group)
  return Grouped(
    float(counted.mean()),
    len(counted),
    len(per_group) - len(counted),
    per_group,
  )


def _each_group(
  human: np.ndarray, metric: np.ndarray, rated: np.ndarray, statistic: str
) -> np.ndarray:
  # [groups, entries] -> [groups], NaN where a group does not count.
  values = np.full(len(human), np.nan)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', ConstantInputWarning)
    for group, keep in enumerate(rated):
      rated_scores = human[group, keep]
      if len(rated_scores) >= 2 and np.ptp(rated_scores) > 0:
        values[group] = STATISTICS[statistic](rated_scores, metric[group, keep])
  return values


def system_means(scores: np.ndarray) -> np.ndarray:
  """Mean score of each system over its rated segments, [S, N] -> [S].

  With standardised ratings (z) this is T5Score's system score. A system
  without a single rating has NaN.
  """
  scores = np.asarray(scores, np.float64)
  rated = ~np.isnan(scores)
  count = rated.sum(axis=1)
  total = np.where(rated, scores, 0.0).sum(axis=1)
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)
