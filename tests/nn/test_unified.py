"""UniTE's network: how texts are joined, and what a configuration refuses."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_encoder

from t5score_jax.errors import OptionError
from t5score_jax.nn import heads, unified

CONFIG = unified.UnifiedConfig(tiny_encoder.CONFIG)


def _padded(rows, width):
  return np.array([row + [0] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(('separators', 'token_types'), [(2, False), (1, True)])
def test_texts_are_joined_behind_their_separators(separators, token_types):
  config = dataclasses.replace(
    CONFIG, separators=separators, token_types=token_types
  )
  # 2 begins and 3 ends a text; 0 is padding.
  texts = (
    _padded([[2, 7, 8, 3], [2, 3]], 5),
    _padded([[2, 9, 3], [2, 9, 9, 9, 3]], 6),
    _padded([[2, 3], [2, 6, 3]], 3),
  )
  between = [3] if separators == 2 else []
  want = [
    [2, 7, 8, 3, *between, 9, 3, *between, 3],
    [2, 3, *between, 9, 9, 9, 3, *between, 6, 3],
  ]
  first = [4, 2]
  for length in (8, 20):
    tokens, types = unified.join(config, texts, length)
    width = tokens.shape[1]
    assert width <= length
    cut = [row[:length] for row in want]
    np.testing.assert_array_equal(tokens, _padded(cut, width))
    for row, count in zip(types, first, strict=True):
      np.testing.assert_array_equal(
        row, [int(token_types and n >= count) for n in range(width)]
      )


def test_shapes_follow_the_configuration():
  tagged = dataclasses.replace(CONFIG, labels=('minor',), word_layer=1)
  shapes = jax.eval_shape(
    lambda key: heads.init_params(tagged, key), jax.random.key(0)
  )
  assert shapes['tagger']['kernel'].shape == (16, 2)
  assert shapes['estimator']['layers_0']['kernel'].shape[0] == 16
  axes = heads.logical_axes(shapes)
  jax.tree.map(
    lambda shape, names: (
      None if len(shape.shape) == len(names) else pytest.fail(str(names))
    ),
    shapes,
    axes,
    is_leaf=lambda leaf: hasattr(leaf, 'shape'),
  )
  assert unified.layers(tagged) == (0, 1, 2, 3)
  assert unified.layers(dataclasses.replace(tagged, layer=3)) == (1, 3)
  # Without labels no layer is tagged.
  assert dataclasses.replace(tagged, labels=()).word_layer is None


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'pooling': 'mean'}, 'pooling'),
    ({'source': False, 'reference': False}, 'nothing is read'),
    ({'xcomet': True}, 'needs labels'),
    ({'labels': ('minor',), 'word_layer': 4}, '0 to 3'),
    ({'labels': ('minor',)}, 'word_layer=None'),
    ({'separators': 3}, '1 or 2'),
    ({'outputs': ('a', 'b')}, 'outputs'),
  ],
)
def test_what_does_not_fit_is_refused(changes, words):
  with pytest.raises(OptionError, match=words):
    dataclasses.replace(CONFIG, **changes)
