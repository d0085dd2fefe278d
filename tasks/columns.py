"""Rows of delimited files as corpora are published: with a header, or without.

Adds to `t5score_jax.data.tables` (TSV with a header, JSONL) what other people's
files need: commas, CSV quoting that a file turns out to use, and files without
a header. Errors name file, line and field; a row is never left out.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from t5score_jax.data import files, tables
from t5score_jax.data.files import RecordError

Rows = Iterator[tuple[int, dict[str, str]]]


def read_csv(path: str | os.PathLike[str], wanted: Sequence[str]) -> Rows:
  """Reads a comma-separated file with a header and CSV quoting.

  Args:
    path: The file, compressed with gzip or not.
    wanted: Columns that must be there.

  Yields:
    (the row's first line, cells by column); all columns.

  Raises:
    RecordError: Bad quoting, a row of another length than the header, a
      wanted column that isn't there.
    OSError: The file can't be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    reader = csv.reader((line + '\n' for line in lines), strict=True)
    header: list[str] = []
    while True:
      start = reader.line_num + 1
      try:
        cells = next(reader)
      except StopIteration:
        break
      except csv.Error as error:
        raise RecordError(
          f'not CSV: {error}; cells with commas, quotation marks or line ends'
          ' must stand in double quotes',
          path=path,
          line=start,
        ) from error
      if not header:
        header = cells
        _require(header, wanted, path)
        continue
      if len(cells) != len(header):
        raise RecordError(
          f'{len(cells)} fields where the header has {len(header)}; quote the'
          ' cells that hold commas',
          path=path,
          line=start,
        )
      yield start, dict(zip(header, cells, strict=True))
  if not header:
    raise RecordError('the file is empty', path=path)


def read_tsv(path: str | os.PathLike[str], wanted: Sequence[str]) -> Rows:
  """Reads a tab-separated file with a header, quoted or not.

  Some published files quote their cells as CSV does, others mean each
  quotation mark literally. A file is taken for quoted if every cell in it that
  holds a quotation mark is well-formed: in quotes, those inside doubled.

  Args:
    path: The file, compressed with gzip or not.
    wanted: Columns that must be there.

  Yields:
    (line, cells by column); all columns.

  Raises:
    RecordError: A row of another length than the header, a wanted column that
      isn't there.
    OSError: The file can't be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    quoted = any_quoted = False
    for line in lines:
      if '"' in line:
        cells = [cell for cell in line.split('\t') if '"' in cell]
        any_quoted = True
        quoted = all(_QUOTED.fullmatch(cell) for cell in cells)
        if not quoted:
          break
  with files.open_text(path) as lines:
    table = tables.read_table(lines, path, 'tsv')
    assert table.header is not None
    _require(table.header, wanted, path)
    for number, row in table.rows:
      if any_quoted and quoted:
        row = {name: _unquote(cell) for name, cell in row.items()}
      yield number, row


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def _unquote(cell: str) -> str:
  return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def read_headerless(
  path: str | os.PathLike[str], names: Mapping[str, int], count: int
) -> Rows:
  """Reads a tab-separated file without a header.

  Args:
    path: The file, compressed with gzip or not.
    names: The column, counted from 0, of each field.
    count: How many columns every line has.

  Yields:
    (line, cells by field).

  Raises:
    RecordError: A line with more or fewer columns.
    OSError: The file can't be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      cells = line.split('\t')
      if len(cells) != count:
        raise RecordError(
          f'{len(cells)} tab-separated fields, not {count}; mend the line or'
          ' remove it',
          path=path,
          line=number,
        )
      yield number, {name: cells[column] for name, column in names.items()}


def first_line(path: str | os.PathLike[str]) -> str:
  """The first line of a text file.

  Raises:
    RecordError: The file is empty.
    OSError: The file can't be opened.
  """
  with files.open_text(path) as lines:
    for line in lines:
      return line
  raise RecordError('the file is empty', path=path)


def _require(header: Sequence[str], wanted: Sequence[str], path: str) -> None:
  for name in wanted:
    if name not in header:
      raise RecordError(
        f'there is no column {name!r};' + tables.suggest(name, header),
        path=path,
        line=1,
        field=name,
      )
  for name in header:
    if header.count(name) > 1:
      raise RecordError(
        f'the column {name!r} occurs {header.count(name)} times',
        path=path,
        line=1,
        field=name,
      )


def number(
  text: str, *, path: str | os.PathLike[str], line: int, field: str
) -> float:
  """A cell as a finite number.

  Raises:
    RecordError: It isn't one.
  """
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise RecordError(
      f'{text!r} is not a finite number', path=path, line=line, field=field
    )
  return value
