"""What the verbs that train estimators have in common.

Not a verb by itself (hence the underscore); not here: the training
(`fitting/fit.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from t5score_jax.commands import _gin, train
from t5score_jax.commands._usage import UsageError
from t5score_jax.data import files


def add_ratings(parser: argparse.ArgumentParser) -> None:
  """Declares `--ratings`."""
  parser.add_argument(
    '--ratings',
    required=True,
    metavar='NAME,...',
    help="what people rated, one for each of the model's outputs, in its order",
  )


def run(verb: str, body: Callable[[], str]) -> int:
  """Runs a verb and prints what came of it.

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
      f't5score {verb}: {error.reason}; the same command goes on',
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


def teller(quiet: bool) -> Callable[[str], None]:
  """What is told of progress, a line each, on standard error or nowhere."""

  def say(line: str) -> None:
    if not quiet:
      print(line, file=sys.stderr, flush=True)

  return say
