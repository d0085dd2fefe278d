"""Building blocks against NumPy, and their shapes and names."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5score_jax.nn import layers


def _bucket(distance, bidirectional, num_buckets, max_distance):
  """Raffel et al. 2020, section 2.1, one distance at a time."""
  offset = 0
  if bidirectional:
    num_buckets //= 2
    offset = num_buckets if distance > 0 else 0
    distance = abs(distance)
  else:
    distance = max(-distance, 0)
  exact = num_buckets // 2
  if distance < exact:
    return offset + distance
  share = math.log(distance / exact) / math.log(max_distance / exact)
  far = exact + int(share * (num_buckets - exact) + 1e-6)
  return offset + min(far, num_buckets - 1)


@pytest.mark.parametrize('bidirectional', [True, False])
@pytest.mark.parametrize(
  ('num_buckets', 'max_distance'), [(32, 128), (16, 50), (8, 20)]
)
def test_relative_position_buckets(bidirectional, num_buckets, max_distance):
  distances = np.arange(-300, 301)
  made = layers.relative_position_buckets(
    jnp.asarray(distances),
    bidirectional=bidirectional,
    num_buckets=num_buckets,
    max_distance=max_distance,
  )
  expected = [
    _bucket(int(d), bidirectional, num_buckets, max_distance) for d in distances
  ]
  np.testing.assert_array_equal(made, expected)
  assert made.dtype == jnp.int32
  assert set(made.tolist()) <= set(range(num_buckets))


def test_position_bias_is_the_entry_of_the_bucket():
  module = layers.RelativePositionBias(3, True, num_buckets=8, max_distance=6)
  table = np.arange(24.0, dtype=np.float32).reshape(3, 8)
  made = module.apply({'params': {'rel_embedding': table}}, 4, 5)
  assert made.shape == (1, 3, 4, 5)
  for query in range(4):
    for key in range(5):
      bucket = _bucket(key - query, True, 8, 6)
      np.testing.assert_array_equal(made[0, :, query, key], table[:, bucket])


def test_rms_norm():
  x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
  scale = np.linspace(0.5, 2, 8, dtype=np.float32)
  made = nn.RMSNorm().apply({'params': {'scale': scale}}, x)
  expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
  np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_rms_norm_of_bfloat16_is_computed_in_float32():
  x = jnp.full((1, 256), 300.0, jnp.bfloat16).at[0, 0].set(1.0)
  module = nn.RMSNorm(dtype=jnp.bfloat16)
  made = module.apply({'params': {'scale': jnp.ones(256)}}, x)
  assert made.dtype == jnp.bfloat16
  wide = np.asarray(x, np.float64)
  expected = wide / np.sqrt((wide**2).mean())
  np.testing.assert_allclose(np.asarray(made, np.float64), expected, rtol=4e-3)


def _gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
  ('activations', 'names'),
  [(('relu',), ['wi', 'wo']), (('gelu', 'linear'), ['wi_0', 'wi_1', 'wo'])],
)
def test_mlp(activations, names):
  rng = np.random.default_rng(0)
  x = rng.standard_normal((2, 3, 4)).astype(np.float32)
  module = layers.MLP(5, activations)
  params = module.init(jax.random.key(0), x, deterministic=True)
  made = module.apply(params, x, deterministic=True)
  kernels = {k: np.asarray(v['kernel']) for k, v in params['params'].items()}
  assert sorted(kernels) == names
  if activations == ('relu',):
    hidden = np.maximum(x @ kernels['wi'], 0)
  else:
    hidden = _gelu(x @ kernels['wi_0']) * (x @ kernels['wi_1'])
  np.testing.assert_allclose(made, hidden @ kernels['wo'], rtol=1e-5, atol=1e-5)


def _attention_inputs(rows, repeats, heads=2):
  rng = np.random.default_rng(0)
  queries = rng.standard_normal((rows * repeats, 3, 8)).astype(np.float32)
  keys = rng.standard_normal((rows, 5, 8)).astype(np.float32)
  bias = rng.standard_normal((rows, heads, 1, 5)).astype(np.float32)
  return queries, keys, bias


def test_attention_against_numpy():
  queries, keys, bias = _attention_inputs(2, 1)
  module = layers.Attention(num_heads=2, head_dim=4)
  params = module.init(
    jax.random.key(0), queries, keys, bias, deterministic=True
  )
  made = module.apply(params, queries, keys, bias, deterministic=True)
  kernels = {k: np.asarray(v['kernel']) for k, v in params['params'].items()}
  assert sorted(kernels) == ['key', 'out', 'query', 'value']
  for row in range(2):
    joined = []
    for head in range(2):
      part = slice(4 * head, 4 * head + 4)
      q = queries[row] @ kernels['query'][:, part]
      k = keys[row] @ kernels['key'][:, part]
      v = keys[row] @ kernels['value'][:, part]
      # No division by sqrt(head_dim).
      weights = np.exp(q @ k.T + bias[row, head])
      joined.append(weights / weights.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(joined, -1) @ kernels['out']
    np.testing.assert_allclose(made[row], expected, rtol=1e-4, atol=1e-5)


def test_several_query_rows_share_their_keys():
  queries, keys, bias = _attention_inputs(2, 3)
  module = layers.Attention(num_heads=2, head_dim=4)
  params = module.init(
    jax.random.key(0), queries, keys, bias, deterministic=True
  )
  made = module.apply(params, queries, keys, bias, deterministic=True)
  repeated = module.apply(
    params,
    queries,
    np.repeat(keys, 3, axis=0),
    np.repeat(bias, 3, axis=0),
    deterministic=True,
  )
  np.testing.assert_allclose(made, repeated, rtol=1e-5, atol=1e-6)


def test_fully_masked_row_is_finite():
  queries, keys, bias = _attention_inputs(2, 1)
  module = layers.Attention(num_heads=2, head_dim=4)
  params = module.init(
    jax.random.key(0), queries, keys, bias, deterministic=True
  )
  masked = np.full_like(bias, layers.MASKED)
  made = module.apply(params, queries, keys, masked, deterministic=True)
  assert np.all(np.isfinite(made))
  # Uniform attention: the mean of the values, for every query.
  np.testing.assert_allclose(made[:, 0], made[:, 1], rtol=1e-5)


def test_split_heads_store_the_same_matrices():
  queries, keys, bias = _attention_inputs(2, 1)
  args = (queries, keys, bias)
  joined = layers.Attention(num_heads=2, head_dim=4)
  split = layers.Attention(num_heads=2, head_dim=4, split_heads=True)
  params = joined.init(jax.random.key(0), *args, deterministic=True)['params']
  other = split.init(jax.random.key(0), *args, deterministic=True)['params']
  assert other['query']['kernel'].shape == (8, 2, 4)
  assert other['out']['kernel'].shape == (2, 4, 8)
  for name, leaf in params.items():
    np.testing.assert_array_equal(
      other[name]['kernel'].reshape(8, 8), leaf['kernel']
    )
  np.testing.assert_array_equal(
    joined.apply({'params': params}, *args, deterministic=True),
    split.apply({'params': other}, *args, deterministic=True),
  )


def test_embedding_gathers_rows_and_adds_gradients_of_repeats():
  tokens = np.array([[3, 0, 3], [1, 2, 3]])
  table = np.arange(10.0, dtype=np.float32).reshape(5, 2)
  module = layers.Embedding(5, 2)

  def embed(table):
    return module.apply({'params': {'embedding': table}}, tokens)

  np.testing.assert_array_equal(embed(table), table[tokens])
  gradient = jax.grad(lambda table: embed(table).sum())(table)
  np.testing.assert_array_equal(gradient[:, 0], [1, 1, 1, 3, 0])
  # A gather, not the product with a one-hot matrix.
  text = str(jax.make_jaxpr(embed)(table))
  assert 'gather' in text
  assert 'dot_general' not in text


def test_dropout_changes_the_output_only_where_it_is_on():
  x = np.ones((2, 4, 8), np.float32)
  module = layers.MLP(16, ('relu',), dropout_rate=0.5)
  params = module.init(jax.random.key(0), x, deterministic=True)
  still = module.apply(params, x, deterministic=True)
  rngs = {'dropout': jax.random.key(1)}
  moved = module.apply(params, x, deterministic=False, rngs=rngs)
  again = module.apply(params, x, deterministic=False, rngs=rngs)
  assert not np.allclose(still, moved)
  np.testing.assert_array_equal(moved, again)
  # One mask for all positions of a text, as in T5X.
  np.testing.assert_allclose(moved[:, 0], moved[:, 3], rtol=1e-6)
