"""Arguments that the verbs that train regressors share.

Not a verb itself (hence the underscore); not here: training
(`fitting/fit.py`).
"""

from __future__ import annotations

import argparse

EXIT_CODES = """
exit code: 0 done; 1 the run failed; 2 the command line or configuration is
wrong; 75 SIGTERM, 130 Ctrl-C: the same command resumes the run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares --ratings, --seed, --work and --quiet."""
  parser.add_argument(
    '--ratings',
    required=True,
    metavar='NAME,...',
    help="the rated dimensions, one for each of the model's outputs, in order",
  )
  parser.add_argument(
    '--seed',
    type=int,
    default=0,
    help='seed of the division of documents; those of training are RANDOM_SEED '
    'and DATA_SEED (default: %(default)s)',
  )
  parser.add_argument(
    '--work',
    required=True,
    metavar='FOLDER',
    help='folder of everything that the run writes',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='print only the result and errors'
  )
