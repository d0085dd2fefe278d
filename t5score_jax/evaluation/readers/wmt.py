"""Reads files in the layouts of WMT's metrics tasks as score tables.

These are score files (`NAME.seg.score`, `NAME.sys.score`), the official direct
assessments (`ad-seg-scores-LP.csv`, `ad-sys-scores-LP.csv`), and those of the
quality estimation task's MLQE-PE, gzipped or not.
`scores` reads files with a header whose columns the user names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from t5score_jax.data import files, numbers
from t5score_jax.data import tables as data_tables
from t5score_jax.evaluation.scores import (
  KEYS,
  ScoreTable,
  check_width,
)

# METRIC LP TESTSET REF SYSTEM [DOC SEG] SCORE
_SYSTEM_FIELDS = 6
_SEGMENT_FIELDS = 8


def read_wmt_scores(
  path: str | os.PathLike[str],
  *,
  test_set: str | None = None,
  reference: str | None = None,
  by_line: bool = False,
) -> ScoreTable:
  """Reads a `.seg.score` or `.sys.score` file of one metric.

  Args:
    path: The file; fields METRIC LP TESTSET REF SYSTEM [DOC SEG] SCORE,
      separated by white space, no header.
    test_set: Which TESTSET to take, e.g. 'newstest2020'; None if the file
      has only one.
    reference: Which REF to take; None for the one named like the test set
      (WMT's first reference), or the only one.
    by_line: Whether segments are identified by their position among the lines
      of their system, from 1 (as in the official ratings), instead of DOC::SEG.

  Returns:
    The selected rows; segments are named 'DOC::SEG', or '' in a system file.
    The one column is named after METRIC. A note counts the rows of other test
    sets or references.

  Raises:
    files.RecordError: A wrong number of fields, a score that is not a finite
      number, two metrics in one file, or no row of that test set.
  """
  path = os.fspath(path)
  everything: list[tuple[int, list[str]]] = []
  with files.open_text(path) as stream:
    for number, line in enumerate(stream, 1):
      fields = line.split()
      if len(fields) not in (_SYSTEM_FIELDS, _SEGMENT_FIELDS) or (
        everything and len(fields) != len(everything[0][1])
      ):
        raise files.RecordError(
          f'{len(fields)} fields; a line has METRIC LP TESTSET REF SYSTEM '
          'SCORE, or with DOC SEG before the score',
          path=path,
          line=number,
        )
      if everything and fields[0] != everything[0][1][0]:
        raise files.RecordError(
          f'a score of {fields[0]!r} in the file of {everything[0][1][0]!r}',
          path=path,
          line=number,
        )
      everything.append((number, fields))
  if not everything:
    raise files.RecordError('the file has no scores', path=path)
  sets = list(dict.fromkeys(fields[2] for _, fields in everything))
  if test_set is None:
    test_set = _only(sets, 'test set', '--test-set', path)
  references = list(
    dict.fromkeys(
      fields[3] for _, fields in everything if fields[2] == test_set
    )
  )
  if reference is None and test_set in references:
    reference = test_set
  elif reference is None and references:
    reference = _only(references, 'reference', '--reference', path)
  taken = [
    (number, fields)
    for number, fields in everything
    if fields[2] == test_set and fields[3] == reference
  ]
  if not taken:
    raise files.RecordError(
      f'nothing of the test set {test_set!r} with the reference {reference!r}; '
      f'there are the test sets {", ".join(sets)}'
      + (f' and the references {", ".join(references)}' if references else ''),
      path=path,
    )
  return _score_table(path, taken, len(everything) - len(taken), by_line)


def _only(names: list[str], what: str, flag: str, path: str) -> str:
  if len(names) > 1:
    raise files.RecordError(
      f'there is more than one {what} ({", ".join(names)}): say which ({flag})',
      path=path,
    )
  return names[0]


def _score_table(
  path: str, taken: list[tuple[int, list[str]]], others: int, by_line: bool
) -> ScoreTable:
  rows = []
  places: dict[tuple[str, str], int] = {}
  for _, fields in taken:
    segment = ''
    if len(fields) == _SEGMENT_FIELDS:
      system = (fields[1], fields[4])
      places[system] = places.get(system, 0) + 1
      segment = str(places[system]) if by_line else '::'.join(fields[5:7])
    rows.append((fields[1], fields[4], segment))
  return ScoreTable(
    path,
    KEYS,
    rows,
    np.array([number for number, _ in taken]),
    {
      taken[0][1][0]: np.array(
        [
          numbers.read(fields[-1], path=path, line=number, field='SCORE')
          for number, fields in taken
        ]
      )
    },
    (f'{path}: {others} rows of other test sets or references not used',)
    if others
    else (),
  )


def _language_pair(path: str, pattern: str) -> str:
  match = re.search(pattern, os.path.basename(path))
  if not match:
    raise files.RecordError(
      'the file name has no language pair; give it (--language-pair)',
      path=path,
    )
  return f'{match[1]}-{match[2]}'


def read_wmt_da(
  path: str | os.PathLike[str], language_pair: str | None = None
) -> ScoreTable:
  """Reads official direct assessments of one language pair.

  Args:
    path: `ad-seg-scores-LP.csv` (SYS SID RAW.SCR Z.SCR N) or
      `ad-sys-scores-LP.csv` (RAW.SCR Z.SCR N SYS N.ALL): white space between
      fields, a header.
    language_pair: The language pair; None takes it from the file's name.

  Returns:
    The rows, with the columns 'raw', 'z' and 'n' (the number of ratings
    averaged); the segment is the unchanged SID, or '' in a system file.

  Raises:
    files.RecordError: A column is missing, a row has another width, a value
      is not a finite number, or the language pair is unknown.
  """
  path = os.fspath(path)
  if language_pair is None:
    language_pair = _language_pair(
      path, r'-([a-z]{2,3})-([a-z]{2,3})\.csv(\.gz)?$'
    )
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
      check_width(fields, header, path, number)
      row = dict(zip(header, fields, strict=True))
      rows.append((language_pair, row['SYS'], row.get('SID', '')))
      lines.append(number)
      for name, column_name in (('raw', 'RAW.SCR'), ('z', 'Z.SCR'), ('n', 'N')):
        values[name].append(
          numbers.read(
            row[column_name], path=path, line=number, field=column_name
          )
        )
  return ScoreTable(
    path,
    KEYS,
    rows,
    np.array(lines),
    {name: np.array(column) for name, column in values.items()},
  )


def is_mlqe_header(header: Sequence[str]) -> bool:
  """Whether a TSV header is the header of MLQE-PE's direct assessments."""
  return {'index', 'original', 'translation', 'z_mean'} <= set(header)


def read_mlqe_pe(
  path: str | os.PathLike[str], language_pair: str | None = None
) -> ScoreTable:
  """Reads MLQE-PE's direct assessments: `test20.ende.df.short.tsv` and so on.

  Args:
    path: TSV with the header index, original, translation, scores, mean,
      z_scores, z_mean, model_scores; without quoting.
    language_pair: Their language pair; None takes it from the file's name.

  Returns:
    The rows, with the columns 'mean', 'z_mean' and 'model_scores' as far as the
    file has them. The only system is named 'MT'.

  Raises:
    files.RecordError: A row of another width, a value that is not a finite
      number, or the language pair is unknown.
  """
  path = os.fspath(path)
  if language_pair is None:
    language_pair = _language_pair(path, r'[.-]([a-z]{2})-?([a-z]{2})[.-]')
  rows: list[tuple[str, str, str]] = []
  lines: list[int] = []
  values: dict[str, list[float]] = {}
  with files.open_text(path) as stream:
    for number, row in data_tables.read_table(stream, path, 'tsv').rows:
      rows.append((language_pair, 'MT', row['index']))
      lines.append(number)
      for name in ('mean', 'z_mean', 'model_scores'):
        if name in row:
          values.setdefault(name, []).append(
            numbers.read(row[name], path=path, line=number, field=name)
          )
  return ScoreTable(
    path,
    KEYS,
    rows,
    np.array(lines),
    {name: np.array(column) for name, column in values.items()},
  )
