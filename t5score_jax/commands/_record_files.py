"""How commands that read several files of records name them and their columns.

    --input FILE [FIELD=COLUMN ...] [quoting=csv] [where:COLUMN=PATTERN,...]

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

from t5score_jax.data import records, tables
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
    """Reads the records; `records.stream_records` says what it raises."""
    return records.stream_records(
      self.path,
      columns=self.columns,
      ratings=ratings,
      quoting=self.quoting,
      where=self.where,
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
    ValueError: a setting has another form, or the file is standard input,
      which cannot be read twice.
  """
  path, *settings = words
  if path == '-':
    raise ValueError(f'{flag} -: these files are read twice; give a file')
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
