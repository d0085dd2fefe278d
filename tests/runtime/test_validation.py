import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from t5score_jax.errors import OptionError
from t5score_jax.runtime import validation


@pytest.mark.parametrize(
  ('kind', 'good', 'bad'),
  [
    (
      validation.Positive,
      [1, np.int64(7), np.int8(1)],
      [0, np.int32(0), True, np.True_, 1.0, np.float32(2), '3', None, [1]],
    ),
    (validation.NonNegative, [0, np.uint8(0)], [-1, False]),
    (
      validation.Finite,
      [0, -1.5, np.float32(3), np.int64(2)],
      [True, '1', float('nan'), np.inf, None],
    ),
    (validation.Share | None, [None, 0, 0.5], [1, -0.1, True, 'x']),
    (bool, [True, np.False_], [0, 1, 'yes', None]),
    (
      str | os.PathLike[str] | None,
      ['a', pathlib.Path('a'), None],
      [3, ['a'], True],
    ),
    (Sequence[int], [[1], (1, 2), []], [3, 'x', ['x'], [True]]),
    (Any, [3, 'x', None, object], []),
  ],
)
def test_values_and_types(kind, good, bad):
  for value in good:
    validation.check(kind, OptionError, name=value)
  for value in bad:
    with pytest.raises(OptionError) as caught:
      validation.check(kind, OptionError, name=value)
    assert f'name = {value!r}' in str(caught.value)


def _function(
  count: int | None,
  ratio: float,
  text: str = '',
  path: str | os.PathLike[str] | None = None,
  free=None,
):
  """Has annotations."""


def test_arguments_are_checked_by_annotations():
  given = {'count': np.int64(3), 'ratio': 1, 'text': 2, 'free': object()}
  checked = validation.check_arguments(_function, given, OptionError)
  assert checked == {**given, 'text': '2'}
  for name, value, wanted in (
    ('count', 1.5, 'count = 1.5: must be an integer or None'),
    ('count', True, 'count = True'),
    ('ratio', '1', "ratio = '1': must be a number"),
    ('path', [1], 'path = [1]: must be a path or None'),
  ):
    with pytest.raises(OptionError) as caught:
      validation.check_arguments(_function, {name: value}, OptionError)
    assert wanted in str(caught.value)


def test_a_class_in_place_of_an_object_lacks_brackets():
  with pytest.raises(OptionError, match=r'@Path\(\)'):
    validation.check(os.PathLike, OptionError, name=pathlib.Path)
