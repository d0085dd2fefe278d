"""Calibration of a metric's scores to the scale of human ratings.

A T5Score is a mean log-probability: it ranks texts, but -1.7 by itself means
nothing (Qin et al. 2022, Limitations). A calibration is an increasing function
from scores to ratings, fitted on rated segments that the metric was not
trained on. It is fitted once, stored beside the weights, and named in the
signature of every calibrated score.

Every calibration increases strictly and thus preserves ranks, ties, and
segment-level Kendall and Spearman coefficients. A system's value is the mean
of its calibrated segments; an affine calibration also preserves the order of
systems, an isotonic one may exchange close systems.

Not here: agreement of a metric with human judgments (`evaluation/`).
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
import scipy

from t5score_jax.data import files
from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.metrics import base

FILE = 'calibration.json'
FORMAT = 1
METHODS = ('isotonic', 'affine')
FOLDS = 5
_LEAST = 10
# The share of the straight line in an isotonic calibration: enough to keep
# scores distinct where isotonic regression is flat.
_LINE_SHARE = 0.01
# Keys of a signature that may differ between fitting and use.
_FREE_KEYS = ('nrefs', 'version', 'calibration')


class CalibrationError(T5ScoreError, ValueError):
  """A calibration cannot be fitted, read or used."""


@dataclasses.dataclass(frozen=True)
class Calibration:
  """A strictly increasing, piecewise linear function of a metric's score.

  Attributes:
    method: 'isotonic' or 'affine'.
    scores: Knots on the metric's scale, float64 [K], increasing, K >= 2.
    ratings: Their values on the human scale, float64 [K], increasing.
    slopes: Slopes of the lines before the first and after the last knot.
    target: Name of the human scale, for example 'da_z'.
    signature: Signature of the metric it was fitted with.
    segments: Number of rated segments it was fitted on.
    report: Quality of the fit; see `cross_validate`.
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
    """Name in signatures: method, target, 8 hex digits of a digest."""
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
  the line's slope beyond the range of the scores.

  Args:
    scores: The metric's scores, [N].
    ratings: Human ratings, [N].
    method: 'isotonic' or 'affine'.
    target: Name of the human scale; letters, digits, `_`, `.`, `-`.
    signature: Signature of the metric.

  Raises:
    CalibrationError: Too few segments, or scores that do not rise with the
      ratings.
    OptionError: An unknown method, or a target with spaces, | or :.
  """
  if method not in METHODS:
    raise OptionError(f'method {method!r}: use one of {", ".join(METHODS)}')
  if not target or set(target) & set('|:\n\t '):
    raise OptionError(f'target {target!r}: a name without spaces, | and :')
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
    raise CalibrationError(
      f'scores {x.shape} and ratings {y.shape} must be [N]'
    )
  if not (np.isfinite(x).all() and np.isfinite(y).all()):
    raise CalibrationError('scores and ratings must be finite')
  if len(x) < least or len(np.unique(x)) < 2:
    raise CalibrationError(
      f'{len(x)} rated segments with {len(np.unique(x))} distinct scores: '
      f'at least {least} and 2 are needed{why}'
    )
  return x, y


def _centred_isotonic(
  x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Isotonic regression as knots that increase strictly on both axes."""
  distinct, inverse, counts = np.unique(
    x, return_inverse=True, return_counts=True
  )
  means = np.bincount(inverse, weights=y) / counts
  fitted = scipy.optimize.isotonic_regression(means, weights=counts)
  starts = fitted.blocks[:-1]
  sizes = np.add.reduceat(counts, starts)
  centres = np.add.reduceat(distinct * counts, starts) / sizes
  values = fitted.x[starts]
  # Drop blocks that rounding made equal to their predecessor.
  keep = np.concatenate([[True], np.diff(values) > 0])
  centres, values = centres[keep], values[keep]
  if len(centres) == 1:
    # Flat everywhere: only the mixed-in line makes it increase.
    return np.array([distinct[0], distinct[-1]]), np.repeat(values, 2)
  return centres, values


def least_segments(folds: int) -> int:
  """Returns how many rated segments with distinct ids `folds` folds require.

  The segments outside the largest fold must suffice for a fit.

  Args:
    folds: Number of folds, at least 2.
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
  """Measures the error of calibrated scores on ratings not fitted.

  Args:
    scores: The metric's scores, [N].
    ratings: Human ratings, [N].
    groups: Keys that are kept within one fold, [N]: the segments' ids, so that
      no translation of a test segment is fitted.
    folds: Number of folds.
    seed: Seed of the split into folds.

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
        # The counts in `error` are of the training part only.
        raise CalibrationError(
          f'{len(x)} rated segments in {folds} folds; without fold {k + 1}: '
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
  """Returns the calibration with a report of its fit."""
  return dataclasses.replace(calibration, report=dict(report))


def apply(scores: base.Scores, calibration: Calibration) -> base.Scores:
  """Puts scores on the human scale.

  Args:
    scores: Scores of the metric that the calibration was fitted with.
    calibration: The calibration.

  Returns:
    The scores with calibrated float64 values. The component `uncalibrated`
    holds the original values, the signature names the calibration, and a
    system's value is the mean. Other components are unchanged.

  Raises:
    CalibrationError: The scores come from another metric, model or setting.
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
  """Raises CalibrationError if a calibration belongs to another metric.

  The number of references and the version of this package may differ.

  Args:
    signature: The signature of a metric or of scores.
    calibration: The calibration.
    complete: Whether the signature is one of scores; that of a metric lacks
      what depends on the segments.
  """
  if not calibration.signature:
    return
  fitted, used = _settings(calibration.signature), _settings(signature)
  different = [
    f'{key} {fitted.get(key, "-")} before, {used.get(key, "-")} now'
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
  """Writes a calibration as JSON, atomically."""
  values = {
    'format': FORMAT,
    **dataclasses.asdict(calibration),
    'scores': calibration.scores.tolist(),
    'ratings': calibration.ratings.tolist(),
    'slopes': list(calibration.slopes),
  }
  with files.write_atomically(path) as stream:
    json.dump(values, stream, indent=1)
    stream.write('\n')


def read(path: str | os.PathLike[str]) -> Calibration:
  """Reads a calibration from a file or a model's folder.

  Raises:
    CalibrationError: There is none, or it is damaged.
  """
  file = Path(path)
  if file.is_dir():
    file = file / FILE
  if not file.is_file():
    raise CalibrationError(
      f'{file}: there is no calibration (`t5score calibrate` makes one)'
    )
  try:
    values = json.loads(file.read_text('utf-8'))
    if values.pop('format') != FORMAT:
      raise CalibrationError(f'only format {FORMAT} can be read')
    values['slopes'] = tuple(values['slopes'])
    return Calibration(**values)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise CalibrationError(f'{file}: damaged calibration ({error})') from error
