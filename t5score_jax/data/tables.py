"""TSV and JSONL as rows: dictionaries of cells by column name.

For the two formats' syntax: headers, quoting, JSON, what can be written so
that it reads back. What the columns mean is for `records`; lines, gzip and
encodings are for `files`.
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

FORMATS = ('tsv', 'jsonl')
QUOTING = ('none', 'csv')


@dataclasses.dataclass(frozen=True)
class Table:
  """An open TSV or JSONL file.

  Attributes:
    format: `'tsv'` or `'jsonl'`.
    header: The columns of a TSV file; None for JSONL, where rows differ.
    rows: (line number, cells by column). TSV cells are strings, JSONL values
      are what JSON says. Errors are raised while iterating.
  """

  format: str
  header: tuple[str, ...] | None
  rows: Iterator[tuple[int, dict[str, Any]]]


def format_of(path: str | os.PathLike[str]) -> str | None:
  """'tsv' or 'jsonl' by the name's ending (before `.gz`); None if neither."""
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
    lines: The lines, as `files.open_text` gives them.
    path: The file's name, which may decide the format and stands in errors.
    format: `'tsv'`, `'jsonl'`, or None: by the name, or else by the first
      line, since JSONL begins with `{`.
    quoting: Of TSV cells: `'none'`, or `'csv'` for cells in double quotes.

  Returns:
    The table, its header read.

  Raises:
    RecordError: No lines, a column that occurs twice, and while iterating a
      row that isn't one.
    ValueError: Another format or quoting.
  """
  if quoting not in QUOTING:
    raise ValueError(f'quoting must be one of {QUOTING}, not {quoting!r}')
  if format not in (None, *FORMATS):
    raise ValueError(f'format must be one of {FORMATS}, not {format!r}')
  first = next(lines, None)
  if first is None:
    raise RecordError('the file is empty', path=path)
  if format is None:
    looks_like_jsonl = first.lstrip().startswith('{')
    format = format_of(path) or ('jsonl' if looks_like_jsonl else 'tsv')
  lines = itertools.chain([first], lines)
  if format == 'jsonl':
    return Table(format, None, _jsonl_rows(lines, path))
  if quoting == 'csv':
    cells = _quoted_cells(lines, path)
  else:
    cells = ((n, line.split('\t')) for n, line in enumerate(lines, 1))
  header = tuple(next(cells)[1])
  for name in header:
    if header.count(name) > 1:
      raise RecordError(
        f'the column {name!r} occurs {header.count(name)} times; give every'
        ' column a name of its own',
        path=path,
        line=1,
        field=name,
      )
  return Table(format, header, _tsv_rows(cells, header, path))


def _tsv_rows(
  rows: Iterator[tuple[int, list[str]]], header: tuple[str, ...], path: str
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Gives the cells below the header their names."""
  for number, cells in rows:
    if len(cells) != len(header):
      if cells in ([], ['']):
        advice = 'the line is empty: remove it'
      else:
        advice = (
          'a tab inside a text? Write JSONL, or quote the cells and read with'
          " quoting 'csv'"
        )
      raise RecordError(
        f'{len(cells)} fields where the header has {len(header)}; {advice}',
        path=path,
        line=number,
        field=None if len(cells) > len(header) else header[len(cells)],
      )
    yield number, dict(zip(header, cells, strict=True))


def _quoted_cells(
  lines: Iterator[str], path: str
) -> Iterator[tuple[int, list[str]]]:
  """Yields (number of the record's first line, cells) of CSV-quoted TSV."""
  reader = csv.reader(
    (line + '\n' for line in lines), delimiter='\t', strict=True
  )
  while True:
    start = reader.line_num + 1
    try:
      cells = next(reader)
    except StopIteration:
      return
    except csv.Error as error:
      raise RecordError(
        f'not CSV quoting: {error}; double the quotation marks inside a quoted'
        " cell, or read with quoting 'none'",
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
    if '\\u' in line:  # an escape may stand for what no line can hold
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
    path: Where to write; `-` is standard output, `.gz` is compressed.
    rows: Texts and finite numbers by column. JSONL takes them one at a time;
      TSV needs them all for its header.
    format: `'tsv'` or `'jsonl'`; by default the name decides.
    order: The sort key of a TSV header's columns; by default they stand as
      they first occur.
    required: Columns that a TSV file has in any case, and in which an empty
      cell is an empty text. In other columns an empty text is an error,
      because an empty cell reads back as nothing there.

  Raises:
    RecordError: A text can't be written, or a number isn't finite.
    ValueError: The format is neither given nor clear from the name.
    OSError: The file can't be written.
  """
  path = os.fspath(path)
  format = format or format_of(path)
  if format not in FORMATS:
    raise ValueError(
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
  """Raises RecordError if the row would not read back as it is."""
  for name, value in row.items():
    if isinstance(value, str):
      files.check_writable(value, forbidden, path=path, line=line, field=name)
      if not value and required is not None and name not in required:
        raise RecordError(
          'an empty text, which TSV cannot tell from none; write JSONL',
          path=path,
          line=line,
          field=name,
        )
    elif not math.isfinite(value):
      raise RecordError(
        f'{value} is not a finite number', path=path, line=line, field=name
      )


def suggest(wanted: str, present: Iterable[str]) -> str:
  """What there is, and what may have been meant; to end a message with."""
  present = list(present)
  close = difflib.get_close_matches(wanted, present, 1)
  question = f' did you mean {close[0]!r}?' if close else ''
  return f'{question} There are: {", ".join(present)}'
