"""How commands that read several files of records name them and their columns.

    --input FILE [FIELD=COLUMN ...] [quoting=csv] [where:COLUMN=PATTERN,...]

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from t5score_jax.data import files, records, tables
from t5score_jax.data.records import Segment

HELP = (
  'TSV or JSONL records, after it what differs from `t5score score --input`: '
  'FIELD=COLUMN, quoting=csv, where:COLUMN=PATTERN,... for some rows only '
  '(* is any text); repeatable'
)


@dataclasses.dataclass(frozen=True)
class RecordFile:
  """A file of records and how it is read.

  Attributes:
    path: where.
    columns: which column holds a field or a rating.
    quoting: of TSV cells.
    where: patterns by column, of which one must match.
  """

  path: str
  columns: Mapping[str, str]
  quoting: str
  where: Mapping[str, Sequence[str]]

  def segments(self, ratings: Sequence[str] = ()) -> Iterator[Segment]:
    """Reads the records.

    Raises:
      RecordError: there are none, such as when `where` matches no row;
        `records.stream_records` says what else.
    """
    empty = True
    for segment in records.stream_records(
      self.path,
      columns=self.columns,
      ratings=ratings,
      quoting=self.quoting,
      where=self.where,
    ):
      empty = False
      yield segment
    if empty:
      chosen = ' '.join(
        f'where:{name}={",".join(found)}' for name, found in self.where.items()
      )
      raise files.RecordError(
        f'no row matches {chosen}; correct the pattern, or leave the file out'
        if chosen
        else 'there is no record; leave the file out',
        path=self.path,
      )

  def describe(self) -> dict[str, object]:
    """What decides how it is read, JSON; not where it is."""
    return {
      'file': os.path.basename(self.path),
      'columns': dict(self.columns),
      'quoting': self.quoting,
      'where': {name: list(found) for name, found in self.where.items()},
    }


def parse(words: Sequence[str], flag: str) -> RecordFile:
  """Reads FILE [SETTING=VALUE ...].

  Raises:
    ValueError: a setting has another form, or `check_regular` says so.
  """
  path, *settings = words
  check_regular(path, flag)
  columns: dict[str, str] = {}
  where: dict[str, list[str]] = {}
  quoting = 'none'
  for setting in settings:
    name, equals, value = setting.partition('=')
    if not (name and equals and value):
      raise ValueError(
        f'{flag} {path}: {setting!r} is not NAME=VALUE (repeat {flag} for '
        'another file)'
      )
    if name.startswith('where:'):
      if '=' in value:
        raise ValueError(
          f'{flag} {path}: {setting!r}: commas stand between patterns of one '
          'column; give where:COLUMN=PATTERN once more for another'
        )
      where[name.removeprefix('where:')] = value.split(',')
    elif name == 'quoting':
      if value not in tables.QUOTING:
        raise ValueError(
          f'{flag} {path}: quoting={value}; use one of '
          + ', '.join(tables.QUOTING)
        )
      quoting = value
    else:
      columns[name] = value
  return RecordFile(path, columns, quoting, where)


def check_regular(path: str, flag: str) -> None:
  """Makes sure that a file can be read twice, unless it isn't there at all.

  Raises:
    ValueError: standard input, a pipe, a device or a folder: what was read
      once would be missing, without a word, when it is read again.
  """
  try:
    mode = stat.S_IFIFO if path == '-' else os.stat(path).st_mode
  except OSError:
    return  # said where it is opened
  if stat.S_ISREG(mode):
    return
  if stat.S_ISDIR(mode):
    raise ValueError(f'{flag} {path}: is a folder; name the files in it')
  what = 'standard input' if path == '-' else 'a pipe or device'
  raise ValueError(
    f'{flag} {path}: is {what}, and these files are read twice; write it into '
    'a file, and give that'
  )
