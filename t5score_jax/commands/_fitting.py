"""Shared parts of the verbs that train regressors.

Not a verb by itself (hence the underscore); not here: the training
(`fitting/fit.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable


def add_ratings(parser: argparse.ArgumentParser) -> None:
  """Declares `--ratings`."""
  parser.add_argument(
    '--ratings',
    required=True,
    metavar='NAME,...',
    help="the rated dimensions, one for each of the model's outputs, in order",
  )


def teller(quiet: bool) -> Callable[[str], None]:
  """Returns a function that prints a line to standard error, unless quiet."""

  def say(line: str) -> None:
    if not quiet:
      print(line, file=sys.stderr, flush=True)

  return say
