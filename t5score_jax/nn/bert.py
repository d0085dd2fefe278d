"""The BERT family: BERT, MiniLM, RoBERTa and XLM-RoBERTa in one implementation.

The configuration holds the differences: the numbering of positions, norms
before or after a block (XLM-R XL), the activation. Any hidden states can be
returned, numbered as in Hugging Face: 0 is the embeddings. Not here: the heads
on top (`nn/heads.py`) and weight loading
(`checkpoints/formats/huggingface/encoders.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t5score_jax.errors import OptionError
from t5score_jax.nn import ragged
from t5score_jax.nn.axes import constrain
from t5score_jax.nn.layers import MASKED, query_key_products, weighted_values

Array = jax.Array
Params = Mapping[str, Any]

ACTIVATIONS = {
  # The exact GELU; T5's 'gelu' is the approximation by tanh.
  'gelu': lambda x: nn.gelu(x, approximate=False),
  'gelu_new': lambda x: nn.gelu(x, approximate=True),
  'relu': nn.relu,
  'silu': nn.silu,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Shape and arithmetic of an encoder; plain values, JSON-serializable.

  Attributes:
    vocab_size: Rows of the word embedding.
    emb_dim: Width (hidden_size).
    num_heads: Attention heads, a divisor of emb_dim.
    mlp_dim: Inner width of the feed-forward blocks (intermediate_size).
    num_layers: Depth.
    max_positions: Rows of the position embedding.
    position_offset: Row of the position of the first token: 0 for BERT,
      pad_id + 1 for RoBERTa.
    type_vocab_size: Rows of the segment embedding.
    pad_id: Id of padding, which is masked as a key.
    activation: One of `ACTIVATIONS`.
    norm_epsilon: Epsilon of layer normalization.
    pre_norm: Whether norms precede the blocks and follow the last one (XLM-R
      XL), instead of following each block and the embeddings.
    dropout_rate: Dropout in training, [0, 1).
    dtype: Dtype of activations, 'float32' or 'bfloat16'. Parameters, norms and
      softmax are always float32.
    remat: Whether the backward pass recomputes each layer.
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
      raise OptionError(
        f'emb_dim={self.emb_dim} is not divisible by num_heads={self.num_heads}'
      )
    if self.activation not in ACTIVATIONS:
      raise OptionError(
        f'activation={self.activation!r}: use one of {sorted(ACTIVATIONS)}'
      )
    if self.dtype not in ('float32', 'bfloat16'):
      raise OptionError(f"dtype={self.dtype!r}: use 'float32' or 'bfloat16'")

  @property
  def array_dtype(self) -> jnp.dtype:
    """The dtype of activations as an array dtype."""
    return jnp.dtype(self.dtype)

  @property
  def max_length(self) -> int:
    """The maximum length of a text, in tokens."""
    return self.max_positions - self.position_offset

  @property
  def network(self) -> type[Encoder]:
    """The network of this shape; subclasses override it."""
    return Encoder


def dense(config: BertConfig, features: int, name: str) -> nn.Dense:
  """A linear layer, initialized as in BERT."""
  return nn.Dense(
    features,
    dtype=config.array_dtype,
    kernel_init=nn.initializers.normal(0.02),
    name=name,
  )


def norm(config: BertConfig, name: str) -> nn.LayerNorm:
  """A layer normalization with the configuration's epsilon and dtype."""
  # The fast variance, E[x^2] - E[x]^2, loses digits.
  return nn.LayerNorm(
    config.norm_epsilon,
    dtype=config.array_dtype,
    use_fast_variance=False,
    name=name,
  )


def first(x: Array, rows: int | None, places: ragged.Layout | None) -> Array:
  """The first tokens of each text, [batch, rows, ...]; `x` without `rows`."""
  return x if rows is None else ragged.unpack(x, places, rows)


