"""Building blocks of the T5 family: projections, attention, MLP, embedding.

Parameter names, shapes and initializers are T5X's, so its checkpoints load
without renaming. Arrays only name their logical axes; `nn/axes.py` maps these
to a mesh. Not here: how blocks are stacked (`nn/t5.py`).
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

# Added to the logits of masked positions. Finite, so that a fully masked row
# becomes a uniform distribution instead of NaN.
MASKED = -1e10

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
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

  Half of the buckets hold exact distances; the width of the other half grows
  logarithmically up to `max_distance` (Raffel et al. 2020, section 2.1).

  Args:
    relative_position: Int array of any shape.
    bidirectional: Whether keys after the query have buckets of their own.
    num_buckets: Total number of buckets.
    max_distance: Distance from which all keys share the last bucket.

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
  """T5's learned bias per head and bucket of relative positions."""

  num_heads: int
  bidirectional: bool
  num_buckets: int = 32
  max_distance: int = 128

  @nn.compact
  def __call__(
    self, query_length: int, key_length: int, start: Array | int = 0
  ) -> Array:
    """Returns float32 [1, heads, query_length, key_length].

    Keys have positions 0, 1, ..., queries `start`, `start` + 1, ...
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


class Projection(nn.Module):
  """A linear layer without bias: [..., in] -> [..., out].

  `flax.linen.Dense` does not fit: T5X's scanned models store heads and head
  dimension as two axes of the kernel (`kernel_shape`), which is used as an [in,
  out] matrix with the logical `axes`. These do not name 'embed': if parameters
  are sharded over the data axis, the kernel of one layer at a time is gathered,
  in `dtype`.
  """

  kernel_shape: tuple[int, ...]
  in_features: int
  kernel_init: Initializer
  axes: tuple[str | None, str | None]
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[..., in_features] -> [..., out], in `dtype`."""
    kernel = self.param(
      'kernel', self.kernel_init, self.kernel_shape, jnp.float32
    )
    kernel = kernel.reshape(self.in_features, -1).astype(self.dtype)
    kernel = constrain(kernel, self.axes)
    return jnp.dot(x.astype(self.dtype), kernel)


def _flattened(init: Initializer, in_features: int) -> Initializer:
  """Initializes the [in, out] matrix, then reshapes it to the stored shape."""

  def initialize(
    key: Array, shape: Sequence[int], dtype: jnp.dtype = jnp.float32
  ) -> Array:
    matrix = (in_features, math.prod(shape) // in_features)
    return init(key, matrix, dtype).reshape(tuple(shape))

  return initialize


def query_key_products(query: Array, key: Array) -> Array:
  """Products of queries and keys, float32 [batch, heads, queries, keys].

  Heads come first. If the batch axes are elsewhere, XLA on a CPU computes the
  product in plain loops, together with the softmax after it, which takes three
  to four times as long.

  Args:
    query: [batch, queries, heads, head_dim].
    key: [batch, keys, heads, head_dim].
  """
  if query.shape[1] == 1:
    # One step of decoding: copying all keys would cost more.
    axes = 'bqhd,bkhd->bhqk'
  else:
    query, key = (jnp.swapaxes(x, 1, 2) for x in (query, key))
    axes = 'bhqd,bhkd->bhqk'
  return jnp.einsum(axes, query, key, preferred_element_type=jnp.float32)


def weighted_values(weights: Array, value: Array) -> Array:
  """Sums values by weights; see `query_key_products`.

  Args:
    weights: [batch, heads, queries, keys].
    value: [batch, keys, heads, head_dim].

  Returns:
    [batch, queries, heads, head_dim].
  """
  if weights.shape[2] == 1:
    return jnp.einsum('bhqk,bkhd->bqhd', weights, value)
  summed = jnp.einsum('bhqk,bhkd->bhqd', weights, jnp.swapaxes(value, 1, 2))
  return jnp.swapaxes(summed, 1, 2)


class Attention(nn.Module):
  """Multi-head attention as in T5: no bias, no scaling of the logits.

  The 1/sqrt(head_dim) of other Transformers is folded into the initializer of
  the query. Keys and values may have fewer rows than queries: with `k` times as
  many query rows, rows `b*k .. b*k + k - 1` attend to row `b`, whose keys and
  values are computed once. This is exact because cross-attention has neither a
  position bias nor a causal mask.

  Incremental decoding (`nn/decoding.py`) caches keys and values. Those of the
  inputs are in the read-only collection 'cross_cache', those of the tokens so
  far in the collection 'cache', both as 'key' and 'value' [rows, key_length,
  heads, head_dim].
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
      inputs_kv: [rows, key_length, emb_dim]; None to attend to 'cross_cache'.
      bias: Float32, broadcast against [rows, heads, query_length, key_length];
        masked entries are large negative numbers.
      deterministic: Whether dropout is off.
      position: Int scalar. The keys and values of `inputs_kv` are written to
        'cache' from this position on; the queries attend to the whole cache.

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

    def key_or_value(name: str) -> Array:
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
    key, value = key_or_value('key'), key_or_value('value')
    # [rows * k, query_length, emb] -> [rows, k * query_length, heads, head_dim]
    query = query.reshape(key.shape[0], -1, *heads)
    query, key, value = (
      constrain(x, ('batch', 'length', 'heads', 'kv'))
      for x in (query, key, value)
    )
    # -> [rows, heads, queries, key_length]
    logits = query_key_products(query, key)
    weights = jax.nn.softmax(logits + bias, axis=-1).astype(self.dtype)
    # One mask for all queries of a head, as in T5X: cheaper, same effect.
    weights = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
      weights, deterministic=deterministic
    )
    # -> [rows * k, query_length, heads * head_dim]
    x = weighted_values(weights, value)
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
  """Feed-forward block, gated if there are several activations.

  `('relu',)` is T5 1.0. `('gelu', 'linear')` is T5 1.1, mT5 and ByT5:
  (gelu(x wi_0) * (x wi_1)) wo.
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
      branch = ACTIVATIONS[activation](branch)
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
  """Token embeddings, looked up by a gather.

  T5X multiplies by a one-hot matrix instead, which pays only on older TPUs and
  takes ten times as long on a CPU.
  """

  vocab_size: int
  emb_dim: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, tokens: Array) -> Array:
    """Int [...] in [0, vocab_size) -> [..., emb_dim], in `dtype`."""
    embedding = self.param(
      'embedding',
      nn.initializers.normal(1.0),
      (self.vocab_size, self.emb_dim),
      jnp.float32,
    )
    x = jnp.take(embedding, tokens, axis=0).astype(self.dtype)
    if tokens.size <= self.vocab_size and is_sharded('logits'):
      # Replicated: it comes from a sharded vocabulary anyway. The backward
      # pass then gathers these few rows instead of reducing a gradient of the
      # size of the vocabulary.
      x = constrain(x, (None,) * x.ndim)
    return x
