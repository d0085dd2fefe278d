"""How `t5score correlate` and `t5score compare` read score files.

Declares what the files do not state themselves, and how results are printed.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse

from t5score_jax.commands import _text_files, _usage
from t5score_jax.errors import InputError
from t5score_jax.evaluation import scores
from t5score_jax.evaluation.readers import layouts, mqm
from t5score_jax.evaluation.reports import tables

# Options for some layouts only, and these layouts.
_OF_LAYOUTS = {
  'quoting': (layouts.COLUMNS,),
  'test_set': (layouts.WMT,),
  'reference': (layouts.WMT,),
  'by_line': (layouts.WMT, layouts.MQM),
  'mqm_weights': (layouts.MQM,),
}
# All but --intersect.
LAYOUT_NAMES = (
  *_OF_LAYOUTS,
  *('columns', 'where', 'language_pair', 'loose_names'),
)


def add_layout_arguments(group: argparse._ArgumentGroup) -> None:
  """Declares options for what a file does not state itself."""
  _text_files.add_columns(
    group, 'what the files call language_pair, system, segment or a metric'
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
    help='leave out entries that some metric or system lacks, with a note of '
    'their number, instead of stopping',
  )


def layout_options(
  args: argparse.Namespace, level: str = 'seg'
) -> layouts.Options:
  """The arguments of `add_layout_arguments`, as options of `layouts.read`.

  Raises:
    UsageError: An argument is malformed, or is for a layout that no file has.
    OSError: A file can't be read.
  """
  _check_layouts(args)
  weights = args.mqm_weights or mqm.WEIGHTS
  with _usage.blamed():
    mqm.parse_weights(weights)
  return layouts.Options(
    columns=_usage.assignments(args.columns, '--columns'),
    quoting=args.quoting or 'none',
    where=_usage.assignments(args.where, '--where', 'COLUMN=VALUE'),
    language_pair=args.language_pair,
    test_set=args.test_set,
    reference=args.reference,
    by_line=args.by_line,
    mqm_weights=weights,
    level=level,
  )


def of_language_pair(
  grids: list[scores.ScoreGrid], language_pair: str | None
) -> list[scores.ScoreGrid]:
  """The grid of the language pair, or all grids.

  Raises:
    InputError: There is no such language pair.
  """
  if not language_pair:
    return grids
  if [grid.language_pair for grid in grids] == ['']:
    return [grids[0].with_language_pair(language_pair)]
  chosen = [grid for grid in grids if grid.language_pair == language_pair]
  if not chosen:
    raise InputError(
      f'no language pair {language_pair!r}; the files have '
      + ', '.join(grid.language_pair for grid in grids)
    )
  return chosen


def _check_layouts(args: argparse.Namespace) -> None:
  """Raises UsageError for an option of a layout that no file has."""
  given = [name for name in _OF_LAYOUTS if _usage.given(args, name)]
  if not given:
    return
  present = {layouts.kind(path) for _, path in _usage.split_files(args.files)}
  for name in given:
    if not present & set(_OF_LAYOUTS[name]):
      needed = ' or '.join(layouts.WORDS[kind] for kind in _OF_LAYOUTS[name])
      _usage.refuse(args, [name], f'is for {needed}, which no file is')


def add_output(
  group: argparse._ArgumentGroup,
  digits: int | None = 4,
  what: str = 'decimals of scores (default: %(default)s)',
) -> None:
  """Declares --table, --digits and -o; `what` is the help of --digits."""
  group.add_argument(
    '--table',
    choices=tables.FORMATS,
    default='text',
    help='format of the printed tables (default: %(default)s)',
  )
  group.add_argument(
    '--digits', type=_usage.decimals, default=digits, metavar='N', help=what
  )
  group.add_argument(
    '-o', '--output', metavar='FILE', default='-', help='where to write'
  )
