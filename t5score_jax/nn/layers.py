"""Building blocks of the T5 family: norm, projections, attention, MLP.

Parameter names, shapes and initialisers are T5X's, so that its checkpoints
load without renaming. Not here: how blocks are stacked (``nn/t5.py``) and where
arrays live on a mesh (``training/partitioning.py``); activations only carry
logical axis names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from t5score_jax.nn.axes import constrain, is_sharded

Array = jax.Array
Initializer = Callable[..., Array]

# Added to the logits of masked positions. Finite, so that a row that masks
# everything becomes a uniform distribution and not NaN.
MASKED = -1e10

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  'relu': nn.relu,
  'gelu': lambda x: nn.gelu(x, approximate=True),
  'silu': nn.silu,
  'linear': lambda x: x,
}


def relative_position_buckets(
  relative_position: Array,
  *,
  bidirectional: bool,
  num_buckets: int = 32,
  max_distance: int = 128,
) -> Array:
  """Maps key position minus query position to T5's buckets.

  Half of the buckets hold exact distances, the other half grow
  logarithmically up to ``max_distance`` (Raffel et al. 2020, section 2.1).

  Args:
    relative_position: int array of any shape.
    bidirectional: whether keys after the query have buckets of their own.
    num_buckets: number of buckets in all.
    max_distance: distance from which all share the last bucket.

  Returns:
    int32 array of the same shape, values in [0, num_buckets).
  """
  offset = jnp.zeros_like(relative_position)
  if bidirectional:
    num_buckets //= 2
    offset = jnp.where(relative_position > 0, num_buckets, 0)
    distance = jnp.abs(relative_position)
  else:
    distance = jnp.maximum(-relative_position, 0)
  max_exact = num_buckets // 2
  # The clip keeps log() off zero; those entries are replaced below anyway.
  ratio = jnp.log(
    jnp.maximum(distance, 1).astype(jnp.float32) / max_exact
  ) / math.log(max_distance / max_exact)
  far = max_exact + (ratio * (num_buckets - max_exact)).astype(jnp.int32)
  far = jnp.minimum(far, num_buckets - 1)
  return (offset + jnp.where(distance < max_exact, distance, far)).astype(
    jnp.int32
  )


class RelativePositionBias(nn.Module):
  """T5's learned bias per head and relative-position bucket.

  Keys after the query have buckets of their own where it is bidirectional.
  """

  num_heads: int
  bidirectional: bool
  num_buckets: int = 32
  max_distance: int = 128

  @nn.compact
  def __call__(
    self, query_length: int, key_length: int, start: Array | int = 0
  ) -> Array:
    """Returns float32 [1, heads, query_length, key_length].

    Keys have the positions 0, 1, ..., queries ``start``, ``start`` + 1, ...
    """
    rel_embedding = self.param(
      'rel_embedding',
      nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform'),
      (self.num_heads, self.num_buckets),
      jnp.float32,
    )
    positions = (
      jnp.arange(key_length, dtype=jnp.int32)[None, :]
      - jnp.arange(query_length, dtype=jnp.int32)[:, None]
      - start
    )
    buckets = relative_position_buckets(
      positions,
      bidirectional=self.bidirectional,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )
    # [heads, buckets] -> [1, heads, query_length, key_length]
    return jnp.take(rel_embedding, buckets, axis=1)[None]


class RMSNorm(nn.Module):
  """Layer normalisation without mean and bias, computed in float32."""

  epsilon: float = 1e-6
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[..., features] -> the same shape, in ``dtype``."""
    scale = self.param(
      'scale', nn.initializers.ones, (x.shape[-1],), jnp.float32
    )
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(lax.square(x), axis=-1, keepdims=True)
    return (x * lax.rsqrt(mean_square + self.epsilon) * scale).astype(
      self.dtype
    )


