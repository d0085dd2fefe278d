"""What all subcommands of `t5score board` declare."""

from __future__ import annotations

import argparse
from typing import Any


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


def add_format(parser: argparse.ArgumentParser) -> None:
  """Declares how a subcommand prints what it found."""
  parser.add_argument(
    '--format',
    choices=('table', 'json'),
    default='table',
    help='(default: %(default)s)',
  )
