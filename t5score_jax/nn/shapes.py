"""Shapes of a network's parameters, without creating them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

Init = Callable[[Any, jax.Array], Any]


@functools.lru_cache(maxsize=64)
def param_shapes(init: Init, config: Any) -> Any:
  """The shapes and dtypes of `init(config, key)`, which is not executed.

  The result is cached, since flax traces the whole network to find the shapes
  and a run needs them several times. Do not modify it.

  Args:
    init: (configuration, random key) -> parameters; a function of a module.
    config: The configuration, hashable.

  Returns:
    A tree of `jax.ShapeDtypeStruct`.
  """
  return jax.eval_shape(lambda rng: init(config, rng), jax.random.key(0))
