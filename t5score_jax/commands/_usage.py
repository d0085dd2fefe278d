"""Arguments that several verbs share, checked before any work is done.

Types of arguments, lists and assignments in them, outputs, and options that
would have no effect. Not here: the exit code of wrong usage, 2, which is
`UsageError`'s (`errors.py`).

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from t5score_jax.data import files, numbers
from t5score_jax.errors import UsageError

# File suffixes of formats that are not written.
_OTHER_FORMATS = frozenset(
  '.csv .xml .html .parquet .feather .arrow .xls .xlsx .ods .json .yaml .yml'
  ' .npy .npz .pkl .db .sqlite .zip .bz2 .xz .zst'.split()
)

#: With fewer draws, the outermost 2.5% at each end are only one or two.
FEWEST_RESAMPLES = 100


@contextlib.contextmanager
def blamed() -> Iterator[None]:
  """Turns a ValueError of the block into a UsageError."""
  try:
    yield
  except UsageError:
    raise
  except ValueError as error:
    raise UsageError(str(error)) from error


def _between(low: int, high: int | None = None) -> Callable[[str], int]:
  def number(text: str) -> int:
    value = numbers.integer(text)
    if value < low or (high is not None and value > high):
      limits = f'at least {low}' if high is None else f'{low} to {high}'
      raise argparse.ArgumentTypeError(f'{text}: must be {limits}')
    return value

  return number


def resamples(text: str) -> int:
  """The type of --bootstrap: 0, or enough draws for the ends of 95%."""
  value = numbers.integer(text)
  if value and value < FEWEST_RESAMPLES:
    raise argparse.ArgumentTypeError(
      f'{text}: must be 0, or at least {FEWEST_RESAMPLES} for 95% intervals'
    )
  return value


def fraction(text: str) -> float:
  """The type of arguments from 0 to 1."""
  value = numbers.real(text)
  if not 0 <= value <= 1:
    raise argparse.ArgumentTypeError(f'{text}: must be from 0 to 1')
  return value


class Once(argparse.Action):
  """Stores a value; a second one is an error and does not replace the first."""

  def __call__(
    self,
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    values: Any,
    option_string: str | None = None,
  ) -> None:
    """Stores the value; raises ArgumentError if one was given before."""
    del parser, option_string
    if getattr(namespace, self.dest, None) is not None:
      raise argparse.ArgumentError(self, 'given twice; this verb takes one')
    setattr(namespace, self.dest, values)


#: Types of arguments: integers from 0, and from 1.
count, positive = _between(0), _between(1)
#: The type of --bootstrap if it is required.
some_resamples = _between(FEWEST_RESAMPLES)
#: The number of decimals that are printed; a float64 has no more.
decimals = _between(0, 17)
#: A TCP port; 0 takes any. Above the limit, systems listen on another one.
port = _between(0, 65535)


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
  """Raises UsageError if options were given that would have no effect.

  Args:
    args: The parsed arguments; defaults are as `given` takes them.
    names: The attributes.
    why: What follows the option in the message: 'is for --plot'.
    flags: The options of attributes that are named differently.
  """
  for name in names:
    if given(args, name):
      flag = (flags or {}).get(name, '--' + name.replace('_', '-'))
      raise UsageError(f'{flag} {why}')


def fill(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
  """Sets options that were not given to their defaults."""
  for name, value in defaults.items():
    if getattr(args, name) is None:
      setattr(args, name, value)


def split_names(text: str | None) -> list[str]:
  """The names in a comma-separated list; none for None."""
  return [name.strip() for name in (text or '').split(',') if name.strip()]


def assignment(text: str, flag: str, form: str = 'NAME=VALUE') -> list[str]:
  """Reads NAME=VALUE; neither may be empty.

  Raises:
    UsageError: The text has another form.
  """
  parts = text.split('=', 1)
  if len(parts) < 2 or not all(parts):
    raise UsageError(f'{flag} takes {form}, not {text!r}')
  return parts


def assignments(
  text: str | None, flag: str, form: str = 'NAME=COLUMN'
) -> dict[str, str]:
  """Reads NAME=VALUE,..., as `assignment`; none for None."""
  parts = (assignment(part, flag, form) for part in split_names(text))
  return {name: value for name, value in parts}


def as_text(argument: str) -> str:
  """An argument that is text, not a path: UTF-8 whatever the locale is."""
  return os.fsencode(argument).decode('utf-8', 'backslashreplace')


def split_files(arguments: Iterable[str]) -> list[tuple[str | None, str]]:
  """[NAME=]FILE arguments as (name or None, path)."""
  named: list[tuple[str | None, str]] = []
  for argument in arguments:
    name, equals, path = argument.partition('=')
    # An argument with '=' is a path if its left side has a '/'.
    if name and equals and path and '/' not in name:
      named.append((as_text(name), path))
    else:
      named.append((None, argument))
  return named


def check_ending(path: str, formats: Iterable[str], flag: str) -> None:
  """Raises UsageError for a file suffix of a format that is not written.

  Args:
    path: The output, if no format was given.
    formats: The available formats.
    flag: The output's option, for the message.
  """
  ending = os.path.splitext(path.lower().removesuffix('.gz'))[1]
  if ending in _OTHER_FORMATS:
    raise UsageError(
      f'{flag} {path}: {ending} is none of the formats; choose another name, '
      f'or give --format {", ".join(formats)}'
    )


def check_writable(
  path: str, inputs: Iterable[object] = (), flag: str = '-o'
) -> None:
  """Checks an output before the work.

  Args:
    path: The output; `-` is standard output.
    inputs: The inputs, as for `files.check_not_input`.
    flag: The output's option, for the message.

  Raises:
    files.OverwriteError: The output is also an input.
    OSError: It can't be written.
  """
  if path == '-':
    return
  files.check_not_input(path, inputs, flag)
  folder = os.path.dirname(os.path.realpath(path))
  if os.path.isdir(path):
    raise IsADirectoryError(f'cannot write {path}: it is a folder')
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'cannot write {path}: there is no folder {folder}; create it first'
    )
  if not os.access(path if os.path.exists(path) else folder, os.W_OK):
    raise PermissionError(f'cannot write {path}: permission denied')


def printer(quiet: bool) -> Callable[[str], None]:
  """Returns a function that prints a line to standard error, unless quiet."""

  def say(line: str) -> None:
    if not quiet:
      print(line, file=sys.stderr, flush=True)

  return say


class Progress:
  """Prints the number of finished items every ten seconds."""

  def __init__(self, say: Callable[[str], None]):
    self._say = say
    self._last = time.monotonic()

  def __call__(self, done: int) -> None:
    if time.monotonic() - self._last > 10:
      self._last = time.monotonic()
      self._say(f'{done} done')
