"""The arguments and the output that subcommands of `t5score board` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from t5score_jax.data import files
from t5score_jax.evaluation.reports import tables

_EXIT_CODES = """
exit code: 0 done; 1 the run failed; 2 the command line is wrong
"""


def subcommand(
  subparsers: Any,
  name: str,
  run: Callable[[argparse.Namespace], None],
  summary: str,
  description: str,
  examples: str,
) -> argparse.ArgumentParser:
  """Declares a subcommand that works on one board, its first argument."""
  parser: argparse.ArgumentParser = subparsers.add_parser(
    name,
    help=summary,
    description=description,
    epilog=f'{examples}{_EXIT_CODES}',
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    'board', metavar='BOARD.db', help='the board, one SQLite file'
  )
  parser.set_defaults(run_subcommand=run)
  return parser


def add_format(
  parser: argparse.ArgumentParser, default: str | None = 'table'
) -> None:
  """Declares --format; the default is None to see whether it was given."""
  parser.add_argument(
    '--format',
    choices=('table', 'json'),
    default=default,
    help='(default: table)',
  )


def say(text: str) -> None:
  """Prints lines as UTF-8, whatever the locale, as `t5score score` does."""
  with files.write_atomically('-') as out:
    out.write(text + '\n')


def say_json(value: Any) -> None:
  """Prints a value as JSON."""
  say(tables.to_json(value))


def say_table(rows: Sequence[Sequence[str]]) -> None:
  """Prints rows, the first one the header, with names in the second column."""
  say(lay_out(rows))


def lay_out(rows: Sequence[Sequence[str]]) -> str:
  """The text of `say_table`."""
  return tables.lay_out(rows, 'text', [1])
