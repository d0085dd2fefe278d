"""The T5 family: T5 1.0, T5 1.1, mT5, ByT5 and umT5 from one configuration.

Parameter names, shapes and logical axes are T5X's. The decoder returns hidden
states. The losses multiply them by the vocabulary matrix in blocks, so the
logits never exist as one array (`models/losses.py`). Not here: training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5score_jax.errors import OptionError
from t5score_jax.nn import layers
from t5score_jax.nn.axes import constrain

Array = jax.Array
Params = Mapping[str, Any]

_REMAT_POLICIES = {
  'none': None,
  # Keeps matrix products and recomputes cheap operations.
  'minimal': jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
  'full': jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Shape and arithmetic of a T5 network; plain values, JSON-serializable.

  Attributes:
    vocab_size: Rows of the embedding, including padding to a round number.
    emb_dim: Width of the residual stream (d_model).
    num_heads: Attention heads.
    head_dim: Width of a head (d_kv).
    mlp_dim: Inner width of the feed-forward blocks (d_ff).
    num_encoder_layers: Encoder depth.
    num_decoder_layers: Decoder depth.
    mlp_activations: ('relu',) for T5 1.0, ('gelu', 'linear') for T5 1.1, mT5.
    logits_via_embedding: Whether the output shares the embedding (T5 1.0).
    dropout_rate: Dropout in training, [0, 1).
    relative_attention_num_buckets: Buckets of the position bias.
    relative_attention_max_distance: Distance of the last bucket.
    relative_attention_per_layer: Whether every layer has its own position bias
      (umT5) instead of one for the stack. Scanned layers always have their own.
    dtype: Dtype of activations, 'float32' or 'bfloat16'; parameters are always
      float32.
    remat: What the backward pass recomputes: 'none', 'minimal' or 'full'.
    scan_layers: Whether one layer is compiled and looped over; the parameters
      of all layers are stacked on axis 1, as in T5X's scanned models.
  """

  vocab_size: int
  emb_dim: int = 512
  num_heads: int = 6
  head_dim: int = 64
  mlp_dim: int = 1024
  num_encoder_layers: int = 8
  num_decoder_layers: int = 8
  mlp_activations: tuple[str, ...] = ('gelu', 'linear')
  logits_via_embedding: bool = False
  dropout_rate: float = 0.0
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  relative_attention_per_layer: bool = False
  dtype: str = 'float32'
  remat: str = 'none'
  scan_layers: bool = False

  def __post_init__(self) -> None:
    # JSON and gin give lists; a hashable configuration needs a tuple.
    object.__setattr__(self, 'mlp_activations', tuple(self.mlp_activations))
    if self.remat not in _REMAT_POLICIES:
      raise OptionError(
        f'remat={self.remat!r}: use one of {sorted(_REMAT_POLICIES)}'
      )
    if self.dtype not in ('float32', 'bfloat16'):
      raise OptionError(f"dtype={self.dtype!r}: use 'float32' or 'bfloat16'")
    for name in self.mlp_activations:
      if name not in layers.ACTIVATIONS:
        raise OptionError(
          f'mlp_activations: {name!r} is not one of '
          f'{sorted(layers.ACTIVATIONS)}'
        )

  @property
  def array_dtype(self) -> jnp.dtype:
    """The dtype of activations as an array dtype."""
    return jnp.dtype(self.dtype)

  @property
  def biases_per_layer(self) -> bool:
    """Whether each layer owns its relative position bias."""
    return self.relative_attention_per_layer or self.scan_layers


def _attention(config: T5Config, name: str) -> layers.Attention:
  return layers.Attention(
    config.num_heads,
    config.head_dim,
    config.dropout_rate,
    config.array_dtype,
    split_heads=config.scan_layers,
    name=name,
  )


def _position_bias(
  config: T5Config, *, bidirectional: bool
) -> layers.RelativePositionBias:
  return layers.RelativePositionBias(
    config.num_heads,
    bidirectional,
    config.relative_attention_num_buckets,
    config.relative_attention_max_distance,
    name='relpos_bias',
  )


class _Part(nn.Module):
  """A part of the network; tokens of a text share the dropout mask."""

  config: T5Config
  deterministic: bool = True

  def dropout(self, x: Array) -> Array:
    return nn.Dropout(self.config.dropout_rate, broadcast_dims=(-2,))(
      x, deterministic=self.deterministic
    )


class _Layer(_Part):
  """Shared parts of encoder and decoder layers: pre-norm residual blocks."""

  def norm(self, name: str, x: Array) -> Array:
    return nn.RMSNorm(dtype=self.config.array_dtype, name=name)(x)

  def mlp_block(self, x: Array) -> Array:
    c = self.config
    y = self.norm('pre_mlp_layer_norm', x)
    y = layers.MLP(
      c.mlp_dim, c.mlp_activations, c.dropout_rate, c.array_dtype, name='mlp'
    )(y, deterministic=self.deterministic)
    return x + self.dropout(y)