class Projection(nn.Module):
  """A linear map without bias: [..., in] -> [..., out].

  The kernel is stored with ``kernel_shape``, which may keep heads and head
  dimension apart (T5X's scanned models do), and is used as [in, out] with the
  logical ``axes``. These leave 'embed' whole: where parameters are split over
  the data axis as well, a kernel is put together for its layer alone, in
  ``dtype``.
  """

  kernel_shape: tuple[int, ...]
  in_features: int
  kernel_init: Initializer
  axes: tuple[str | None, str | None]
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[..., in_features] -> [..., out], in ``dtype``."""
    kernel = self.param(
      'kernel', self.kernel_init, self.kernel_shape, jnp.float32
    )
    kernel = kernel.reshape(self.in_features, -1).astype(self.dtype)
    kernel = constrain(kernel, self.axes)
    return jnp.dot(x.astype(self.dtype), kernel)


def _flattened(init: Initializer, in_features: int) -> Initializer:
  """Initialises as the [in, out] matrix whatever the stored shape."""

  def initialise(
    key: Array, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
  ) -> Array:
    matrix = (in_features, math.prod(shape) // in_features)
    return init(key, matrix, dtype).reshape(tuple(shape))

  return initialise


class Attention(nn.Module):
  """Multi-head attention as in T5: no bias, no scaling of the logits.

  The 1/sqrt(head_dim) of other Transformers is folded into the query
  initialiser. Keys and values may come from fewer rows than the queries: with
  ``k`` times as many query rows, rows ``b*k .. b*k + k - 1`` all attend to
  row ``b``, whose keys and values are computed once. That is exact because a
  cross-attention has neither position bias nor causal mask.

  For decoding token by token (`nn/decoding.py`), keys and values are kept:
  those of the inputs in the collection 'cross_cache', which is only read, those
  of the tokens so far in the collection 'cache', as 'key' and 'value' [rows,
  key_length, heads, head_dim].
  """

  num_heads: int
  head_dim: int
  dropout_rate: float = 0.0
  dtype: jnp.dtype = jnp.float32
  split_heads: bool = False

  @nn.compact
  def __call__(
    self,
    inputs_q: Array,
    inputs_kv: Array | None,
    bias: Array,
    *,
    deterministic: bool,
    position: Array | None = None,
  ) -> Array:
    """Attends.

    Args:
      inputs_q: [rows * k, query_length, emb_dim].
      inputs_kv: [rows, key_length, emb_dim]; None: attends to 'cross_cache'.
      bias: float32, broadcast against [rows, heads, query_length, key_length];
        masks are large negative entries of it.
      deterministic: no dropout.
      position: int scalar. The keys and values of ``inputs_kv`` take their
        places from there on in 'cache', and the queries attend to all of it.

    Returns:
      [rows * k, query_length, emb_dim].
    """
    emb_dim = inputs_q.shape[-1]
    joined = self.num_heads * self.head_dim
    heads = (self.num_heads, self.head_dim)
    inner = heads if self.split_heads else (joined,)
    normal: Initializer = nn.initializers.variance_scaling(
      1.0, 'fan_in', 'normal'
    )

    def scaled(*args: object) -> Array:
      return normal(*args) / math.sqrt(self.head_dim)

    def project(name: str, x: Array, init: Initializer) -> Array:
      layer = Projection(
        (emb_dim, *inner),
        emb_dim,
        _flattened(init, emb_dim),
        (None, 'joined_kv'),
        self.dtype,
        name=name,
      )
      return layer(x)

    def remembered(name: str) -> Array:
      # [rows, key_length, heads, head_dim]
      if inputs_kv is None:
        return self.get_variable('cross_cache', name)
      new = project(name, inputs_kv, normal)
      new = new.reshape(*inputs_kv.shape[:2], *heads)
      if position is None:
        return new
      whole = lax.dynamic_update_slice_in_dim(
        self.get_variable('cache', name), new, position, axis=1
      )
      self.put_variable('cache', name, whole)
      return whole

    query_rows, query_length = inputs_q.shape[:2]
    query = project('query', inputs_q, scaled)
    key, value = remembered('key'), remembered('value')
    # [rows * k, query_length, emb] -> [rows, k * query_length, heads, head_dim]
    query = query.reshape(key.shape[0], -1, *heads)
    query, key, value = (
      constrain(x, ('batch', 'length', 'heads', 'kv'))
      for x in (query, key, value)
    )
    # -> [rows, heads, queries, key_length]
    logits = jnp.einsum(
      'bqhd,bkhd->bhqk', query, key, preferred_element_type=jnp.float32
    )
    weights = jax.nn.softmax(logits + bias, axis=-1).astype(self.dtype)
    # One mask for all queries of a head, as in T5X: cheaper, no less regular.
    weights = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      weights, deterministic=deterministic
    )
    # -> [rows * k, query_length, heads * head_dim]
    x = jnp.einsum('bhqk,bkhd->bqhd', weights, value)
    x = x.reshape(query_rows, query_length, joined)
    out = Projection(
      (*inner, emb_dim),
      joined,
      _flattened(normal, joined),
      ('joined_kv', None),
      self.dtype,
      name='out',
    )
    return out(x)


class MLP(nn.Module):
  """Feed-forward block; several activations make it gated.

  ``('relu',)`` is T5 1.0, ``('gelu', 'linear')`` is T5 1.1, mT5 and ByT5:
  the product of gelu(x wi_0) and x wi_1, then wo.
  """

  mlp_dim: int
  activations: tuple[str, ...] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array, *, deterministic: bool) -> Array:
    """[batch, length, emb_dim] -> the same shape."""
    emb_dim = x.shape[-1]
    init = nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal')
    hidden = None
    for i, activation in enumerate(self.activations):
      name = 'wi' if len(self.activations) == 1 else f'wi_{i}'
      branch = Projection(
        (emb_dim, self.mlp_dim),
        emb_dim,
        init,
        (None, 'mlp'),
        self.dtype,
        name=name,
      )(x)
      branch = _ACTIVATIONS[activation](branch)
      hidden = branch if hidden is None else hidden * branch
    hidden = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      hidden, deterministic=deterministic
    )
    hidden = constrain(hidden, ('batch', 'length', 'mlp'))
    return Projection(
      (self.mlp_dim, emb_dim),
      self.mlp_dim,
      init,
      ('mlp', None),
      self.dtype,
      name='wo',
    )(hidden)


class Embedding(nn.Module):
  """Token embeddings, read by gather.

  T5X multiplies by a one-hot matrix instead, which only pays on older TPUs
  and costs ten times the time on a CPU.
  """

  vocab_size: int
  emb_dim: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, tokens: Array) -> Array:
    """Int [...] in [0, vocab_size) -> [..., emb_dim], in ``dtype``."""
    embedding = self.param(
      'embedding',
      nn.initializers.normal(1.0),
      (self.vocab_size, self.emb_dim),
      jnp.float32,
    )
    x = jnp.take(embedding, tokens, axis=0).astype(self.dtype)
    if tokens.size <= self.vocab_size and is_sharded('logits'):
      # Whole on every device of a mesh, as it comes from a divided vocabulary
      # anyway. In the backward pass the few rows are gathered instead of
      # reducing a gradient of the vocabulary's size.
      x = constrain(x, (None,) * x.ndim)
    return x
