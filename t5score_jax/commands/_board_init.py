"""`t5score board init` and `export`: boards from files and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from t5score_jax.commands import _board_parser, _usage
from t5score_jax.errors import UsageError

_INIT = """
Makes a board, in one of three ways:

--scores FILE   from a table of human and metric scores, TSV with a header: a
                row is one system's output for one example. The columns
                `system` and `seg_id` are found by name, all others are metrics.
                A column `ensemble` is a published ensemble: it is compared,
                not combined again.
--inputs FILE   from the inputs alone: TSV or JSONL with `id` (or `segment`),
                `source` and `reference`, or columns given by --reference.
                Generators, metrics and ratings are added afterwards.
--folder DIR    from a folder that `t5score board export` wrote, or WMT's
                (sources/, references/, system-outputs/, human-scores/,
                metric-scores/), where --pair chooses a language pair.
"""

_EXPORT = """
Writes everything on a board as plain files into a new folder, in the layout of
the original Billboards (a table of scores; texts as JSONL; all versions of the
ensemble) or in that of WMT.
"""

_EXAMPLES = """
examples:
  t5score board init zh-en.db --scores wmt20-zh-en.tsv.gz --human human
  t5score board init mine.db --inputs test.tsv --reference A=ref_A \\
      --reference B=ref_B --task 'Chinese to English news'
  t5score board init wmt.db --folder wmt20 --pair en-de --human mqm
"""

_EXPORT_EXAMPLES = """
examples:
  t5score board export zh-en.db zh-en/
  t5score board export zh-en.db wmt/ --layout wmt --pair zh-en
"""

# Options without effect for each way of creating a board.
_NOT_OF = {
  'scores': ('reference', 'pair'),
  'inputs': (
    *('human', 'system', 'segment', 'ignore', 'negate', 'people', 'pair'),
  ),
  'folder': ('system', 'segment', 'ignore', 'reference'),
}


def add_subcommands(subparsers: Any) -> None:
  """Declares `init` and `export`."""
  parser = _board_parser.subcommand(
    subparsers, 'init', _init, 'make a board', _INIT, _EXAMPLES
  )
  way = parser.add_mutually_exclusive_group(required=True)
  way.add_argument('--scores', metavar='FILE', help='a table of scores')
  way.add_argument('--inputs', metavar='FILE', help='the inputs alone')
  way.add_argument('--folder', metavar='DIR', help='an exported board')
  parser.add_argument(
    '--human',
    metavar='NAME',
    help='the column (with --scores, required) or the ratings (with --folder)'
    ' that are the default',
  )
  parser.add_argument('--name', help="the board's name (default: the file's)")
  parser.add_argument('--task', help='what the generators do')
  parser.add_argument(
    '--system', metavar='COL', help='the column of systems (default: by name)'
  )
  parser.add_argument(
    '--segment', metavar='COL', help='the column of examples (default: by name)'
  )
  parser.add_argument(
    '--ignore',
    metavar='COL,...',
    help='columns to leave out, besides set_id',
  )
  parser.add_argument(
    '--negate',
    metavar='METRIC,...',
    help='metrics where lower is better: negated',
  )
  parser.add_argument(
    '--people',
    metavar='REGEX',
    help='systems whose names begin so are human (default: Human, human, HUMAN'
    ' or ref)',
  )
  parser.add_argument(
    '--reference',
    metavar='LABEL=COL',
    action='append',
    default=[],
    help='with --inputs: a column of references',
  )
  parser.add_argument(
    '--pair', metavar='LP', help="with --folder: WMT's language pair"
  )

  parser = _board_parser.subcommand(
    subparsers,
    'export',
    _export,
    'write a board as plain files',
    _EXPORT,
    _EXPORT_EXAMPLES,
  )
  parser.add_argument('folder', metavar='DIR', help='a folder to make')
  parser.add_argument(
    '--layout',
    choices=('billboard', 'wmt'),
    default='billboard',
    help='(default: %(default)s)',
  )
  parser.add_argument(
    '--pair',
    metavar='LP',
    help="with --layout wmt: WMT's language pair (default: the board's name)",
  )


def _init(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import entries, layouts, store

  _check_way(args)
  task, negate = args.task or '', _usage.split_names(args.negate)
  humans = args.people or layouts.HUMAN_PATTERN
  with _usage.blamed():
    entries.human_pattern(humans)
  name = args.name or Path(args.board).stem
  if args.scores:
    if not args.human:
      raise UsageError('--scores needs --human COL, the human rating')
    layouts.read_and_import(
      args.board,
      args.scores,
      args.human,
      name=name,
      task=task,
      system=args.system,
      segment=args.segment,
      ignore=_usage.split_names(args.ignore),
      negate=negate,
      humans=humans,
    )
  elif args.inputs:
    layouts.import_inputs(
      args.board,
      args.inputs,
      name,
      task,
      dict(
        _usage.assignment(text, '--reference', 'LABEL=COLUMN')
        for text in args.reference
      ),
    )
  else:
    from t5score_jax.leaderboard import folders

    folders.import_folder(
      args.board,
      args.folder,
      name=args.name,
      task=task,
      human=args.human,
      pair=args.pair,
      humans=humans,
      negate=negate,
    )
  with store.Store(args.board) as board:
    _board_parser.say(
      f'{args.board}: {board.size()} examples, {len(board.generators())}'
      f' generators, {len(board.metrics())} metrics'
    )


def _check_way(args: argparse.Namespace) -> None:
  """Raises UsageError for options without effect for the chosen way."""
  way = next(w for w in _NOT_OF if getattr(args, w) is not None)
  _usage.refuse(args, _NOT_OF[way], f'is not for --{way}')
  # An exported board itself records what WMT's folders leave open.
  if way == 'folder' and (Path(args.folder) / 'board.json').is_file():
    names = ('task', 'people', 'negate', 'pair')
    _usage.refuse(args, names, 'is not for the folder of an exported board')


def _export(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import folders, store

  if args.layout != 'wmt':
    _usage.refuse(args, ['pair'], 'is for --layout wmt')
  with store.Store(args.board) as board:
    folders.export(board, args.folder, args.layout, args.pair)
  _board_parser.say(f'{args.folder}: written')
