"""What all subcommands of `t5score board` declare, and how they print."""

from __future__ import annotations

import argparse
import json
from typing import Any

from t5score_jax.data import files


def subcommand(
  subparsers: Any, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
  """Declares a subcommand that works on one board, its first argument."""
  parser: argparse.ArgumentParser = subparsers.add_parser(
    name,
    help=summary,
    description=description,
    epilog=examples,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('board', metavar='BOARD.db')
  return parser


def add_format(
  parser: argparse.ArgumentParser, default: str | None = 'table'
) -> None:
  """Declares how a subcommand prints what it found.

  Args:
    parser: Of the subcommand.
    default: None where it has to know whether a format was asked for.
  """
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
  say(json.dumps(value, indent=2, ensure_ascii=False))
