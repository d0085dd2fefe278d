"""DeBERTa-v2 and -v3: an encoder with disentangled attention (He et al. 2021).

Attention has content-to-position and position-to-content terms besides the
content-to-content term. Positions are relative and fall into buckets that widen
with distance. The largest v2 models have a convolution parallel to their first
layer. All else is as in BERT, and the functions of `nn/bert.py` run this
network too. Not here: weight loading
(`checkpoints/formats/huggingface/deberta.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.errors import OptionError
from t5score_jax.nn import bert, ragged
from t5score_jax.nn.axes import constrain
from t5score_jax.nn.layers import MASKED, query_key_products, weighted_values

Array = jax.Array

#: Attention terms besides content to content.
TERMS = ('c2p', 'p2c')


@dataclasses.dataclass(frozen=True)
class DebertaConfig(bert.BertConfig):
  """Shape and arithmetic: the fields of `BertConfig` and these.

  Attributes:
    terms: The attention terms, from `TERMS`.
    buckets: Buckets on each side of the relative positions; 0 for one bucket
      per distance.
    max_distance: The distance of the last bucket.
    shared_projections: Whether relative positions use the projections of
      queries and keys (v3) instead of projections of their own.
    relative_norm: Whether the embeddings of relative positions are normalized.
    absolute: Whether absolute positions are added to the embeddings.
    conv_width: Width of the convolution; 0 for none.
    conv_activation: Its activation.
  """

  type_vocab_size: int = 0
  norm_epsilon: float = 1e-7
  terms: tuple[str, ...] = TERMS
  buckets: int = 256
  max_distance: int = 512
  shared_projections: bool = True
  relative_norm: bool = True
  absolute: bool = False
  conv_width: int = 0
  conv_activation: str = 'tanh'

  def __post_init__(self) -> None:
    super().__post_init__()
    object.__setattr__(self, 'terms', tuple(self.terms))
    if not set(self.terms) <= set(TERMS):
      raise OptionError(f'terms={self.terms}: use some of {list(TERMS)}')

  @property
  def span(self) -> int:
    """Buckets on each side."""
    return self.buckets or self.max_distance

  @property
  def network(self) -> type[bert.Encoder]:
    """See `BertConfig.network`."""
    return Encoder


def relative_buckets(config: DebertaConfig, length: int) -> np.ndarray:
  """The bucket of each query's distance to each key.

  Args:
    config: The configuration of the network.
    length: Tokens.

  Returns:
    int32 [query, key], 0 to 2 span - 1; span for the token itself.
  """
  positions = np.arange(length)
  distance = positions[:, None] - positions[None, :]
  if config.buckets:
    middle = config.buckets // 2
    size = np.maximum(np.abs(distance), 1).astype(np.float32)
    # In float32, to round as torch does.
    scale = np.log(np.float32((config.max_distance - 1) / middle))
    share = np.log(size / np.float32(middle)) / scale
    far = np.ceil(share * np.float32(middle - 1)) + middle
    near = np.abs(distance) <= middle
    distance = np.where(near, distance, np.sign(distance) * far)
  return np.clip(
    distance.astype(np.int32) + config.span, 0, 2 * config.span - 1
  )


class SelfAttention(nn.Module):
  """Content to content, content to position and position to content."""

  config: DebertaConfig
  deterministic: bool = True

  @nn.compact
  def __call__(
    self, x: Array, mask: Array, relative: Array, rows: int | None = None
  ) -> Array:
    """Attends from the first `rows` tokens (default: all) to all tokens.

    Args:
      x: [batch, length, emb_dim].
      mask: Additive, broadcast against [batch, heads, rows, length].
      relative: Embeddings of relative positions, [2 span, emb_dim].
      rows: Number of first tokens to compute.

    Returns:
      [batch, rows, emb_dim].
    """
    c = self.config
    width = c.emb_dim // c.num_heads
    projections = {
      name: bert.dense(c, c.emb_dim, name) for name in ('query', 'key', 'value')
    }

    def heads(y: Array) -> Array:
      return y.reshape(*y.shape[:-1], c.num_heads, width)

    def project(name: str, x: Array) -> Array:
      y = heads(projections[name](x))
      return constrain(y, ('batch', 'length', 'heads', 'kv'))

    def positions(name: str) -> Array:
      dense = projections[name]
      if not c.shared_projections:
        dense = bert.dense(c, c.emb_dim, f'position_{name}')
      return heads(dense(relative))

    query = project('query', x[:, :rows])
    key, value = project('key', x), project('value', x)
    logits = query_key_products(query, key)
    buckets = relative_buckets(c, x.shape[1])[: query.shape[1]]
    if 'c2p' in c.terms:
      by_bucket = jnp.einsum(
        'bqhd,rhd->bhqr',
        query,
        positions('key'),
        preferred_element_type=jnp.float32,
      )
      index = jnp.broadcast_to(buckets, logits.shape)
      logits += jnp.take_along_axis(by_bucket, index, axis=-1)
    if 'p2c' in c.terms:
      by_bucket = jnp.einsum(
        'rhd,bkhd->bhrk',
        positions('query'),
        key,
        preferred_element_type=jnp.float32,
      )
      index = jnp.broadcast_to(buckets, logits.shape)
      logits += jnp.take_along_axis(by_bucket, index, axis=-2)
    scale = (width * (1 + len(c.terms))) ** -0.5
    weights = nn.softmax(logits * scale + mask, axis=-1)
    weights = nn.Dropout(c.dropout_rate)(
      weights.astype(c.array_dtype), deterministic=self.deterministic
    )
    y = weighted_values(weights, value)
    y = y.reshape(*y.shape[:2], c.emb_dim)
    return cast(Array, bert.dense(c, c.emb_dim, 'out')(y))


class Layer(bert.Layer):
  """BERT's layer with this attention."""

  relative: Array | None = None

  def attend(
    self,
    x: Array,
    mask: Array,
    rows: int | None,
    places: ragged.Layout | None,
  ) -> Array:
    """See `bert.Layer.attend`."""
    assert places is None, 'relative positions are those of a padded batch'
    attention = SelfAttention(
      cast(DebertaConfig, self.config), self.deterministic, name='attention'
    )
    return attention(x, mask, cast(Array, self.relative), rows)


