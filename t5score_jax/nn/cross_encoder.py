"""A cross-encoder: two texts as one sequence -> one number (FrugalScore).

An encoder of the BERT family reads hypothesis and reference together. The first
token's last hidden state goes through a tanh layer and a linear layer (Kamal
Eddine et al. 2022, section 3), as in Hugging Face's sequence classification.
Not here: the encoder (`nn/bert.py`), losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.nn import bert

Array = jax.Array
Params = Mapping[str, Any]


def predict(
  params: Params,
  config: bert.BertConfig,
  tokens: Array,
  token_types: Array,
  rng: Array | None = None,
) -> Array:
  """Scores pairs of texts.

  Args:
    params: 'encoder', 'pooler' and 'output'.
    config: The configuration of the encoder.
    tokens: Int [batch, length], both texts with special tokens.
    token_types: Int [batch, length], 0 in the first text and 1 in the second.
    rng: Key for dropout; None for none.

  Returns:
    float32 [batch].
  """
  encoder_rng = head_rng = None
  if rng is not None:
    encoder_rng, head_rng = jax.random.split(rng)
  # Only the first token of the last layer is used; no other is computed.
  states = bert.hidden_states(
    params['encoder'], config, tokens, token_types, rng=encoder_rng, rows=1
  )
  # [1, batch, 1, emb_dim] -> [batch, emb_dim]
  first = states[-1, :, 0].astype(jnp.float32)
  x = jnp.tanh(_linear(params['pooler'], first))
  if head_rng is not None and config.dropout_rate:
    keep = jax.random.bernoulli(head_rng, 1.0 - config.dropout_rate, x.shape)
    x = jnp.where(keep, x / (1.0 - config.dropout_rate), 0.0)
  return _linear(params['output'], x)[:, 0]


def _linear(params: Params, x: Array) -> Array:
  return jnp.dot(x, params['kernel']) + params['bias']


def init_params(
  config: bert.BertConfig, rng: Array, encoder: Params | None = None
) -> Params:
  """Random parameters; those of the encoder may be passed."""
  encoder_rng, pooler_rng, output_rng = jax.random.split(rng, 3)
  if encoder is None:
    encoder = bert.init_params(config, encoder_rng)

  def linear(key: Array, outer: int) -> dict[str, Array]:
    shape = (config.emb_dim, outer)
    return {
      'kernel': 0.02 * jax.random.normal(key, shape, jnp.float32),
      'bias': jnp.zeros((outer,), jnp.float32),
    }

  return {
    'encoder': encoder,
    'pooler': linear(pooler_rng, config.emb_dim),
    'output': linear(output_rng, 1),
  }


def logical_axes(params: Params) -> Params:
  """Names every axis of every parameter."""
  return {
    'encoder': bert.logical_axes(params['encoder']),
    'pooler': {'kernel': ('embed', 'joined_kv'), 'bias': ('joined_kv',)},
    'output': {'kernel': ('embed', 'one'), 'bias': ('one',)},
  }
