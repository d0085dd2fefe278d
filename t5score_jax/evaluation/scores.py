"""Score files, and joining several of them to one grid per language pair.

Reads the output of `t5score score` (JSONL or TSV) and any TSV, CSV or JSONL
whose columns the user names. Files are joined on the key (language pair,
system, segment). Nothing is dropped silently: a bad cell is an error with its
line; a missing entry is an error, or is counted if the caller asks for the
intersection. `readers/` reads the shared tasks' layouts.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t5score_jax.data import files, numbers, tables

KEYS = ('language_pair', 'system', 'segment')
# Other names of the keys, used if the proper one is absent.
_ALIASES = {
  'language_pair': ('lp',),
  'system': ('sys', 'system_id'),
  'segment': ('seg_id', 'sid', 'segment_id', 'index'),
}


@dataclasses.dataclass(frozen=True)
class ScoreTable:
  """The rows of one file.

  Attributes:
    path: The file.
    keys: The names in `KEYS` for which the file has a column.
    rows: The (language pair, system, segment) of each row; '' for a missing
      column.
    lines: The line number of each row.
    values: Float64 [rows] by column, NaN for empty cells.
    notes: What was not used and why, one sentence each.
    others: Further columns of the file.
    numbers: The number of each row in its file, from 1; None in the layouts of
      shared tasks.
  """

  path: str
  keys: tuple[str, ...]
  rows: list[tuple[str, str, str]]
  lines: np.ndarray
  values: dict[str, np.ndarray]
  notes: tuple[str, ...] = ()
  others: tuple[str, ...] = ()
  numbers: tuple[int, ...] | None = None

  @property
  def names_language_pairs(self) -> bool:
    """Whether some row has a language pair."""
    return any(pair for pair, _, _ in self.rows)


@dataclasses.dataclass(frozen=True)
class ScoreGrid:
  """The scores of one language pair, as arrays.

  Attributes:
    language_pair: The language pair, '' if the files name none.
    systems: S names.
    segments: N ids.
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, NaN where not given.
  """

  language_pair: str
  systems: tuple[str, ...]
  segments: tuple[str, ...]
  human: np.ndarray
  metrics: dict[str, np.ndarray]

  @property
  def prefix(self) -> str:
    """The prefix of messages about this language pair."""
    return f'{self.language_pair}: ' if self.language_pair else ''

  def with_systems(self, keep: Sequence[str]) -> ScoreGrid:
    """The grid with these systems only, in the grid's order."""
    wanted = set(keep)
    rows = [i for i, name in enumerate(self.systems) if name in wanted]
    return dataclasses.replace(
      self,
      systems=tuple(self.systems[i] for i in rows),
      human=self.human[rows],
      metrics={name: m[rows] for name, m in self.metrics.items()},
    )

  def with_language_pair(self, name: str) -> ScoreGrid:
    """The same grid with the language pair `name`."""
    return dataclasses.replace(self, language_pair=name)

  def with_segments(self, keep: np.ndarray) -> ScoreGrid:
    """The grid with the segments for which `keep` [N] is true."""
    return dataclasses.replace(
      self,
      segments=tuple(np.array(self.segments, dtype=object)[keep]),
      human=self.human[:, keep],
      metrics={name: m[:, keep] for name, m in self.metrics.items()},
    )


def _rows(path: str, quoting: str) -> Iterator[tuple[int, dict[str, object]]]:
  with files.open_text(path) as lines:
    if path.lower().removesuffix('.gz').endswith('.csv'):
      yield from _csv_rows(lines, path)
    else:
      yield from tables.read_table(lines, path, quoting=quoting).rows


def _csv_rows(
  lines: Iterator[str], path: str
) -> Iterator[tuple[int, dict[str, object]]]:
  reader = csv.reader(line + '\n' for line in lines)
  header = next(reader, [])
  for row in reader:
    check_width(row, header, path, reader.line_num)
    yield reader.line_num, dict(zip(header, row, strict=True))


def check_width(
  fields: Sequence[str], header: Sequence[str], path: str, line: int
) -> None:
  """Raises RecordError if a row is wider or narrower than the header."""
  if len(fields) != len(header):
    raise files.RecordError(
      f'{len(fields)} fields, but the header has {len(header)}',
      path=path,
      line=line,
    )


