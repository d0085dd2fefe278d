"""Random weights, and what the network makes of a batch, for several tests."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.models import likelihood, losses
from t5score_jax.nn import t5
from t5score_jax.nn.shapes import param_shapes


def random_params(config: t5.T5Config, seed: int = 0) -> t5.Params:
  """Random weights without compiling their initialisers."""
  shapes = param_shapes(t5.init_params, config)
  rng = np.random.default_rng(seed)

  def draw(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.Array):
    value = rng.standard_normal(leaf.shape)
    name = path[-1].key
    if name == 'scale':
      value = 1.0 + 0.2 * value
    elif name == 'kernel':
      value /= np.sqrt(leaf.shape[0])
    return jnp.asarray(value, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, shapes)


def logits(params, config, inputs, fed):
  """Logits float32 [batch, target_length, vocab_size], as one array."""
  hidden = t5.Transformer(config).apply({'params': params}, inputs, fed)
  kernel = t5.output_kernel(params, config).astype(config.array_dtype)
  return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _compute(config, params, inputs, targets):
  encoded = likelihood.encode(params, config, inputs)
  log_probs = likelihood.target_log_probs(
    params, config, encoded, inputs, jnp.arange(inputs.shape[0]), targets
  )
  return {
    'encoded': encoded,
    'logits': logits(params, config, inputs, likelihood.shift_right(targets)),
    'log_probs': log_probs,
    'scores': losses.sequence_scores(
      log_probs, likelihood.token_weights(targets)
    ),
  }


def compute(
  config: t5.T5Config, params: t5.Params, inputs, targets
) -> dict[str, np.ndarray]:
  """Encoder states, logits, log-probabilities of tokens and their means."""
  params = jax.tree.map(jnp.asarray, params)
  made = _compute(config, params, jnp.asarray(inputs), jnp.asarray(targets))
  return {key: np.asarray(value) for key, value in made.items()}


def assert_equal_outputs(
  made: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
  """Compares outputs, those of `expected`, to a few float32 roundings."""
  for key, value in expected.items():
    np.testing.assert_allclose(
      made[key], value, rtol=1e-5, atol=2e-5, err_msg=key
    )
