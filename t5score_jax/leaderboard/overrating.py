"""Overrating: how much a metric prefers machines to humans of equal quality.

Kasai et al. (2022), section 2.3 and appendix E: the mixed-effects model
score ~ machine + human + (1 | example) of the standardised score, fitted by
REML as in lme4. With a single random intercept, the likelihood depends on sums
per example only, so that one bounded search over the ratio of variances
suffices. `analysis.py` selects generators and references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy

from t5score_jax.errors import T5ScoreError

#: Level of the paper's confidence intervals.
LEVEL = 0.90


class OverratingError(T5ScoreError, ValueError):
  """The model cannot be fitted."""


@dataclasses.dataclass(frozen=True)
class Overrating:
  """The fitted model of one metric.

  Attributes:
    beta: beta_0, the coefficient of the machine indicator, in standard
      deviations of the score. If positive, the metric overrates machines.
    error: The standard error of `beta`.
    half_width: Half the width of the confidence interval of `beta`.
    human: beta_1, the coefficient of the human rating.
    ratio: The variance of examples divided by that of the noise.
    rows: The number of outputs.
  """

  beta: float
  error: float
  half_width: float
  human: float
  ratio: float
  rows: int

  @property
  def significance(self) -> int:
    """1 if the interval is above 0, -1 if below, 0 if it contains 0."""
    if abs(self.beta) <= self.half_width:
      return 0
    return 1 if self.beta > 0 else -1


def analyse(
  scores: np.ndarray,
  ratings: np.ndarray,
  machine: np.ndarray,
  level: float = LEVEL,
) -> Overrating:
  """Fits score ~ 1 + machine + rating + (1 | example) to the rated outputs.

  Args:
    scores: Scores [I, K]; NaN if missing.
    ratings: Ratings [I, K]; NaN if missing.
    machine: Whether each generator is a machine, bool [I].
    level: The level of the Wald interval, beta -+ z * error.

  Returns:
    The fit.

  Raises:
    OverratingError: Only humans or only machines are rated, or the scores
      are constant.
  """
  used = ~np.isnan(ratings) & ~np.isnan(scores)
  rows = int(used.sum())
  kinds = {bool(m) for m, u in zip(machine, used, strict=True) if u.any()}
  if kinds != {True, False}:
    raise OverratingError(
      'needs rated outputs of both humans and machines;'
      + (' there are none of humans' if True in kinds else '')
      + (' there are none of machines' if False in kinds else '')
    )
  values = scores[used]
  deviation = values.std(ddof=1)
  if not deviation > 0:
    raise OverratingError('the scores are constant')
  y = np.where(used, (scores - values.mean()) / deviation, 0.0)
  columns = [
    used.astype(np.float64),
    np.where(used, machine[:, None].astype(np.float64), 0.0),
    np.where(used, ratings - ratings[used].mean(), 0.0),
    y,
  ]
  return _fit(columns, used, rows, level)


def _fit(
  columns: list[np.ndarray], used: np.ndarray, rows: int, level: float
) -> Overrating:
  """Fits by REML; the last column is the response, the others the design."""
  size = used.sum(axis=0).astype(np.float64)  # [K]
  sums = np.stack([c.sum(axis=0) for c in columns])  # [4, K]
  total = np.array(
    [[float(np.vdot(a, b)) for b in columns] for a in columns]
  )  # [4, 4]
  keep = size > 0
  size, sums = size[keep], sums[:, keep]
  p = len(columns) - 1
  if rows <= p:
    raise OverratingError(f'{rows} rated outputs are too few')

  def parts(ratio: float) -> tuple[np.ndarray, np.ndarray, float]:
    """X'V^-1 X, beta, and the residual sum of squares in V^-1."""
    # V^-1 of an example is I - ratio / (1 + ratio n) 11': sums suffice.
    moments = total - (sums * (ratio / (1 + ratio * size))) @ sums.T
    left, right = moments[:p, :p], moments[:p, p]
    beta = np.linalg.solve(left, right)
    return left, beta, float(moments[p, p] - right @ beta)

  def criterion(ratio: float) -> float:
    """-2 times the restricted log-likelihood, with the noise profiled out."""
    left, _, residual = parts(ratio)
    return float(
      (rows - p) * np.log(residual)
      + np.log1p(ratio * size).sum()
      + np.linalg.slogdet(left)[1]
    )

  try:
    ratio = _minimise(criterion)
    left, beta, residual = parts(ratio)
    covariance = np.linalg.inv(left) * residual / (rows - p)
  except np.linalg.LinAlgError as error:
    raise OverratingError(
      'the effects of machine and rating are not identifiable: the ratings are'
      ' constant'
    ) from error
  spread = float(np.sqrt(covariance[1, 1]))
  z = float(scipy.stats.norm.ppf((1 + level) / 2))
  return Overrating(
    float(beta[1]), spread, z * spread, float(beta[2]), ratio, rows
  )


def _minimise(criterion: Callable[[float], float]) -> float:
  """The ratio of variances, 0 included, that minimises the criterion."""
  # A coarse grid first: far from the minimum the criterion is flat.
  grid = np.linspace(-8.0, 8.0, 17)
  best = int(np.argmin([criterion(float(np.exp(g))) for g in grid]))
  minimum = scipy.optimize.minimize_scalar(
    lambda g: criterion(float(np.exp(g))),
    bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 16)]),
    method='bounded',
    options={'xatol': 1e-9},
  )
  ratio = float(np.exp(minimum.x))
  return 0.0 if criterion(0.0) <= criterion(ratio) else ratio
