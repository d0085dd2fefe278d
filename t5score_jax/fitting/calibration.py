"""Calibration: from a metric's scores to the scale on which people rated.

A T5Score is a mean log-probability: it ranks texts, and -1.7 by itself means
nothing (Qin et al. 2022, Limitations). A calibration is an increasing function
from scores to ratings, fitted on judged segments that the metric was not
trained on. It is fitted once, kept beside the weights, and named in the
signature of every score that went through it.

Every calibration here increases strictly, so that it leaves ranks, ties, and
with them Kendall's and Spearman's coefficients of segments, as they are. A
system's value is the mean of its calibrated segments; an affine calibration
leaves the order of systems too, an isotonic one may move close systems.

Not for judging how well a metric agrees with people (`evaluation`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from t5score_jax.data import files
from t5score_jax.errors import T5ScoreError
from t5score_jax.metrics import base

FILE = 'calibration.json'
FORMAT = 1
METHODS = ('isotonic', 'affine')
FOLDS = 5
_LEAST = 10
# The share of the straight line in an isotonic calibration: enough that no
# two scores fuse where isotonic regression is flat.
_LINE_SHARE = 0.01
# Keys of a signature that may differ between fitting and use.
_FREE_KEYS = ('nrefs', 'version', 'calibration')


class CalibrationError(T5ScoreError, ValueError):
  """A calibration can't be fitted, read or used; the message says why."""