def read_table(
  path: str | os.PathLike[str],
  wanted: Sequence[str],
  *,
  columns: Mapping[str, str] | None = None,
  score_name: str | None = None,
  quoting: str = 'none',
  where: Mapping[str, str] | None = None,
) -> ScoreTable:
  """Reads the wanted number columns of a TSV, CSV or JSONL file and its keys.

  The format follows from the suffix (.jsonl, .csv, .tsv, each also .gz), or
  else from the first character of the file.

  Args:
    path: The file, gzipped or not.
    wanted: Names of number columns; those that the file lacks are left out of
      the result.
    columns: The file's names of keys and wanted columns: {'system': 'sys'}.
    score_name: The name to give to the file's column `score`.
    quoting: Of TSV cells, 'none' or 'csv'; see `data.tables`.
    where: Cell values that a row must have; a note counts the other rows.

  Returns:
    The rows in the file's order.

  Raises:
    files.RecordError: A row of another width, text where a number should
      be, an infinite or NaN number.
  """
  path = os.fspath(path)
  columns = dict(columns or {})
  if score_name is not None:
    columns[score_name] = 'score'
  keys: dict[str, str] = {}
  names: dict[str, str] | None = None
  rows: list[tuple[str, str, str]] = []
  lines: list[int] = []
  values: dict[str, list[float]] = {}
  others: tuple[str, ...] = ()
  ordinals: list[int] = []
  skipped = 0
  for ordinal, (number, row) in enumerate(_rows(path, quoting), 1):
    if where and not _chosen(row, where, path, number):
      skipped += 1
      continue
    if names is None:
      for key in KEYS:
        for name in (columns.get(key, key), *_ALIASES[key]):
          if name in row:
            keys[key] = name
            break
      names = {
        name: columns.get(name, name)
        for name in wanted
        if columns.get(name, name) in row
      }
      values = {name: [] for name in names}
      known = {*keys.values(), *names.values()}
      others = tuple(column for column in row if column not in known)
    rows.append(_key(row, keys, path, number))
    lines.append(number)
    ordinals.append(ordinal)
    for name, column in names.items():
      if column not in row:
        raise files.RecordError(
          'the field is missing, although earlier lines have it',
          path=path,
          line=number,
          field=column,
        )
      cell = row[column]
      values[name].append(
        math.nan
        if cell is None or cell == ''
        else numbers.read(cell, path=path, line=number, field=column)
      )
  if not rows:
    raise files.RecordError(
      f'none of the {skipped} rows has '
      + ', '.join(f'{name}={value}' for name, value in (where or {}).items())
      if skipped
      else 'the file has no rows',
      path=path,
    )
  return ScoreTable(
    path,
    tuple(keys),
    rows,
    np.array(lines),
    {name: np.array(column) for name, column in values.items()},
    (f'{path}: {skipped} rows not chosen (--where)',) if skipped else (),
    others,
    tuple(ordinals),
  )


def numbered(parts: Sequence[ScoreTable]) -> list[ScoreTable]:
  """Numbers the rows of files that do not identify segments.

  Such files are joined row by row: row n of each file is segment n.

  Args:
    parts: The tables.

  Returns:
    The same tables if one of them has segments, or each has a single row for
    each language pair and system.

  Raises:
    files.RecordError: The files have different numbers of rows.
  """
  repeated = any(len(set(table.rows)) < len(table.rows) for table in parts)
  if not repeated or any(
    'segment' in table.keys or table.numbers is None for table in parts
  ):
    return list(parts)
  last = [max(table.numbers or (0,)) for table in parts]
  if len(set(last)) > 1 and not any('language_pair' in t.keys for t in parts):
    raise files.RecordError(
      'no file has a column segment, so that rows are joined by their number; '
      + '; '.join(
        f'{table.path} has {count} rows'
        for table, count in zip(parts, last, strict=True)
      )
    )
  return [
    dataclasses.replace(
      table,
      rows=[
        (pair, system, str(number))
        for (pair, system, _), number in zip(
          table.rows, table.numbers or (), strict=True
        )
      ],
      notes=(
        *table.notes,
        f'{table.path}: has no column segment; rows are joined by their number',
      ),
    )
    for table in parts
  ]


def _chosen(
  row: Mapping[str, object], where: Mapping[str, str], path: str, line: int
) -> bool:
  for name in where:
    if name not in row:
      raise files.RecordError(
        f'no column {name!r} to choose rows by',
        path=path,
        line=line,
        field=name,
      )
  return all(str(row[name]) == value for name, value in where.items())


def _key(
  row: Mapping[str, object], keys: Mapping[str, str], path: str, line: int
) -> tuple[str, str, str]:
  parts = []
  for key in KEYS:
    if key not in keys:
      parts.append('')
      continue
    value = row.get(keys[key])
    if value is None:
      raise files.RecordError(
        'the field is missing, although earlier lines have it',
        path=path,
        line=line,
        field=keys[key],
      )
    parts.append(str(value))
  return parts[0], parts[1], parts[2]


