"""The T5 network: what must not change its outputs, and its parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from t5_outputs import compute, random_params

from t5score_jax.checkpoints import layouts, weights
from t5score_jax.models import likelihood, t5score
from t5score_jax.nn import t5, t5_axes

CONFIG = t5.T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=2,
  num_decoder_layers=2,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=12,
)
# A bias a layer, so that scanned layers can hold the same numbers.
OWN_BIAS = dataclasses.replace(CONFIG, relative_attention_per_layer=True)


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


def _texts(rows=3, inputs=9, targets=7, seed=0):
  rng = np.random.default_rng(seed)

  def draw(length):
    tokens = rng.integers(2, CONFIG.vocab_size, (rows, length))
    for i, row in enumerate(tokens):
      row[length - 1 - i] = 1
      row[length - i :] = 0
    return tokens.astype(np.int32)

  return draw(inputs), draw(targets)


@functools.partial(jax.jit, static_argnums=0)
def _loss_and_gradient(config, params, inputs, targets):
  model = t5score.GenerativeModel(config)
  batch = {'encoder_input_tokens': inputs, 'decoder_target_tokens': targets}
  return jax.value_and_grad(lambda p: model.loss_fn(p, batch, None)[0])(params)


def _assert_trees_close(made, expected, **tolerance):
  made, expected = (flatten_dict(x, sep='/') for x in (made, expected))
  assert made.keys() == expected.keys()
  for name, leaf in expected.items():
    np.testing.assert_allclose(made[name], leaf, err_msg=name, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize('remat', ['minimal', 'full'])
def test_remat_changes_neither_loss_nor_gradients(remat):
  params = random_params(CONFIG)
  loss, gradient = _loss_and_gradient(CONFIG, params, *_texts())
  config = dataclasses.replace(CONFIG, remat=remat)
  made = _loss_and_gradient(config, params, *_texts())
  np.testing.assert_allclose(made[0], loss, rtol=1e-6)
  _assert_trees_close(made[1], gradient, rtol=1e-5, atol=1e-5)


def _scanned(params, config):
  """Layers of a plain network stacked on axis 1, heads kept apart."""
  flat = flatten_dict(params, sep='/')
  heads = (config.num_heads, config.head_dim)
  stacked = {}
  for name, leaf in flat.items():
    side, *rest = name.split('/')
    if not rest[0].startswith('layers_'):
      stacked[name] = leaf
      continue
    if rest[0] != 'layers_0':
      continue
    tail = '/'.join(rest[1:])
    layers = []
    while f'{side}/layers_{len(layers)}/{tail}' in flat:
      layer = np.asarray(flat[f'{side}/layers_{len(layers)}/{tail}'])
      if rest[-2] in ('query', 'key', 'value'):
        layer = layer.reshape(-1, *heads)
      elif rest[-2] == 'out':
        layer = layer.reshape(*heads, -1)
      layers.append(layer)
    stacked[f'{side}/{side}/{tail}'] = np.stack(layers, axis=1)
  return unflatten_dict(stacked, sep='/')


@pytest.mark.parametrize(
  'remat', [pytest.param('none', marks=pytest.mark.slow), 'full']
)
def test_scanned_layers_equal_plain_ones(remat):
  params = random_params(OWN_BIAS)
  loss, gradient = _loss_and_gradient(OWN_BIAS, params, *_texts())
  config = dataclasses.replace(OWN_BIAS, scan_layers=True, remat=remat)
  scanned = _scanned(params, config)
  shapes = jax.eval_shape(
    lambda rng: t5.init_params(config, rng), jax.random.key(0)
  )
  assert jax.tree.map(jnp.shape, scanned) == jax.tree.map(jnp.shape, shapes)
  made = _loss_and_gradient(config, scanned, *_texts())
  np.testing.assert_allclose(made[0], loss, rtol=1e-6)
  _assert_trees_close(made[1], _scanned(gradient, config), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  'plain',
  [CONFIG, pytest.param(OWN_BIAS, marks=pytest.mark.slow)],
  ids=['shared', 'own'],
)
def test_converted_layouts_score_alike(plain):
  params = random_params(plain)
  named = {
    name: weights.LazyArray.of(np.asarray(leaf))
    for name, leaf in flatten_dict(params, sep='/').items()
  }
  config, converted = layouts.relayout(plain, named, scan_layers=True)
  assert config.scan_layers
  scanned = unflatten_dict(
    {name: array.read() for name, array in converted.items()}, sep='/'
  )
  expected = compute(plain, params, *_texts())
  made = compute(config, scanned, *_texts())
  np.testing.assert_allclose(
    made['scores'], expected['scores'], rtol=1e-5, atol=1e-5
  )
  np.testing.assert_allclose(
    made['logits'], expected['logits'], rtol=1e-4, atol=1e-4
  )


@pytest.mark.slow
def test_bfloat16_is_close_and_keeps_parameters_in_float32():
  params = random_params(CONFIG)
  config = dataclasses.replace(CONFIG, dtype='bfloat16')
  plain, made = (compute(c, params, *_texts()) for c in (CONFIG, config))
  assert made['encoded'].dtype == jnp.bfloat16
  assert made['log_probs'].dtype == np.float32
  error = np.abs(made['scores'] - plain['scores'])
  assert 0 < error.max() < 0.1
  loss, gradient = _loss_and_gradient(CONFIG, params, *_texts())
  other_loss, other = _loss_and_gradient(config, params, *_texts())
  np.testing.assert_allclose(other_loss, loss, rtol=0.02)
  exact, rounded = (
    np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    for tree in (gradient, other)
  )
  assert rounded.dtype == np.float32
  cosine = exact @ rounded / np.linalg.norm(exact) / np.linalg.norm(rounded)
  assert cosine > 0.99


@pytest.mark.slow
def test_padding_and_batch_mates_change_nothing():
  params = random_params(CONFIG)
  inputs, targets = _texts()
  together = compute(CONFIG, params, inputs, targets)
  wider = compute(
    CONFIG,
    params,
    np.pad(inputs, [(0, 0), (0, 6)]),
    np.pad(targets, [(0, 0), (0, 3)]),
  )
  np.testing.assert_allclose(
    wider['scores'], together['scores'], rtol=1e-5, atol=1e-5
  )
  assert np.all(wider['log_probs'][:, targets.shape[1] :] == 0)
  row = 2
  alone = compute(
    CONFIG,
    params,
    inputs[row : row + 1, inputs[row] > 0],
    targets[row : row + 1, targets[row] > 0],
  )
  np.testing.assert_allclose(
    alone['scores'][0], together['scores'][row], rtol=1e-5, atol=1e-5
  )


def test_decoder_sees_earlier_tokens_only():
  params = random_params(CONFIG)
  inputs, targets = _texts()
  changed = targets.copy()
  changed[0, 3] = targets[0, 3] % 30 + 2
  assert changed[0, 3] != targets[0, 3]
  before, after = (
    compute(CONFIG, params, inputs, x)['logits'] for x in (targets, changed)
  )
  # Token 3 is the decoder's input at position 4.
  np.testing.assert_allclose(after[0, :4], before[0, :4], rtol=1e-5, atol=1e-5)
  assert np.abs(after[0, 4:] - before[0, 4:]).max(-1).min() > 1e-3
  np.testing.assert_allclose(after[1:], before[1:], rtol=1e-5, atol=1e-5)


def test_one_encoding_serves_several_targets():
  params = random_params(CONFIG)
  inputs, _ = _texts(rows=2)
  _, targets = _texts(rows=6)
  decode = jax.jit(t5.Transformer(CONFIG).apply)
  decoded = likelihood.shift_right(targets)
  shared = decode({'params': params}, inputs, decoded)
  repeated = decode({'params': params}, np.repeat(inputs, 3, axis=0), decoded)
  np.testing.assert_allclose(shared, repeated, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('tied', [False, True])
def test_log_probs_are_those_of_the_logits(tied):
  config = dataclasses.replace(CONFIG, logits_via_embedding=tied)
  params = random_params(config)
  inputs, targets = _texts()
  made = compute(config, params, inputs, targets)
  expected = np.take_along_axis(
    np.asarray(jax.nn.log_softmax(made['logits'])), targets[..., None], -1
  )[..., 0]
  np.testing.assert_allclose(
    made['log_probs'], expected * (targets > 0), rtol=1e-5, atol=1e-5
  )
  kernel = t5.output_kernel(params, config)
  if tied:
    embedding = params['token_embedder']['embedding']
    np.testing.assert_allclose(kernel, embedding.T / 4.0, rtol=1e-6)
    assert 'logits_dense' not in params['decoder']
  else:
    np.testing.assert_array_equal(
      kernel, params['decoder']['logits_dense']['kernel']
    )


# Name in T5X, shape, logical axes.
_NAMES = {
  'token_embedder/embedding': ((40, 16), 'vocab embed'),
  'encoder/relpos_bias/rel_embedding': ((2, 8), 'heads relpos_buckets'),
  'encoder/layers_0/attention/query/kernel': ((16, 16), 'embed joined_kv'),
  'encoder/layers_0/attention/out/kernel': ((16, 16), 'joined_kv embed'),
  'encoder/layers_0/pre_attention_layer_norm/scale': ((16,), 'embed'),
  'encoder/layers_1/mlp/wi_0/kernel': ((16, 24), 'embed mlp'),
  'encoder/layers_1/mlp/wi_1/kernel': ((16, 24), 'embed mlp'),
  'encoder/layers_1/mlp/wo/kernel': ((24, 16), 'mlp embed'),
  'encoder/encoder_norm/scale': ((16,), 'embed'),
  'decoder/relpos_bias/rel_embedding': ((2, 8), 'heads relpos_buckets'),
  'decoder/layers_0/self_attention/key/kernel': ((16, 16), 'embed joined_kv'),
  'decoder/layers_1/encoder_decoder_attention/value/kernel': (
    (16, 16),
    'embed joined_kv',
  ),
  'decoder/layers_1/pre_cross_attention_layer_norm/scale': ((16,), 'embed'),
  'decoder/logits_dense/kernel': ((16, 40), 'embed vocab'),
}
_SCANNED_NAMES = {
  'encoder/encoder/attention/query/kernel': (
    (16, 2, 2, 8),
    'embed layers heads kv',
  ),
  'decoder/decoder/encoder_decoder_attention/out/kernel': (
    (2, 2, 8, 16),
    'heads layers kv embed',
  ),
  'decoder/decoder/relpos_bias/rel_embedding': (
    (2, 2, 8),
    'heads layers relpos_buckets',
  ),
  'encoder/encoder/pre_mlp_layer_norm/scale': ((16, 2), 'embed layers'),
  'encoder/encoder_norm/scale': ((16,), 'embed'),
}


@pytest.mark.parametrize(
  ('scan', 'names', 'count'),
  [(False, _NAMES, 52), (True, _SCANNED_NAMES, 29)],
  ids=['plain', 'scanned'],
)
def test_names_shapes_and_axes_are_those_of_t5x(scan, names, count):
  config = dataclasses.replace(CONFIG, scan_layers=scan)
  shapes = jax.eval_shape(
    lambda rng: t5.init_params(config, rng), jax.random.key(0)
  )
  axes = flatten_dict(t5_axes.logical_axes(shapes), sep='/')
  shapes = flatten_dict(shapes, sep='/')
  assert len(shapes) == count
  for name, (shape, named) in names.items():
    assert shapes[name].shape == shape, name
    assert axes[name] == tuple(named.split()), name


def test_logical_axes_refuse_foreign_parameters():
  with pytest.raises(ValueError, match='known for parameter encoder/x/bias'):
    t5_axes.logical_axes({'encoder': {'x': {'bias': jnp.ones(3)}}})
  with pytest.raises(ValueError, match=r'has shape \(3,\)'):
    t5_axes.logical_axes({'token_embedder': {'embedding': jnp.ones(3)}})


def test_t5_1_0_has_one_input_kernel():
  config = dataclasses.replace(CONFIG, mlp_activations=['relu'])
  assert config.mlp_activations == ('relu',)  # hashable, from JSON too
  mlp = random_params(config)['encoder']['layers_0']['mlp']
  assert sorted(mlp) == ['wi', 'wo']


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'remat': 'some'}, "remat='some': use one of"),
    ({'dtype': 'float16'}, "dtype='float16': use 'float32' or 'bfloat16'"),
    ({'mlp_activations': ('tanh',)}, "'tanh' is not one of"),
  ],
)
def test_config_refuses(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **changes)


def test_untrained_network_is_near_chance():
  # T5X's initialisers: the loss of an untrained network is about log V.
  config = dataclasses.replace(
    CONFIG,
    emb_dim=32,
    vocab_size=512,
    num_encoder_layers=1,
    num_decoder_layers=1,
  )
  params = jax.jit(lambda rng: t5.init_params(config, rng))(jax.random.key(0))
  inputs, targets = _texts(rows=6)
  made = compute(config, params, inputs, targets)
  assert abs(-float(made['scores'].mean()) - np.log(512)) < 1.5