@dataclasses.dataclass(frozen=True)
class Calibration:
  """A strictly increasing, piecewise linear function of a metric's score.

  Attributes:
    method: 'isotonic' or 'affine'.
    scores: Knots on the metric's scale, float64 [K], increasing, K >= 2.
    ratings: Their values on the human scale, float64 [K], increasing.
    slopes: Of the lines before the first and after the last knot.
    target: What the human scale is called, for example 'da_z'.
    signature: The metric with which it was fitted.
    segments: How many judged segments it was fitted on.
    report: Numbers about the fit, for people; see `cross_validate`.
  """

  method: str
  scores: np.ndarray
  ratings: np.ndarray
  slopes: tuple[float, float]
  target: str
  signature: str
  segments: int
  report: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for name in ('scores', 'ratings'):
      knots = np.asarray(getattr(self, name), np.float64)
      object.__setattr__(self, name, knots)
      if knots.ndim != 1 or len(knots) < 2 or not np.isfinite(knots).all():
        raise CalibrationError(f'{name} must be two or more finite numbers')
      if not (np.diff(knots) > 0).all():
        raise CalibrationError(f'{name} must increase strictly')
    if len(self.scores) != len(self.ratings):
      raise CalibrationError('scores and ratings must be of one length')
    if self.method not in METHODS or not min(self.slopes) > 0:
      raise CalibrationError('a method or slope is wrong')

  def __call__(self, scores: Any) -> np.ndarray:
    """Maps scores to ratings, float64 of the same shape."""
    x = np.asarray(scores, np.float64)
    y = np.interp(x, self.scores, self.ratings)
    low = np.minimum(x - self.scores[0], 0.0) * self.slopes[0]
    high = np.maximum(x - self.scores[-1], 0.0) * self.slopes[1]
    return y + low + high

  @property
  def name(self) -> str:
    """For signatures: method, target, 8 hex digits of the function."""
    text = json.dumps(
      [self.scores.tolist(), self.ratings.tolist(), self.slopes]
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f'{self.method}-{self.target}-{digest}'


def fit(
  scores: Any,
  ratings: Any,
  method: str = 'isotonic',
  target: str = 'rating',
  signature: str = '',
) -> Calibration:
  """Fits a calibration by least squares.

  'affine' is the regression line. 'isotonic' is isotonic regression, joined
  through the centres of its blocks (centred isotonic regression, Oron and
  Flournoy 2017) with 1% of the regression line mixed in, and continued with
  the line's slope beyond the judged scores.

  Args:
    scores: The metric's, [N].
    ratings: People's, [N].
    method: 'isotonic' or 'affine'.
    target: What the human scale is called; letters, digits, `_`, `.`, `-`.
    signature: The metric's.

  Raises:
    CalibrationError: Too few segments, or scores that do not rise with the
      ratings.
    ValueError: An argument has a value that it can't have.
  """
  if method not in METHODS:
    raise ValueError(f'method {method!r}: use one of {", ".join(METHODS)}')
  if not target or set(target) & set('|:\n\t '):
    raise ValueError(f'target {target!r}: a name without spaces, | and :')
  x, y = _checked(scores, ratings)
  slope, intercept = np.polyfit(x, y, 1)
  if not slope > 0:
    raise CalibrationError(
      f'{target} does not rise with the score (slope {slope:.3g} over {len(x)} '
      'segments): there is nothing to calibrate'
    )
  if method == 'affine':
    knots = np.array([x.min(), x.max()])
    values = slope * knots + intercept
  else:
    knots, values = _centred_isotonic(x, y)
    line = slope * knots + intercept
    values = (1.0 - _LINE_SHARE) * values + _LINE_SHARE * line
  return Calibration(
    method,
    knots,
    values,
    (float(slope), float(slope)),
    target,
    signature,
    len(x),
  )


def _checked(
  scores: Any, ratings: Any, least: int = _LEAST, why: str = ''
) -> tuple[np.ndarray, np.ndarray]:
  x, y = np.asarray(scores, np.float64), np.asarray(ratings, np.float64)
  if x.ndim != 1 or x.shape != y.shape:
    raise ValueError(f'scores {x.shape} and ratings {y.shape} must be [N]')
  if not (np.isfinite(x).all() and np.isfinite(y).all()):
    raise CalibrationError('scores and ratings must be finite')
  if len(x) < least or len(np.unique(x)) < 2:
    raise CalibrationError(
      f'{len(x)} judged segments with {len(np.unique(x))} distinct scores: '
      f'at least {least} and 2 are needed{why}'
    )
  return x, y


def _centred_isotonic(
  x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Isotonic regression as knots that increase strictly in both."""
  distinct, inverse, counts = np.unique(
    x, return_inverse=True, return_counts=True
  )
  means = np.bincount(inverse, weights=y) / counts
  found = optimize.isotonic_regression(means, weights=counts)
  starts = found.blocks[:-1]
  sizes = np.add.reduceat(counts, starts)
  centres = np.add.reduceat(distinct * counts, starts) / sizes
  values = found.x[starts]
  # A block that rounding left equal to the one before adds nothing.
  keep = np.concatenate([[True], np.diff(values) > 0])
  centres, values = centres[keep], values[keep]
  if len(centres) == 1:
    # Flat everywhere: the line's share alone makes it rise.
    return np.array([distinct[0], distinct[-1]]), np.repeat(values, 2)
  return centres, values


def least_segments(folds: int) -> int:
  """How many judged segments, each with an id of its own, `folds` need.

  The greatest fold is left out of a fit, and what remains must be enough.

  Args:
    folds: 2 or more.
  """
  count = _LEAST + 1
  while count - -(-count // folds) < _LEAST:
    count += 1
  return count


def cross_validate(
  scores: Any,
  ratings: Any,
  groups: Sequence[Hashable],
  folds: int = FOLDS,
  seed: int = 0,
) -> dict[str, Any]:
  """How far calibrated scores are from ratings that were not fitted.

  Args:
    scores: The metric's, [N].
    ratings: People's, [N].
    groups: What must not be split, [N]: the segments' ids, so that another
      system's translation of a test segment is never fitted.
    folds: Number of parts.
    seed: Of the division into folds.

  Returns:
    'rmse': root mean squared error of 'constant' (the mean rating), 'affine'
    and 'isotonic', each predicted from the other folds; 'deciles': for ten
    equal parts by isotonic prediction the 'predicted' and 'observed' means;
    'folds', 'seed' and 'groups'.

  Raises:
    CalibrationError: As `fit`, or fewer groups than folds.
  """
  x, y = _checked(scores, ratings, least_segments(folds), f' for {folds} folds')
  names = list(dict.fromkeys(groups))
  if len(names) < folds:
    raise CalibrationError(
      f'{len(names)} segment ids are too few for {folds} folds'
    )
  order = np.random.default_rng(seed).permutation(len(names))
  fold_of = dict(zip(names, order % folds, strict=True))
  fold = np.array([fold_of[group] for group in groups])
  predictions = {
    name: np.empty_like(y) for name in ('constant', 'affine', 'isotonic')
  }
  for k in range(folds):
    train, test = fold != k, fold == k
    predictions['constant'][test] = y[train].mean()
    for method in METHODS:
      try:
        fitted = fit(x[train], y[train], method)
      except CalibrationError as error:
        # What is counted there is a part of what was given.
        raise CalibrationError(
          f'{len(x)} judged segments in {folds} folds; without fold {k + 1}: '
          f'{error}'
        ) from error
      predictions[method][test] = fitted(x[test])
  by_prediction = np.argsort(predictions['isotonic'], kind='stable')
  return {
    'rmse': {
      method: float(np.sqrt(np.mean((p - y) ** 2)))
      for method, p in predictions.items()
    },
    'deciles': [
      {
        'predicted': float(predictions['isotonic'][part].mean()),
        'observed': float(y[part].mean()),
      }
      for part in np.array_split(by_prediction, min(10, len(y)))
    ],
    'folds': folds,
    'seed': seed,
    'groups': len(names),
  }


def with_report(
  calibration: Calibration, report: Mapping[str, Any]
) -> Calibration:
  """The same function with numbers about its fit."""
  return dataclasses.replace(calibration, report=dict(report))


def apply(scores: base.Scores, calibration: Calibration) -> base.Scores:
  """Puts scores on the human scale.

  Args:
    scores: Of the metric with which the calibration was fitted.
    calibration: The function.

  Returns:
    The scores with calibrated float64 values; the component `uncalibrated`
    holds what they were, other components are as they were, the signature
    names the calibration, and a system's value is the mean.

  Raises:
    CalibrationError: The scores are of another metric, model or setting.
  """
  check_signature(scores.signature, calibration)
  head, mark, version = scores.signature.rpartition('|version:')
  signature = f'{head}|calibration:{calibration.name}{mark}{version}'
  return dataclasses.replace(
    scores,
    values=calibration(scores.values),
    signature=signature,
    components={**scores.components, 'uncalibrated': scores.values},
    corpus=None,
  )


def check_signature(
  signature: str, calibration: Calibration, complete: bool = True
) -> None:
  """Raises CalibrationError if a calibration is of another metric.

  The number of references and the version of this package may differ.

  Args:
    signature: Of a metric, or of scores.
    calibration: The calibration.
    complete: Whether the signature is that of scores; a metric's own does not
      say yet what the segments decide.
  """
  if not calibration.signature:
    return
  fitted, used = _settings(calibration.signature), _settings(signature)
  different = [
    f'{key} {fitted.get(key, "-")} there, {used.get(key, "-")} here'
    for key in {**fitted, **used}
    if key not in _FREE_KEYS
    and fitted.get(key) != used.get(key)
    and (complete or key in used)
  ]
  if different:
    raise CalibrationError(
      'the calibration was fitted with another metric: '
      + '; '.join(different)
      + ' (fit one with `t5score calibrate`)'
    )


def _settings(signature: str) -> dict[str, str]:
  pairs = (part.partition(':') for part in signature.split('|'))
  return {key: value for key, _, value in pairs}


def write(path: str | os.PathLike[str], calibration: Calibration) -> None:
  """Writes a calibration as JSON; the file appears whole or not at all."""
  found = {
    'format': FORMAT,
    **dataclasses.asdict(calibration),
    'scores': calibration.scores.tolist(),
    'ratings': calibration.ratings.tolist(),
    'slopes': list(calibration.slopes),
  }
  with files.write_atomically(path) as stream:
    json.dump(found, stream, indent=1)
    stream.write('\n')


def read(path: str | os.PathLike[str]) -> Calibration:
  """Reads a calibration, or the one in a model's folder.

  Raises:
    CalibrationError: There is none, or a damaged one.
  """
  file = Path(path)
  if file.is_dir():
    file = file / FILE
  if not file.is_file():
    raise CalibrationError(
      f'{file}: there is no calibration (`t5score calibrate` makes one)'
    )
  try:
    found = json.loads(file.read_text('utf-8'))
    if found.pop('format') != FORMAT:
      raise CalibrationError(f'only format {FORMAT} can be read')
    found['slopes'] = tuple(found['slopes'])
    return Calibration(**found)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise CalibrationError(f'{file}: damaged calibration ({error})') from error
