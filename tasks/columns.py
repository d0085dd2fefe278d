"""Rows of delimited files as corpora are published, with and without a header.

Adds to `t5score_jax.data.tables` what published corpora need: required columns,
detection of CSV quoting, and files without a header. Errors name file, line and
field; no row is skipped.
"""

from __future__ import annotations

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
    wanted: Required columns.

  Yields:
    (the row's first line, cells by column); all columns.

  Raises:
    RecordError: Malformed quoting, a row of another length than the header, or
      a missing column.
    OSError: The file cannot be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    table = tables.read_csv(lines, path)
    tables.check_columns(table.header or (), wanted, path)
    yield from table.rows


def read_tsv(path: str | os.PathLike[str], wanted: Sequence[str]) -> Rows:
  """Reads a tab-separated file with a header, quoted or not.

  Some published files quote their cells as CSV does; in others quotation marks
  are text. A file counts as quoted if every cell that contains a quotation mark
  is enclosed in quotes, with those inside doubled.

  Args:
    path: The file, compressed with gzip or not.
    wanted: Required columns.

  Yields:
    (line, cells by column); all columns.

  Raises:
    RecordError: A row of another length than the header, or a missing column.
    OSError: The file cannot be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    cells = (cell for line in lines for cell in line.split('\t'))
    quoted = all(_QUOTED.fullmatch(cell) for cell in cells if '"' in cell)
  with files.open_text(path) as lines:
    table = tables.read_table(lines, path, 'tsv')
    tables.check_columns(table.header or (), wanted, path)
    for number, row in table.rows:
      if quoted:
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
    names: The column of each field, counted from 0.
    count: The number of columns.

  Yields:
    (line, cells by field).

  Raises:
    RecordError: A line has more or fewer columns.
    OSError: The file cannot be opened.
  """
  path = os.fspath(path)
  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      cells = line.split('\t')
      if len(cells) != count:
        raise RecordError(
          f'{len(cells)} tab-separated fields, not {count}; correct the line'
          ' or remove it',
          path=path,
          line=number,
        )
      yield number, {name: cells[column] for name, column in names.items()}


def first_line(path: str | os.PathLike[str]) -> str:
  """The first line of a text file.

  Raises:
    RecordError: The file is empty.
    OSError: The file cannot be opened.
  """
  with files.open_text(path) as lines:
    for line in lines:
      return line
  raise RecordError('the file is empty', path=path)