class Encoder(bert.Encoder):
  """Tokens -> hidden states, as `bert.Encoder`."""

  config: DebertaConfig

  @nn.compact
  def __call__(
    self,
    tokens: Array,
    token_types: Array | None = None,
    layers: Sequence[int] | None = None,
    rows: int | None = None,
    stacked: bool = True,
  ) -> Array | tuple[Array, ...]:
    """See `bert.Encoder.__call__`."""
    c = self.config
    layers = self.check(tokens, layers, rows)
    inside = (tokens != c.pad_id)[..., None]
    mask = jnp.where(inside[..., 0], 0.0, MASKED)[:, None, None, :]
    x = Embeddings(c, self.deterministic, name='embeddings')(
      tokens, token_types
    )
    # The convolution sees the neighbours of the last token.
    x = jnp.where(inside, x, 0)
    relative = Relative(c, name='relative')()
    states = [x] if 0 in layers else []
    for i in range(1, layers[-1] + 1):
      last = rows if i == layers[-1] and not (i == 1 and c.conv_width) else None
      y = Layer(
        c, self.deterministic, relative=relative, name=f'layers_{i - 1}'
      )(x, mask, last)
      if i == 1 and c.conv_width:
        y = Convolution(c, self.deterministic, name='convolution')(x, y, inside)
        y = y[:, :rows] if i == layers[-1] else y
      x = y
      if i in layers:
        states.append(x)
    return jnp.stack(states) if stacked else tuple(states)


class Embeddings(nn.Module):
  """Normalized embeddings of pieces and, if any, positions and segments."""

  config: DebertaConfig
  deterministic: bool = True

  @nn.compact
  def __call__(self, tokens: Array, token_types: Array | None) -> Array:
    """Int [batch, length] -> [batch, length, emb_dim]."""
    c = self.config

    def rows(name: str, size: int, index: Array) -> Array:
      table = self.param(
        name, nn.initializers.normal(0.02), (size, c.emb_dim), jnp.float32
      )
      return jnp.take(table, index, axis=0)

    x = rows('word', c.vocab_size, tokens)
    if c.absolute:
      x += rows('position', c.max_positions, jnp.arange(tokens.shape[1]))
    if c.type_vocab_size:
      types = jnp.zeros_like(tokens) if token_types is None else token_types
      x += rows('type', c.type_vocab_size, types)
    x = bert.norm(c, 'norm')(x.astype(c.array_dtype))
    return nn.Dropout(c.dropout_rate)(x, deterministic=self.deterministic)


class Relative(nn.Module):
  """The embeddings of relative positions, [2 span, emb_dim]."""

  config: DebertaConfig

  @nn.compact
  def __call__(self) -> Array:
    """Returns the embeddings, normalized if the configuration says so."""
    c = self.config
    table = self.param(
      'embedding',
      nn.initializers.normal(0.02),
      (2 * c.span, c.emb_dim),
      jnp.float32,
    ).astype(c.array_dtype)
    return bert.norm(c, 'norm')(table) if c.relative_norm else table


class Convolution(nn.Module):
  """Adds neighbouring embeddings to the output of the first layer."""

  config: DebertaConfig
  deterministic: bool = True

  @nn.compact
  def __call__(self, x: Array, y: Array, inside: Array) -> Array:
    """[batch, length, emb_dim] before and after the layer -> the same shape."""
    c = self.config
    z = nn.Conv(c.emb_dim, (c.conv_width,), dtype=c.array_dtype, name='conv')(x)
    z = jnp.where(inside, z, 0)
    z = nn.Dropout(c.dropout_rate)(z, deterministic=self.deterministic)
    activations = {**bert.ACTIVATIONS, 'tanh': jnp.tanh}
    y = bert.norm(c, 'norm')(y + activations[c.conv_activation](z))
    return jnp.where(inside, y, 0)