class EncoderLayer(_Layer):
  """Self-attention and MLP, each in a pre-norm residual block."""

  @nn.compact
  def __call__(
    self, x: Array, mask: Array, position_bias: Array | None
  ) -> tuple[Array, None]:
    """[batch, length, emb_dim] -> the same shape, and None for lax.scan."""
    x = constrain(x, ('batch', 'length', 'embed'))
    if position_bias is None:
      bias = _position_bias(self.config, bidirectional=True)
      position_bias = bias(x.shape[1], x.shape[1])
    y = self.norm('pre_attention_layer_norm', x)
    y = _attention(self.config, 'attention')(
      y, y, position_bias + mask, deterministic=self.deterministic
    )
    x = self.mlp_block(x + self.dropout(y))
    return x, None


class DecoderLayer(_Layer):
  """Causal self-attention, cross-attention and MLP."""

  @nn.compact
  def __call__(
    self,
    x: Array,
    encoded: Array | None,
    causal_mask: Array,
    encoder_mask: Array,
    position: Array | None,
    position_bias: Array | None,
  ) -> tuple[Array, None]:
    """[batch * k, length, emb_dim] -> the same shape, and None."""
    x = constrain(x, ('batch', 'length', 'embed'))
    if position_bias is None:
      bias = _position_bias(self.config, bidirectional=False)
      position_bias = bias(
        x.shape[1], causal_mask.shape[-1], 0 if position is None else position
      )
    y = self.norm('pre_self_attention_layer_norm', x)
    y = _attention(self.config, 'self_attention')(
      y,
      y,
      position_bias + causal_mask,
      deterministic=self.deterministic,
      position=position,
    )
    x = x + self.dropout(y)
    y = self.norm('pre_cross_attention_layer_norm', x)
    y = _attention(self.config, 'encoder_decoder_attention')(
      y, encoded, encoder_mask, deterministic=self.deterministic
    )
    x = self.mlp_block(x + self.dropout(y))
    return x, None


class _Stack(_Part):
  """All layers of one side and the final norm."""

  def run_layers(
    self,
    layer: type[_Layer],
    depth: int,
    side: str,
    x: Array,
    *args: Any,
    keys: int,
    start: Array | int = 0,
  ) -> Array:
    """Applies `depth` layers, unrolled or scanned.

    Args:
      layer: The class of the layers.
      depth: The number of layers.
      side: 'encoder' or 'decoder'.
      x: [batch, length, emb_dim].
      *args: Further arguments of a layer, before the position bias.
      keys: Number of keys of self-attention.
      start: Position of the first query.
    """
    c = self.config
    bidirectional = side == 'encoder'
    position_bias = None
    if not c.biases_per_layer:
      bias = _position_bias(c, bidirectional=bidirectional)
      position_bias = bias(x.shape[1], keys, start)
    if c.remat != 'none':
      layer = nn.remat(
        layer,
        policy=_REMAT_POLICIES[c.remat],
        prevent_cse=not c.scan_layers,
      )
    if c.scan_layers:
      layer = nn.scan(
        layer,
        variable_axes={'params': 1, 'cache': 0, 'cross_cache': 0},
        split_rngs={'params': True, 'dropout': True},
        in_axes=nn.broadcast,
        length=depth,
      )
      x, _ = layer(c, self.deterministic, name=side)(x, *args, position_bias)
    else:
      for i in range(depth):
        x, _ = layer(c, self.deterministic, name=f'layers_{i}')(
          x, *args, position_bias
        )
    x = nn.RMSNorm(dtype=c.array_dtype, name=f'{side}_norm')(x)
    return self.dropout(x)


class Encoder(_Stack):
  """Encoder layers over embedded inputs."""

  @nn.compact
  def __call__(self, embedded: Array, mask: Array) -> Array:
    """[batch, length, emb_dim] -> the same shape; `mask` is additive."""
    return self.run_layers(
      EncoderLayer,
      self.config.num_encoder_layers,
      'encoder',
      self.dropout(embedded),
      mask,
      keys=embedded.shape[1],
    )


class Decoder(_Stack):
  """Decoder layers, up to the hidden states."""

  @nn.compact
  def __call__(
    self,
    embedded: Array,
    encoded: Array | None,
    encoder_mask: Array,
    position: Array | None = None,
    most: int = 0,
  ) -> Array:
    """[batch * k, length, emb_dim] -> the same shape; see `decode`."""
    c = self.config
    if not c.logits_via_embedding:
      # Declared here for its T5X name; the losses multiply by it.
      _OutputKernel(c.emb_dim, c.vocab_size, name='logits_dense')()
    length = embedded.shape[1]
    keys = length if position is None else most
    start = 0 if position is None else position
    # [1, 1, length, keys]: position i sees 0..i.
    queries = jnp.arange(length)[:, None] + start
    causal = (jnp.arange(keys) <= queries)[None, None]
    causal_mask = jnp.where(causal, 0.0, layers.MASKED)
    return self.run_layers(
      DecoderLayer,
      c.num_decoder_layers,
      'decoder',
      self.dropout(embedded),
      encoded,
      causal_mask,
      encoder_mask,
      position,
      keys=keys,
      start=start,
    )


