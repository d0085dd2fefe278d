"""System-level agreement where outputs and people's ratings are several.

COMES has an output for each dimension that people rated; its tables hold
Kendall's tau of systems' means, a column a dimension. Not here: score files,
tests and intervals (`agreement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from t5score_jax.data.records import RecordError, Segment
from t5score_jax.evaluation import correlation


def system_kendall(
  segments: Sequence[Segment], ratings: Sequence[str], values: np.ndarray
) -> tuple[np.ndarray, int]:
  """Kendall's tau-b of systems' means with people's means, an output each.

  Args:
    segments: N records with a system; those without a rating count for the
      prediction alone, as in `evaluation.agreement`.
    ratings: Names of the ratings that the outputs are compared with, D; or one
      for all of them.
    values: Predictions, [N, D].

  Returns:
    Correlations [D], and how many systems they rest on.

  Raises:
    RecordError: A record without a system.
    ValueError: A rating that no record of some system has.
  """
  names = [segment.system for segment in segments]
  if None in names:
    raise RecordError('there is a record without a system', field='system')
  systems = sorted(set(names))  # type: ignore[type-var]
  rows = [np.array([n == system for n in names]) for system in systems]
  predicted = np.array([values[r].mean(0, dtype=np.float64) for r in rows])
  every = list(ratings) * (values.shape[1] if len(ratings) == 1 else 1)
  found = []
  for n, rating in enumerate(every):
    human = np.array([s.ratings.get(rating, np.nan) for s in segments])
    if missing := [
      system
      for system, r in zip(systems, rows, strict=True)
      if np.isnan(human[r]).all()
    ]:
      raise ValueError(f'no rating {rating!r} of the system {missing[0]}')
    means = [np.nanmean(human[r]) for r in rows]
    found.append(correlation.kendall(predicted[:, n], means))
  return np.array(found), len(systems)
