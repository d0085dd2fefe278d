"""The sparse ensemble of metrics: fitting, testing, signing, applying.

Kasai et al. (2022), section 2.2 and appendix D: a Lasso regression of human
ratings on standardised metrics, regularised until exactly three weights remain.
Everything is computed from moments (sums of products) per generator: leaving
out a generator is a subtraction, and the cost of a fit depends on the number of
metrics, not on the number of ratings. `data.py` selects both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn import exceptions, linear_model

from t5score_jax.errors import T5ScoreError

#: Number of metrics in an ensemble.
MEMBERS = 3
# Weights of standardised metrics below this fraction of the largest possible
# weight are rounding errors.
_ZERO = 1e-12
# Scores are constant if their standard deviation is at most this fraction of
# their mean.
_CONSTANT = 1e-13


class EnsembleError(T5ScoreError, ValueError):
  """An ensemble cannot be fitted, or a signature is malformed."""


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """A linear combination of raw metric scores.

  Attributes:
    board: The board's name.
    version: The version on that board, from 1; 0 if it is not stored.
    reference_set: The references that its inputs were computed with.
    penalty: lambda as in scikit-learn: the objective is half the mean squared
      error plus lambda times the sum of absolute weights of standardised
      metrics. None if unknown (an imported ensemble).
    intercept: The value if all scores are 0.
    weights: Metric -> weight of its raw score.
    standardised: Metric -> weight of its standardised score.
    inputs: Digest of the members' names and signatures, 8 hex digits.
  """

  board: str
  version: int
  reference_set: str
  penalty: float | None
  intercept: float
  weights: Mapping[str, float]
  standardised: Mapping[str, float]
  inputs: str

  def signature(self) -> str:
    """One line that determines the ensemble; `parse_signature` reads it.

    It begins as in the paper (footnote 3), followed by lambda, the digest of
    the inputs, the intercept and the weights in full precision.
    """
    penalty = 'unknown' if self.penalty is None else repr(self.penalty)
    parts = [
      f'ensemble.{self.board}+refs.{self.reference_set}+version.{self.version}',
      f'lambda:{penalty}',
      f'inputs:{self.inputs}',
      f'intercept:{self.intercept!r}',
      *(f'weight:{name}:{value!r}' for name, value in self.weights.items()),
    ]
    return '|'.join(parts)

  def apply(self, scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Scores by the ensemble.

    Args:
      scores: Metric -> raw scores, all of one shape.

    Returns:
      The intercept plus the weighted sum of scores, of that shape.

    Raises:
      EnsembleError: Scores of a member are missing.
    """
    for name in self.weights:
      if name not in scores:
        raise EnsembleError(f'the ensemble needs scores of {name!r}')
    total: Any = self.intercept
    for name, weight in self.weights.items():
      total = total + weight * np.asarray(scores[name], dtype=np.float64)
    return np.asarray(total)

  def is_same(self, other: Ensemble) -> bool:
    """Whether both define the same scores, ignoring version and board.

    Weights are compared up to rounding, which differs between machines.
    """
    ours = [self.intercept, self.penalty or 0.0, *self.weights.values()]
    theirs = [other.intercept, other.penalty or 0.0, *other.weights.values()]
    return (
      self.reference_set == other.reference_set
      and self.inputs == other.inputs
      and list(self.weights) == list(other.weights)
      and (self.penalty is None) == (other.penalty is None)
      and np.allclose(ours, theirs, rtol=1e-9, atol=0.0)
    )

  def to_json(self) -> dict[str, Any]:
    """The ensemble as JSON; `from_json` is the inverse."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> Ensemble:
    """The ensemble described by a value of `to_json`."""
    return cls(**value)


def parse_signature(text: str) -> Ensemble:
  """Parses the signature of an ensemble.

  Args:
    text: A value of `Ensemble.signature`.

  Returns:
    The ensemble without standardised weights, which the signature lacks.

  Raises:
    EnsembleError: The text is not a signature.
  """
  try:
    first, penalty, inputs, intercept, *weights = text.strip().split('|')
    head, _, version = first.rpartition('+version.')
    head, _, references = head.rpartition('+refs.')
    fields = dict(part.split(':', 1) for part in (penalty, inputs, intercept))
    pairs = [part.removeprefix('weight:').rpartition(':') for part in weights]
    if not head.startswith('ensemble.') or not pairs:
      raise ValueError('no head or no weights')
    penalty = fields['lambda']
    return Ensemble(
      board=head.removeprefix('ensemble.'),
      version=int(version),
      reference_set=references,
      penalty=None if penalty == 'unknown' else float(penalty),
      intercept=float(fields['intercept']),
      weights={name: float(value) for name, _, value in pairs},
      standardised={},
      inputs=fields['inputs'],
    )
  except (ValueError, KeyError) as error:
    raise EnsembleError(
      f'not the signature of an ensemble: {text[:60]!r} ({error})'
    ) from error


def digest(signatures: Mapping[str, str]) -> str:
  """Digest of metrics' names and signatures, as in `Ensemble.inputs`."""
  text = '\n'.join(f'{name}\t{signatures[name]}' for name in sorted(signatures))
  return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Moments:
  """Sums over rated rows, one entry per group (generator), G in all.

  Scores are standardised with `mean` and `deviation`, and ratings centred with
  `mean_rating`, so that sums of products keep their precision.

  Attributes:
    count: Number of rows, [G].
    x: Sums of scores, [G, M].
    y: Sums of ratings, [G].
    xx: Sums of products of scores, [G, M, M].
    xy: Sums of scores times ratings, [G, M].
    yy: Sums of squared ratings, [G].
    mean: Mean of each metric over all rows, [M].
    deviation: Standard deviation of each metric over all rows, [M], above 0.
    mean_rating: Mean rating over all rows.
  """

  count: np.ndarray
  x: np.ndarray
  y: np.ndarray
  xx: np.ndarray
  xy: np.ndarray
  yy: np.ndarray
  mean: np.ndarray
  deviation: np.ndarray
  mean_rating: float

  def select(self, columns: Sequence[int]) -> Moments:
    """The moments of some of the metrics."""
    at = list(columns)
    return dataclasses.replace(
      self,
      x=self.x[:, at],
      xx=self.xx[:, at][:, :, at],
      xy=self.xy[:, at],
      mean=self.mean[at],
      deviation=self.deviation[at],
    )


