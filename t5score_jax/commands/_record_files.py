"""Arguments of verbs that read several files of records.

    --input FILE [FIELD=COLUMN ...] [quoting=csv] [where:COLUMN=PATTERN,...]

Not a verb itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5score_jax.data import files, records, tables
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError

HELP = (
  'TSV or JSONL records, followed by what differs from `t5score score --input`'
  ': FIELD=COLUMN, quoting=csv, where:COLUMN=PATTERN,... for some rows only '
  '(* is any text); repeatable'
)


@dataclasses.dataclass(frozen=True)
class RecordFile:
  """A file of records and how it is read.

  Attributes:
    path: Path of the file.
    columns: Column of each field or rating whose name differs.
    quoting: Quoting of TSV cells.
    where: Patterns by column, one of which must match.
  """

  path: str
  columns: Mapping[str, str]
  quoting: str
  where: Mapping[str, Sequence[str]]

  def segments(self, ratings: Sequence[str] = ()) -> Iterator[Segment]:
    """Reads the records.

    Raises:
      RecordError: There are none, for example because `where` matches no row;
        otherwise as `records.stream_records`.
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
        f'where:{n}={",".join(w)}' for n, w in self.where.items()
      )
      raise files.RecordError(
        f'no row matches {chosen}; correct the pattern, or leave the file out'
        if chosen
        else 'there is no record; leave the file out',
        path=self.path,
      )

  def describe(self) -> dict[str, object]:
    """How the file is read, as JSON, without its path."""
    described = dataclasses.asdict(self)
    return {'file': os.path.basename(described.pop('path')), **described}


def add_argument(
  parser: argparse._ActionsContainer, flag: str, help: str = HELP, **more: Any
) -> None:
  """Declares a flag that takes FILE [NAME=VALUE ...]."""
  metavar = ('FILE', 'NAME=VALUE')
  parser.add_argument(flag, nargs='+', metavar=metavar, help=help, **more)


def parse(words: Sequence[str], flag: str) -> RecordFile:
  """Parses FILE [SETTING=VALUE ...].

  Raises:
    UsageError: A setting is malformed, or the file can't be read twice.
  """
  path, *settings = words
  check_regular(path, flag)
  columns: dict[str, str] = {}
  where: dict[str, list[str]] = {}
  quoting = 'none'
  for setting in settings:
    name, equals, value = setting.partition('=')
    if not (name and equals and value):
      raise UsageError(
        f'{flag} {path}: {setting!r} is not NAME=VALUE (repeat {flag} for '
        'another file)'
      )
    if name.startswith('where:'):
      if '=' in value:
        raise UsageError(
          f'{flag} {path}: {setting!r}: commas separate patterns of one '
          'column; repeat where:COLUMN=PATTERN for another column'
        )
      where[name.removeprefix('where:')] = value.split(',')
    elif name == 'quoting':
      if value not in tables.QUOTING:
        raise UsageError(
          f'{flag} {path}: quoting={value}; use one of '
          + ', '.join(tables.QUOTING)
        )
      quoting = value
    else:
      columns[name] = value
  return RecordFile(path, columns, quoting, where)


def parse_all(
  given: Sequence[Sequence[str]] | None, flag: str
) -> list[RecordFile]:
  """Parses every use of a repeatable flag."""
  return [parse(words, flag) for words in given or ()]


def check_regular(path: str, flag: str) -> None:
  """Checks that a file, unless it is missing, can be read twice.

  Raises:
    UsageError: Standard input, a pipe or a device, which a second reading
      would silently find consumed; or a folder.
  """
  if path != '-' and (os.path.isfile(path) or not os.path.exists(path)):
    return  # A missing file is reported when it is opened.
  if path != '-' and os.path.isdir(path):
    raise UsageError(f'{flag} {path}: is a folder; name the files in it')
  what = 'standard input' if path == '-' else 'a pipe or device'
  raise UsageError(
    f'{flag} {path}: is {what}, and these files are read twice; write it to a '
    'file, and give that'
  )
