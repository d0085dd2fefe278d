"""Checks values from gin files and command lines against type annotations.

Gin and flags pass on whatever the user wrote, even 'abc' for a number. `check`
tests values against one type, `check_arguments` against the signature of a
function or class. Messages name the parameter, its value and the expected type.
Conditions on several parameters are checked by the functions that use them.
"""

from __future__ import annotations

import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

_LARGEST = float(np.finfo(np.float64).max)

# Types of parameters; Python's own types can be used as well.
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]

_WORDS = {
  'int': 'an integer',
  'float': 'a number',
  'bool': 'True or False',
  'str': 'a string',
  'PathLike': 'a path',
  'null': 'None',
  'array': 'a list',
  'object': 'a dictionary',
}
_FINITE = re.compile(r' [<>]= -?1\.797\d*e\+?308')
# msgspec's message: the type, a bound, and the position of a list element.
_EXPECTED = re.compile(r'Expected `(\w+)`(.*?)(?:, got .*?)?( - at .*)?')


def check(kind: Any, error: type[Exception], **values: object) -> None:
  """Checks values against a type.

  Args:
    kind: The type, such as `Positive` or `float | None`.
    error: The exception to raise.
    **values: The values by name of the parameter.

  Raises:
    Exception: `error` for the first value of another type or out of range.
  """
  for name, value in values.items():
    if problem := _problem(value, kind):
      raise error(f'{name} = {_shown(value)}: must be {problem}')


def check_arguments(
  function: Callable[..., Any],
  values: Mapping[str, Any],
  error: type[Exception],
  shown: Callable[[str, str], str] = '{} = {}'.format,
) -> dict[str, Any]:
  """Checks arguments against the annotations of a function or class.

  Parameters without an annotation are not checked.

  Args:
    function: The function, or the class, for its constructor.
    values: The arguments by name.
    error: The exception to raise.
    shown: Formats a name and a value for the message.

  Returns:
    The arguments. A number for a parameter that takes strings and no numbers
    becomes a string: `variant=2` on a command line means '2'.

  Raises:
    Exception: `error` for the first argument of another type or out of range.
  """
  hints = _hints(function)
  checked = {}
  for name, value in values.items():
    kind = hints.get(name, Any)
    members = _members(kind)
    if _plain_type(value) in (int, float) and (
      str in members and not {int, float} & set(members)
    ):
      value = str(value)
    if problem := _problem(value, kind):
      raise error(f'{shown(name, _shown(value))}: must be {problem}')
    checked[name] = value
  return checked


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
  called = function.__init__ if inspect.isclass(function) else function
  try:
    return typing.get_type_hints(called, include_extras=True)
  except (NameError, TypeError):  # Names imported for type checkers alone.
    return {}


def _members(kind: Any) -> tuple[Any, ...]:
  """The members of a union, or the type itself."""
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    parts = typing.get_args(kind)
    return tuple(member for part in parts for member in _members(part))
  return (kind,)


def _problem(value: object, kind: Any) -> str:
  """What the value must be; '' if it is that."""
  problems = []
  # None last. A path may be a string; one word covers both.
  members = sorted(_members(kind), key=lambda member: member is type(None))
  paths = any(typing.get_origin(m) is os.PathLike for m in members)
  for member in members:
    problem = _problem_of_one(value, member)
    if not problem:
      return ''
    if not (paths and member is str):
      problems.append(problem)
  return ' or '.join(dict.fromkeys(problems))


def _problem_of_one(value: object, kind: Any) -> str:
  origin = typing.get_origin(kind) or kind
  if isinstance(value, type):
    # A reference without brackets in gin, @name for @name(): only the object
    # has what its class declares.
    is_class = isinstance(origin, type) and origin not in (type, object, Any)
    return f'an object, as @{value.__name__}()' if is_class else ''
  if isinstance(value, np.generic):
    value = value.item()
  try:
    if isinstance(origin, type) and origin.__module__.startswith('t5score'):
      return '' if isinstance(value, origin) else _words(origin.__name__)
    msgspec.convert(value, kind)
  except msgspec.ValidationError as error:
    found = _EXPECTED.fullmatch(str(error))
    return _words(*found.groups()) if found else str(error)
  except TypeError:  # A type that cannot be checked.
    pass
  return ''


def _words(kind: str, bound: str = '', place: str | None = None) -> str:
  bound = _FINITE.sub(' that is finite', bound)
  words = _WORDS.get(kind, f'of type {kind}') + bound
  return f'a list whose elements are {words}' if place else words


def _plain_type(value: object) -> type:
  return type(value.item() if isinstance(value, np.generic) else value)


def _shown(value: object) -> str:
  text = ' '.join(repr(value).split())
  return text if len(text) <= 60 else f'{text[:57]}...'