def varies(scores: np.ndarray) -> bool:
  """Whether scores differ by more than rounding errors."""
  mean = abs(float(scores.mean()))
  return bool(np.ptp(scores) > 0 and scores.std() > _CONSTANT * mean)


def moments(scores: np.ndarray, ratings: np.ndarray) -> Moments:
  """Computes the moments of each generator over its rated rows.

  Args:
    scores: Scores [M, I, K], finite for every rating.
    ratings: Ratings [I, K]; NaN if missing.

  Returns:
    The moments of the rated generators.

  Raises:
    EnsembleError: Fewer than two ratings, or a metric is constant.
  """
  rated = ~np.isnan(ratings)
  rows = [
    (scores[:, i, k], ratings[i, k]) for i, k in enumerate(rated) if k.any()
  ]
  total = sum(len(y) for _, y in rows)
  if total < 2:
    raise EnsembleError('fewer than two human ratings')
  mean = sum(x.sum(axis=1) for x, _ in rows) / total
  spread = sum(((x - mean[:, None]) ** 2).sum(axis=1) for x, _ in rows)
  deviation = np.sqrt(np.asarray(spread) / total)
  constant = np.flatnonzero(~(deviation > _CONSTANT * np.abs(mean)))
  if constant.size:
    raise EnsembleError(f'metric number {constant[0] + 1} does not vary')
  center = float(sum(y.sum() for _, y in rows) / total)
  parts = []
  for x, y in rows:
    z = (x - mean[:, None]) / deviation[:, None]
    y = y - center
    parts.append((len(y), z.sum(axis=1), y.sum(), z @ z.T, z @ y, y @ y))
  count, sx, sy, sxx, sxy, syy = (
    np.array(part) for part in zip(*parts, strict=True)
  )
  return Moments(
    count, sx, sy, sxx, sxy, syy, np.asarray(mean), deviation, center
  )


@dataclasses.dataclass(frozen=True)
class _Problem:
  """A centred regression problem: sums of products, and the means."""

  count: float
  gram: np.ndarray
  target: np.ndarray
  mean_x: np.ndarray
  mean_y: float


def _problem(sums: Moments, without: int | None = None) -> _Problem:
  """The problem of all rows, or of all but one group's."""
  keep = np.ones(len(sums.count), dtype=bool)
  if without is not None:
    keep[without] = False
  count = float(sums.count[keep].sum())
  mean_x = sums.x[keep].sum(axis=0) / count
  mean_y = float(sums.y[keep].sum()) / count
  gram = sums.xx[keep].sum(axis=0) - count * np.outer(mean_x, mean_x)
  target = sums.xy[keep].sum(axis=0) - count * mean_x * mean_y
  return _Problem(count, gram, target, mean_x, mean_y)


def _path(problem: _Problem) -> tuple[np.ndarray, np.ndarray]:
  """Computes the exact Lasso path, which is linear between its knots.

  Returns:
    lambda at the knots, descending to 0, [P]; weights there, [M, P].
  """
  # scikit-learn's thresholds are absolute: scale the ratings.
  scale = float(np.abs(problem.target).max()) / problem.count or 1.0
  with warnings.catch_warnings():
    # A metric that is collinear with another (chrF and chrF++) is dropped.
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    penalties, _, weights = linear_model.lars_path_gram(
      Xy=problem.target / scale,
      Gram=problem.gram,
      n_samples=int(problem.count),
      method='lasso',
      return_path=True,
    )
  return penalties * scale, weights * scale


