"""How `t5score correlate` and `t5score compare` name score files and columns.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from t5score_jax.commands import _usage
from t5score_jax.data import tables as data_tables
from t5score_jax.errors import UsageError
from t5score_jax.evaluation.readers import layouts, mqm

# Of `add_layout_arguments`.
_DEFAULTS = {
  'columns': '',
  'quoting': 'none',
  'where': '',
  'mqm_weights': mqm.WEIGHTS,
}
# Those that say something about some layouts only, and about which.
_OF_LAYOUTS = {
  'quoting': (layouts.COLUMNS,),
  'test_set': (layouts.WMT,),
  'reference': (layouts.WMT,),
  'by_line': (layouts.WMT, layouts.MQM),
  'mqm_weights': (layouts.MQM,),
}
# All but --intersect.
LAYOUT_NAMES = (
  *_DEFAULTS,
  'language_pair',
  'test_set',
  'reference',
  'by_line',
  'loose_names',
)


def split_names(text: str) -> list[str]:
  """The names in a list that commas separate."""
  return [name.strip() for name in text.split(',') if name.strip()]


def assignments(text: str, flag: str) -> dict[str, str]:
  """Reads NAME=VALUE,...

  Raises:
    UsageError: The text has another form.
  """
  found = {}
  for part in split_names(text):
    name, equals, value = part.partition('=')
    if not (name and equals and value):
      raise UsageError(f'{flag} takes NAME=COLUMN, not {part!r}')
    found[name] = value
  return found


def split_files(arguments: Iterable[str]) -> list[tuple[str | None, str]]:
  """[NAME=]FILE arguments as (name or None, path)."""
  named: list[tuple[str | None, str]] = []
  for argument in arguments:
    name, equals, path = argument.partition('=')
    # A path that holds '=' is still a path where its left side has a '/'.
    if name and equals and path and '/' not in name:
      named.append((name, path))
    else:
      named.append((None, argument))
  return named


def add_layout_arguments(group: argparse._ArgumentGroup) -> None:
  """Declares what a file does not say about itself."""
  group.add_argument(
    '--columns',
    metavar='NAME=COL,...',
    help='what the files call language_pair, system, segment or a metric',
  )
  group.add_argument(
    '--quoting',
    choices=data_tables.QUOTING,
    help='of TSV cells: none, or csv where texts stand in double quotes '
    f'(default: {_DEFAULTS["quoting"]})',
  )
  group.add_argument(
    '--where',
    metavar='COL=VALUE,...',
    help='only rows with these values; the others are counted',
  )
  group.add_argument(
    '--language-pair',
    metavar='LP',
    help='only this language pair; that of files that have no column for it',
  )
  group.add_argument(
    '--test-set',
    metavar='NAME',
    help="which test set of WMT's score files (default: the only one)",
  )
  group.add_argument(
    '--reference',
    metavar='NAME',
    help="which reference of WMT's score files (default: the one called like "
    'the test set)',
  )
  group.add_argument(
    '--by-line',
    action='store_true',
    help="call segments of WMT's score files and MQM by their number in the "
    'test set (as ad-seg-scores does), not DOC::SEG',
  )
  group.add_argument(
    '--mqm-weights',
    metavar='SEVERITY[/CATEGORY]:W ...',
    help=f"weights of errors (default: Freitag et al. 2021, '{mqm.WEIGHTS}')",
  )
  group.add_argument(
    '--loose-names',
    action='store_true',
    help='take systems whose names differ in - and _ alone for one, as files '
    'of WMT20 spell them',
  )
  group.add_argument(
    '--intersect',
    action='store_true',
    help='leave out entries that some metric or system lacks, and say how '
    'many, instead of stopping',
  )


def layout_options(
  args: argparse.Namespace, level: str = 'seg'
) -> layouts.Options:
  """What `add_layout_arguments` declared, as `layouts.read` takes it.

  Raises:
    UsageError: An argument has another form, or says something of a layout
      that no file has.
    OSError: A file can't be read.
  """
  _check_layouts(args)
  _usage.fill(args, _DEFAULTS)
  with _usage.blamed():
    mqm.parse_weights(args.mqm_weights)
  return layouts.Options(
    columns=assignments(args.columns, '--columns'),
    quoting=args.quoting,
    where=assignments(args.where, '--where'),
    language_pair=args.language_pair,
    test_set=args.test_set,
    reference=args.reference,
    by_line=args.by_line,
    mqm_weights=args.mqm_weights,
    level=level,
  )


def _check_layouts(args: argparse.Namespace) -> None:
  """Raises UsageError for what is said of a layout that no file has."""
  said = [name for name in _OF_LAYOUTS if _usage.given(args, name)]
  if not said:
    return
  there = {layouts.kind(path) for _, path in split_files(args.files)}
  for name in said:
    if not there & set(_OF_LAYOUTS[name]):
      needed = ' or '.join(layouts.WORDS[kind] for kind in _OF_LAYOUTS[name])
      _usage.refuse(args, [name], f'is for {needed}, which no file is')
