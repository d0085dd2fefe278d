"""The sparse ensemble of metrics: fitted, tested, signed, applied.

Kasai et al. (2022), section 2.2 and appendix D: a Lasso regression of human
ratings on standardised metrics, regularised until exactly three weights are
left. All from moments (sums of products), one set for each generator: leaving a
generator out is a subtraction, and a board of millions of ratings costs no more
than its number of metrics. Not here: which metrics and ratings a board has
(`ranking`).
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

#: How many metrics an ensemble combines.
MEMBERS = 3
# A weight of a standardised metric that is smaller than this part of the
# greatest possible one is a zero that rounding has touched.
_ZERO = 1e-12
# Scores vary if their standard deviation is more than this part of their mean.
_CONSTANT = 1e-13


class EnsembleError(T5ScoreError, ValueError):
  """There can be no ensemble, or a text is no signature of one."""


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """A linear combination of metrics, as raw scores enter.

  Attributes:
    board: The board's name.
    version: The version on that board, from 1; 0 where the board keeps none
      like it.
    reference_set: The references that its inputs were computed with.
    penalty: lambda, in the form of scikit-learn: the objective is the mean
      squared error over 2, plus lambda times the sum of absolute weights of
      standardised metrics. None where it was not told (an imported ensemble).
    intercept: The value where all scores are 0.
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
    """One line that is enough to compute the score: see `parse_signature`.

    It begins as the paper has it (footnote 3), and goes on with lambda, the
    digest of the inputs, the intercept and the weights, all digits of them.
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
    """The ensemble's scores.

    Args:
      scores: Metric -> raw scores, any shape, the same for all.

    Returns:
      The intercept plus the weighted sum, of that shape.

    Raises:
      EnsembleError: A member's scores are missing.
    """
    for name in self.weights:
      if name not in scores:
        raise EnsembleError(f'the ensemble needs scores of {name!r}')
    total: Any = self.intercept
    for name, weight in self.weights.items():
      total = total + weight * np.asarray(scores[name], dtype=np.float64)
    return np.asarray(total)

  def is_same(self, other: Ensemble) -> bool:
    """Whether both give the same scores, whatever the version and the board.

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
    """As JSON; `from_json` gives it back."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> Ensemble:
    """The ensemble of `to_json`."""
    return cls(**value)


def parse_signature(text: str) -> Ensemble:
  """The ensemble that a signature describes.

  Args:
    text: What `Ensemble.signature` gave.

  Returns:
    The ensemble, without standardised weights, which only its board knows.

  Raises:
    EnsembleError: The text is no signature.
  """
  try:
    first, penalty, inputs, intercept, *weights = text.strip().split('|')
    head, _, version = first.rpartition('+version.')
    head, _, references = head.rpartition('+refs.')
    fields = dict(part.split(':', 1) for part in (penalty, inputs, intercept))
    pairs = [part.removeprefix('weight:').rpartition(':') for part in weights]
    if not head.startswith('ensemble.') or not pairs:
      raise ValueError('no head or no weights')
    told = fields['lambda']
    return Ensemble(
      board=head.removeprefix('ensemble.'),
      version=int(version),
      reference_set=references,
      penalty=None if told == 'unknown' else float(told),
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
  """Of metrics' names and signatures, as `Ensemble.inputs` has it."""
  text = '\n'.join(f'{name}\t{signatures[name]}' for name in sorted(signatures))
  return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Moments:
  """Sums over rated rows, one entry for each of G groups (generators).

  Scores are standardised with `mean` and `deviation`, ratings as they are less
  `mean_rating`, so that sums of products lose no digits.

  Attributes:
    count: Rows, [G].
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
    """Of some of the metrics."""
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
  """Whether scores differ by more than rounding, so that they can be fitted."""
  mean = abs(float(scores.mean()))
  return bool(np.ptp(scores) > 0 and scores.std() > _CONSTANT * mean)


def moments(scores: np.ndarray, ratings: np.ndarray) -> Moments:
  """Sums over the rated rows of each generator.

  Args:
    scores: [M, I, K], finite where a rating is.
    ratings: [I, K]; NaN where there is none.

  Returns:
    The moments of the generators that have ratings.

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
  """A regression, centred: what the Lasso needs, and the means."""

  count: float
  gram: np.ndarray
  target: np.ndarray
  mean_x: np.ndarray
  mean_y: float