class SelfAttention(nn.Module):
  """Multi-head self-attention."""

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(
    self,
    x: Array,
    mask: Array,
    rows: int | None = None,
    places: ragged.Layout | None = None,
  ) -> Array:
    """Attends from the first `rows` tokens (default: all) to all tokens.

    Args:
      x: [batch, length, emb_dim]; with a layout, [1, room, emb_dim].
      mask: Additive, broadcast against [batch, heads, rows, length].
      rows: Number of first tokens to compute.
      places: The layout: where the tokens of the room belong.

    Returns:
      [batch, rows, emb_dim]; without `rows`, the shape of `x`.
    """
    c = self.config
    heads = (c.num_heads, c.emb_dim // c.num_heads)

    def project(name: str, x: Array) -> Array:
      y = dense(c, c.emb_dim, name)(x)
      y = y.reshape(*x.shape[:2], *heads)
      return constrain(y, ('batch', 'length', 'heads', 'kv'))

    queries = first(x, rows, places)
    query = project('query', queries)
    key, value = (
      ragged.unpack(project(name, x), places) for name in ('key', 'value')
    )
    if rows is None:
      query = ragged.unpack(query, places)
    # [batch, heads, query_length, key_length], float32
    logits = query_key_products(query, key)
    weights = nn.softmax(logits * heads[-1] ** -0.5 + mask, axis=-1)
    weights = nn.Dropout(c.dropout_rate)(
      weights.astype(c.array_dtype), deterministic=self.deterministic
    )
    y = weighted_values(weights, value)
    if rows is None:
      y = ragged.pack(y, places)
    y = y.reshape(queries.shape)
    return dense(c, c.emb_dim, 'out')(y)


class Layer(nn.Module):
  """Self-attention and MLP, each with a residual connection and a norm."""

  config: BertConfig
  deterministic: bool = True

  @nn.compact
  def __call__(
    self,
    x: Array,
    mask: Array,
    rows: int | None = None,
    places: ragged.Layout | None = None,
  ) -> Array:
    """[batch, length, emb_dim], additive mask -> [batch, rows, emb_dim].

    `rows` and `places` as in `SelfAttention`.
    """
    c = self.config
    x = constrain(x, ('batch', 'length', 'embed'))
    attention_norm = norm(c, 'attention_norm')
    mlp_norm = norm(c, 'mlp_norm')
    if c.pre_norm:
      y = self.attend(attention_norm(x), mask, rows, places)
      x = first(x, rows, places) + self._dropout(y)
      return x + self._dropout(self._mlp(mlp_norm(x)))
    y = self.attend(x, mask, rows, places)
    x = attention_norm(first(x, rows, places) + self._dropout(y))
    return mlp_norm(x + self._dropout(self._mlp(x)))

  def attend(
    self,
    x: Array,
    mask: Array,
    rows: int | None,
    places: ragged.Layout | None,
  ) -> Array:
    """The layer's attention; subclasses override it."""
    attention = SelfAttention(self.config, self.deterministic, name='attention')
    return attention(x, mask, rows, places)

  def _mlp(self, x: Array) -> Array:
    c = self.config
    y = dense(c, c.mlp_dim, 'wi')(x)
    y = constrain(ACTIVATIONS[c.activation](y), ('batch', 'length', 'mlp'))
    return dense(c, c.emb_dim, 'wo')(y)

  def _dropout(self, x: Array) -> Array:
    return nn.Dropout(self.config.dropout_rate)(
      x, deterministic=self.deterministic
    )


class Embeddings(nn.Module):
  """The sum of word, position and segment embeddings, normalized."""

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
    # Padding is at the end, so positions count from the start in RoBERTa too;
    # the positions of padding itself do not matter.
    indices = jnp.minimum(
      jnp.arange(tokens.shape[1]) + c.position_offset, c.max_positions - 1
    )
    positions = jnp.take(table('position', c.max_positions), indices, axis=0)
    if token_types is None:
      token_types = jnp.zeros_like(tokens)
    types = jnp.take(table('type', c.type_vocab_size), token_types, axis=0)
    x = (words + positions + types).astype(c.array_dtype)
    if not c.pre_norm:
      x = norm(c, 'norm')(x)
    return nn.Dropout(c.dropout_rate)(x, deterministic=self.deterministic)


class Encoder(nn.Module):
  """Encoder of the BERT family: tokens -> hidden states.

  Attributes:
    config: The configuration of the network.
    deterministic: Whether dropout is off; dropout needs a 'dropout' random key.
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
    stacked: bool = True,
  ) -> Array | tuple[Array, ...]:
    """Encodes texts that are padded at the end.

    Args:
      tokens: Int [batch, length], special tokens included; length is at most
        `config.max_length`.
      token_types: Int [batch, length], the segment of each token; default all
        0.
      layers: Hidden states to return, ascending: 0 is the embeddings,
        num_layers the last. Default: the last. Later layers are not computed.
      rows: Number of first tokens to return. This saves most of the last layer
        if only `[CLS]` is used. Default: all. Needs a single layer.
      stacked: Whether the states are returned as one array. Separate arrays
        need not be in memory together if only a part of each is used.

    Returns:
      [len(layers), batch, rows, emb_dim] in the configuration's dtype, or a
      tuple of [batch, rows, emb_dim].

    Raises:
      OptionError: The text is too long, there is no such layer, or `rows` is
        combined with several layers.
    """
    c = self.config
    layers = self.check(tokens, layers, rows)
    # [batch, length] -> [batch, 1, 1, length]
    inside = tokens != c.pad_id
    mask = jnp.where(inside, 0.0, MASKED)[:, None, None, :]
    x = Embeddings(c, self.deterministic, name='embeddings')(
      tokens, token_types
    )
    states = [x] if 0 in layers else []
    places = ragged.layout(inside)
    x = ragged.pack(x, places)
    layer = nn.remat(Layer, static_argnums=(3,)) if c.remat else Layer
    for i in range(1, layers[-1] + 1):
      block = layer(c, self.deterministic, name=f'layers_{i - 1}')
      last = rows if i == layers[-1] else None
      x = block(x, mask, last, places)
      if i == c.num_layers and c.pre_norm:
        x = norm(c, 'final_norm')(x)
      if i in layers:
        states.append(x if last else ragged.unpack(x, places))
    return jnp.stack(states) if stacked else tuple(states)

  def check(
    self, tokens: Array, layers: Sequence[int] | None, rows: int | None
  ) -> list[int]:
    """Checks the arguments of `__call__` and returns the layers."""
    c = self.config
    layers = [c.num_layers] if layers is None else list(layers)
    if list(layers) != sorted(set(layers)) or not layers:
      raise OptionError(f'layers={layers}: must ascend')
    if layers[0] < 0 or layers[-1] > c.num_layers:
      raise OptionError(f'layers={layers}: there are 0 to {c.num_layers}')
    if rows is not None and (len(layers) > 1 or layers[0] == 0):
      raise OptionError(f'rows={rows} needs one layer, not layers={layers}')
    if tokens.shape[1] > c.max_length:
      raise OptionError(
        f'{tokens.shape[1]} tokens, but the encoder has {c.max_length} '
        'positions'
      )
    return layers


def init_params(config: BertConfig, rng: Array) -> Params:
  """Random parameters, a nested dict, float32."""
  tokens = jnp.full((1, 2), config.pad_id + 1, jnp.int32)
  return config.network(config).init(rng, tokens)['params']


def hidden_states(
  params: Params,
  config: BertConfig,
  tokens: Array,
  token_types: Array | None = None,
  layers: Sequence[int] | None = None,
  rng: Array | None = None,
  rows: int | None = None,
) -> Array:
  """Runs the encoder; see `Encoder.__call__`.

  Args:
    params: Parameters of the encoder.
    config: Its configuration.
    tokens: Int [batch, length].
    token_types: Int [batch, length], or None.
    layers: Hidden states to return.
    rng: Key for dropout; None for none.
    rows: Number of first tokens to return; default all.
  """
  network = config.network(config, deterministic=rng is None)
  rngs = None if rng is None else {'dropout': rng}
  states = network.apply(
    {'params': params}, tokens, token_types, layers, rows, rngs=rngs
  )
  return cast(Array, states)


def separate_states(
  params: Params,
  config: BertConfig,
  tokens: Array,
  token_types: Array | None,
  layers: Sequence[int],
  rng: Array | None = None,
) -> tuple[Array, ...]:
  """`hidden_states` as one array per layer, [batch, length, emb_dim] each."""
  network = config.network(config, deterministic=rng is None)
  rngs = None if rng is None else {'dropout': rng}
  states = network.apply(
    {'params': params}, tokens, token_types, layers, None, False, rngs=rngs
  )
  return cast(tuple[Array, ...], states)


# Logical axes by the end of a parameter's name.
_LOGICAL_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
  ('embeddings/word', ('vocab', 'embed')),
  ('embeddings/position', ('positions', 'embed')),
  ('embeddings/type', ('types', 'embed')),
  # DeBERTa's: relative positions, and a convolution.
  ('relative/embedding', ('positions', 'embed')),
  ('conv/kernel', ('one', 'embed', 'joined_kv')),
  ('conv/bias', ('embed',)),
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
    params: The tree, or its `jax.eval_shape`.

  Returns:
    The same tree with a tuple of axis names per parameter.

  Raises:
    ValueError: No encoder has such a parameter.
  """
  axes = {}
  for path in flatten_dict(params):
    name = '/'.join(path)
    names = next((a for end, a in _LOGICAL_AXES if name.endswith(end)), None)
    if names is None:
      raise ValueError(f'no logical axes are known for parameter {name}')
    axes[path] = names
  return unflatten_dict(axes)
