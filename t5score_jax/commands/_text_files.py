"""The text arguments of `t5score score` and `t5score compare`.

Texts are in parallel files (-t, -r, -s) or in one file of records (--input).

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import collections
import os
from collections.abc import Hashable, Mapping, Sequence

from t5score_jax.commands import _usage
from t5score_jax.data import records, tables
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError


def add_arguments(group: argparse._ArgumentGroup) -> None:
  """Declares -t, -r, -s and --input."""
  group.add_argument(
    '-t',
    '--hypotheses',
    nargs='+',
    action='extend',
    default=[],
    metavar='[NAME=]HYP',
    help="hypotheses, one file per system, whose name is NAME or the file's",
  )
  group.add_argument(
    '-r',
    '--references',
    nargs='+',
    action='extend',
    default=[],
    metavar='REF',
    help='references',
  )
  group.add_argument(
    '-s', '--source', action=_usage.Once, metavar='SRC', help='sources'
  )
  group.add_argument(
    '--input',
    action=_usage.Once,
    metavar='FILE',
    help='TSV or JSONL records; - is standard input',
  )


def add_columns(group: argparse._ArgumentGroup, names: str) -> None:
  """Declares --columns and --quoting; `names` is the help of the first."""
  group.add_argument('--columns', metavar='NAME=COL,...', help=names)
  group.add_argument(
    '--quoting',
    choices=tables.QUOTING,
    help='of TSV cells: none, or csv where texts stand in double quotes '
    '(default: none)',
  )


def inputs(args: argparse.Namespace) -> list[str | None]:
  """The files of texts that the command line names."""
  hypotheses = [path for _, path in _usage.split_files(args.hypotheses)]
  return [*hypotheses, *args.references, args.source, args.input]


def read_segments(
  args: argparse.Namespace, ratings: Sequence[str] = ()
) -> list[Segment]:
  """Reads the texts that the command line names, with ratings of --input.

  Raises:
    UsageError: The arguments contradict each other.
    files.RecordError: A file is malformed.
    OSError: A file can't be read.
  """
  parallel = bool(args.hypotheses or args.references or args.source)
  if args.input and parallel:
    raise UsageError('give either --input, or -t with -r and -s')
  if args.input:
    return records.read_records(
      args.input,
      columns=_usage.assignments(args.columns, '--columns', 'FIELD=COLUMN'),
      ratings=ratings,
      quoting=args.quoting or 'none',
    )
  _usage.refuse(args, ('columns', 'quoting'), 'is for --input')
  if not args.hypotheses:
    raise UsageError('no hypotheses: give -t HYP, or --input FILE')
  if inputs(args).count('-') > 1:
    raise UsageError('standard input (-) can be only one of the files')
  return records.read_parallel(
    _systems(args.hypotheses), args.references, args.source
  )


def repeated_ids(segments: Sequence[Segment]) -> list[str]:
  """A note on segments with the same ids as an earlier one, if there are any.

  Without segment ids, repetitions cannot be detected.
  """
  ids = [
    (s.language_pair, s.system, s.document, s.segment)
    for s in segments
    if s.segment is not None
  ]
  lost = len(ids) - len(set(ids))
  if not lost:
    return []
  first = next(key for key, n in collections.Counter(ids).items() if n > 1)
  named = ', '.join(repr(part) for part in first if part is not None)
  return [
    f'{lost} segments have the ids of earlier ones, the first ({named}); their '
    'scores are ambiguous, and `t5score correlate` refuses them'
  ]


def notes(segments: Sequence[Segment]) -> list[str]:
  """Notes on doubtful texts: `repeated_ids`, `equal_systems`."""
  return [*repeated_ids(segments), *equal_systems(segments)]


def equal_systems(segments: Sequence[Segment]) -> list[str]:
  """A note on each system whose texts all equal those of an earlier one."""
  texts: dict[str, list[tuple[str, ...]]] = collections.defaultdict(list)
  for s in segments:
    ids = (s.language_pair or '', s.document or '', s.segment or '')
    texts[s.system or ''].append((*ids, s.hypothesis))
  return equal({name: tuple(rows) for name, rows in texts.items()}, 'texts')


def equal(columns: Mapping[str, Hashable], what: str) -> list[str]:
  """A note on each system whose values all equal those of an earlier one.

  Args:
    columns: The values of each system.
    what: What the values are, in the plural.
  """
  first: dict[Hashable, str] = {}
  return [
    f'{name} has the {what} of {first[values]}, all of them: is one file given '
    'twice?'
    for name, values in columns.items()
    if first.setdefault(values, name) != name
  ]


def _systems(arguments: Sequence[str]) -> dict[str, str]:
  """Files by system: NAME=FILE, or the file's name without its endings."""
  named = {}
  for name, path in _usage.split_files(arguments):
    if name is None:
      name = os.path.basename(path).removesuffix('.gz').removesuffix('.txt')
      name = _usage.as_text(name)
      name = 'stdin' if name == '-' else name
      if name in named or not name:
        name = path
    if name in named:
      raise UsageError(f'two systems are called {name!r}: give NAME=FILE')
    named[name] = path
  return named