def join(
  parts: Sequence[ScoreTable],
  human: str | None,
  metrics: Sequence[str],
  *,
  pooled: bool = False,
) -> list[ScoreGrid]:
  """Joins the columns of all tables to one grid per language pair.

  A grid has every (system, segment) of any table. Missing scores are NaN;
  `preparation.prepare` checks that the necessary ones are there.

  Args:
    parts: The tables.
    human: The column with the human scores; None leaves them all NaN.
    metrics: The columns with metric scores.
    pooled: Whether to make one grid of all language pairs; `pooled_name` then
      distinguishes the systems and segments of different pairs.

  Returns:
    Grids in the order in which language pairs first appear.

  Raises:
    files.RecordError: The same key twice in one table, a column of the same
      key in two tables, a column in none, tables with different keys.
  """
  keys = [_joined_on(table) for table in parts]
  if any(names != keys[0] for names in keys):
    raise files.RecordError(
      'the files cannot be joined: '
      + '; '.join(
        f'{table.path} has {", ".join(names)}'
        for table, names in zip(parts, keys, strict=True)
      )
      + '. Name the columns with --columns, and the language pair of files '
      'without one with --language-pair'
    )
  columns = {name for table in parts for name in table.values}
  wanted = (*([human] if human is not None else []), *metrics)
  for name in wanted:
    if name not in columns:
      others = {column for table in parts for column in table.others}
      raise files.RecordError(
        f'no file has a column {name!r};'
        + tables.suggest(name, sorted(columns | others))
      )
  if pooled:
    parts = [dataclasses.replace(t, rows=_pool(t.rows)) for t in parts]
  systems: dict[str, dict[str, int]] = {}
  segments: dict[str, dict[str, int]] = {}
  places = [_place(table, systems, segments) for table in parts]
  grids = []
  for index, pair in enumerate(systems):
    shape = (len(systems[pair]), len(segments[pair]))
    filled = {name: np.full(shape, np.nan) for name in wanted}
    owners = {name: np.full(shape, -1) for name in wanted}
    for number, (table, place) in enumerate(zip(parts, places, strict=True)):
      inside = np.flatnonzero(place[:, 0] == index)
      _check_once(table, place[inside, 1:], inside, shape)
      for name, column in table.values.items():
        if name in filled:
          at = place[inside, 1], place[inside, 2]
          _check_unowned(owners[name][at], inside, name, parts, table)
          owners[name][at] = number
          filled[name][at] = column[inside]
    grids.append(
      ScoreGrid(
        pair,
        tuple(systems[pair]),
        tuple(segments[pair]),
        np.full(shape, np.nan) if human is None else filled[human],
        {name: filled[name] for name in metrics},
      )
    )
  return grids


def _joined_on(table: ScoreTable) -> tuple[str, ...]:
  # A column of empty language pairs counts as absent.
  return tuple(
    name
    for name in table.keys
    if name != 'language_pair' or table.names_language_pairs
  )


def _place(
  table: ScoreTable,
  systems: dict[str, dict[str, int]],
  segments: dict[str, dict[str, int]],
) -> np.ndarray:
  # Where each row goes: language pair, system, segment, int [rows, 3]. New
  # names are added to `systems` and `segments`, by language pair.
  pairs = {name: i for i, name in enumerate(systems)}
  place = []
  for pair, system, segment in table.rows:
    if pair not in pairs:
      pairs[pair] = len(pairs)
      systems[pair] = {}
      segments[pair] = {}
    ours, theirs = systems[pair], segments[pair]
    place.append(
      (
        pairs[pair],
        ours.setdefault(system, len(ours)),
        theirs.setdefault(segment, len(theirs)),
      )
    )
  return np.array(place, np.int64)


def plain_system(name: str) -> str:
  """A system's name with '-' for '_'; WMT20's files use both for one system."""
  return name.replace('_', '-')


def with_plain_systems(table: ScoreTable) -> ScoreTable:
  """The same table, with systems renamed by `plain_system`."""
  rows = [(p, plain_system(s), n) for p, s, n in table.rows]
  return dataclasses.replace(table, rows=rows)


def two_spellings(grid: ScoreGrid) -> list[tuple[str, str]]:
  """Pairs of systems whose names are equal after `plain_system`."""
  seen: dict[str, str] = {}
  pairs = []
  for name in grid.systems:
    first = seen.setdefault(plain_system(name), name)
    if first != name:
      pairs.append((first, name))
  return pairs


def pooled_name(name: str, language_pair: str) -> str:
  """The name of a system or segment if language pairs are pooled."""
  return f'{name} ({language_pair})' if language_pair else name


def _pool(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
  return [('', pooled_name(s, p), pooled_name(n, p)) for p, s, n in rows]


def _check_unowned(
  owners: np.ndarray,
  inside: np.ndarray,
  name: str,
  parts: Sequence[ScoreTable],
  table: ScoreTable,
) -> None:
  # Several files may share a column, such as one for each language pair, but
  # not an entry of it.
  taken = np.flatnonzero(owners >= 0)
  if taken.size:
    row = inside[taken[0]]
    raise files.RecordError(
      f'the column {name!r} of (language pair, system, segment) '
      f'{table.rows[row]} is also in {parts[owners[taken[0]]].path}; rename '
      'one of them: NAME=FILE names the column score of FILE',
      path=table.path,
      line=int(table.lines[row]),
    )


def _check_once(
  table: ScoreTable,
  place: np.ndarray,
  inside: np.ndarray,
  shape: tuple[int, int],
) -> None:
  flat = np.ravel_multi_index((place[:, 0], place[:, 1]), shape)
  _, first = np.unique(flat, return_index=True)
  if len(first) == len(flat):
    return
  twice = np.setdiff1d(np.arange(len(flat)), first)[0]
  row = inside[twice]
  raise files.RecordError(
    f'a second row for (language pair, system, segment) {table.rows[row]}',
    path=table.path,
    line=int(table.lines[row]),
  )
