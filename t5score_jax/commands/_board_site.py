"""`t5score board build` and `t5score board serve`: the board as pages."""

from __future__ import annotations

import argparse
from typing import Any


def add_subcommands(subparsers: Any) -> None:
  """Declares `build`."""
  parser = subparsers.add_parser(
    'build',
    help='write the board as a static site',
    description='Writes the board as a static site into a new folder: tables'
    ' to sort and filter, plots, downloads, the signature to copy. It needs no'
    ' server and makes no request to other hosts.',
    epilog='example:\n  t5score board build zh-en.db site/\n',
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('board', metavar='BOARD.db')
  parser.add_argument('folder', metavar='DIR', help='a folder to make')
  parser.set_defaults(run_subcommand=_build)


def _build(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import page, store

  with store.Store(args.board) as board:
    count = page.build(board, args.folder)
  print(f'{args.folder}: {count} files; open {args.folder}/index.html')