def _problem(found: Moments, without: int | None = None) -> _Problem:
  """All rows, or all but those of one group."""
  keep = np.ones(len(found.count), dtype=bool)
  if without is not None:
    keep[without] = False
  count = float(found.count[keep].sum())
  mean_x = found.x[keep].sum(axis=0) / count
  mean_y = float(found.y[keep].sum()) / count
  gram = found.xx[keep].sum(axis=0) - count * np.outer(mean_x, mean_x)
  target = found.xy[keep].sum(axis=0) - count * mean_x * mean_y
  return _Problem(count, gram, target, mean_x, mean_y)


def path(problem: _Problem) -> tuple[np.ndarray, np.ndarray]:
  """The whole Lasso path, exactly: it is linear between its knots.

  Returns:
    lambda of the knots, falling to 0, [P]; weights there, [M, P].
  """
  # scikit-learn has thresholds that know nothing of the ratings' scale.
  scale = float(np.abs(problem.target).max()) / problem.count or 1.0
  with warnings.catch_warnings():
    # A metric that says the same as another (chrF beside chrF++) is dropped.
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
  """The weights at one lambda, [M]."""
  penalties, weights = path(problem)
  # np.interp wants rising abscissae.
  order = np.argsort(penalties, kind='stable')
  return np.array(
    [np.interp(penalty, penalties[order], row[order]) for row in weights]
  )


def choose(
  problem: _Problem, members: int = MEMBERS
) -> tuple[float, np.ndarray]:
  """The path's last knot with exactly so many weights that are not zero.

  Where no knot has so many (fewer metrics than that), the last knot of the
  greatest number below it.

  Returns:
    lambda and the weights of standardised metrics, [M].

  Raises:
    EnsembleError: No metric gets a weight.
  """
  penalties, weights = path(problem)
  small = _ZERO * np.abs(problem.target).max() / problem.count
  counts = (np.abs(weights) > small).sum(axis=0)
  for wanted in range(members, 0, -1):
    knots = np.flatnonzero(counts == wanted)
    if knots.size:
      found = weights[:, knots[-1]].copy()
      found[np.abs(found) <= small] = 0.0
      return float(penalties[knots[-1]]), found
  raise EnsembleError('no metric correlates with the ratings')


@dataclasses.dataclass(frozen=True)
class Fit:
  """A fitted ensemble, as its regression has it.

  Attributes:
    names: The M candidates.
    penalty: lambda.
    standardised: Weights of standardised metrics, [M].
    weights: Weights of raw metrics, [M].
    intercept: In units of the ratings.
    leave_one_out: Pearson correlation of held-out predictions with ratings
      over all rows; None where ratings are of one generator only.
    held_out: For each rated generator the weights of raw metrics and the
      intercept fitted without it, [G, M] and [G].
  """

  names: tuple[str, ...]
  penalty: float
  standardised: np.ndarray
  weights: np.ndarray
  intercept: float
  leave_one_out: float | None
  held_out: tuple[np.ndarray, np.ndarray] | None

  def members(self) -> list[str]:
    """The metrics with a weight, the heaviest first."""
    order = np.argsort(-np.abs(self.standardised), kind='stable')
    return [self.names[i] for i in order if self.standardised[i]]


def fit(found: Moments, names: Sequence[str], members: int = MEMBERS) -> Fit:
  """Fits the ensemble and tests it.

  Args:
    found: Moments of M metrics.
    names: Their names.
    members: How many weights are left.

  Returns:
    The fit.

  Raises:
    EnsembleError: No metric gets a weight.
  """
  problem = _problem(found)
  penalty, weights = choose(problem, members)
  raw, intercept = _raw(found, problem, weights)
  correlation, held_out = _leave_one_out(found, penalty)
  return Fit(
    tuple(names), penalty, weights, raw, intercept, correlation, held_out
  )


