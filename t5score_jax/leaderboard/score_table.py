"""Reads tables of human and metric scores in the Billboards' layout.

A row is one generator's output for one example; columns are ids, a human rating
and metrics. Tables of millions of rows are read in chunks. `layouts.py` stores
tables on boards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import pandas as pd

from t5score_jax.data import files, numbers, tables
from t5score_jax.data.files import RecordError

#: Recognised names of the columns of ids, in order of preference.
SYSTEM_COLUMNS = ('system', 'generator', 'SYS', 'model')
SEGMENT_COLUMNS = ('seg_id', 'segment', 'id', 'SID')
#: Redundant columns of the original tables.
IGNORED = ('set_id', 'lp', 'line')
# Number of rows parsed at a time.
_CHUNK = 100_000
_MISSING = ('', 'nan', 'NaN', 'NA')


@dataclasses.dataclass(frozen=True)
class ScoreTable:
  """Scores of I systems' outputs for K examples.

  Attributes:
    systems: The I systems, in order of occurrence.
    ids: The ids of the K examples, in order of occurrence.
    columns: Name -> float64 [I, K]; NaN if a cell is empty or a row missing.
  """

  systems: list[str]
  ids: list[str]
  columns: dict[str, np.ndarray]


def read(
  path: str | os.PathLike[str],
  system: str | None = None,
  segment: str | None = None,
  ignore: Sequence[str] = IGNORED,
) -> ScoreTable:
  """Reads a tab-separated table with a header, gzipped or not.

  Args:
    path: The file.
    system: The column of systems; None for one of `SYSTEM_COLUMNS`.
    segment: The column of examples; None for one of `SEGMENT_COLUMNS`.
    ignore: Columns to ignore.

  Returns:
    The table. All other columns must be numeric.

  Raises:
    RecordError: A column is missing or not numeric, or a row has the wrong
      number of fields or is repeated; the message names the line.
    OSError: The file cannot be read.
  """
  path = os.fspath(path)
  header = _header(path)
  system = _pick(header, system, SYSTEM_COLUMNS, 'systems', path)
  segment = _pick(header, segment, SEGMENT_COLUMNS, 'examples', path)
  for name in ignore:
    if name not in header and name not in IGNORED:
      raise RecordError(
        f'no column {name!r} to ignore;' + tables.suggest(name, header),
        path=path,
        line=1,
      )
  names = [c for c in header if c not in (system, segment, *ignore)]
  if not names:
    raise RecordError('no columns of scores', path=path, line=1)
  systems: dict[str, int] = {}
  ids: dict[str, int] = {}
  places: list[np.ndarray] = []
  values: list[np.ndarray] = []
  try:
    for chunk in _chunks(path, header, [system, segment], names):
      places.append(
        np.stack([_codes(chunk[system], systems), _codes(chunk[segment], ids)])
      )
      values.append(chunk[names].to_numpy(dtype=np.float64))
  except RecordError:
    raise
  except (ValueError, UnicodeError, EOFError) as error:
    _explain(path, header, names)
    raise RecordError(f'not a table of scores: {error}', path=path) from error
  if not ids:
    raise RecordError('no rows below the header', path=path)
  return _assemble(path, systems, ids, names, np.hstack(places), values)


def _header(path: str) -> list[str]:
  with files.open_text(path) as lines:
    first = next(lines, None)
  if first is None:
    raise RecordError('the file is empty', path=path)
  header = first.split('\t')
  for name in header:
    if header.count(name) > 1 or not name:
      raise RecordError(
        f'the column {name!r} occurs {header.count(name)} times; give every'
        ' column a unique name',
        path=path,
        line=1,
      )
  return header


def _pick(
  header: Sequence[str],
  wanted: str | None,
  usual: Sequence[str],
  what: str,
  path: str,
) -> str:
  present = [n for n in ([wanted] if wanted else usual) if n in header]
  if not present:
    raise RecordError(
      f'no column of {what}'
      + (f' {wanted!r}' if wanted else f' ({", ".join(usual)})')
      + f' in the header: {", ".join(header)}',
      path=path,
      line=1,
    )
  return present[0]


class _Checked:
  """A stream that checks that every line has as many fields as the header.

  pandas would read a short row as one with empty cells.
  """

  def __init__(self, stream: IO[bytes], fields: int, path: str):
    self._stream, self._fields, self._path = stream, fields, path
    self._line = 0

  def __iter__(self) -> Iterator[bytes]:
    return iter(lambda: self.read(1 << 20), b'')

  def read(self, size: int) -> bytes:
    lines = self._stream.readlines(size)
    for number, line in enumerate(lines, self._line + 1):
      fields = line.count(b'\t') + 1
      if fields != self._fields:
        raise RecordError(
          f'{fields} fields where the header has {self._fields}',
          path=self._path,
          line=number,
        )
    self._line += len(lines)
    return b''.join(lines)


def _chunks(
  path: str, header: list[str], ids: list[str], names: list[str]
) -> Iterator[pd.DataFrame]:
  types: dict[str, Any] = {name: np.float64 for name in names}
  types.update({name: str for name in ids})
  # Exported boards must read back exactly. This is the default from pandas 3
  # on, where the option is deprecated.
  exact: dict[str, Any] = {'float_precision': 'round_trip'}
  if int(pd.__version__.partition('.')[0]) >= 3:
    exact = {}
  with open(path, 'rb') as raw, contextlib.ExitStack() as stack:
    stream: Any = raw
    if raw.peek(2)[:2] == b'\x1f\x8b':
      stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
    yield from pd.read_csv(
      _Checked(stream, len(header), path),
      sep='\t',
      header=0,
      names=header,
      usecols=[*ids, *names],
      dtype=types,
      quoting=3,
      keep_default_na=False,
      na_values={name: list(_MISSING) for name in names},
      **exact,
      chunksize=_CHUNK,
      encoding='utf-8',
      index_col=False,
      on_bad_lines='error',
      skip_blank_lines=False,
    )


def _codes(column: pd.Series, known: dict[str, int]) -> np.ndarray:
  """Indices of names; new names are appended."""
  codes, names = pd.factorize(column)
  order = [known.setdefault(str(name), len(known)) for name in names]
  return np.asarray(order, dtype=np.int64)[codes]


def _assemble(
  path: str,
  systems: dict[str, int],
  ids: dict[str, int],
  names: list[str],
  places: np.ndarray,
  values: list[np.ndarray],
) -> ScoreTable:
  """Converts rows in any order to columns [I, K]."""
  flat = places[0] * len(ids) + places[1]
  counts = np.bincount(flat, minlength=len(systems) * len(ids))
  if counts.max() > 1:
    twice = np.flatnonzero(counts > 1)[0]
    lines = np.flatnonzero(flat == twice) + 2
    raise RecordError(
      f'system {list(systems)[twice // len(ids)]!r} and example'
      f' {list(ids)[twice % len(ids)]!r} are in line {lines[0]} already',
      path=path,
      line=int(lines[1]),
    )
  columns = {}
  for n, name in enumerate(names):
    column = np.full(len(systems) * len(ids), np.nan)
    start = 0
    for block in values:
      column[flat[start : start + len(block)]] = block[:, n]
      start += len(block)
    bad = np.flatnonzero(np.isinf(column[flat]))
    if bad.size:
      raise RecordError(
        'infinity; leave the cell empty if there is no score',
        path=path,
        line=int(bad[0]) + 2,
        field=name,
      )
    columns[name] = column.reshape(len(systems), len(ids))
  return ScoreTable(list(systems), list(ids), columns)


def _explain(path: str, header: list[str], names: list[str]) -> None:
  """Rereads a malformed table, slowly, to name the line."""
  with files.open_text(path) as lines:
    next(lines)
    for number, line in enumerate(lines, 2):
      for name, cell in zip(header, line.split('\t'), strict=False):
        if name in names and cell not in _MISSING:
          if numbers.parse(cell) is None:
            raise RecordError(
              f'{cell[:40]!r} is not a number; exclude columns without numbers'
              ' by --ignore',
              path=path,
              line=number,
              field=name,
            )
