"""Numbers that gin passes on: whether they are numbers, and large enough.

Gin hands over whatever a file or flag says, also 'abc' where a number belongs;
here one line says which parameter that is. Not here: the arguments of
`loop.train` (`training/arguments.py`), which are of many kinds.
"""

from __future__ import annotations

import math
import numbers


def check_whole(error: type[ValueError], least: int, **values: object) -> None:
  """Checks whole numbers.

  Args:
    error: What to raise.
    least: The smallest that is allowed.
    **values: By name of the parameter.

  Raises:
    ValueError: `error`, with the name and the value of the first wrong one.
  """
  for name, value in values.items():
    if (
      isinstance(value, bool)
      or not isinstance(value, numbers.Integral)
      or value < least
    ):
      raise error(
        f'{name} = {value!r}: must be a whole number, at least {least}'
      )


def check_real(error: type[ValueError], **values: object) -> None:
  """Checks finite numbers; see `check_whole`.

  Raises:
    ValueError: `error`, with the name and the value of the first wrong one.
  """
  for name, value in values.items():
    if (
      isinstance(value, bool)
      or not isinstance(value, numbers.Real)
      or not math.isfinite(value)
    ):
      raise error(f'{name} = {value!r}: must be a number')
