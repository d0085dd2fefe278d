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


<<<<<<< HEAD
=======
def run(verb: str, body: Callable[[], str]) -> int:
  """Runs a verb and prints its result.

  Args:
    verb: Its name, for errors.
    body: Does the work; returns what is printed.

  Returns:
    The exit code.
  """
  # Imported here: help needs no JAX.
  from t5score_jax.fitting import fit

  try:
    text = body()
  except (UsageError, _gin.ConfigurationError) as error:
    print(f't5score {verb}: {error}', file=sys.stderr)
    return 2
  except fit.Stopped as error:
    print(
      f't5score {verb}: {error.reason}; the same command resumes the run',
      file=sys.stderr,
    )
    return train.STOPPED[error.reason]
  except Exception as error:
    code, message = train.explain(error)
    if not message:
      raise
    print(f't5score {verb}: {message}', file=sys.stderr)
    return code
  files.write_lines('-', text.splitlines())
  return 0


>>>>>>> 81b1699 (fitting/, fit, crossvalidate: docstrings, help and messages in plain words; crossvalidation.Question is Config)
def teller(quiet: bool) -> Callable[[str], None]:
  """Returns a function that prints a line to standard error, unless quiet."""

  def say(line: str) -> None:
    if not quiet:
      print(line, file=sys.stderr, flush=True)

  return say
