"""Random weights, and what the network makes of a batch, for several tests."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.models import losses, t5score
from t5score_jax.nn import t5


def random_params(config: t5.T5Config, seed: int = 0) -> t5.Params:
  """Random weights without compiling their initialisers."""
  shapes = jax.eval_shape(
    lambda rng: t5.init_params(config, rng), jax.random.key(0)
  )
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


@functools.partial(jax.jit, static_argnums=0)
def _compute(config, params, inputs, targets):
  encoded = t5score.encode(params, config, inputs)
  log_probs = t5score.target_log_probs(
    params, config, encoded, inputs, jnp.arange(inputs.shape[0]), targets
  )
  return {
    'encoded': encoded,
    'logits': t5.logits(params, config, inputs, t5score.shift_right(targets)),
    'log_probs': log_probs,
    'scores': losses.sequence_scores(log_probs, t5score.token_weights(targets)),
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
  """Compares outputs, those of ``expected``, to a few float32 roundings."""
  for key, value in expected.items():
    np.testing.assert_allclose(
      made[key], value, rtol=1e-5, atol=2e-5, err_msg=key
    )
