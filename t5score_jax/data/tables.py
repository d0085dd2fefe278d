"""Rows of TSV, CSV and JSONL files: dictionaries of cells by column name.

Handles the syntax of the formats: headers, quoting, JSON, and which values can
be read back once they are written. The meaning of the columns is up to
`data/records.py`; lines, gzip and encodings are up to `data/files.py`.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t5score_jax.data import files
from t5score_jax.data.files import RecordError
from t5score_jax.errors import UsageError

FORMATS = ('tsv', 'jsonl')
QUOTING = ('none', 'csv')


@dataclasses.dataclass(frozen=True)
class Table:
  """An open TSV or JSONL file.

  Attributes:
    format: `'tsv'` or `'jsonl'`.
    header: The columns of a TSV file; None for JSONL, where rows differ.
    rows: (line number, cells by column). Cells of TSV are strings, those of
      JSONL are JSON values. Iteration raises the errors of the rows.
  """

  format: str
  header: tuple[str, ...] | None
  rows: Iterator[tuple[int, dict[str, Any]]]


def format_of(path: str | os.PathLike[str]) -> str | None:
  """Returns 'tsv' or 'jsonl' by the file's suffix, without `.gz`, or None."""
  name = os.fspath(path).lower().removesuffix('.gz')
  return {'.tsv': 'tsv', '.jsonl': 'jsonl'}.get(os.path.splitext(name)[1])


def read_table(
  lines: Iterator[str],
  path: str,
  format: str | None = None,
  quoting: str = 'none',
) -> Table:
  """Reads a table from the lines of an open file.

  Args:
    lines: The lines, from `files.open_text`.
    path: The file's name, for the format and for errors.
    format: `'tsv'` or `'jsonl'`. None decides by the file's suffix, or else by
      the first line: JSONL begins with `{`, and a file named `.csv` without
      a tab there is comma-separated, with CSV quoting.
    quoting: `'none'`, or `'csv'` if TSV cells may be in double quotes.

  Returns:
    The table, after its header was read.

  Raises:
    RecordError: The file is empty or a column occurs twice; during iteration,
      a row is malformed.
    UsageError: An unknown format or quoting.
  """
  if quoting not in QUOTING:
    raise UsageError(f'quoting must be one of {QUOTING}, not {quoting!r}')
  if format not in (None, *FORMATS):
    raise UsageError(f'format must be one of {FORMATS}, not {format!r}')
  first = next(lines, None)
  if first is None:
    raise RecordError('the file is empty', path=path)
  format_is_open = format is None
  if format is None:
    looks_like_jsonl = first.lstrip().startswith('{')
    format = format_of(path) or ('jsonl' if looks_like_jsonl else 'tsv')
  named_csv = path.lower().removesuffix('.gz').endswith('.csv')
  lines = itertools.chain([first], lines)
  if format == 'jsonl':
    return Table(format, None, _jsonl_rows(lines, path))
  if format_is_open and named_csv and '\t' not in first:
    return read_csv(lines, path)
  if quoting == 'csv':
    return _with_header(_quoted_cells(lines, path, '\t'), path)
  return _with_header(
    ((n, line.split('\t')) for n, line in enumerate(lines, 1)), path
  )


def read_csv(lines: Iterator[str], path: str) -> Table:
  """Reads a comma-separated table with a header and CSV quoting.

  Args:
    lines: The lines, from `files.open_text`.
    path: The file's name, for errors.

  Raises:
    RecordError: See `read_table`.
  """
  return _with_header(_quoted_cells(lines, path, ','), path)


def check_columns(
  header: Sequence[str], wanted: Iterable[str], path: str
) -> None:
  """Raises RecordError if a wanted column is not in a header."""
  for name in wanted:
    if name not in header:
      raise RecordError(
        f'there is no column {name!r};' + suggest(name, header),
        path=path,
        line=1,
        field=name,
      )


def _with_header(cells: Iterator[tuple[int, list[str]]], path: str) -> Table:
  """Takes the first row as the header."""
  first = next(cells, None)
  if first is None:
    raise RecordError('the file is empty', path=path)
  header = tuple(first[1])
  for name in header:
    if header.count(name) > 1:
      raise RecordError(
        f'the column {name!r} occurs {header.count(name)} times; give every'
        ' column a name of its own',
        path=path,
        line=1,
        field=name,
      )
  return Table('tsv', header, _named(cells, header, path))


