"""Calls functions that gin configures, and reports gin's errors in one line.

Gin evaluates the arguments of a function before it calls it, and appends lines
about locations to the messages of exceptions. Not here: reading gin files
(`commands/_gin.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from t5score_jax import errors


def call(function: Callable[..., Any], **arguments: Any) -> Any:
  """Calls a function with its arguments from gin.

  Args:
    function: A function or class registered with gin.
    **arguments: Arguments that gin does not provide.

  Returns:
    The function's result.

  Raises:
    ConfigurationError: An argument of the function cannot be evaluated or is
      missing. What the function itself raises passes through, and so do errors
      that already name what is wrong.
  """
  import gin

  try:
    return gin.get_configurable(function)(**arguments)
  except (ValueError, TypeError, RuntimeError) as error:
    name, text = function.__name__, str(error)
    entered = (
      f"In call to configurable '{name}' (<" in text
      and 'No values supplied by Gin or caller' not in text
    )
    if entered or isinstance(error, errors.T5ScoreError):
      raise
    raise errors.ConfigurationError(plain(error)) from error


def plain(error: Exception) -> str:
  """Gin's message in one line, with what to do."""
  text = str(error).strip()
  if match := re.search(r"'macro' \(.*\) in scope '([\w.]+)'", text):
    return f'{match[1]} has no value: give --gin.{match[1]}=VALUE'
  if match := re.search(r'Unable to open file: (\S+)\. Searched.*', text):
    where = 'looked for here, in --gin_search_paths and in the package'
    text = text.replace(match[0], f'no gin file {match[1]}; {where}')
  if isinstance(error, ImportError):
    remedy = errors.missing_extra(error)
    text = f'a gin file imports what is not installed: {remedy or text}'
  elif isinstance(error, TypeError):
    # Python's message, which names no place.
    if match := re.search(r"In call to configurable '([\w.]+)'", text):
      text = f'{match[1]}: {text}'
  return errors.one_line(text)