def _raw(
  found: Moments, problem: _Problem, weights: np.ndarray
) -> tuple[np.ndarray, float]:
  """Standardised weights -> weights of raw scores, and the intercept."""
  raw = weights / found.deviation
  intercept = found.mean_rating + problem.mean_y - weights @ problem.mean_x
  return raw, float(intercept - raw @ found.mean)


def _leave_one_out(
  found: Moments, penalty: float
) -> tuple[float | None, tuple[np.ndarray, np.ndarray] | None]:
  """Predicts each generator from the others, at the lambda of all (2.2)."""
  groups = len(found.count)
  if groups < 2:
    return None, None
  weights = np.empty((groups, len(found.mean)))
  offsets = np.empty(groups)
  raws = np.empty_like(weights)
  intercepts = np.empty(groups)
  for g in range(groups):
    problem = _problem(found, without=g)
    weights[g] = _at(problem, penalty)
    offsets[g] = problem.mean_y - weights[g] @ problem.mean_x
    raws[g], intercepts[g] = _raw(found, problem, weights[g])
  # Sums over rows of p = w.z + c, p^2 and p y, from the moments.
  wx = np.einsum('gm,gm->g', weights, found.x)
  p = (wx + offsets * found.count).sum()
  pp = (
    np.einsum('gm,gmn,gn->g', weights, found.xx, weights)
    + 2 * offsets * wx
    + offsets**2 * found.count
  ).sum()
  py = (np.einsum('gm,gm->g', weights, found.xy) + offsets * found.y).sum()
  n, y, yy = found.count.sum(), found.y.sum(), found.yy.sum()
  spread = (pp - p * p / n) * (yy - y * y / n)
  if not spread > 0:
    return 0.0, (raws, intercepts)
  return float((py - p * y / n) / np.sqrt(spread)), (raws, intercepts)


def ablation(found: Moments, fitted: Fit) -> dict[str, float | None]:
  """The leave-one-out correlation without each member (tables 2 and 11).

  One member is taken away at a time, and a new ensemble is fitted to all other
  metrics of the board.

  Returns:
    Member -> correlation; None where nothing is left.
  """
  result: dict[str, float | None] = {}
  for member in fitted.members():
    rest = [n for n in fitted.names if n != member]
    at = [fitted.names.index(n) for n in rest]
    try:
      result[member] = fit(found.select(at), rest).leave_one_out
    except (EnsembleError, ValueError):
      result[member] = None
  return result


def affine(
  column: np.ndarray, scores: np.ndarray, tolerance: float = 1e-9
) -> tuple[float, np.ndarray] | None:
  """The affine function of a few metrics that a published column is.

  Args:
    column: The published ensemble's scores, [N].
    scores: [M, N], finite.
    tolerance: Greatest error, relative to the column's standard deviation.

  Returns:
    Intercept and weights [M] (zeros but for a few), or None where no affine
    function gives the column.
  """
  mean, deviation = scores.mean(axis=1), scores.std(axis=1)
  if not (deviation > 0).all() or not column.std() > 0:
    return None
  z = (scores - mean[:, None]) / deviation[:, None]
  kept = np.arange(len(scores))
  for _ in range(2):  # all metrics, then again those that count
    design = np.vstack([np.ones(z.shape[1]), z[kept]]).T
    solution = np.linalg.lstsq(design, column, rcond=None)[0]
    error = np.abs(design @ solution - column).max()
    if not error <= tolerance * column.std():
      return None
    big = np.abs(solution[1:]) > 1e-7 * column.std()
    kept, found = kept[big], solution[1:][big]
  weights = np.zeros(len(scores))
  weights[kept] = found / deviation[kept]
  return float(solution[0] - weights @ mean), weights
