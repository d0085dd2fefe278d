"""Correlation statistics of a metric with human judgments.

Functions of arrays. `agreement` handles language pairs and systems, `bootstrap`
and `permutation` test differences.

Two rules hold for every statistic. A value that is not finite raises
`InputError`. Constant input, or fewer than two values, has no correlation: the
result is 0.0, with a `ConstantInputWarning`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import scipy

from t5score_jax.errors import InputError

# How a metric's tie on a human-ranked pair counts, by name:
# (value in the numerator, value in the denominator).
TIE_RULES = {
  # WMT12, WMT17 to WMT20, and T5Score: a tie counts as discordant.
  'discordant': (-1.0, 1.0),
  # WMT14 to WMT16: a tie adds 0 and still counts as a pair.
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


@contextlib.contextmanager
def note_constants(
  notes: list[str], metric: str = 'the metric', where: str = ''
) -> Iterator[None]:
  """Turns each `ConstantInputWarning` of a `with` block into a note.

  Args:
    notes: Receives the notes, each once.
    metric: The metric whose statistic the block computes.
    where: What the notes begin with.
  """
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    yield
  for warning in caught:
    if not issubclass(warning.category, ConstantInputWarning):
      warnings.showwarning(
        warning.message, warning.category, warning.filename, warning.lineno
      )
      continue
    text = str(warning.message).replace('the first scores', 'human scores')
    text = text.replace('the second scores', f'scores of {metric}')
    if where + text not in notes:
      notes.append(where + text)


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
    worse_scores: Its scores of the worse translations, [P], same order.
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


def standardise(scores: np.ndarray) -> np.ndarray:
  """Scores, any shape, with mean 0 and variance 1; NaN stays NaN.

  Scores that do not vary become 0.
  """
  scores = np.asarray(scores, np.float64)
  chosen = scores[~np.isnan(scores)]
  if not chosen.size:
    return scores
  return (scores - chosen.mean()) / (chosen.std() or 1.0)


def check_rated(
  human: np.ndarray, metric: np.ndarray, name: str = 'the metric'
) -> np.ndarray:
  """Returns the metric's scores after checking them against human scores.

  Raises:
    InputError: Shapes differ or are not [S, N], or a rated entry has no finite
      metric score.
  """
  metric = np.asarray(metric, np.float64)
  if metric.shape != human.shape or human.ndim != 2:
    raise InputError(
      'human and metric scores must share one shape [systems, segments], not '
      f'{human.shape} and {metric.shape}'
    )
  missing = ~np.isnan(human) & ~np.isfinite(metric)
  if missing.any():
    system, segment = np.argwhere(missing)[0]
    raise InputError(
      f'{np.count_nonzero(missing)} rated entries have no finite score under '
      f'{name}; the first is system {system}, segment {segment}'
    )
  return metric


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

  Ties count as in WMT22: a pair that is tied in both lists is correct, a pair
  tied in only one of them is not. The statistic is therefore defined for
  constant lists, with a warning; fewer than two values give 0.0 with a warning.

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
  for values, which in ((x, 'the first scores'), (y, 'the second scores')):
    if np.ptp(values) == 0:
      warnings.warn(
        f'{which} do not vary: every pair of them is a tie',
        ConstantInputWarning,
        stacklevel=2,
      )
  return _accuracy(x, y)


def _accuracy(x: np.ndarray, y: np.ndarray) -> float:
  agreeing = 0
  # Row by row: a full [N, N] table of 36,000 segments would need gigabytes.
  # Compared, not subtracted: the difference of unequal numbers can round to 0.
  for i in range(len(x) - 1):
    above_x, below_x = x[i] > x[i + 1 :], x[i] < x[i + 1 :]
    above_y, below_y = y[i] > y[i + 1 :], y[i] < y[i + 1 :]
    alike = (above_x == above_y) & (below_x == below_y)
    agreeing += int(np.count_nonzero(alike))
  return float(agreeing / (len(x) * (len(x) - 1) / 2))


# The statistics that need only two lists of scores, by their names on the
# command line.
STATISTICS: dict[str, Callable[[object, object], float]] = {
  'pearson': pearson,
  'spearman': spearman,
  'kendall': kendall,
  'kendall-c': kendall_c,
  'accuracy': pairwise_accuracy,
}

# Up to so many entries a group's pairs are listed, so many pairs at a time.
_FEW = 64
_PAIRS = 1 << 20

GROUPINGS = ('none', 'item', 'system')
#: How a group counts whose human or metric scores do not vary, and which
#: therefore has no correlation: not at all, or as 0. mt-metrics-eval has both
#: rules; its default is to skip the group.
CONSTANT_RULES = ('skip', 'zero')


@dataclasses.dataclass(frozen=True)
class Grouped:
  """A correlation averaged over groups.

  Attributes:
    value: The mean over the groups that count.
    groups: How many groups count.
    constant: How many groups have two or more rated entries, but human or
      metric scores that do not vary.
    per_group: The value of each group, NaN where it does not count, [groups].
  """

  value: float
  groups: int
  constant: int
  per_group: np.ndarray


def grouped(
  human: np.ndarray,
  metric: np.ndarray,
  statistic: str = 'pearson',
  by: str = 'none',
  constant: str = 'skip',
) -> Grouped:
  """A segment-level correlation under one of the three groupings.

  'none' pools all (system, segment) entries; 'item' correlates the systems of
  each segment and averages over segments; 'system' correlates the segments of
  each system and averages over systems (Deutsch et al. 2023, section 2).
  A group with fewer than two rated entries does not count. A group whose human
  or metric scores do not vary is skipped or counts as 0 (`constant`); pairwise
  accuracy is defined for it.

  Args:
    human: Human scores [S, N], NaN where an entry is not rated.
    metric: Metric scores [S, N]; needed wherever `human` is rated.
    statistic: A name in `STATISTICS`.
    by: A name in `GROUPINGS`.
    constant: A name in `CONSTANT_RULES`.

  Returns:
    A `Grouped`; its value is 0.0 with a warning where no group counts.

  Raises:
    InputError: Shapes differ, an unknown name, a rated entry without a finite
      metric score.
  """
  human = np.asarray(human, np.float64)
  metric = check_rated(human, metric)
  if statistic not in STATISTICS:
    raise InputError(
      f'unknown statistic {statistic!r}; there are {", ".join(STATISTICS)}'
    )
  if by not in GROUPINGS:
    raise InputError(
      f'unknown grouping {by!r}; there are {", ".join(GROUPINGS)}'
    )
  if constant not in CONSTANT_RULES:
    raise InputError(
      f'unknown rule {constant!r}; there are {", ".join(CONSTANT_RULES)}'
    )
  rated = ~np.isnan(human)
  if by == 'none':
    value = STATISTICS[statistic](human[rated], metric[rated])
    return Grouped(value, 1, 0, np.array([value]))
  if by == 'item':
    human, metric, rated = human.T, metric.T, rated.T
  per_group = _each_group(human, metric, rated, statistic)
  if np.isnan(per_group).all():
    warn_constant('in every group human scores or the second scores')
  flat = np.isnan(per_group) & (rated.sum(axis=1) >= 2)
  if constant == 'zero':
    per_group = np.where(flat, 0.0, per_group)
  counted = per_group[~np.isnan(per_group)]
  value = float(counted.mean()) if counted.size else 0.0
  return Grouped(value, len(counted), int(flat.sum()), per_group)


def _each_group(
  human: np.ndarray, metric: np.ndarray, rated: np.ndarray, statistic: str
) -> np.ndarray:
  # [groups, entries] -> [groups], NaN where there is no correlation.
  if statistic in ('kendall', 'accuracy') and human.shape[1] <= _FEW:
    return _of_few(human, metric, rated, statistic)
  function = _accuracy if statistic == 'accuracy' else STATISTICS[statistic]
  values = np.full(len(human), np.nan)
  for group, keep in enumerate(rated):
    x, y = human[group, keep], metric[group, keep]
    if len(x) >= 2 and (
      statistic == 'accuracy' or (np.ptp(x) > 0 and np.ptp(y) > 0)
    ):
      values[group] = function(x, y)
  return values


def _of_few(
  human: np.ndarray, metric: np.ndarray, rated: np.ndarray, statistic: str
) -> np.ndarray:
  """Tau-b or accuracy of many small groups, over all pairs at once."""
  i, j = np.triu_indices(human.shape[1], 1)
  values = np.full(len(human), np.nan)
  step = max(1, _PAIRS // max(1, len(i)))
  for start in range(0, len(human), step):
    rows = slice(start, start + step)
    both = rated[rows, i] & rated[rows, j]
    signs = [
      # Compared, not subtracted; see `pairwise_accuracy`.
      (x[rows, i] > x[rows, j]).astype(np.int8) - (x[rows, i] < x[rows, j])
      for x in (human, metric)
    ]
    x, y = (np.where(both, sign, 0) for sign in signs)
    if statistic == 'accuracy':
      agreeing, pairs = ((x == y) & both).sum(1), both.sum(1)
    else:
      agreeing = (x * y).sum(1)
      # Pairs that are not tied in the human scores, and in the metric's.
      pairs = np.sqrt((x != 0).sum(1)) * np.sqrt((y != 0).sum(1))
    np.divide(agreeing, pairs, out=values[rows], where=pairs > 0)
  return values


def system_means(scores: np.ndarray) -> np.ndarray:
  """Mean score of each system over its rated segments, [S, N] -> [S].

  With standardised ratings (z) this is T5Score's system score. A system
  without a single rating has NaN. The sums are exact, so that systems with the
  same scores in another order tie.
  """
  rows = [row[~np.isnan(row)] for row in np.asarray(scores, np.float64)]
  return np.array(
    [math.fsum(row) / len(row) if len(row) else np.nan for row in rows]
  )