def _named(
  rows: Iterator[tuple[int, list[str]]], header: tuple[str, ...], path: str
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the rows below the header as dictionaries."""
  for number, cells in rows:
    if len(cells) != len(header):
      if cells in ([], ['']):
        advice = 'the line is empty: remove it'
      else:
        advice = (
          'does a text contain the separator? Write JSONL, or quote the cells'
          " (TSV: and read with quoting 'csv')"
        )
      raise RecordError(
        f'{len(cells)} fields where the header has {len(header)}; {advice}',
        path=path,
        line=number,
        field=None if len(cells) > len(header) else header[len(cells)],
      )
    yield number, dict(zip(header, cells, strict=True))


def _quoted_cells(
  lines: Iterator[str], path: str, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
  """Yields (number of the row's first line, cells) with CSV quoting."""
  reader = csv.reader(
    (line + '\n' for line in lines), delimiter=delimiter, strict=True
  )
  while True:
    start = reader.line_num + 1
    try:
      cells = next(reader)
    except StopIteration:
      return
    except csv.Error as error:
      raise RecordError(
        f'malformed quoting: {error}; double the quotation marks inside a'
        " quoted cell (TSV: or read with quoting 'none')",
        path=path,
        line=start,
      ) from error
    yield start, cells


def _jsonl_rows(
  lines: Iterator[str], path: str
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (line number, the line's object)."""
  number = 0

  def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
      names = [name for name, _ in pairs]
      raise RecordError(
        'the key occurs twice; remove one',
        path=path,
        line=number,
        field=next(name for name in names if names.count(name) > 1),
      )
    return row

  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line, object_pairs_hook=unique)
    except RecordError:
      raise
    except (ValueError, RecursionError) as error:
      raise RecordError(
        f'not JSON: {error}; every line must be one object such as'
        ' {"hypothesis": "a text"}'
        if line.strip()
        else 'the line is empty; remove it',
        path=path,
        line=number,
      ) from error
    if not isinstance(row, dict):
      raise RecordError(
        f'a JSON {type(row).__name__}, not an object; every line must be like'
        ' {"hypothesis": "a text"}',
        path=path,
        line=number,
      )
    if '\\u' in line:  # an escape may stand for a character that is refused
      for name, value in row.items():
        for text in value if isinstance(value, list) else [name, value]:
          if isinstance(text, str):
            files.check_writable(text, '\0', path=path, line=number, field=name)
    yield number, row


def write_table(
  path: str | os.PathLike[str],
  rows: Iterable[Mapping[str, str | float]],
  format: str | None = None,
  *,
  order: Callable[[str], Any] | None = None,
  required: Sequence[str] = (),
) -> None:
  """Writes rows as TSV or JSONL, atomically.

  Args:
    path: The file; `-` is standard output, a name in `.gz` is compressed.
    rows: Texts and finite numbers by column. JSONL consumes them one at a time;
      TSV needs all of them for its header.
    format: `'tsv'` or `'jsonl'`; by default from the file's suffix.
    order: Sort key of the columns of TSV; by default the order of first
      occurrence.
    required: Columns that a TSV file always has, whose empty cells are empty
      texts. In other columns an empty text is an error, because an empty cell
      is read as a missing value.

  Raises:
    RecordError: A text cannot be represented, or a number is not finite.
    UsageError: The format is neither given nor clear from the name.
    OSError: The file cannot be written.
  """
  path = os.fspath(path)
  format = format or format_of(path)
  if format not in FORMATS:
    raise UsageError(
      f'{path}: the format is not clear from the name; give it as one of'
      f' {FORMATS}' + (f', not {format!r}' if format else '')
    )
  if format == 'tsv':
    rows = list(rows)
    present = dict.fromkeys(required)
    present.update(dict.fromkeys(name for row in rows for name in row))
    header = sorted(present, key=order) if order else list(present)
    for name in header:
      files.check_writable(name, '\t\r\n\0', path=path, line=1, field=name)
  with files.write_atomically(path) as out:
    if format == 'tsv':
      out.write('\t'.join(header) + '\n')
      for line, row in enumerate(rows, 2):
        _check(row, '\t\r\n\0', required, path, line)
        cells = (str(row.get(name, '')) for name in header)
        out.write('\t'.join(cells) + '\n')
    else:
      for line, row in enumerate(rows, 1):
        _check(row, '\0', None, path, line)
        out.write(json.dumps(row, ensure_ascii=False) + '\n')


def _check(
  row: Mapping[str, str | float],
  forbidden: str,
  required: Sequence[str] | None,
  path: str,
  line: int,
) -> None:
  """Raises RecordError if the row would be read back differently."""
  for name, value in row.items():
    if isinstance(value, str):
      files.check_writable(value, forbidden, path=path, line=line, field=name)
      if not value and required is not None and name not in required:
        raise RecordError(
          'an empty text, which TSV cannot distinguish from a missing one;'
          ' write JSONL',
          path=path,
          line=line,
          field=name,
        )
    elif not math.isfinite(value):
      raise RecordError(
        f'{value} is not a finite number', path=path, line=line, field=name
      )


def suggest(wanted: str, present: Iterable[str]) -> str:
  """The end of a message: the names present, and the closest one."""
  present = list(present)
  close = difflib.get_close_matches(wanted, present, 1)
  question = f' did you mean {close[0]!r}?' if close else ''
  return f'{question} There are: {", ".join(present)}'
