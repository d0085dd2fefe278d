"""Shapes of parameters that are not made."""

import jax
import tiny_encoder

from t5score_jax.nn import bert
from t5score_jax.nn.shapes import param_shapes


def test_shapes_are_those_of_the_parameters_and_found_once():
  config = tiny_encoder.CONFIG
  found = param_shapes(bert.init_params, config)
  made = jax.jit(bert.init_params, static_argnums=0)(config, jax.random.key(0))
  assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(
    lambda x: (x.shape, x.dtype), found
  )
  assert param_shapes(bert.init_params, tiny_encoder.CONFIG) is found
