"""Objectives on networks that return logits equal those of `models/t5score.py`.

The network is this library's own with T5X's calls, its logits whole: what
`models/t5score.py` computes in blocks is an independent path to the same
numbers, and `models/test_t5score.py` holds those against NumPy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5_outputs import random_params

from t5score_jax.models import external, t5score
from t5score_jax.nn import t5

CONFIG = t5.T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=1,
  num_decoder_layers=1,
  dropout_rate=0.5,
)
PARAMS = random_params(CONFIG)


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


class LogitsOfT5:
  """This library's network behind T5X's calls; counts what it encodes."""

  def __init__(self):
    self.config = CONFIG
    self.encoded_rows = []

  def init(self, rng, *tokens, enable_dropout):
    del tokens, enable_dropout
    return {'params': t5.init_params(CONFIG, rng)}

  def apply(self, variables, *args, method, enable_dropout, rngs=None):
    network = t5.Transformer(CONFIG, deterministic=not enable_dropout)
    return method(network, variables, rngs, *args)

  def encode(self, network, variables, rngs, tokens):
    self.encoded_rows.append(len(tokens))
    return network.apply(variables, tokens, method='encode', rngs=rngs)

  def decode(
    self, network, variables, rngs, encoded, inputs, decoder_inputs, targets
  ):
    assert encoded.shape[0] == inputs.shape[0] == targets.shape[0]
    arguments = encoded, inputs, decoder_inputs
    hidden = network.apply(variables, *arguments, method='decode', rngs=rngs)
    return hidden @ t5.output_kernel(variables['params'], CONFIG)


def _texts(*shape, seed):
  rng = np.random.default_rng(seed)
  *rows, length = shape
  tokens = rng.integers(2, CONFIG.vocab_size, (int(np.prod(rows)), length))
  for row in tokens:
    end = rng.integers(1, length)
    row[end] = 1
    row[end + 1 :] = 0
  return tokens.reshape(shape).astype(np.int32)


TEXTS = {
  'encoder_input_tokens': _texts(3, 6, seed=1),
  'decoder_target_tokens': _texts(3, 5, seed=2),
}
PAIRS = {
  'encoder_input_tokens': _texts(3, 2, 6, seed=3),
  'decoder_target_tokens': _texts(3, 2, 5, seed=4),
  'ratings': np.array([[2, 0], [0.5, 0.1], [1, 1]], np.float32),
}
GROUPS = {
  'shared_tokens': _texts(2, 6, seed=5),
  'hypothesis_tokens': _texts(2, 4, 5, seed=6),
  'ratings': np.array([[0.5, -1, 1.5, 0], [1, 1, -0.5, 0]], np.float32),
  'group_mask': np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32),
}
CASES = {
  'GenerativeModel': (TEXTS, {'normalize': 'tokens'}, (3,)),
  'ParaphraseModel': (GROUPS, {}, (2, 4)),
  'PairModel': (PAIRS, {'alpha': 0.5, 'generative_weight': 0.1}, (3, 2)),
  'GroupModel': (GROUPS, {'min_gap': 0.1}, (2, 4)),
}


def test_token_log_probs_against_numpy():
  rng = np.random.default_rng(0)
  logits = rng.normal(0, 30, (2, 5, 7)).astype(np.float32)
  targets = rng.integers(0, 7, (2, 5))
  shifted = logits.astype(np.float64)
  shifted -= shifted.max(axis=-1, keepdims=True)
  expected = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
  expected = np.take_along_axis(expected, targets[..., None], axis=-1)[..., 0]
  found = external.token_log_probs(jnp.asarray(logits), targets)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  # Normalised in float32, whatever the network computes in.
  low = jnp.asarray(logits, jnp.bfloat16)
  found = external.token_log_probs(low, targets)
  assert found.dtype == jnp.float32
  exact = external.token_log_probs(low.astype(jnp.float32), targets)
  np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name == 'PairModel' else pytest.mark.slow)
    for name in CASES
  ],
)
def test_losses_scores_and_gradients_equal(name):
  batch, settings, shape = CASES[name]
  ours = getattr(t5score, name)(CONFIG, **settings)
  module = LogitsOfT5()
  theirs = getattr(external, name)(module, **settings)
  scores, (loss, aux), gradient = _all(theirs, batch)
  wanted_scores, (wanted, wanted_aux), wanted_gradient = _all(ours, batch)
  np.testing.assert_allclose(scores, wanted_scores, atol=1e-5)
  assert scores.shape == shape
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)
  assert jax.tree.structure(aux) == jax.tree.structure(wanted_aux)
  np.testing.assert_allclose(
    jax.tree.leaves(aux), jax.tree.leaves(wanted_aux), rtol=1e-5
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    gradient,
    wanted_gradient,
  )


def _all(model, batch):
  """Scores, (loss, aux) and gradients, compiled together."""

  @jax.jit
  def compute(params):
    loss = jax.value_and_grad(model.loss_fn, has_aux=True)
    return model.scores(params, batch), *loss(params, batch, None)

  return compute(PARAMS)


def _scores(model, batch):
  return np.asarray(jax.jit(model.scores)(PARAMS, batch))


def test_a_shared_text_is_encoded_once():
  module = LogitsOfT5()
  model = external.GroupModel(module, directions=('precision',))
  jax.eval_shape(model.scores, PARAMS, GROUPS)
  assert module.encoded_rows == [2]


def test_scores_of_padding_are_zero():
  model = external.GroupModel(LogitsOfT5())
  scores = _scores(model, GROUPS)
  assert scores[1, 3] == 0
  assert (scores[GROUPS['group_mask'] > 0] < 0).all()


@pytest.mark.slow
def test_dropout_and_noise_need_a_key():
  model = external.GenerativeModel(LogitsOfT5(), input_noise=0.5)
  loss = jax.jit(lambda rng: model.loss_fn(PARAMS, TEXTS, rng)[0])
  drawn = [float(loss(jax.random.key(seed))) for seed in (0, 1)]
  plain = external.GenerativeModel(LogitsOfT5())
  still = float(jax.jit(plain.loss_fn)(PARAMS, TEXTS, None)[0])
  assert float(loss(None)) == pytest.approx(still, rel=1e-6)
  assert len({still, *drawn}) == 3


def test_parameters_are_the_modules():
  model = external.PairModel(LogitsOfT5())
  made = jax.eval_shape(model.init, jax.random.key(0))
  assert jax.tree.structure(made) == jax.tree.structure(PARAMS)
  axes = model.logical_axes()
  assert axes['token_embedder']['embedding'] == ('vocab', 'embed')
