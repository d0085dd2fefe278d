"""Numbers in text files and on command lines, read strictly.

`int` and `float` also accept `1_000`, ` 1 `, `nan`, `inf` and the digits of
other scripts, each of which is more likely a slip than a number.
"""

from __future__ import annotations

import math
import os
import re

from t5score_jax.data.files import RecordError

_NUMBER = re.compile(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')


def parse(value: object) -> float | None:
  """Returns a finite number, or None for any other value.

  >>> parse('-1.5'), parse('2e-3'), parse(7), parse('1_0'), parse('nan')
  (-1.5, 0.002, 7.0, None, None)

  Args:
    value: A cell of a text file, or a value of JSON.
  """
  if isinstance(value, str):
    if not _NUMBER.fullmatch(value):
      return None
  elif isinstance(value, bool) or not isinstance(value, int | float):
    return None
  try:
    number = float(value)
  except OverflowError:
    return None
  return number if math.isfinite(number) else None


def real(text: str) -> float:
  """The argparse type of finite numbers.

  Raises:
    ValueError: The text is not a finite number.
  """
  number = parse(text)
  if number is None:
    raise ValueError(f'{text!r} is not a finite number')
  return number


def integer(text: str) -> int:
  """The argparse type of integers.

  >>> integer('-12')
  -12

  Raises:
    ValueError: The text is not an integer.
  """
  if not re.fullmatch('[+-]?[0-9]+', text):
    raise ValueError(f'{text!r} is not an integer')
  return int(text)


def read(
  value: object, *, path: str | os.PathLike[str], line: int, field: str
) -> float:
  """Returns the finite number in a cell.

  Raises:
    RecordError: The cell holds no finite number.
  """
  number = parse(value)
  if number is None:
    raise RecordError(
      f'{value!r} is not a finite number; write it like -1.5 or 2e-3',
      path=path,
      line=line,
      field=field,
    )
  return number