class _OutputKernel(nn.Module):
  """The untied output matrix [emb_dim, vocab_size]."""

  emb_dim: int
  vocab_size: int

  @nn.compact
  def __call__(self) -> Array:
    return self.param(
      'kernel',
      nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal'),
      (self.emb_dim, self.vocab_size),
      jnp.float32,
    )


class Transformer(nn.Module):
  """Encoder-decoder of the T5 family.

  Padding has id 0 and is masked as a key; hidden states at padded positions
  are meaningless.

  Attributes:
    config: The configuration of the network.
    deterministic: Whether dropout is off; dropout needs a 'dropout' random key.
  """

  config: T5Config
  deterministic: bool = True

  def setup(self) -> None:
    """Creates the submodules, which `encode` and `decode` call."""
    c = self.config
    self.token_embedder = layers.Embedding(
      c.vocab_size, c.emb_dim, c.array_dtype
    )
    self.encoder = Encoder(c, self.deterministic)
    self.decoder = Decoder(c, self.deterministic)

  def encode(self, encoder_input_tokens: Array) -> Array:
    """Encodes: [batch, length] int -> [batch, length, emb_dim]."""
    mask = _padding_mask(encoder_input_tokens)
    return self.encoder(self.token_embedder(encoder_input_tokens), mask)

  def decode(
    self,
    encoded: Array,
    encoder_input_tokens: Array,
    decoder_input_tokens: Array,
  ) -> Array:
    """Decodes with teacher forcing, up to the hidden states.

    Args:
      encoded: [batch, input_length, emb_dim], from `encode`.
      encoder_input_tokens: Int [batch, input_length], to mask its padding.
      decoder_input_tokens: Int [batch * k, target_length], targets shifted
        right. With k > 1, rows b*k .. b*k + k - 1 are decoded from encoded
        row b, whose keys and values are computed once.

    Returns:
      Hidden states [batch * k, target_length, emb_dim]; multiply by
      `output_kernel` for logits.
    """
    mask = _padding_mask(encoder_input_tokens)
    embedded = self.token_embedder(decoder_input_tokens)
    return self.decoder(embedded, encoded, mask)

  def decode_step(
    self,
    encoder_input_tokens: Array,
    tokens: Array,
    position: Array,
    most: int,
  ) -> Array:
    """Decodes one more token; see `nn/decoding.py`.

    Args:
      encoder_input_tokens: Int [batch, input_length], to mask its padding.
      tokens: Int [batch * k], the decoder's inputs at `position`.
      position: Int scalar, counted from 0.
      most: Length of the cache.

    Returns:
      Hidden states [batch * k, emb_dim] at `position`.
    """
    mask = _padding_mask(encoder_input_tokens)
    embedded = self.token_embedder(tokens[:, None])
    return self.decoder(embedded, None, mask, position, most)[:, 0]

  def __call__(
    self,
    encoder_input_tokens: Array,
    decoder_input_tokens: Array,
    decoder_target_tokens: Array | None = None,
  ) -> Array:
    """Encodes and decodes; returns hidden states.

    `decoder_target_tokens` follows T5X's signature and is not used: with a
    causal mask, the padding of targets needs none.
    """
    del decoder_target_tokens
    encoded = self.encode(encoder_input_tokens)
    return self.decode(encoded, encoder_input_tokens, decoder_input_tokens)


def _padding_mask(tokens: Array) -> Array:
  """[batch, length] -> additive float32 [batch, 1, 1, length]."""
  return jnp.where(tokens > 0, 0.0, layers.MASKED)[:, None, None, :]


def output_kernel(params: Params, config: T5Config) -> Array:
  """The matrix [emb_dim, vocab_size] that maps hidden states to logits.

  With tied weights it is the transposed embedding divided by sqrt(emb_dim):
  T5 1.0 scales the output of its decoder.
  """
  if config.logits_via_embedding:
    embedding = params['token_embedder']['embedding']
    return embedding.T * config.emb_dim**-0.5
  return params['decoder']['logits_dense']['kernel']


def init_params(config: T5Config, rng: Array) -> Params:
  """Random parameters, a nested dict with T5X's names, float32."""
  tokens = jnp.ones((1, 2), jnp.int32)
  return Transformer(config).init(rng, tokens, tokens)['params']
