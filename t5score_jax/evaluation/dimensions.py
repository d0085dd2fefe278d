"""System-level agreement where outputs and people's ratings are several.

COMES has an output for each dimension that people rated; its tables hold
Kendall's tau of systems' means, a column a dimension. Not here: score files,
tests and intervals (`agreement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from t5score_jax.data.records import RecordError, Segment
from t5score_jax.evaluation import correlation


def system_kendall(
  segments: Sequence[Segment],
  ratings: Sequence[str],
  values: np.ndarray,
  note: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, int]:
  """Kendall's tau-b of systems' means with people's means, an output each.

  Args:
    segments: N records with a system; those without a rating count for the
      prediction alone, as in `evaluation.agreement`.
    ratings: Names of the ratings that the outputs are compared with, D; or one
      for all of them.
    values: Predictions, [N, D].
    note: Told what a reader of the numbers has to know: which systems are left
      out of a dimension in which nobody rated them, and which correlation is 0
      because nothing varies. None makes an error of the first, and a warning
      of the second.

  Returns:
    Correlations [D], and how many systems there are.

  Raises:
    RecordError: A record without a system.
    ValueError: A rating that no record of some system has, without `note`.
  """
  names = [segment.system for segment in segments]
  if None in names:
    raise RecordError('there is a record without a system', field='system')
  systems, owner = np.unique(np.array(names, object), return_inverse=True)
  every = list(ratings) * (values.shape[1] if len(ratings) == 1 else 1)
  found = []
  for n, rating in enumerate(every):
    human = np.array([s.ratings.get(rating, np.nan) for s in segments])
    means = system_means(human, owner)
    rated = ~np.isnan(means)
    missing = list(systems[~rated])
    if missing and note is None:
      raise ValueError(f'no rating {rating!r} of the system {missing[0]}')
    if missing and note:
      note(
        f'{rating}: left out, because they have no rating: {", ".join(missing)}'
      )
    means, one = means[rated], system_means(values[:, n], owner)[rated]
    if note and (constant := _constant(means, one)):
      note(f'{rating}: {constant}, so that tau is given as 0')
      found.append(0.0)
    else:
      found.append(correlation.kendall(one, means))
  return np.array(found), len(systems)


def system_means(values: np.ndarray, systems: np.ndarray) -> np.ndarray:
  """The mean of each system's values, in the order of `np.unique(systems)`.

  Args:
    values: Float [N]; those that are NaN don't count.
    systems: What each value is of, [N].

  Returns:
    float64 [systems], NaN for a system without a value.
  """
  _, owner = np.unique(systems, return_inverse=True)
  there = ~np.isnan(values)
  with np.errstate(invalid='ignore'):
    sums = np.bincount(owner, np.where(there, values, 0.0))
    return sums / np.bincount(owner, there)


def _constant(human: np.ndarray, predicted: np.ndarray) -> str:
  """Why systems' means correlate with nothing; '' if they may."""
  if len(human) < 2:
    return f'{len(human)} rated system{"" if len(human) == 1 else "s"}'
  for values, what in ((human, 'ratings'), (predicted, 'predictions')):
    if np.ptp(values) == 0:
      return f"systems' mean {what} do not vary"
  return ''
