"""Texts as callers pass them: lists, arrays, data frames, generators.

Not a metric by itself (hence the underscore).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError


def _rows(values: Any, name: str) -> list[Any]:
  """Returns the elements of any ordered collection."""
  if isinstance(values, (str, bytes)):
    raise TypeError(
      f'{name} is one text; give a list, even of one: [{values[:20]!r}]'
    )
  if isinstance(values, (Mapping, set, frozenset)):
    raise TypeError(
      f'{name} is a {type(values).__name__}; give a list, whose order is clear'
    )
  if hasattr(values, 'to_numpy'):  # a data frame iterates over column names
    values = values.to_numpy()
  try:
    return list(values)
  except TypeError as error:
    raise TypeError(
      f'{name} is a {type(values).__name__}; give a list of texts'
    ) from error


def texts(values: Any, name: str) -> list[str]:
  """Returns the elements, which must be texts."""
  rows = _rows(values, name)
  return [_text(row, f'{name}[{index}]') for index, row in enumerate(rows)]


def _text(value: Any, place: str) -> str:
  if not isinstance(value, str):
    raise TypeError(
      f'{place} is {value!r} ({type(value).__name__}), not a text;'
      " an empty text is ''"
    )
  if not value.isascii():
    try:
      value.encode('utf-8')
    except UnicodeEncodeError as error:
      raise InputError(
        f'{place}: half a surrogate pair (U+{ord(value[error.start]):04X}) at '
        f'position {error.start + 1}; it is not a character: replace it'
      ) from error
  # str() turns NumPy's strings into plain ones.
  return str(value)


def reference_lists(values: Any) -> list[tuple[str, ...]]:
  """Returns the references of each hypothesis, one or several."""
  rows = _rows(values, 'references')
  return [
    (_text(row, f'references[{index}]'),)
    if isinstance(row, str)
    else tuple(texts(row, f'references[{index}]'))
    for index, row in enumerate(rows)
  ]


def segments(
  hypotheses: Any, references: Any = None, sources: Any = None
) -> list[Segment]:
  """Makes segments of N hypotheses; see `base.Metric.score`.

  Raises:
    TypeError: A single string where many are expected, or an element that is
      not a string.
    InputError: The numbers of texts differ, or a text contains half a
      surrogate pair.
  """
  outputs = texts(hypotheses, 'hypotheses')
  shared = None if references is None else reference_lists(references)
  origins = None if sources is None else texts(sources, 'sources')
  if shared is not None and len(shared) != len(outputs):
    lengths = {len(row) for row in shared}
    transposed = lengths == {len(outputs)} != {1}
    raise InputError(
      f'{len(outputs)} hypotheses but {len(shared)} references; there must be'
      ' one for each, or a list of several for each'
      + (
        '. These look like lists of all first references, all second'
        ' references, ...: give zip(*references)'
        if transposed
        else ''
      )
    )
  if origins is not None and len(origins) != len(outputs):
    raise InputError(
      f'{len(outputs)} hypotheses but {len(origins)} sources; there must be'
      ' one for each'
    )
  return [
    Segment(
      hypothesis=text,
      references=() if shared is None else shared[index],
      source=None if origins is None else origins[index],
    )
    for index, text in enumerate(outputs)
  ]
