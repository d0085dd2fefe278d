"""System-level agreement of metrics with one output per rated dimension.

COMES predicts each rated dimension; its tables show Kendall's tau of system
means, one column per dimension. Not here: score files, tests and intervals
(`evaluation/agreement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation


def system_kendall(
  segments: Sequence[Segment],
  ratings: Sequence[str],
  values: np.ndarray,
  note: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, int]:
  """Kendall's tau-b between predicted and human system means, per dimension.

  Args:
    segments: N records with a system; unrated ones count for the prediction
      only, as in `evaluation/agreement.py`.
    ratings: Names of the D ratings that the outputs are compared with, or one
      name for all outputs.
    values: Predictions, [N, D].
    note: Receives notes about systems excluded from a dimension for which they
      have no rating, and about correlations that are 0 because the values do
      not vary. Without `note` the former are errors, the latter warnings.

  Returns:
    Correlations [D], and the number of systems.

  Raises:
    RecordError: A record without a system.
    InputError: A system without some rating, if `note` is None.
  """
  names = [segment.system for segment in segments]
  if None in names:
    raise RecordError('a record has no system', field='system')
  systems, owner = np.unique(np.array(names, object), return_inverse=True)
  every = list(ratings) * (values.shape[1] if len(ratings) == 1 else 1)
  taus = []
  for n, rating in enumerate(every):
    human = np.array([s.ratings.get(rating, np.nan) for s in segments])
    means = system_means(human, owner)
    rated = ~np.isnan(means)
    missing = list(systems[~rated])
    if missing and note is None:
      raise InputError(f'no rating {rating!r} of the system {missing[0]}')
    if missing and note:
      note(
        f'{rating}: left out, because they have no rating: {", ".join(missing)}'
      )
    means, one = means[rated], system_means(values[:, n], owner)[rated]
    if note and (constant := _constant(means, one)):
      note(f'{rating}: {constant}, so that tau is given as 0')
      taus.append(0.0)
    else:
      taus.append(correlation.kendall(one, means))
  return np.array(taus), len(systems)


def system_means(values: np.ndarray, systems: np.ndarray) -> np.ndarray:
  """The mean of each system's values, in the order of `np.unique(systems)`.

  Args:
    values: Float [N]; NaN is ignored.
    systems: The system of each value, [N].

  Returns:
    float64 [systems], NaN for a system without a value.
  """
  _, owner = np.unique(systems, return_inverse=True)
  present = ~np.isnan(values)
  with np.errstate(invalid='ignore'):
    sums = np.bincount(owner, np.where(present, values, 0.0))
    return sums / np.bincount(owner, present)


def _constant(human: np.ndarray, predicted: np.ndarray) -> str:
  """Why the system means have no correlation; '' if they have one."""
  if len(human) < 2:
    return f'{len(human)} rated system{"" if len(human) == 1 else "s"}'
  for values, what in ((human, 'ratings'), (predicted, 'predictions')):
    if np.ptp(values) == 0:
      return f"systems' mean {what} do not vary"
  return ''
