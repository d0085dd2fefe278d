"""Adafactor's scaling of gradients, for networks with and without scan.

Optax factors the two largest dimensions of an array. If layers are stacked for
`lax.scan`, attention kernels are [embed, layers, heads, kv]. Optax would then
keep a full second moment, and one root mean square for all layers. Here every
layer is a separate matrix, so a scanned network trains like an unscanned one.
For plain matrices the results equal Optax's.

Not here: learning rates and weight decay (`training/optimizers.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

PyTree = Any
Dims = tuple[int, ...]

# T5X's names of stacked layers; the layers are axis 1 there.
_STACKED = re.compile(r'(^|/)(encoder/encoder|decoder/decoder)/')
_LAYER_AXIS = 1
_EPSILON = 1e-30
_SMALLEST_SCALE = 1e-3


class Moments(NamedTuple):
  """Second moments of the gradients; unused arrays have size 1.

  Attributes:
    count: Number of updates so far, int32 [].
    rows: Means over columns: the parameter's shape with columns of size 1.
    columns: Means over rows: the parameter's shape with rows of size 1.
    full: The parameter's shape, where it is not factored.
  """

  count: jax.Array  # type: ignore[assignment]
  rows: PyTree
  columns: PyTree
  full: PyTree


def factors(
  name: str, shape: Sequence[int], smallest: int
) -> tuple[Dims, Dims] | None:
  """Returns the dimensions that form a parameter's rows and its columns.

  Args:
    name: The T5X name of the parameter.
    shape: The shape of the parameter.
    smallest: Matrices with fewer rows or columns are not factored.

  Returns:
    Two groups of dimensions, or None. Dimensions in neither group enumerate
    matrices.
  """
  dims = _own_dims(name, len(shape))
  if len(dims) < 2:
    return None
  rows: Dims
  columns: Dims
  if len(dims) == 3 and re.search(r'(query|key|value)/kernel$', name):
    rows, columns = dims[:1], dims[1:]
  elif len(dims) == 3 and name.endswith('out/kernel'):
    rows, columns = dims[:2], dims[2:]
  else:
    second, first = sorted(dims, key=lambda i: (shape[i], i))[-2:]
    rows, columns = (min(first, second),), (max(first, second),)
  sizes = [math.prod(shape[i] for i in group) for group in (rows, columns)]
  return None if min(sizes) < smallest else (rows, columns)


def scale_by_factored_rms(
  decay_rate: float = 0.8,
  step_offset: int = 0,
  min_dim_size_to_factor: int = 128,
) -> optax.GradientTransformation:
  """Divides gradients by the root of their factored second moment.

  Shazeer and Stern 2018, algorithm 4: V is approximated by R C / mean(R), where
  R and C are moving means of squared gradients over columns and over rows, and
  the decay at update t is 1 - t^-decay_rate.

  Args:
    decay_rate: The exponent above.
    step_offset: Steps to subtract from t, for fine-tuning.
    min_dim_size_to_factor: See `factors`.
  """

  def init(params: PyTree) -> Moments:
    def empty(path: Any, x: jax.Array) -> tuple[jax.Array, ...]:
      found = factors(_name(path), x.shape, min_dim_size_to_factor)
      if found is None:
        return jnp.zeros(1), jnp.zeros(1), jnp.zeros(x.shape)
      rows, columns = found
      return (
        jnp.zeros(_reduced(x.shape, columns)),
        jnp.zeros(_reduced(x.shape, rows)),
        jnp.zeros(1),
      )

    return Moments(
      jnp.zeros((), jnp.int32), *_unzip(_map_named(empty, params), 3)
    )

  def update(
    gradients: PyTree, state: Moments, params: PyTree | None = None
  ) -> tuple[PyTree, Moments]:
    del params
    t = (state.count - step_offset + 1).astype(jnp.float32)
    decay = 1.0 - t**-decay_rate

    def moved(old: jax.Array, new: jax.Array) -> jax.Array:
      return decay * old + (1.0 - decay) * new

    def one(
      path: Any,
      g: jax.Array,
      row: jax.Array,
      column: jax.Array,
      full: jax.Array,
    ) -> tuple[jax.Array, ...]:
      found = factors(_name(path), g.shape, min_dim_size_to_factor)
      squared = jnp.square(g) + _EPSILON
      if found is None:
        full = moved(full, squared)
        return g * full**-0.5, row, column, full
      rows, columns = found
      row = moved(row, jnp.mean(squared, axis=columns, keepdims=True))
      column = moved(column, jnp.mean(squared, axis=rows, keepdims=True))
      relative = row / jnp.mean(row, axis=rows, keepdims=True)
      return g * relative**-0.5 * column**-0.5, row, column, full

    made = _map_named(one, gradients, state.rows, state.columns, state.full)
    updates, *moments = _unzip(made, 4)
    return updates, Moments(state.count + 1, *moments)

  return optax.GradientTransformation(init, update)


def clip_by_layer_rms(threshold: float) -> optax.GradientTransformation:
  """Scales a layer's update down to a root mean square of `threshold`."""

  def update(
    updates: PyTree, state: optax.EmptyState, params: PyTree | None = None
  ) -> tuple[PyTree, optax.EmptyState]:
    del params

    def one(path: Any, u: jax.Array) -> jax.Array:
      return u / jnp.maximum(1.0, _rms(_name(path), u) / threshold)

    return _map_named(one, updates), state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def scale_by_layer_rms() -> optax.GradientTransformation:
  """Multiplies by the root mean square of a layer's weights, at least 1e-3."""

  def update(
    updates: PyTree, state: optax.EmptyState, params: PyTree | None = None
  ) -> tuple[PyTree, optax.EmptyState]:
    def one(path: Any, u: jax.Array, p: jax.Array) -> jax.Array:
      return u * jnp.maximum(_rms(_name(path), p), _SMALLEST_SCALE)

    return _map_named(one, updates, params), state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _rms(name: str, x: jax.Array) -> jax.Array:
  """The root mean square of each layer, with broadcastable shape."""
  dims = _own_dims(name, x.ndim)
  return jnp.sqrt(jnp.mean(jnp.square(x), axis=dims, keepdims=True))


def _own_dims(name: str, rank: int) -> Dims:
  """All dimensions except the axis of stacked layers."""
  stacked = bool(_STACKED.search(name)) and rank > 1
  return tuple(i for i in range(rank) if not (stacked and i == _LAYER_AXIS))


def _reduced(shape: Sequence[int], dims: Dims) -> tuple[int, ...]:
  return tuple(1 if i in dims else size for i, size in enumerate(shape))


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def _map_named(
  function: Callable[..., Any], tree: PyTree, *rest: PyTree
) -> PyTree:
  return jax.tree_util.tree_map_with_path(function, tree, *rest)


def _unzip(tree: PyTree, count: int) -> list[PyTree]:
  """Turns a tree of `count`-tuples into `count` trees."""
  return [
    jax.tree.map(
      lambda leaf, i=i: leaf[i],
      tree,
      is_leaf=lambda leaf: type(leaf) is tuple,
    )
    for i in range(count)
  ]
