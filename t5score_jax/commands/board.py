"""`t5score board`: leaderboards on which generators and metrics compete.

A verb with subcommands, which are in the modules `_board_*.py`. Boards
themselves are in `leaderboard/`.
"""

from __future__ import annotations

import argparse

from t5score_jax.commands import (
  _board_add,
  _board_init,
  _board_show,
  _board_site,
)

SUMMARY = 'bidimensional leaderboards: generators and metrics compete'

DESCRIPTION = """
A board is one SQLite file: inputs, generators with their outputs, metrics with
their scores, human ratings. Metrics are ranked by their correlation with the
ratings, generators by the metric that correlates best, three metrics are
combined into an ensemble, and a mixed-effects model measures how much each
metric overrates machines (Kasai et al., 2022).
"""

EPILOG = """
examples:
  t5score board init zh-en.db --scores wmt20-zh-en.tsv.gz --human human
  t5score board rank zh-en.db --format json

`t5score board SUBCOMMAND --help` explains a subcommand.

exit code: 0 done; 1 the run failed; 2 the command line is wrong
"""

_MODULES = (_board_init, _board_add, _board_show, _board_site)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's subcommands."""
  subparsers = parser.add_subparsers(
    dest='subcommand', metavar='SUBCOMMAND', title='subcommands', required=True
  )
  for module in _MODULES:
    module.add_subcommands(subparsers)
  usages = ''.join(
    '  ' + child.format_usage().removeprefix('usage: ')
    for child in subparsers.choices.values()
  )
  parser.epilog = f'usage of the subcommands:\n{usages}{EPILOG}'


def run(args: argparse.Namespace) -> int:
  """Runs the subcommand; returns the exit code."""
  return int(args.run_subcommand(args) or 0)
