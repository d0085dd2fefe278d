"""Files in the layouts of WMT's metrics tasks, read as score tables.

Score files (`NAME.seg.score`, `NAME.sys.score`) and the official direct
assessments (`ad-seg-scores-LP.csv`, `ad-sys-scores-LP.csv`), gzipped or not.
Files with a header whose columns the user names are `scores`' business.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np

from t5score_jax.data import files
from t5score_jax.evaluation.scores import ScoreTable

# METRIC LP TESTSET REF SYSTEM [DOC SEG] SCORE
_SYSTEM_FIELDS = 6
_SEGMENT_FIELDS = 8


def _finite(text: str, path: str, line: int, field: str) -> float:
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not math.isfinite(number):
    raise files.RecordError(
      f'{text!r} is not a finite number', path=path, line=line, field=field
    )
  return number


def read_wmt_scores(
  path: str | os.PathLike[str],
  *,
  test_set: str,
  reference: str | None = None,
) -> ScoreTable:
  """Reads a `.seg.score` or `.sys.score` file of one metric.

  Args:
    path: The file; fields METRIC LP TESTSET REF SYSTEM [DOC SEG] SCORE,
      separated by white space, no header.
    test_set: Which TESTSET to take, e.g. 'newstest2020'.
    reference: Which REF to take; None means the one called like the test set,
      WMT's first reference.

  Returns:
    The rows taken; a segment is called 'DOC::SEG', '' in a system file. The
    one column is called as METRIC says.

  Raises:
    files.RecordError: Another number of fields, a score that is not a finite
      number, two metrics in one file, nothing of that test set.
  """
  path = os.fspath(path)
  reference = test_set if reference is None else reference
  rows: list[tuple[str, str, str]] = []
  lines: list[int] = []
  values: list[float] = []
  metric = None
  width = None
  with files.open_text(path) as stream:
    for number, line in enumerate(stream, 1):
      fields = line.split()
      width = width or len(fields)
      if len(fields) != width or width not in (
        _SYSTEM_FIELDS,
        _SEGMENT_FIELDS,
      ):
        raise files.RecordError(
          f'{len(fields)} fields; a line has METRIC LP TESTSET REF SYSTEM '
          'SCORE, or with DOC SEG before the score',
          path=path,
          line=number,
        )
      metric = metric or fields[0]
      if fields[0] != metric:
        raise files.RecordError(
          f'a score of {fields[0]!r} in the file of {metric!r}',
          path=path,
          line=number,
        )
      if fields[2] != test_set or fields[3] != reference:
        continue
      segment = '::'.join(fields[5:7]) if width == _SEGMENT_FIELDS else ''
      rows.append((fields[1], fields[4], segment))
      lines.append(number)
      values.append(_finite(fields[-1], path, number, 'SCORE'))
  if metric is None or not rows:
    raise files.RecordError(
      f'nothing of the test set {test_set!r} with the reference {reference!r}',
      path=path,
    )
  return ScoreTable(
    path,
    ('language_pair', 'system', 'segment'),
    rows,
    np.array(lines),
    {metric: np.array(values)},
  )


def read_wmt_da(
  path: str | os.PathLike[str], language_pair: str | None = None
) -> ScoreTable:
  """Reads official direct assessments of one language pair.

  Args:
    path: `ad-seg-scores-LP.csv` (SYS SID RAW.SCR Z.SCR N) or
      `ad-sys-scores-LP.csv` (RAW.SCR Z.SCR N SYS N.ALL): white space between
      fields, a header.
    language_pair: Whose ratings they are; None takes it from the file's name.

  Returns:
    The rows, with the columns 'raw', 'z' and 'n' (ratings averaged); the
    segment is SID as it stands, '' in a system file.

  Raises:
    files.RecordError: A column is missing, a row has another width, a value
      is not a finite number, or no language pair can be told.
  """
  path = os.fspath(path)
  if language_pair is None:
    found = re.search(
      r'-([a-z]{2,3}-[a-z]{2,3})\.csv(\.gz)?$', os.path.basename(path)
    )
    if not found:
      raise files.RecordError(
        'the language pair cannot be told from the name; say which it is',
        path=path,
      )
    language_pair = found[1]
  rows: list[tuple[str, str, str]] = []
  lines: list[int] = []
  values: dict[str, list[float]] = {'raw': [], 'z': [], 'n': []}
  with files.open_text(path) as stream:
    header = next(stream, '').split()
    for name in ('SYS', 'RAW.SCR', 'Z.SCR', 'N'):
      if name not in header:
        raise files.RecordError(
          f'no column {name!r} in the header {header}',
          path=path,
          line=1,
          field=name,
        )
    for number, line in enumerate(stream, 2):
      fields = line.split()
      if len(fields) != len(header):
        raise files.RecordError(
          f'{len(fields)} fields where the header has {len(header)}',
          path=path,
          line=number,
        )
      row = dict(zip(header, fields, strict=True))
      rows.append((language_pair, row['SYS'], row.get('SID', '')))
      lines.append(number)
      for ours, theirs in (('raw', 'RAW.SCR'), ('z', 'Z.SCR'), ('n', 'N')):
        values[ours].append(_finite(row[theirs], path, number, theirs))
  return ScoreTable(
    path,
    ('language_pair', 'system', 'segment'),
    rows,
    np.array(lines),
    {name: np.array(column) for name, column in values.items()},
  )
