"""Errors that users see: each says what is wrong, where, and what to do.

`cli.main` prints them in one line and ends with their exit code; a traceback
means a fault of this library. Python callers catch `T5ScoreError`, or one of
the subclasses that modules define beside what raises them.
"""

from __future__ import annotations


class T5ScoreError(Exception):
  """Base class of the errors that users see.

  Attributes:
    exit_code: Exit code of the command line.
  """

  exit_code = 1


class UsageError(T5ScoreError, ValueError):
  """Arguments of a command line that are wrong or contradict each other."""

  exit_code = 2


class OptionError(T5ScoreError, ValueError):
  """An option of a metric or a model has a value that it cannot have."""


class InputError(T5ScoreError, ValueError):
  """A file, an array or a value of the user's that cannot be used."""
