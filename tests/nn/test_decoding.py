"""Decoding token by token gives what teacher forcing gives."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from t5_outputs import logits as logits_of
from t5_outputs import random_params

from t5score_jax.nn import decoding, t5

CONFIG = t5.T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=2,
  num_decoder_layers=3,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=12,
)
CONFIGS = {
  'untied': CONFIG,
  'tied': dataclasses.replace(CONFIG, logits_via_embedding=True),
  'bias of each layer': dataclasses.replace(
    CONFIG, relative_attention_per_layer=True
  ),
  'scanned': dataclasses.replace(CONFIG, scan_layers=True),
}


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@functools.partial(jax.jit, static_argnums=(1, 4))
def _stepwise(params, config, inputs, targets, most):
  """Logits [rows, length, vocab] of targets that are fed one by one."""
  encoded = t5.Transformer(config).apply(
    {'params': params}, inputs, method='encode'
  )
  cache = decoding.start(params, config, encoded, targets.shape[0], most)
  fed = np.zeros((targets.shape[0], 1), np.int32)
  fed = jax.numpy.concatenate([fed, targets[:, :-1]], axis=1)

  def one(carry, tokens):
    cache, position = carry
    logits, cache = decoding.step(
      params, config, cache, inputs, tokens, position
    )
    return (cache, position + 1), logits

  _, logits = jax.lax.scan(one, (cache, 0), fed.T)
  return logits.swapaxes(0, 1)


@functools.partial(jax.jit, static_argnums=1)
def _at_once(params, config, inputs, fed):
  """Logits by teacher forcing; sequences of an input follow one another."""
  inputs = jax.numpy.repeat(inputs, fed.shape[0] // inputs.shape[0], axis=0)
  return logits_of(params, config, inputs, fed)


@pytest.mark.parametrize(
  ('name', 'k'),
  [
    ('untied', 3),
    pytest.param('bias of each layer', 3, marks=pytest.mark.slow),
    ('scanned', 3),
    pytest.param('tied', 3, marks=pytest.mark.slow),
    pytest.param('untied', 1, marks=pytest.mark.slow),
  ],
)
def test_steps_equal_teacher_forcing(name, k):
  config = CONFIGS[name]
  params = random_params(config)
  rng = np.random.default_rng(1)
  inputs = rng.integers(2, 40, (2, 9)).astype(np.int32)
  inputs[1, 6:] = 0
  # Beyond the distance of the last bucket.
  targets = rng.integers(2, 40, (2 * k, 17)).astype(np.int32)
  shifted = np.pad(targets, [(0, 0), (1, 0)])[:, :-1]
  expected = _at_once(params, config, inputs, shifted)
  assert np.std(expected) > 0.5
  made = _stepwise(params, config, inputs, targets, 20)
  np.testing.assert_allclose(made, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
  'name', [pytest.param('untied', marks=pytest.mark.slow), 'scanned']
)
def test_reordered_sequences_go_on_from_others(name):
  config = CONFIGS[name]
  params = random_params(config)
  rng = np.random.default_rng(2)
  inputs = rng.integers(2, 40, (1, 5)).astype(np.int32)
  targets = rng.integers(2, 40, (2, 4)).astype(np.int32)
  fed = np.pad(targets, [(0, 0), (1, 0)])

  @jax.jit
  def run(params):
    encoded = t5.Transformer(config).apply(
      {'params': params}, inputs, method='encode'
    )
    cache = decoding.start(params, config, encoded, 2, 6)
    for position in range(3):
      _, cache = decoding.step(
        params, config, cache, inputs, fed[:, position], position
      )
    cache = decoding.reorder(cache, config, np.asarray([[1, 1]]))
    return decoding.step(params, config, cache, inputs, fed[:, 3], 3)[0]

  logits = run(params)
  crossed = fed[[1, 1], :4].copy()
  crossed[:, 3] = fed[:, 3]
  expected = _at_once(params, config, inputs, crossed)
  np.testing.assert_allclose(logits, expected[:, 3], rtol=1e-5, atol=2e-5)
  assert np.abs(logits[0] - logits[1]).max() > 0.1
