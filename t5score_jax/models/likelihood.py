"""Log-probabilities of targets under a T5 network, equation 1 of T5Score.

`inference/scoring.py` compiles `encode` and `target_log_probs`. Not here:
training objectives (`models/t5score.py`), decoding (`nn/decoding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from t5score_jax.models import losses
from t5score_jax.nn import t5, t5_axes

Array = jax.Array
Params = Mapping[str, Any]

EOS_ID = 1

#: Names the axes of the parameters.
logical_axes = t5_axes.logical_axes


def shift_right(tokens: Array) -> Array:
  """Makes decoder inputs: targets shifted right, with a leading 0."""
  widths = [(0, 0)] * (tokens.ndim - 1) + [(1, 0)]
  return jnp.pad(tokens, widths)[..., :-1]


def token_weights(tokens: Array) -> Array:
  """Returns float32, 0 at padding, else 1."""
  return (tokens > 0).astype(jnp.float32)


def encode(params: Params, config: t5.T5Config, tokens: Array) -> Array:
  """Encodes texts once, for any number of targets.

  Args:
    params: Parameters of the network.
    config: Its configuration.
    tokens: Int [rows, length], ending in `</s>`, padded with 0.

  Returns:
    [rows, length, emb_dim] in `config.dtype`.
  """
  encoded = t5.Transformer(config).apply(
    {'params': params}, tokens, method='encode'
  )
  return cast(Array, encoded)


def target_states(
  params: Params,
  config: t5.T5Config,
  encoded: Array,
  encoder_tokens: Array,
  rows: Array,
  target_tokens: Array,
) -> Array:
  """Hidden states [batch, target_length, emb_dim] before each target token.

  The arguments are those of `target_log_probs`.
  """
  hidden = t5.Transformer(config).apply(
    {'params': params},
    encoded[rows],
    encoder_tokens[rows],
    shift_right(target_tokens),
    method='decode',
  )
  return cast(Array, hidden)


def log_probs(
  params: Params, config: t5.T5Config, states: Array, tokens: Array
) -> Array:
  """Log p(token) float32 [...] from hidden states [..., emb_dim].

  Args:
    params: Parameters of the network.
    config: Its configuration.
    states: For tokens [n, emb_dim], or for padded texts [batch, length,
      emb_dim].
    tokens: Int, of the same shape without the last dimension.
  """
  kernel = t5.output_kernel(params, config)
  if tokens.ndim == 2:
    return losses.token_log_probs(states, kernel, tokens, token_weights(tokens))
  return losses.token_log_probs(states[None], kernel, tokens[None])[0]


def target_log_probs(
  params: Params,
  config: t5.T5Config,
  encoded: Array,
  encoder_tokens: Array,
  rows: Array,
  target_tokens: Array,
) -> Array:
  """Log p(token | earlier tokens, input) of each target token, equation 1.

  Args:
    params: Parameters of the network.
    config: Its configuration.
    encoded: [inputs, input_length, emb_dim], from `encode`.
    encoder_tokens: Int [inputs, input_length].
    rows: Int [batch], index of the input of each target.
    target_tokens: Int [batch, target_length], ending in `</s>`.

  Returns:
    float32 [batch, target_length], 0 on padding.
  """
  states = target_states(
    params, config, encoded, encoder_tokens, rows, target_tokens
  )
  return log_probs(params, config, states, target_tokens)
