"""Lazy arrays and the shapes of networks: what all formats are made of."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from t5_outputs import random_params

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import layouts, weights
from t5score_jax.nn.t5 import T5Config

_CONFIG = T5Config(
  vocab_size=384,
  emb_dim=16,
  num_heads=2,
  head_dim=4,
  mlp_dim=24,
  num_encoder_layers=3,
  num_decoder_layers=2,
)
_SCANNED = dataclasses.replace(_CONFIG, scan_layers=True)


def test_a_diff_groups_layers_and_ends():
  expected = layouts.parameter_shapes(_CONFIG)
  found = dict(expected)
  del found['encoder/layers_1/mlp/wo/kernel']
  del found['encoder/layers_2/mlp/wo/kernel']
  found['decoder/decoder_norm/scale'] = (3,)
  found['more'] = (1, 2)
  assert weights.diff(expected, found).splitlines() == [
    '  other shape decoder/decoder_norm/scale [3], expected [16]',
    '  missing     encoder/layers_{1-2}/mlp/wo/kernel [24, 16]',
    '  unexpected  more [1, 2]',
  ]
  assert weights.diff(expected, expected) == ''
  many = {f'x{n}': (n,) for n in range(30)}
  assert weights.diff({}, many).splitlines()[-1] == '  ... 30 lines in all'


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_lazy_arrays_are_arrays(data):
  outer, inner, size = (data.draw(st.integers(1, 4)) for _ in range(3))
  shape = (size, outer * inner, 3)
  array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
  lazy = weights.LazyArray.of(array)
  pairs = [
    (lazy.transposed(), array.T),
    (lazy.transposed((1, 2, 0)), array.transpose(1, 2, 0)),
    (lazy.split_axis(1, inner), array.reshape(size, outer, inner, 3)),
    (lazy.split_axis(1, inner).merge_axes(1), array),
    (lazy.split_axis(1, inner).merge_axes(0), array.reshape(-1, inner, 3)),
    (lazy.pick(1, outer - 1), array[:, outer - 1]),
    (weights.stacked([lazy, lazy], 1), np.stack([array, array], 1)),
    (weights.stacked([lazy, lazy], 1).pick(1, 1), array),
    (lazy.astype('f4'), array.astype('f4')),
  ]
  for made, expected in pairs:
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made.read(), expected)
    index = tuple(
      slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))))
      for n in made.shape
    )
    np.testing.assert_array_equal(made.read(index), expected[index])
    covered = np.zeros(made.shape, int)
    limit = data.draw(st.integers(1, 500))
    for block in made.blocks(limit):
      covered[block] += 1
      nbytes = made.read(block).nbytes
      assert nbytes <= max(limit, np.prod(made.block) * made.dtype.itemsize)
    assert (covered == 1).all()


def test_a_read_of_another_shape_is_an_error():
  wrong = weights.LazyArray.whole((2, 3), 'f4', lambda: np.zeros((2, 2), 'f4'))
  with pytest.raises(
    weights.CheckpointError, match=r'shape \(2, 3\).*\(2, 2\)'
  ):
    wrong.read()


def test_shapes_are_those_of_the_network():
  for config in (
    _CONFIG,
    _SCANNED,
    dataclasses.replace(_CONFIG, relative_attention_per_layer=True),
    dataclasses.replace(
      _SCANNED, logits_via_embedding=True, mlp_activations=('relu',)
    ),
  ):
    expected = dict(bundles.flatten_names(random_params(config)))
    shapes = layouts.parameter_shapes(config)
    assert shapes == weights.shapes_of(expected)
    gate = config.mlp_activations[0]
    inferred, notes = layouts.infer_config(shapes, gate)
    assert (inferred, notes) == (config, ())
