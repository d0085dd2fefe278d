"""Adafactor on stacked layers; `test_optimizers.py` has its arithmetic."""

import jax
import numpy as np
import pytest

from t5score_jax.training import adafactor, optimizers

HEADS, HEAD_DIM, EMB, MLP, LAYERS = 3, 4, 8, 16, 2
# Of a plain layer, and of stacked ones without their axis.
SHAPES = {
  'attention/query/kernel': ((EMB, 12), (EMB, HEADS, HEAD_DIM)),
  'attention/out/kernel': ((12, EMB), (HEADS, HEAD_DIM, EMB)),
  'mlp/wi_0/kernel': ((EMB, MLP), (EMB, MLP)),
  'mlp/wo/kernel': ((MLP, EMB), (MLP, EMB)),
  'pre_mlp_layer_norm/scale': ((EMB,), (EMB,)),
  'relpos_bias/rel_embedding': ((HEADS, 2), (HEADS, 2)),
}


def _tree(seed, scale=1.0):
  """Plain layers by name."""
  draw = np.random.default_rng(seed).normal
  return {
    f'encoder/layers_{layer}/{name}': np.float32(
      scale * (1 + 3 * layer) * draw(size=plain)
    )
    for layer in range(LAYERS)
    for name, (plain, _) in SHAPES.items()
  }


def _stacked(tree):
  return {
    f'encoder/encoder/{name}': np.stack(
      [
        np.asarray(tree[f'encoder/layers_{i}/{name}']).reshape(shape)
        for i in range(LAYERS)
      ],
      axis=1,
    )
    for name, (_, shape) in SHAPES.items()
  }


def _train(params, gradients):
  optimizer = optimizers.adafactor(
    optimizers.constant(0.1),
    weight_decay=0.01,
    min_dim_size_to_factor=4,
    clipping_threshold=0.7,
  ).transformation
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for gradient in gradients:
    updates, state = update(gradient, state, params)
    params = jax.tree.map(np.add, params, updates)
  return params, state


def test_stacked_layers_train_as_plain_ones():
  params, gradients = _tree(0), [_tree(seed, 0.1) for seed in (1, 2, 3)]
  plain, _ = _train(params, gradients)
  stacked, _ = _train(_stacked(params), [_stacked(g) for g in gradients])
  for name, expected in _stacked(plain).items():
    np.testing.assert_allclose(stacked[name], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - _stacked(params)[name]).max() > 1e-3


def test_no_matrix_keeps_a_full_second_moment():
  params = _stacked(_tree(0))
  moments = _train(params, [params])[1][0]
  full = {name: x.size for name, x in moments.full.items() if x.size > 1}
  assert set(full) == {
    'encoder/encoder/pre_mlp_layer_norm/scale',
    'encoder/encoder/relpos_bias/rel_embedding',
  }
  query = 'encoder/encoder/attention/query/kernel'
  assert moments.rows[query].shape == (EMB, LAYERS, 1, 1)
  assert moments.columns[query].shape == (1, LAYERS, HEADS, HEAD_DIM)


@pytest.mark.parametrize(
  ('name', 'shape', 'expected'),
  [
    ('token_embedder/embedding', (300, 200), ((0,), (1,))),
    ('token_embedder/embedding', (300, 100), None),
    ('encoder/layers_0/mlp/wo/kernel', (256, 128), ((0,), (1,))),
    ('decoder/decoder/mlp/wo/kernel', (256, 24, 128), ((0,), (2,))),
    ('decoder/decoder/a/key/kernel', (256, 24, 4, 64), ((0,), (2, 3))),
    ('decoder/decoder/a/out/kernel', (4, 24, 64, 256), ((0, 2), (3,))),
    ('decoder/decoder/norm/scale', (256, 24), None),
    ('some/conv/kernel', (3, 128, 256), ((1,), (2,))),
  ],
)
def test_which_dimensions_are_rows_and_columns(name, shape, expected):
  assert adafactor.factors(name, shape, 128) == expected
