"""Pairwise accuracy with tie calibration.

Metrics with real-valued scores never tie; human ratings with few levels often
do. Deutsch et al. (2023), "Ties matter", therefore count a metric's scores as
tied if they differ by at most a threshold, which is fitted to the data. The
accuracy at the best threshold is the segment-level statistic of WMT23 to
WMT25. Plain pairwise accuracy is in `correlation`;
`swap_tests.permute_correct_pairs` compares two metrics.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation

# More pairs than this need gigabytes: 'none' and 'system' grow with the square
# of the number of segments.
MAX_PAIRS = 50_000_000


@dataclasses.dataclass(frozen=True)
class RatedPairs:
  """All pairs of rated entries within each group.

  Attributes:
    first: Index of one entry in the flattened grid [S * N], int [P].
    second: Index of the other entry, int [P].
    weights: Weight of each pair in the mean of the groups' accuracies; they
      sum to 1, [P].
    signs: The human order of the pair: 1, 0 for a tie, or -1, int8 [P].
    groups: The number of groups with a pair.
  """

  first: np.ndarray
  second: np.ndarray
  weights: np.ndarray
  signs: np.ndarray
  groups: int

  def __len__(self) -> int:
    return len(self.first)


@dataclasses.dataclass(frozen=True)
class Calibrated:
  """Pairwise accuracy of one metric after tie calibration.

  Attributes:
    value: The accuracy at the best threshold, in [0, 1].
    threshold: Scores that differ by at most this are tied; the smallest of
      the best thresholds.
    untied: The accuracy at threshold 0 (only equal scores are tied).
    pairs: The number of pairs.
    groups: The number of groups.
  """

  value: float
  threshold: float
  untied: float
  pairs: int
  groups: int


def rated_pairs(human: np.ndarray, by: str = 'item') -> RatedPairs:
  """Returns all pairs of rated entries.

  Args:
    human: Human scores [S, N], NaN where not rated.
    by: 'item' pairs the systems of one segment, 'system' the segments of one
      system, 'none' all entries.

  Raises:
    InputError: An unknown grouping, an infinite score, more than `MAX_PAIRS`.
  """
  human = np.asarray(human, np.float64)
  if by not in correlation.GROUPINGS:
    raise InputError(
      f'unknown grouping {by!r}; there are {", ".join(correlation.GROUPINGS)}'
    )
  if human.ndim != 2:
    raise InputError(f'human scores must be [S, N], not {human.shape}')
  if np.isinf(human).any():
    raise InputError('human scores hold an infinite value')
  place: np.ndarray = np.arange(human.size).reshape(human.shape)
  # [groups, entries]
  place = {'item': place.T, 'system': place, 'none': place.reshape(1, -1)}[by]
  rated = ~np.isnan(human.ravel()[place])
  count = rated.sum(axis=1).astype(np.int64)
  total = int((count * (count - 1) // 2).sum())
  if total > MAX_PAIRS:
    raise InputError(
      f'{total} pairs are more than {MAX_PAIRS}: group by item, or take fewer '
      'segments'
    )
  parts = [_pairs_within(place, rated, size) for size in np.unique(count)]
  first, second, weights = (
    np.concatenate([part[k] for part in parts])
    if parts
    else np.zeros(0, np.int64)
    for k in range(3)
  )
  groups = int(np.count_nonzero(count >= 2))
  flat = human.ravel()
  return RatedPairs(
    first,
    second,
    weights / max(groups, 1),
    np.sign(flat[first] - flat[second]).astype(np.int8),
    groups,
  )


def _pairs_within(
  place: np.ndarray, rated: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  # All groups with `size` rated entries at once: they share their indices.
  mine = rated.sum(axis=1) == size
  # [groups, size], in order
  entries = place[mine][rated[mine]].reshape(np.count_nonzero(mine), size)
  i, j = np.triu_indices(size, 1)
  first, second = entries[:, i].ravel(), entries[:, j].ravel()
  return first, second, np.full(len(first), 1.0 / max(len(i), 1))


def _checked(metric: np.ndarray, pairs: RatedPairs) -> np.ndarray:
  flat = np.asarray(metric, np.float64).ravel()
  used = np.unique(np.concatenate([pairs.first, pairs.second]))
  bad = used[~np.isfinite(flat[used])]
  if bad.size:
    system, segment = np.unravel_index(bad[0], np.shape(metric))
    raise InputError(
      f'{bad.size} rated entries have no finite metric score; the first is '
      f'system {system}, segment {segment}'
    )
  return flat


def calibrate(
  human: np.ndarray,
  metric: np.ndarray,
  by: str = 'item',
  *,
  pairs: RatedPairs | None = None,
) -> Calibrated:
  """Pairwise accuracy at the best tie threshold (Deutsch et al. 2023, acc*).

  A pair is correct if human and metric scores order it alike, or if the human
  scores tie and the metric's scores differ by at most the threshold. All
  observed differences, and 0, are tried. The result is the mean of the groups'
  accuracies.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metric: Metric scores [S, N], finite wherever `human` is rated.
    by: A name in `correlation.GROUPINGS`.
    pairs: `rated_pairs(human, by)`, if it has been computed.

  Returns:
    A `Calibrated`; its value is 0.0 with a warning if there is no pair.

  Raises:
    InputError: Shapes differ, missing scores, as `rated_pairs`.

  >>> human = np.array([[1.0], [1.0], [0.0]])
  >>> calibrate(human, np.array([[0.9], [0.8], [0.1]])).value
  1.0
  """
  if np.shape(human) != np.shape(metric):
    raise InputError(
      'human and metric scores must share one shape [systems, segments], not '
      f'{np.shape(human)} and {np.shape(metric)}'
    )
  pairs = rated_pairs(human, by) if pairs is None else pairs
  if not len(pairs):
    correlation.warn_constant('fewer than two scores in every group')
    return Calibrated(0.0, 0.0, 0.0, 0, 0)
  flat = _checked(metric, pairs)
  difference = flat[pairs.first] - flat[pairs.second]
  right = (np.sign(difference) == pairs.signs) & (pairs.signs != 0)
  size = np.abs(difference)
  # The change in accuracy if the pair becomes a tie.
  gain = pairs.weights * ((pairs.signs == 0) - right.astype(np.float64))
  order = np.argsort(size, kind='stable')
  size, gain = size[order], gain[order]
  start = float(pairs.weights[right].sum())
  # The accuracy once all pairs up to the last one of equal size are tied.
  last = np.flatnonzero(np.append(size[1:] != size[:-1], True))
  thresholds = size[last]
  values = start + np.cumsum(gain)[last]
  if thresholds[0] > 0:
    thresholds = np.append(0.0, thresholds)
    values = np.append(start, values)
  # Rounding of the sums must not choose among equals: take the first.
  best = int(np.argmax(values >= values.max() - 1e-12))
  return Calibrated(
    float(np.clip(values[best], 0.0, 1.0)),
    float(thresholds[best]),
    float(np.clip(values[0], 0.0, 1.0)),
    len(pairs),
    pairs.groups,
  )


def correct_pairs(
  metric: np.ndarray, pairs: RatedPairs, threshold: float
) -> np.ndarray:
  """Which pairs the metric orders correctly at this threshold, bool [P].

  Raises:
    InputError: A pair without a finite score, a negative threshold.
  """
  if threshold < 0:
    raise InputError(f'the threshold must be 0 or more, not {threshold}')
  flat = _checked(metric, pairs)
  difference = flat[pairs.first] - flat[pairs.second]
  order = np.where(np.abs(difference) <= threshold, 0, np.sign(difference))
  return order == pairs.signs
