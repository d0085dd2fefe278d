"""What the verbs that train estimators have in common.

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
    help="what people rated, one for each of the model's outputs, in its order",
  )


def teller(quiet: bool) -> Callable[[str], None]:
  """What is told of progress, a line each, on standard error or nowhere."""

  def say(line: str) -> None:
    if not quiet:
      print(line, file=sys.stderr, flush=True)

  return say
