"""Errors that users see: each says what is wrong, where, and what to do.

Only `cli.main` catches them: it prints one line and exits with the error's
code. A traceback means a bug in this library. Python callers catch
`T5ScoreError`, or one of the subclasses that modules define beside the code
that raises them.
"""

from __future__ import annotations

import re
import sys

# Exit codes of runs that a signal ended: Ctrl-C as a shell reports it, SIGTERM
# as EX_TEMPFAIL of sysexits.h, 'try again'.
STOPPED = {'interrupted': 130, 'preempted': 75}

# Optional packages, by the name that is imported, and the extra that has them.
_EXTRAS = {
  **dict.fromkeys(('seqio', 'tensorflow', 'tensorflow_datasets'), 'train'),
  **dict.fromkeys(('clu', 'tensorboard'), 'train'),
  **dict.fromkeys(('sklearn', 'statsmodels', 'pandas', 'jinja2'), 'board'),
  **dict.fromkeys(('starlette', 'uvicorn', 'multipart'), 'server'),
  'python_multipart': 'server',
  'matplotlib': 'plot',
  'libtpu': 'tpu',
  'shtab': 'completion',
  'huggingface_hub': 'hub',
  **dict.fromkeys(('faiss', 'py3langid', 'rapidfuzz'), 'mining'),
}


class T5ScoreError(Exception):
  """Base class of the errors that users see.

  Attributes:
    exit_code: Exit code of the command line.
  """

  exit_code = 1


class UsageError(T5ScoreError, ValueError):
  """Arguments of a command line that are wrong or contradict each other."""

  exit_code = 2


class ConfigurationError(T5ScoreError, ValueError):
  """Gin files or flags that are wrong, or a value in them."""

  exit_code = 2


class OptionError(T5ScoreError, ValueError):
  """An option of a metric or a model has an invalid value."""

  exit_code = 2


class UnknownOptionError(OptionError, TypeError):
  """A metric has no option of that name."""


class InputError(T5ScoreError, ValueError):
  """A file, an array or a value from the user that cannot be used."""


def report(program: str, error: BaseException) -> int | None:
  """Prints an error in one line on standard error.

  Args:
    program: The first words of the line, as in 't5score score'.
    error: The error.

  Returns:
    The exit code; None, with nothing printed, for a bug in this library, which
    needs a traceback.
  """
  if isinstance(error, BrokenPipeError):
    return 141  # The reader of the output has closed it: no message.
  code, message = 1, str(error)
  if isinstance(error, KeyboardInterrupt):
    code, message = STOPPED['interrupted'], 'interrupted'
  elif remedy := missing_extra(error):
    message = remedy
  elif isinstance(error, T5ScoreError):
    code = error.exit_code
  elif isinstance(error, OSError) and isinstance(error.filename, str):
    message = _of_file(error) or message
  elif 'RESOURCE_EXHAUSTED' in message:
    message = (
      'out of memory; use smaller batches or shorter texts (--batch-tokens and '
      '--max-length, or the macros of the gin files)'
    )
  elif not isinstance(error, OSError | ValueError):
    return None
  print(f'{program}: {one_line(message)}', file=sys.stderr)
  return code


def _of_file(error: OSError) -> str:
  """An operating system error with a file, in the form FILE: WHAT."""
  if isinstance(error, FileNotFoundError) and error.filename2 is None:
    return f'{error.filename}: there is no such file or folder'
  return f'{error.filename}: {error.strerror}' if error.strerror else ''


def missing_extra(error: BaseException) -> str:
  """How to install a missing optional package; '' for other errors."""
  if not isinstance(error, ImportError):
    return ''
  # Gin's copies of exceptions keep the message but lose the name.
  named = re.match(r"(?:No module named '|import of )(\w+)", str(error))
  module = (error.name or (named[1] if named else '')).partition('.')[0]
  extra = _EXTRAS.get(module)
  if extra is None:
    return ''
  return f"needs {module}: pip install 't5score-jax[{extra}]' installs it"


def one_line(text: str) -> str:
  """Joins lines; a location that gin appends is put in parentheses."""
  text = re.sub(r'\n\s*In call to configurable .*', '', text)
  # The line of the file, perhaps with a mark under it, follows the location.
  line = r'(?:\n    (.*))?(?:\n[ ^]*(?=\n|$))?'
  text = re.sub(
    r'\n\s*In file "(.*)", line (\d+)' + line, r' (\1, line \2: \3)', text
  )
  text = re.sub(r'\n\s*In bindings string line \d+' + line, r' (\1)', text)
  module = r"; <module '([\w.]+)' from .*?> has no attribute (\w+)\."
  text = re.sub(module, r': \1 has no \2', text)
  return re.sub(r'\s*\n\s*', ' ', text.strip())
