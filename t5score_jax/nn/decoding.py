"""Incremental decoding with T5: one token at a time, with a KV cache.

`start` computes the keys and values of the inputs and allocates the token
cache; `step` decodes one token. Not here: teacher forcing (`nn/t5.py`) and the
choice of the next token (`inference/search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t5score_jax.nn import t5

Array = jax.Array
Tree = Any


class KVCache(NamedTuple):
  """Keys and values, by attention layer.

  Attributes:
    inputs: Those of the inputs, leaves [batch, input_length, heads, head_dim].
    tokens: Those of the tokens so far, leaves [batch * k, most, heads,
      head_dim].

  With scanned layers, leaves are stacked on a new first axis.
  """

  inputs: Tree
  tokens: Tree


def start(
  params: t5.Params, config: t5.T5Config, encoded: Array, rows: int, most: int
) -> KVCache:
  """Creates the initial KV cache.

  Args:
    params: Parameters of the network.
    config: Its configuration.
    encoded: [batch, input_length, emb_dim], from `Transformer.encode`.
    rows: batch * k sequences; rows b*k .. b*k + k - 1 belong to encoded row b.
    most: Maximum number of tokens of a sequence.

  Returns:
    The keys and values of the inputs, and zeros for those of the tokens.
  """
  heads = (config.num_heads, config.head_dim)
  batch, length, emb_dim = encoded.shape
  inputs, tokens = {}, {}
  for path, kernel in flatten_dict(_mapping(params['decoder'])).items():
    names = ('', '', *path)
    layer, attention, name = names[:-3], names[-3], names[-2]
    at = ('decoder', *layer[2:], attention, name)
    if name not in ('key', 'value'):
      continue
    if attention == 'self_attention':
      depth = (kernel.shape[1],) if config.scan_layers else ()
      shape = (*depth, rows, most, *heads)
      tokens[at] = jnp.zeros(shape, config.array_dtype)
      continue
    # [emb_dim, joined], or scanned [emb_dim, layers, heads, head_dim]
    kernel = kernel.reshape(emb_dim, -1).astype(config.array_dtype)
    projected = jnp.dot(encoded.astype(config.array_dtype), kernel)
    projected = projected.reshape(batch, length, -1, *heads)
    projected = jnp.moveaxis(projected, 2, 0)
    inputs[at] = projected if config.scan_layers else projected[0]
  return KVCache(unflatten_dict(inputs), unflatten_dict(tokens))


def step(
  params: t5.Params,
  config: t5.T5Config,
  cache: KVCache,
  encoder_tokens: Array,
  tokens: Array,
  position: Array,
) -> tuple[Array, KVCache]:
  """Decodes one token of each sequence.

  Args:
    params: Parameters of the network.
    config: Its configuration.
    cache: From `start` or the previous step.
    encoder_tokens: Int [batch, input_length], to mask its padding.
    tokens: Int [batch * k], the decoder's inputs at this position: 0 at the
      first, then the tokens of the target.
    position: Int scalar, counted from 0, the same for all sequences.

  Returns:
    Logits float32 [batch * k, vocab_size] of the next token, and the cache
    with the keys and values of this token.
  """
  axis = 2 if config.scan_layers else 1
  hidden, changed = t5.Transformer(config).apply(
    {'params': params, 'cross_cache': cache.inputs, 'cache': cache.tokens},
    encoder_tokens,
    tokens,
    position,
    jax.tree.leaves(cache.tokens)[0].shape[axis],
    method='decode_step',
    mutable=['cache'],
  )
  kernel = t5.output_kernel(params, config).astype(config.array_dtype)
  logits = jnp.dot(
    cast(Array, hidden), kernel, preferred_element_type=jnp.float32
  )
  return logits, cache._replace(tokens=changed['cache'])


def reorder(cache: KVCache, config: t5.T5Config, origin: Array) -> KVCache:
  """Reorders the sequences of each input, as beam search needs.

  Args:
    cache: From `step`.
    config: The configuration of the network.
    origin: Int [batch, k]: sequence j of input b continues its sequence
      `origin[b, j]`.

  Returns:
    The cache with its rows reordered.
  """
  axis = 1 if config.scan_layers else 0

  def one(x: Array) -> Array:
    # [..., batch * k, length, heads, head_dim]
    apart = x.reshape(*x.shape[:axis], *origin.shape, *x.shape[axis + 1 :])
    index = origin.reshape(*[1] * axis, *origin.shape, 1, 1, 1)
    return jnp.take_along_axis(apart, index, axis + 1).reshape(x.shape)

  return cache._replace(tokens=jax.tree.map(one, cache.tokens))


def _mapping(tree: Mapping[str, Any]) -> dict[str, Any]:
  return {
    key: _mapping(value) if isinstance(value, Mapping) else value
    for key, value in tree.items()
  }
