"""Options of metrics: whether they have values of the declared kinds.

A metric declares its options by the signature of its class; values come from
command lines and from Python alike. Not here: ranges, which only the metric
knows, and which it refuses with the same error.
"""

from __future__ import annotations

import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from t5score_jax.errors import OptionError


def checked(
  name: str, make: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, Any]:
  """Options with values of the kinds that a signature declares.

  Args:
    name: Of what has the options, for the message.
    make: A class or function with annotations; what it does not annotate, or
      by kinds that are not known here, is not checked.
    given: Values by name.

  Returns:
    The values. A number where a text is wanted is that number's text:
    `variant=2` on a command line means '2'.

  Raises:
    OptionError: A value of another kind.
  """
  hints = _hints(make)
  found = {}
  for option, value in given.items():
    wanted = _members(hints.get(option, Any))
    if _is_number(value) and str in wanted and not {int, float} & wanted:
      value = str(value)
    if not any(_fits(value, kind) for kind in wanted):
      raise OptionError(
        f'option {option}={value!r} of {name}: give {_words(wanted)}'
      )
    found[option] = value
  return found


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
  function = make.__init__ if inspect.isclass(make) else make
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # names of a type checker alone
    return {}


def _members(hint: Any) -> set[Any]:
  """The kinds of a union, without their parameters."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    return {kind for part in typing.get_args(hint) for kind in _members(part)}
  return {typing.get_origin(hint) or hint}


def _is_number(value: object) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _fits(value: object, kind: Any) -> bool:
  if kind is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if kind is float:
    return _is_number(value)
  if kind in (bool, str, os.PathLike, type(None)):
    return isinstance(value, kind)
  return True


def _words(wanted: set[Any]) -> str:
  """The kinds in words, None last."""
  words = [
    text
    for kind, text in (
      (bool, 'True or False'),
      (int, 'an integer'),
      (float, 'a number'),
      (os.PathLike, 'a path'),
      (str, 'a text'),
      (type(None), 'None'),
    )
    # A path may be a text; saying both would say less.
    if kind in wanted and not (kind is str and os.PathLike in wanted)
  ]
  return ', or '.join(words)
