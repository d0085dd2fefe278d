"""Significance clusters and marks, from the p-values between metrics.

The p-values come from `bootstrap`, `permutation` or `swap_tests`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

# A comparison below this is called significant (T5Score section 4.2; WMT).
LEVEL = 0.05

BEST_OF_ALL, BEST_UNSUPERVISED = '‡', '†'


def rank_clusters(
  values: Sequence[float] | np.ndarray,
  p_values: np.ndarray,
  level: float = LEVEL,
) -> list[int]:
  """Ranks metrics by WMT's greedy rule for significance clusters.

  From the best metric down, a metric joins the current cluster unless some
  member of it is significantly better; then it opens the next one.

  Args:
    values: The statistic of each metric, [M].
    p_values: [M, M]; entry (i, j) for "i is better than j".
    level: A p-value at or below this is significant.

  Returns:
    The rank of each metric's cluster, from 1, in the order of `values`.

  >>> p = np.array([[1, 0.4, 0.01], [0.6, 1, 0.2], [0.99, 0.8, 1]])
  >>> rank_clusters([0.5, 0.4, 0.3], p)
  [1, 1, 2]
  """
  order = sorted(range(len(values)), key=lambda k: -values[k])
  ranks = [0] * len(values)
  rank = 1
  members: list[int] = []
  for k in order:
    if any(p_values[m, k] <= level for m in members):
      rank, members = rank + 1, []
    members.append(k)
    ranks[k] = rank
  return ranks


def outperformed(
  values: Sequence[float] | np.ndarray,
  p_values: np.ndarray,
  level: float = LEVEL,
) -> np.ndarray:
  """Whether some metric is significantly better, bool [M, M].

  Entry (i, j): the metric i has a higher value than j, and p < level.
  """
  scores = np.asarray(values, np.float64)
  return (scores[:, None] > scores[None, :]) & (p_values < level)


def marks(
  names: Sequence[str],
  values: Sequence[float] | np.ndarray,
  p_values: np.ndarray,
  unsupervised: Collection[str] = (),
  level: float = LEVEL,
) -> list[str]:
  """Returns T5Score's marks.

  A double dagger marks a metric that no other metric significantly
  outperforms; a dagger marks an unsupervised metric that no other
  unsupervised metric significantly outperforms.

  Args:
    names: The metrics, M of them.
    values: The statistic of each, [M].
    p_values: [M, M]; entry (i, j) for "i is better than j".
    unsupervised: The metrics that were not trained on human judgments.
    level: A p-value below this is significant.

  Returns:
    '‡', '†' or '' for each.
  """
  better = outperformed(values, p_values, level)
  free = np.array([name in unsupervised for name in names], bool)
  symbols = []
  for k in range(len(names)):
    if not better[:, k].any():
      symbols.append(BEST_OF_ALL)
    elif free[k] and not better[free, k].any():
      symbols.append(BEST_UNSUPERVISED)
    else:
      symbols.append('')
  return symbols
