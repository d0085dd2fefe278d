"""The BERT family: BERT, MiniLM, RoBERTa and XLM-RoBERTa from one code.

One configuration says what differs: how positions are numbered, whether norms
stand before or after a block (XLM-R XL), which activation. All hidden states
can be had, the embeddings' first, as Hugging Face counts them. Not here: what
is made of the states (``nn/heads.py``) and where weights come from
(``checkpoints/formats/huggingface/encoders.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from t5score_jax.nn.axes import constrain

Array = jax.Array
Params = Mapping[str, Any]

# Added to the logits of masked keys; finite, so that a row of padding alone
# stays a number.
_MASKED = -1e10

ACTIVATIONS = {
  # 'gelu' of this family is the exact one; T5's is the approximation by tanh.
  'gelu': lambda x: nn.gelu(x, approximate=False),
  'gelu_new': lambda x: nn.gelu(x, approximate=True),
  'relu': nn.relu,
  'silu': nn.silu,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Shape and arithmetic of an encoder; plain values, JSON-serialisable.

  Attributes:
    vocab_size: rows of the word embedding.
    emb_dim: width (hidden_size).
    num_heads: attention heads; they divide emb_dim.
    mlp_dim: inner width of the feed-forward blocks (intermediate_size).
    num_layers: depth.
    max_positions: rows of the position embedding.
    position_offset: row of the first token's position: 0 for BERT, pad_id + 1
      for RoBERTa.
    type_vocab_size: rows of the segment embedding.
    pad_id: id of padding, masked as a key.
    activation: one of ``ACTIVATIONS``.
    norm_epsilon: of layer normalisation.
    pre_norm: norms before the blocks and one at the end (XLM-R XL), instead
      of after each block and after the embeddings.
    dropout_rate: dropout in training, [0, 1).
    dtype: arithmetic of activations, 'float32' or 'bfloat16'; parameters are
      float32 always, norms and softmax are computed in it.
    remat: whether the backward pass recomputes each layer.
  """

  vocab_size: int
  emb_dim: int = 384
  num_heads: int = 12
  mlp_dim: int = 1536
  num_layers: int = 6
  max_positions: int = 512
  position_offset: int = 0
  type_vocab_size: int = 2
  pad_id: int = 0
  activation: str = 'gelu'
  norm_epsilon: float = 1e-12
  pre_norm: bool = False
  dropout_rate: float = 0.1
  dtype: str = 'float32'
  remat: bool = False

  def __post_init__(self) -> None:
    if self.emb_dim % self.num_heads:
      raise ValueError(
        f'emb_dim={self.emb_dim} is not divisible by num_heads={self.num_heads}'
      )
    if self.activation not in ACTIVATIONS:
      raise ValueError(
        f'activation={self.activation!r}: use one of {sorted(ACTIVATIONS)}'
      )
    if self.dtype not in ('float32', 'bfloat16'):
      raise ValueError(f"dtype={self.dtype!r}: use 'float32' or 'bfloat16'")

  @property
  def array_dtype(self) -> jnp.dtype:
    """The activations' dtype as an array dtype."""
    return jnp.dtype(self.dtype)

  @property
  def max_length(self) -> int:
    """The longest text that has positions, in tokens."""
    return self.max_positions - self.position_offset


class LayerNorm(nn.Module):
  """Layer normalisation with scale and bias, computed in float32."""

  epsilon: float
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[..., features] -> the same shape, in ``dtype``."""
    size = (x.shape[-1],)
    scale = self.param('scale', nn.initializers.ones, size, jnp.float32)
    bias = self.param('bias', nn.initializers.zeros, size, jnp.float32)
    x = x.astype(jnp.float32)
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(lax.square(x), axis=-1, keepdims=True)
    x = x * lax.rsqrt(variance + self.epsilon) * scale + bias
    return x.astype(self.dtype)


class Dense(nn.Module):
  """A linear map with bias: [..., in] -> [..., features], in ``dtype``."""

  features: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[..., in] -> [..., features]."""
    kernel = self.param(
      'kernel',
      nn.initializers.normal(0.02),
      (x.shape[-1], self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    y = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype))
    return y + bias.astype(self.dtype)