def _at(problem: _Problem, penalty: float) -> np.ndarray:
  """Weights at one lambda, [M]."""
  penalties, weights = _path(problem)
  # np.interp needs ascending abscissae.
  order = np.argsort(penalties, kind='stable')
  return np.array(
    [np.interp(penalty, penalties[order], row[order]) for row in weights]
  )


def _choose(problem: _Problem) -> tuple[float, np.ndarray]:
  """Selects the last knot of the path with exactly `MEMBERS` nonzero weights.

  If no knot has that many (there are fewer metrics), the last knot with the
  largest smaller number is selected.

  Returns:
    lambda and the weights of standardised metrics, [M].

  Raises:
    EnsembleError: All weights are zero.
  """
  penalties, weights = _path(problem)
  small = _ZERO * np.abs(problem.target).max() / problem.count
  counts = (np.abs(weights) > small).sum(axis=0)
  for wanted in range(MEMBERS, 0, -1):
    knots = np.flatnonzero(counts == wanted)
    if knots.size:
      chosen = weights[:, knots[-1]].copy()
      chosen[np.abs(chosen) <= small] = 0.0
      return float(penalties[knots[-1]]), chosen
  raise EnsembleError('no metric correlates with the ratings')


@dataclasses.dataclass(frozen=True)
class Fit:
  """The fit of an ensemble to the ratings of a board.

  Attributes:
    names: The M candidates.
    penalty: lambda.
    standardised: Weights of standardised metrics, [M].
    weights: Weights of raw metrics, [M].
    intercept: The intercept, in units of the ratings.
    leave_one_out: Pearson correlation of held-out predictions with ratings
      over all rows; None if only one generator is rated.
    held_out: Weights of raw metrics and intercept fitted without each rated
      generator, [G, M] and [G]; None if only one is rated.
  """

  names: tuple[str, ...]
  penalty: float
  standardised: np.ndarray
  weights: np.ndarray
  intercept: float
  leave_one_out: float | None
  held_out: tuple[np.ndarray, np.ndarray] | None

  def members(self) -> list[str]:
    """The metrics with nonzero weights, by descending weight."""
    order = np.argsort(-np.abs(self.standardised), kind='stable')
    return [self.names[i] for i in order if self.standardised[i]]


def fit(sums: Moments, names: Sequence[str]) -> Fit:
  """Fits the ensemble and computes its leave-one-out correlation.

  Args:
    sums: Moments of M metrics.
    names: The names of the metrics.

  Returns:
    The fit.

  Raises:
    EnsembleError: All weights are zero.
  """
  problem = _problem(sums)
  penalty, weights = _choose(problem)
  raw = weights / sums.deviation
  offset = sums.mean_rating + problem.mean_y - weights @ problem.mean_x
  return Fit(
    tuple(names),
    penalty,
    weights,
    raw,
    float(offset - raw @ sums.mean),
    *_leave_one_out(sums, penalty),
  )


def _leave_one_out(
  sums: Moments, penalty: float
) -> tuple[float | None, tuple[np.ndarray, np.ndarray] | None]:
  """Predicts each generator from the others, at the lambda of all (2.2)."""
  groups = len(sums.count)
  if groups < 2:
    return None, None
  problems = [_problem(sums, without=g) for g in range(groups)]
  weights = np.array([_at(problem, penalty) for problem in problems])
  offsets = np.array(
    [p.mean_y - w @ p.mean_x for p, w in zip(problems, weights, strict=True)]
  )
  raw = weights / sums.deviation
  held_out = raw, sums.mean_rating + offsets - raw @ sums.mean
  # Sums over rows of p = w.z + c, p^2 and p y, from the moments.
  wx = np.einsum('gm,gm->g', weights, sums.x)
  p = (wx + offsets * sums.count).sum()
  pp = (
    np.einsum('gm,gmn,gn->g', weights, sums.xx, weights)
    + 2 * offsets * wx
    + offsets**2 * sums.count
  ).sum()
  py = (np.einsum('gm,gm->g', weights, sums.xy) + offsets * sums.y).sum()
  n, y, yy = sums.count.sum(), sums.y.sum(), sums.yy.sum()
  spread = (pp - p * p / n) * (yy - y * y / n)
  if not spread > 0:
    return 0.0, held_out
  return float((py - p * y / n) / np.sqrt(spread)), held_out


def ablation(sums: Moments, fitted: Fit) -> dict[str, float | None]:
  """Leave-one-out correlations without each member (tables 2 and 11).

  For each member, a new ensemble is fitted to all other metrics of the board.

  Returns:
    Member -> correlation; None if no ensemble can be fitted.
  """
  result: dict[str, float | None] = {}
  for member in fitted.members():
    rest = [n for n in fitted.names if n != member]
    at = [fitted.names.index(n) for n in rest]
    try:
      result[member] = fit(sums.select(at), rest).leave_one_out
    except ValueError:  # An EnsembleError, or no other metric.
      result[member] = None
  return result
