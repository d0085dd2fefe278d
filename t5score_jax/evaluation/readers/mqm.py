"""MQM segment scores from annotated errors, in total and by category.

Reads the TSV files in which Google publishes MQM annotations (one error per
row: system, document, segment, rater, category, severity). Errors are weighted
as in Freitag et al. (2021), "Experts, errors, and context". `scores` reads
files of scores that are already computed.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from t5score_jax.data import files, numbers
from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation
from t5score_jax.evaluation.scores import KEYS, ScoreTable, check_width

# Freitag et al. (2021), table 4: SEVERITY[/CATEGORY[/SUBCATEGORY]]:WEIGHT, the
# longest match counts.
WEIGHTS = (
  'Major:5 Minor:1 Neutral:0 No-error:0 Major/Non-translation!:25'
  ' Minor/Fluency/Punctuation:0.1'
)
# Google's names over the years.
_COLUMNS = {
  'system': ('system',),
  'document': ('doc',),
  'place': ('doc_id', 'doc_seg_id', 'docSegId'),
  'line': ('seg_id', 'global_seg_id', 'globalSegId'),
  'rater': ('rater',),
  'category': ('category',),
  'severity': ('severity',),
}
# T5Score's five categories (section 4.1), by the names of table columns.
CATEGORIES = (
  'accuracy',
  'fluency',
  'terminology',
  'style',
  'locale-convention',
)
NORMALISATIONS = ('z', 'range')


def is_mqm_header(header: Sequence[str]) -> bool:
  """Whether a TSV header is the header of a file of annotated errors."""
  return {'rater', 'category', 'severity', 'system'} <= set(header)


def parse_weights(text: str) -> dict[str, fractions.Fraction]:
  """Reads weights: SEVERITY[/CATEGORY[/SUBCATEGORY]]:WEIGHT ...

  Exact numbers, so that sums do not depend on the order of errors.

  >>> parse_weights('Major:5 Minor/Fluency:0.1')['minor/fluency']
  Fraction(1, 10)

  Raises:
    InputError: The text has another form, or a weight is below 0.
  """
  weights = {}
  for part in text.split():
    name, colon, number = part.rpartition(':')
    value = numbers.parse(number)
    if not (name and colon and value is not None and value >= 0):
      raise InputError(
        f'{part!r} is no weight: SEVERITY[/CATEGORY[/SUBCATEGORY]]:WEIGHT, '
        'of 0 or more'
      )
    weights[name.lower()] = fractions.Fraction(number)
  return weights


@dataclasses.dataclass(frozen=True)
class _Error:
  key: tuple[str, str]
  rater: str
  category: str
  weight: fractions.Fraction


def _weight(
  weights: Mapping[str, fractions.Fraction], severity: str, category: str
) -> fractions.Fraction | None:
  parts = [severity.lower(), *category.lower().split('/')]
  for length in range(len(parts), 0, -1):
    name = '/'.join(parts[:length])
    if name in weights:
      return weights[name]
  return None


def category_name(category: str) -> str:
  """The column of a category: its first part, in lower case, with hyphens.

  >>> category_name('Locale convention/Currency format')
  'locale-convention'
  """
  first = category.partition('/')[0].lower()
  return re.sub(r'[^a-z0-9]+', '-', first).strip('-')


def read_mqm(
  path: str | os.PathLike[str],
  language_pair: str = '',
  *,
  weights: str = WEIGHTS,
  by_line: bool = False,
) -> ScoreTable:
  """Reads annotated errors as segment scores.

  A rater's score of a segment is minus the sum of the weights of its errors;
  the segment's score is the mean over the raters who saw it.

  Args:
    path: The TSV file, with a header, without quoting.
    language_pair: The language pair of the annotations.
    weights: See `parse_weights`.
    by_line: Whether segments are identified by their number in the test set
      instead of WMT's DOCUMENT::NUMBER.

  Returns:
    A table with the column 'mqm' and one 'mqm-CATEGORY' for each category
    that occurs and each of T5Score's five; 0 is best.

  Raises:
    files.RecordError: A column is missing, a row has another width, or a
      severity has no weight.
  """
  path = os.fspath(path)
  errors: list[_Error] = []
  lines: list[int] = []
  table = parse_weights(weights)
  with files.open_text(path) as stream:
    header = next(stream, '').split('\t')
    places = _find_columns(header, path)
    for number, line in enumerate(stream, 2):
      fields = line.split('\t')
      check_width(fields, header, path, number)
      errors.append(_read_error(fields, places, table, by_line, path, number))
      lines.append(number)
  if not errors:
    raise files.RecordError('the file has no annotation', path=path)
  return _table(path, language_pair, errors, lines)


def _find_columns(header: list[str], path: str) -> dict[str, int]:
  columns = {}
  for name, candidates in _COLUMNS.items():
    present = [c for c in candidates if c in header]
    if present:
      columns[name] = header.index(present[0])
    elif name not in ('place', 'line'):
      raise files.RecordError(
        f'no column {candidates[0]!r} in the header {header}',
        path=path,
        line=1,
        field=candidates[0],
      )
  if 'place' not in columns and 'line' not in columns:
    raise files.RecordError(
      'no column says which segment an error is in (doc_id or seg_id)',
      path=path,
      line=1,
    )
  return columns


def _read_error(
  fields: list[str],
  places: dict[str, int],
  weights: Mapping[str, fractions.Fraction],
  by_line: bool,
  path: str,
  number: int,
) -> _Error:
  row = {name: fields[place] for name, place in places.items()}
  if by_line and 'line' not in row:
    raise files.RecordError(
      'no column with the number of the segment in the test set (seg_id)',
      path=path,
      line=1,
    )
  if by_line or 'place' not in row:
    segment = row['line']
  else:
    segment = f'{row["document"]}::{row["place"]}'
  weight = _weight(weights, row['severity'], row['category'])
  if weight is None:
    raise files.RecordError(
      f'the severity {row["severity"]!r} has no weight; give it one '
      '(--mqm-weights)',
      path=path,
      line=number,
      field='severity',
    )
  return _Error(
    (row['system'], segment),
    row['rater'],
    category_name(row['category']),
    weight,
  )


def _table(
  path: str, language_pair: str, errors: list[_Error], lines: list[int]
) -> ScoreTable:
  names = dict.fromkeys(['', *CATEGORIES])
  names.update(
    dict.fromkeys(e.category for e in errors if e.category != 'no-error')
  )
  columns = {name: k for k, name in enumerate(names)}
  keys: dict[tuple[str, str], int] = {}
  raters: list[set[str]] = []
  first_lines: list[int] = []
  # In units of 1 / unit all weights are integers, so their sums are exact.
  unit = math.lcm(*(error.weight.denominator for error in errors))
  totals: list[list[int]] = []
  for error, line in zip(errors, lines, strict=True):
    if error.key not in keys:
      keys[error.key] = len(keys)
      first_lines.append(line)
      totals.append([0] * len(columns))
      raters.append(set())
    raters[keys[error.key]].add(error.rater)
    total, weight = totals[keys[error.key]], int(error.weight * unit)
    total[0] += weight
    if error.category in columns:
      total[columns[error.category]] += weight
  counts = [unit * len(names) for names in raters]
  values = {
    f'mqm-{name}' if name else 'mqm': np.array(
      # A single division of integers, so that equal means are equal floats.
      [-t[k] / count for t, count in zip(totals, counts, strict=True)]
    )
    + 0.0  # Turns -0.0 into 0.0.
    for name, k in columns.items()
  }
  rows = [(language_pair, system, segment) for system, segment in keys]
  return ScoreTable(path, KEYS, rows, np.array(first_lines), values)


def normalise(scores: np.ndarray, how: str = 'z') -> np.ndarray:
  """Scores on a common scale; NaN stays NaN, constant scores become 0.

  Args:
    scores: Any shape.
    how: 'z' for mean 0 and variance 1, 'range' for 0 to 1.

  Raises:
    InputError: Another name.
  """
  if how not in NORMALISATIONS:
    raise InputError(
      f'unknown normalisation {how!r}; there are {", ".join(NORMALISATIONS)}'
    )
  chosen = scores[~np.isnan(scores)]
  if not chosen.size:
    return scores
  if how == 'z':
    return correlation.standardise(scores)
  return (scores - chosen.min()) / (np.ptp(chosen) or 1.0)


def category_error(
  human: np.ndarray, metric: np.ndarray, how: str = 'z'
) -> float:
  """Root mean squared error after normalisation (T5Score section 7, Figure 5).

  The paper normalises scores but does not state how. With 'z' the error is
  sqrt(2 - 2 r), where r is Pearson's correlation.

  Args:
    human: Scores of one error category, [S, N], NaN where not rated.
    metric: Metric scores [S, N], finite wherever `human` is rated.
    how: See `normalise`.

  Returns:
    The error, 0 or more; lower is better. Scores that do not vary give a
    warning.

  Raises:
    InputError: Shapes differ, missing scores, nothing rated.
  """
  rated = ~np.isnan(human)
  if np.shape(human) != np.shape(metric):
    raise InputError(f'shapes {np.shape(human)} and {np.shape(metric)} differ')
  y = correlation.check_scores(human[rated], 'human scores')
  x = correlation.check_scores(metric[rated], 'metric scores')
  if not y.size:
    raise InputError('nothing is rated')
  for values, which in ((y, 'human scores'), (x, 'metric scores')):
    if np.ptp(values) == 0:
      correlation.warn_constant(which)
  return float(np.sqrt(np.mean((normalise(y, how) - normalise(x, how)) ** 2)))