class SelfAttention(nn.Module):
  """Multi-head attention of a text to itself."""

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(self, x: Array, mask: Array, rows: int | None = None) -> Array:
    """Attends from the first ``rows`` tokens (default: all) to all tokens.

    Args:
      x: [batch, length, emb_dim].
      mask: additive.
      rows: how many tokens are wanted.

    Returns:
      [batch, rows, emb_dim].
    """
    c = self.config
    heads = (c.num_heads, c.emb_dim // c.num_heads)

    def project(name: str, x: Array) -> Array:
      y = Dense(c.emb_dim, c.array_dtype, name=name)(x)
      y = y.reshape(*x.shape[:2], *heads)
      return constrain(y, ('batch', 'length', 'heads', 'kv'))

    wanted = x[:, :rows]
    query = project('query', wanted)
    key, value = project('key', x), project('value', x)
    # [batch, heads, query_length, key_length], float32
    logits = jnp.einsum(
      'bqhd,bkhd->bhqk', query, key, preferred_element_type=jnp.float32
    )
    weights = nn.softmax(logits * heads[-1] ** -0.5 + mask, axis=-1)
    weights = nn.Dropout(c.dropout_rate)(
      weights.astype(c.array_dtype), deterministic=self.deterministic
    )
    y = jnp.einsum('bhqk,bkhd->bqhd', weights, value)
    y = y.reshape(wanted.shape)
    return Dense(c.emb_dim, c.array_dtype, name='out')(y)


class Layer(nn.Module):
  """Self-attention and MLP, each with a residual and a norm."""

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(self, x: Array, mask: Array, rows: int | None = None) -> Array:
    """[batch, length, emb_dim], additive mask -> [batch, rows, emb_dim].

    ``rows`` as in ``SelfAttention``.
    """
    c = self.config
    x = constrain(x, ('batch', 'length', 'embed'))
    attention = SelfAttention(c, self.deterministic, name='attention')
    attention_norm = LayerNorm(
      c.norm_epsilon, c.array_dtype, name='attention_norm'
    )
    mlp_norm = LayerNorm(c.norm_epsilon, c.array_dtype, name='mlp_norm')
    if c.pre_norm:
      y = attention(attention_norm(x), mask, rows)
      x = x[:, :rows] + self._dropout(y)
      return x + self._dropout(self._mlp(mlp_norm(x)))
    y = attention(x, mask, rows)
    x = attention_norm(x[:, :rows] + self._dropout(y))
    return mlp_norm(x + self._dropout(self._mlp(x)))

  def _mlp(self, x: Array) -> Array:
    c = self.config
    y = Dense(c.mlp_dim, c.array_dtype, name='wi')(x)
    y = constrain(ACTIVATIONS[c.activation](y), ('batch', 'length', 'mlp'))
    return Dense(c.emb_dim, c.array_dtype, name='wo')(y)

  def _dropout(self, x: Array) -> Array:
    return nn.Dropout(self.config.dropout_rate)(
      x, deterministic=self.deterministic
    )


class Embeddings(nn.Module):
  """Words, positions and segments, added and normalised."""

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(self, tokens: Array, token_types: Array | None) -> Array:
    """Int [batch, length] -> [batch, length, emb_dim]."""
    c = self.config

    def table(name: str, rows: int) -> Array:
      return self.param(
        name, nn.initializers.normal(0.02), (rows, c.emb_dim), jnp.float32
      )

    words = jnp.take(table('word', c.vocab_size), tokens, axis=0)
    # Padding stands at the end of a text, so that a token's position is its
    # place, in RoBERTa too; positions of padding itself do not matter.
    places = jnp.minimum(
      jnp.arange(tokens.shape[1]) + c.position_offset, c.max_positions - 1
    )
    positions = jnp.take(table('position', c.max_positions), places, axis=0)
    if token_types is None:
      token_types = jnp.zeros_like(tokens)
    types = jnp.take(table('type', c.type_vocab_size), token_types, axis=0)
    x = (words + positions + types).astype(c.array_dtype)
    if not c.pre_norm:
      x = LayerNorm(c.norm_epsilon, c.array_dtype, name='norm')(x)
    return nn.Dropout(c.dropout_rate)(x, deterministic=self.deterministic)


class Encoder(nn.Module):
  """Tokens to hidden states.

  Attributes:
    config: the network's shape.
    deterministic: False applies dropout and needs a 'dropout' random key.
  """

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(
    self,
    tokens: Array,
    token_types: Array | None = None,
    layers: Sequence[int] | None = None,
    rows: int | None = None,
  ) -> Array:
    """Encodes texts that are padded at their ends.

    Args:
      tokens: int [batch, length], special tokens included; length is at most
        ``config.max_length``.
      token_types: int [batch, length], the segment of each token; all 0 by
        default.
      layers: which hidden states to return, ascending: 0 is the embeddings,
        num_layers the last. The last alone by default. Layers after the
        largest are not computed.
      rows: how many first tokens of the last of these are wanted, which saves
        most of that layer where only ``[CLS]`` is read. All by default; with
        several layers none may be left out.

    Returns:
      [len(layers), batch, rows, emb_dim] in the configuration's dtype.

    Raises:
      ValueError: a text or a layer beyond what the encoder has, or ``rows``
        with several layers.
    """
    c = self.config
    layers = [c.num_layers] if layers is None else list(layers)
    if list(layers) != sorted(set(layers)) or not layers:
      raise ValueError(f'layers={layers}: must ascend')
    if layers[0] < 0 or layers[-1] > c.num_layers:
      raise ValueError(f'layers={layers}: there are 0 to {c.num_layers}')
    if rows is not None and (len(layers) > 1 or layers[0] == 0):
      raise ValueError(f'rows={rows} needs one layer, not layers={layers}')
    if tokens.shape[1] > c.max_length:
      raise ValueError(
        f'{tokens.shape[1]} tokens, but the encoder has {c.max_length} '
        'positions'
      )
    # [batch, length] -> [batch, 1, 1, length]
    mask = jnp.where(tokens != c.pad_id, 0.0, _MASKED)[:, None, None, :]
    x = Embeddings(c, self.deterministic, name='embeddings')(
      tokens, token_types
    )
    states = [x] if 0 in layers else []
    layer = nn.remat(Layer, static_argnums=(3,)) if c.remat else Layer
    for i in range(1, layers[-1] + 1):
      block = layer(c, self.deterministic, name=f'layers_{i - 1}')
      x = block(x, mask, rows if i == layers[-1] else None)
      if i == c.num_layers and c.pre_norm:
        x = LayerNorm(c.norm_epsilon, c.array_dtype, name='final_norm')(x)
      if i in layers:
        states.append(x)
    return jnp.stack(states)


def init_params(config: BertConfig, rng: Array) -> Params:
  """Random parameters, a nested dict, float32."""
  tokens = jnp.full((1, 2), config.pad_id + 1, jnp.int32)
  return Encoder(config).init(rng, tokens)['params']


def hidden_states(
  params: Params,
  config: BertConfig,
  tokens: Array,
  token_types: Array | None = None,
  layers: Sequence[int] | None = None,
  rng: Array | None = None,
  rows: int | None = None,
) -> Array:
  """Runs the encoder; see ``Encoder.__call__``.

  Args:
    params: the encoder's parameters.
    config: its shape.
    tokens: int [batch, length].
    token_types: int [batch, length], or None.
    layers: which hidden states.
    rng: key for dropout; None for none.
    rows: how many first tokens; all by default.
  """
  network = Encoder(config, deterministic=rng is None)
  rngs = None if rng is None else {'dropout': rng}
  states = network.apply(
    {'params': params}, tokens, token_types, layers, rows, rngs=rngs
  )
  return cast(Array, states)


# Logical axes by the end of a parameter's name.
_LOGICAL_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
  ('embeddings/word', ('vocab', 'embed')),
  ('embeddings/position', ('positions', 'embed')),
  ('embeddings/type', ('types', 'embed')),
  ('norm/scale', ('embed',)),
  ('norm/bias', ('embed',)),
  ('query/kernel', ('embed', 'joined_kv')),
  ('key/kernel', ('embed', 'joined_kv')),
  ('value/kernel', ('embed', 'joined_kv')),
  ('query/bias', ('joined_kv',)),
  ('key/bias', ('joined_kv',)),
  ('value/bias', ('joined_kv',)),
  ('attention/out/kernel', ('joined_kv', 'embed')),
  ('attention/out/bias', ('embed',)),
  ('wi/kernel', ('embed', 'mlp')),
  ('wi/bias', ('mlp',)),
  ('wo/kernel', ('mlp', 'embed')),
  ('wo/bias', ('embed',)),
)


def logical_axes(params: Params) -> Params:
  """Names every axis of every parameter of an encoder.

  Args:
    params: the tree, or its ``jax.eval_shape``.

  Returns:
    The same tree with a tuple of axis names per parameter.

  Raises:
    ValueError: a parameter that no encoder has.
  """
  axes = {}
  for path in flatten_dict(params):
    name = '/'.join(path)
    found = next((a for end, a in _LOGICAL_AXES if name.endswith(end)), None)
    if found is None:
      raise ValueError(f'no logical axes are known for parameter {name}')
    axes[path] = found
  return unflatten_dict(axes)
