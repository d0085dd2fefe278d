"""BART: an encoder and a decoder of BERT's layers (Lewis et al. 2020).

Layers are post-norm, positions are learned, and encoder, decoder and logits
share one embedding. Padding has id 0 here, as everywhere outside the encoders;
the checkpoint reader swaps it with the begin-of-text id
(`checkpoints/formats/huggingface/bart.py`). Not here: likelihoods
(`models/bart.py`).
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
from t5score_jax.nn.axes import constrain
from t5score_jax.nn.layers import MASKED, query_key_products, weighted_values

Array = jax.Array
Params = Mapping[str, Any]

# Every parameter's name ends like one of an encoder.
logical_axes = bert.logical_axes


@dataclasses.dataclass(frozen=True)
class BartConfig(bert.BertConfig):
  """Shape and arithmetic of BART: the fields of `BertConfig` and these.

  Attributes:
    num_decoder_layers: Depth of the decoder; `num_layers` is the encoder's.
    start_id: The decoder's input before the first token of a target.
    scaled_embedding: Whether embeddings are multiplied by sqrt(emb_dim).
  """

  emb_dim: int = 1024
  num_heads: int = 16
  mlp_dim: int = 4096
  num_layers: int = 12
  max_positions: int = 1026
  position_offset: int = 2
  type_vocab_size: int = 0
  norm_epsilon: float = 1e-5
  num_decoder_layers: int = 12
  start_id: int = 2
  scaled_embedding: bool = False

  # The parts of a T5 configuration that `inference/scoring.py` reads.
  @property
  def num_encoder_layers(self) -> int:
    """Depth of the encoder."""
    return self.num_layers

  @property
  def head_dim(self) -> int:
    """Width of a head."""
    return self.emb_dim // self.num_heads

  @property
  def mlp_activations(self) -> tuple[str, ...]:
    """The activation of the feed-forward blocks, which have no gate."""
    return (self.activation,)

  @property
  def scan_layers(self) -> bool:
    """Whether layers are scanned."""
    return False


class CrossAttention(nn.Module):
  """Cross-attention from the decoder's tokens to the encoder's states."""

  config: BartConfig

  @nn.compact
  def __call__(self, x: Array, encoded: Array, mask: Array) -> Array:
    """[batch, length, emb_dim], [batch, input_length, emb_dim] -> the first."""
    c = self.config

    def project(name: str, x: Array) -> Array:
      y = bert.dense(c, c.emb_dim, name)(x)
      y = y.reshape(*x.shape[:2], c.num_heads, c.head_dim)
      return constrain(y, ('batch', 'length', 'heads', 'kv'))

    logits = query_key_products(project('query', x), project('key', encoded))
    weights = nn.softmax(logits * c.head_dim**-0.5 + mask, axis=-1)
    y = weighted_values(
      weights.astype(c.array_dtype), project('value', encoded)
    )
    return cast(Array, bert.dense(c, c.emb_dim, 'out')(y.reshape(x.shape)))


class DecoderLayer(nn.Module):
  """Causal self-attention, cross-attention and MLP, each followed by a norm."""

  config: BartConfig

  @nn.compact
  def __call__(
    self, x: Array, causal: Array, encoded: Array, mask: Array
  ) -> Array:
    """[batch, length, emb_dim] -> the same shape; masks are additive."""
    c = self.config
    y = bert.SelfAttention(c, name='attention')(x, causal)
    x = bert.norm(c, 'attention_norm')(x + y)
    y = CrossAttention(c, name='cross_attention')(x, encoded, mask)
    x = bert.norm(c, 'cross_attention_norm')(x + y)
    y = bert.dense(c, c.mlp_dim, 'wi')(x)
    y = constrain(bert.ACTIVATIONS[c.activation](y), ('batch', 'length', 'mlp'))
    y = bert.dense(c, c.emb_dim, 'wo')(y)
    return cast(Array, bert.norm(c, 'mlp_norm')(x + y))


class Bart(nn.Module):
  """The network; `encode` and `decode` as in `nn/t5.py`."""

  config: BartConfig

  def setup(self) -> None:
    """Makes the submodules."""
    c = self.config
    self.embeddings = Table('word', (c.vocab_size, c.emb_dim))
    self.encoder = Side(c, 'encoder')
    self.decoder = Side(c, 'decoder')

  def encode(self, tokens: Array) -> Array:
    """Encodes: int [batch, length] -> [batch, length, emb_dim]."""
    return self.encoder(self._embed(tokens), _padding(tokens))

  def decode(self, encoded: Array, tokens: Array, inputs: Array) -> Array:
    """Decodes with teacher forcing, up to the hidden states.

    Args:
      encoded: [batch, input_length, emb_dim], from `encode`.
      tokens: Int [batch, input_length], to mask its padding.
      inputs: Int [batch, length], targets shifted right.

    Returns:
      [batch, length, emb_dim].
    """
    return self.decoder(self._embed(inputs), _padding(tokens), encoded)

  def __call__(self, tokens: Array, inputs: Array) -> Array:
    """Encodes and decodes."""
    return self.decode(self.encode(tokens), tokens, inputs)

  def _embed(self, tokens: Array) -> Array:
    c = self.config
    x = jnp.take(self.embeddings(), tokens, axis=0)
    return x * c.emb_dim**0.5 if c.scaled_embedding else x


class Table(nn.Module):
  """A table of embeddings."""

  key: str
  shape: tuple[int, int]

  @nn.compact
  def __call__(self) -> Array:
    """Returns the table, float32 [rows, emb_dim]."""
    initializer = nn.initializers.normal(0.02)
    return self.param(self.key, initializer, self.shape, jnp.float32)


class Side(nn.Module):
  """The encoder or the decoder, from embedded pieces on."""

  config: BartConfig
  side: str

  @nn.compact
  def __call__(
    self, x: Array, mask: Array, encoded: Array | None = None
  ) -> Array:
    """[batch, length, emb_dim] -> the same shape.

    Args:
      x: Embedded pieces.
      mask: Additive, of the encoder's tokens.
      encoded: The encoder's states, for the decoder.

    Raises:
      OptionError: The text is too long.
    """
    c = self.config
    length = x.shape[1]
    if length > c.max_length:
      raise OptionError(
        f'{length} tokens, but the model has {c.max_length} positions'
      )
    shape = (c.max_positions, c.emb_dim)
    positions = Table('position', shape, name='embeddings')()
    x += positions[c.position_offset : c.position_offset + length]
    x = bert.norm(c, 'embeddings_norm')(x.astype(c.array_dtype))
    if encoded is None:
      for i in range(c.num_layers):
        x = bert.Layer(c, name=f'layers_{i}')(x, mask)
      return x
    causal = jnp.where(jnp.tri(length, dtype=bool), 0.0, MASKED)[None, None]
    for i in range(c.num_decoder_layers):
      x = DecoderLayer(c, name=f'layers_{i}')(x, causal, encoded, mask)
    return x


def _padding(tokens: Array) -> Array:
  """[batch, length] -> additive float32 [batch, 1, 1, length]."""
  return jnp.where(tokens > 0, 0.0, MASKED)[:, None, None, :]


def init_params(config: BartConfig, rng: Array) -> Params:
  """Random parameters, a nested dict, float32."""
  tokens = jnp.ones((1, 2), jnp.int32)
  return Bart(config).init(rng, tokens, tokens)['params']
