"""What is wrong with a command line, found before any work is done.

Errors that end with exit code 2, types of arguments, and options that would do
nothing. Not here: what the options of a verb are.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from t5score_jax.errors import UsageError

# A float64 has no more.
_MOST_DECIMALS = 17


@contextlib.contextmanager
def blamed() -> Iterator[None]:
  """Within it a ValueError is the command line's fault: a UsageError."""
  try:
    yield
  except UsageError:
    raise
  except ValueError as error:
    raise UsageError(str(error)) from error


def count(text: str) -> int:
  """The type of an argument that counts from 0."""
  number = int(text)
  if number < 0:
    raise argparse.ArgumentTypeError(f'{text}: must be at least 0')
  return number


def positive(text: str) -> int:
  """The type of an argument that counts from 1."""
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{text}: must be at least 1')
  return number


def decimals(text: str) -> int:
  """The type of an argument that says how many decimals are printed."""
  number = int(text)
  if not 0 <= number <= _MOST_DECIMALS:
    raise argparse.ArgumentTypeError(f'{text}: must be 0 to {_MOST_DECIMALS}')
  return number


# argparse names them so in its errors.
count.__name__ = positive.__name__ = decimals.__name__ = 'number'


def given(args: argparse.Namespace, name: str) -> bool:
  """Whether an option was given, whose default is None, False or empty."""
  value = getattr(args, name)
  return value is not None and value is not False and value != []


def refuse(
  args: argparse.Namespace,
  names: Iterable[str],
  why: str,
  flags: Mapping[str, str] | None = None,
) -> None:
  """Raises UsageError where options were given that would do nothing.

  Args:
    args: The parsed arguments; defaults are as `given` takes them.
    names: The attributes.
    why: What follows the option in the message: 'is for --plot'.
    flags: The options of attributes that are not called like them.
  """
  for name in names:
    if given(args, name):
      flag = (flags or {}).get(name, '--' + name.replace('_', '-'))
      raise UsageError(f'{flag} {why}')


def fill(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
  """Gives what was not given its default."""
  for name, value in defaults.items():
    if getattr(args, name) is None:
      setattr(args, name, value)
