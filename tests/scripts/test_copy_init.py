"""The copying circuit: what it does untrained, and what it refuses."""

import dataclasses
import functools

import copy_init
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5score_jax.models import likelihood
from t5score_jax.nn import t5

CONFIG = t5.T5Config(
  vocab_size=512,
  emb_dim=96,
  num_heads=3,
  head_dim=32,
  mlp_dim=64,
  num_encoder_layers=2,
  num_decoder_layers=2,
  mlp_activations=('relu',),
  logits_via_embedding=True,
)


def _texts(rng, vocab_size, rows=8, length=20):
  """Inputs, and as targets: a copy, shuffled copies, other texts."""
  inputs = np.ones((rows, length), np.int32)
  for row in inputs:
    row[:-1] = rng.choice(np.arange(2, vocab_size), length - 1, replace=False)
  shuffled = inputs.copy()
  for row in shuffled:
    row[:-1] = rng.permutation(row[:-1])
  other = inputs.copy()
  other[:, :-1] = rng.integers(2, vocab_size, other[:, :-1].shape)
  return inputs, (inputs, shuffled, other)


_init = jax.jit(t5.init_params, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _mean_log_prob(config, params, inputs, targets):
  """Mean over all tokens but the first, which nothing precedes."""
  encoded = likelihood.encode(params, config, inputs)
  log_probs = likelihood.target_log_probs(
    params, config, encoded, inputs, jnp.arange(len(inputs)), targets
  )
  return jnp.mean(log_probs[:, 1:])


@pytest.mark.parametrize(
  'changes',
  [
    {},
    pytest.param(
      {'mlp_activations': ('gelu', 'linear')}, marks=pytest.mark.slow
    ),
    pytest.param(
      {'relative_attention_per_layer': True, 'num_decoder_layers': 1},
      marks=pytest.mark.slow,
    ),
  ],
  ids=['relu', 'gated', 'per_layer_bias'],
)
def test_copies_without_training(changes):
  config = dataclasses.replace(CONFIG, **changes)
  params = _init(config, jax.random.key(0))
  made = copy_init.with_copy_heads(params, config, jax.random.key(1))
  inputs, targets = _texts(np.random.default_rng(0), config.vocab_size)
  before = _mean_log_prob(config, params, inputs, inputs)
  copied, shuffled, other = (
    _mean_log_prob(config, made, inputs, x) for x in targets
  )
  chance = -np.log(config.vocab_size)
  assert before < chance
  assert copied > -1.0
  assert shuffled < chance
  assert other < chance


def test_one_head_copies_less_than_all():
  params = _init(CONFIG, jax.random.key(0))
  inputs, _ = _texts(np.random.default_rng(1), CONFIG.vocab_size)
  scores = [
    _mean_log_prob(
      CONFIG,
      copy_init.with_copy_heads(params, CONFIG, jax.random.key(1), heads),
      inputs,
      inputs,
    )
    for heads in (1, 2)
  ]
  assert scores[0] < scores[1] - 0.3


def test_changes_values_but_neither_names_nor_shapes():
  params = _init(CONFIG, jax.random.key(0))
  before = {k: np.array(v) for k, v in flatten_dict(params, sep='/').items()}
  made = copy_init.with_copy_heads(params, CONFIG, jax.random.key(1), quiet=0.5)
  after = flatten_dict(made, sep='/')
  assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, params)
  for name, leaf in flatten_dict(params, sep='/').items():
    np.testing.assert_array_equal(leaf, before[name], err_msg=name)
  name = 'encoder/layers_1/mlp/wo/kernel'
  np.testing.assert_allclose(after[name], 0.5 * before[name])
  name = 'encoder/layers_1/attention/query/kernel'
  np.testing.assert_array_equal(after[name], before[name])


def test_carried_directions_leave_the_written_ones_out():
  params = _init(CONFIG, jax.random.key(0))
  made = copy_init.with_copy_heads(params, CONFIG, jax.random.key(1))
  width = CONFIG.head_dim
  encoder = made['encoder']['layers_0']['attention']
  cross = made['decoder']['layers_1']['encoder_decoder_attention']
  # Two heads carry the 64 of 96 dimensions that are left.
  carried = np.asarray(cross['value']['kernel'])[:, : 2 * width]
  written = np.asarray(encoder['out']['kernel'])[:width]
  np.testing.assert_allclose(carried.T @ carried, np.eye(64), atol=1e-5)
  np.testing.assert_allclose(written @ carried, 0.0, atol=1e-5)


@pytest.mark.parametrize(
  ('changes', 'heads', 'message'),
  [
    ({'logits_via_embedding': False}, 1, 'tied weights'),
    ({'scan_layers': True}, 1, 'scan_layers=True'),
    ({'relative_attention_num_buckets': 4}, 1, 'num_buckets=4'),
    ({'emb_dim': 32}, 1, 'emb_dim=32'),
    ({}, 0, r'heads=0: must be in 1\.\.3'),
    ({}, 4, r'heads=4: must be in 1\.\.3'),
  ],
)
def test_refuses(changes, heads, message):
  config = dataclasses.replace(CONFIG, **changes)
  with pytest.raises(ValueError, match=message):
    copy_init.with_copy_heads({}, config, jax.random.key(0), heads)
