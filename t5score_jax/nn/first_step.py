"""The first step of a T5's decoder: a text -> the logits of a few pieces.

MetricX (Juraska et al. 2023, 2024) reads its score from the logit of one piece,
UniEval (Zhong et al. 2022) its answer from the logits of `Yes` and `No`. Both
decode one step from id 0 and need only these columns of the output matrix; no
other logit is computed. Not here: texts (`data/prompts.py`), losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from t5score_jax.nn import t5

Array = jax.Array
Params = Mapping[str, Any]

#: The name of the columns in a network loaded for its first step only.
COLUMNS = 'first_step'


def columns(params: Params, config: t5.T5Config, ids: Sequence[int]) -> Array:
  """Returns columns of the output matrix.

  Args:
    params: Parameters of the whole network, or of one loaded for its first step
      only, whose columns are returned.
    config: Its configuration.
    ids: The n pieces.

  Returns:
    float32 [emb_dim, n].
  """
  if COLUMNS in params:
    return params[COLUMNS]['kernel']
  index = jnp.asarray(ids)
  if config.logits_via_embedding:
    embedding = params['token_embedder']['embedding']
    return embedding[index].T * config.emb_dim**-0.5
  return params['decoder']['logits_dense']['kernel'][:, index]


def logits(
  params: Params,
  config: t5.T5Config,
  tokens: Array,
  ids: Sequence[int],
  rng: Array | None = None,
) -> Array:
  """Logits of some pieces as the first token of an output.

  Args:
    params: See `columns`.
    config: The configuration of the network.
    tokens: Int [batch, length], padded with 0.
    ids: The n pieces.
    rng: Key for dropout; None for none.

  Returns:
    float32 [batch, n].
  """
  # Hidden states do not depend on the output matrix; as tied, none is declared.
  tied = dataclasses.replace(config, logits_via_embedding=True)
  start = jnp.zeros((tokens.shape[0], 1), jnp.int32)
  hidden = t5.Transformer(tied, deterministic=rng is None).apply(
    {'params': params},
    tokens,
    start,
    rngs=None if rng is None else {'dropout': rng},
  )
  # [batch, 1, emb_dim] -> [batch, emb_dim]
  state = cast(Array, hidden)[:, 0]
  kernel = columns(params, config, ids)
  return jnp.dot(
    state, kernel.astype(state.dtype), preferred_element_type=jnp.float32
  )
