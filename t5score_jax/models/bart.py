"""Log-probabilities of targets under BART; the counterpart of `likelihood.py`.

`inference/scoring.py` compiles these functions for BARTScore (Yuan et al.
2021). Not here: training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from t5score_jax.models import losses
from t5score_jax.models.likelihood import token_weights
from t5score_jax.nn import bart

Array = jax.Array
Params = Mapping[str, Any]

#: Names the axes of the parameters.
logical_axes = bart.logical_axes


def encode(params: Params, config: bart.BartConfig, tokens: Array) -> Array:
  """Encodes texts once; see `likelihood.encode`."""
  encoded = bart.Bart(config).apply({'params': params}, tokens, method='encode')
  return cast(Array, encoded)


def target_states(
  params: Params,
  config: bart.BartConfig,
  encoded: Array,
  encoder_tokens: Array,
  rows: Array,
  target_tokens: Array,
) -> Array:
  """Hidden states before each target token; see `likelihood.target_states`.

  The first token of a target, the begin-of-text token, has one too.
  """
  start = jnp.full((target_tokens.shape[0], 1), config.start_id, jnp.int32)
  inputs = jnp.concatenate([start, target_tokens[:, :-1]], axis=1)
  hidden = bart.Bart(config).apply(
    {'params': params},
    encoded[rows],
    encoder_tokens[rows],
    inputs,
    method='decode',
  )
  return cast(Array, hidden)


def log_probs(
  params: Params, config: bart.BartConfig, states: Array, tokens: Array
) -> Array:
  """Log p(token) from hidden states; see `likelihood.log_probs`."""
  del config
  kernel = params['embeddings']['word'].T
  if tokens.ndim == 2:
    return losses.token_log_probs(states, kernel, tokens, token_weights(tokens))
  return losses.token_log_probs(states[None], kernel, tokens[None])[0]


def target_log_probs(
  params: Params,
  config: bart.BartConfig,
  encoded: Array,
  encoder_tokens: Array,
  rows: Array,
  target_tokens: Array,
) -> Array:
  """Log p(token | earlier tokens, input); see `likelihood.target_log_probs`."""
  states = target_states(
    params, config, encoded, encoder_tokens, rows, target_tokens
  )
  return log_probs(params, config, states, target_tokens)
