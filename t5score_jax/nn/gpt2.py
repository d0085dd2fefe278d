"""GPT-2: a causal language model with BERT's layers, pre-norm.

A layer is `bert.Layer` with a causal mask. Positions are learned, and the word
embedding is also the output matrix. Not here: training, which tokens of a text
are scored (`crosslingual/language_model.py`), and weight loading
(`checkpoints/formats/huggingface/gpt2.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5score_jax.errors import OptionError
from t5score_jax.nn import bert
from t5score_jax.nn.layers import MASKED

Array = jax.Array
Params = Mapping[str, Any]

#: Padding at the end of texts. GPT-2's vocabulary has no id for it.
PAD_ID = -1

# Every parameter has the name of an encoder's parameter.
logical_axes = bert.logical_axes


@dataclasses.dataclass(frozen=True)
class GPT2Config(bert.BertConfig):
  """Shape and arithmetic of GPT-2: the fields of `BertConfig` and one more.

  Attributes:
    begin_id: Id of the token before a text, GPT-2's `<|endoftext|>`; None if
      the vocabulary has none.
  """

  emb_dim: int = 768
  num_layers: int = 12
  mlp_dim: int = 3072
  max_positions: int = 1024
  type_vocab_size: int = 0
  pad_id: int = PAD_ID
  activation: str = 'gelu_new'
  norm_epsilon: float = 1e-5
  pre_norm: bool = True
  begin_id: int | None = None


class Decoder(nn.Module):
  """Tokens -> the hidden states from which the next tokens are predicted."""

  config: GPT2Config

  @nn.compact
  def __call__(self, tokens: Array) -> Array:
    """Runs the network on texts that are padded at the end.

    Args:
      tokens: Int [batch, length], `PAD_ID` at padding; length is at most
        `config.max_length`.

    Returns:
      [batch, length, emb_dim] in the configuration's dtype; undefined at
      padding.

    Raises:
      OptionError: The text is too long.
    """
    c = self.config
    length = tokens.shape[1]
    if length > c.max_length:
      raise OptionError(
        f'{length} tokens, but the model has {c.max_length} positions'
      )
    x = Embeddings(c, name='embeddings')(tokens)
    # Padding comes last, so no token of a text attends to it.
    # [1, 1, length, length]
    mask = jnp.where(jnp.tri(length, dtype=bool), 0.0, MASKED)[None, None]
    for i in range(c.num_layers):
      x = bert.Layer(c, name=f'layers_{i}')(x, mask)
    norm = nn.LayerNorm(
      c.norm_epsilon,
      dtype=c.array_dtype,
      use_fast_variance=False,
      name='final_norm',
    )
    return cast(Array, norm(x))


class Embeddings(nn.Module):
  """The sum of word and position embeddings."""

  config: GPT2Config

  @nn.compact
  def __call__(self, tokens: Array) -> Array:
    """Int [batch, length] -> [batch, length, emb_dim]."""
    c = self.config

    def table(name: str, rows: int) -> Array:
      return self.param(
        name, nn.initializers.normal(0.02), (rows, c.emb_dim), jnp.float32
      )

    words = jnp.take(
      table('word', c.vocab_size), jnp.maximum(tokens, 0), axis=0
    )
    positions = table('position', c.max_positions)[: tokens.shape[1]]
    return (words + positions).astype(c.array_dtype)


def init_params(config: GPT2Config, rng: Array) -> Params:
  """Random parameters, a nested dict, float32."""
  return Decoder(config).init(rng, jnp.zeros((1, 2), jnp.int32))['params']


def hidden_states(params: Params, config: GPT2Config, tokens: Array) -> Array:
  """Runs the network; see `Decoder.__call__`.

  Args:
    params: Parameters of the network.
    config: Its configuration.
    tokens: Int [batch, length].
  """
  return cast(Array, Decoder(config).apply({'params': params}, tokens))


def output_kernel(params: Params) -> Array:
  """The matrix that maps hidden states to logits, [emb_dim, vocab_size].

  `models/losses.token_log_probs` applies it without holding all logits.
  """
  return cast(Array, params['embeddings']['word']).T
