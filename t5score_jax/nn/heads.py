"""What stands on top of an encoder: layer mix, pooling, the estimator.

COMET's estimator (Rei et al. 2020) reads a hypothesis, a source and perhaps a
reference, each encoded apart, mixed over layers and pooled to one vector;
products and differences of these go through a feed-forward network. COMES
(2022, section 3) gives it one output a quality dimension. Not here: encoders
(``nn/bert.py``) and losses (``models/losses.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.nn import bert

Array = jax.Array
Params = Mapping[str, Any]

POOLING = ('mean', 'cls', 'max')
TRANSFORMATIONS = ('softmax', 'sparsemax')
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  'tanh': jnp.tanh,
  'relu': nn.relu,
  'gelu': lambda x: nn.gelu(x, approximate=False),
  'sigmoid': nn.sigmoid,
  'leaky_relu': lambda x: nn.leaky_relu(x, 0.01),
}
_NORM_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class RegressorConfig:
  """Shape of COMET's estimator with its encoder; JSON-serialisable.

  Attributes:
    encoder: the encoder's shape.
    outputs: names of the outputs, one or one a quality dimension.
    reference: whether a reference is read; without one (COMET-QE) there are
      four features instead of six.
    hidden_sizes: widths of the feed-forward network's hidden layers.
    activation: between them, one of ``ACTIVATIONS``.
    final_activation: after the last layer; None for none.
    pooling: 'mean' over tokens (special ones included), 'cls' or 'max'.
    layer: 'mix' for a learned sum of all hidden states, or the number of one.
    layer_transformation: how the mix's weights are normalised.
    layer_norm: whether each layer is normalised over a text's tokens and
      features before the mix.
    dropout_rate: in the feed-forward network, [0, 1).
  """

  encoder: bert.BertConfig
  outputs: tuple[str, ...] = ('score',)
  reference: bool = True
  hidden_sizes: tuple[int, ...] = (3072, 1024)
  activation: str = 'tanh'
  final_activation: str | None = None
  pooling: str = 'mean'
  layer: int | str = 'mix'
  layer_transformation: str = 'softmax'
  layer_norm: bool = False
  dropout_rate: float = 0.15

  def __post_init__(self) -> None:
    # JSON and gin give lists and dicts.
    if isinstance(self.encoder, Mapping):
      encoder = bert.BertConfig(**self.encoder)
      object.__setattr__(self, 'encoder', encoder)
    object.__setattr__(self, 'outputs', tuple(self.outputs))
    object.__setattr__(self, 'hidden_sizes', tuple(self.hidden_sizes))
    for name, value, choices in (
      ('activation', self.activation, ACTIVATIONS),
      ('pooling', self.pooling, POOLING),
      ('layer_transformation', self.layer_transformation, TRANSFORMATIONS),
      ('final_activation', self.final_activation, (None, *ACTIVATIONS)),
    ):
      if value not in choices:
        raise ValueError(f'{name}={value!r}: use one of {list(choices)}')
    if self.layer != 'mix' and not (
      isinstance(self.layer, int) and 0 <= self.layer <= self.encoder.num_layers
    ):
      raise ValueError(
        f"layer={self.layer!r}: use 'mix' or 0 to {self.encoder.num_layers}"
      )
    if not self.outputs or len(set(self.outputs)) < len(self.outputs):
      raise ValueError(f'outputs={self.outputs}: one or more distinct names')

  @property
  def layers(self) -> tuple[int, ...]:
    """The hidden states that the pooled vector is made of."""
    if self.layer == 'mix':
      return tuple(range(self.encoder.num_layers + 1))
    return (int(self.layer),)

  @property
  def features(self) -> int:
    """Width of the feed-forward network's input."""
    return (6 if self.reference else 4) * self.encoder.emb_dim


def sparsemax(x: Array) -> Array:
  """Projects onto the simplex: [n] -> [n], sums to 1, some exactly 0.

  Martins and Astudillo (2016), algorithm 1.
  """
  ordered = jnp.sort(x)[::-1]
  places = jnp.arange(1, x.shape[0] + 1)
  total = jnp.cumsum(ordered)
  support = jnp.sum(1 + places * ordered > total)
  threshold = (total[support - 1] - 1) / support
  return jnp.maximum(x - threshold, 0.0)


def layer_weights(scalars: Array, transformation: str) -> Array:
  """Weights of the layer mix: float32 [layers], they sum to 1."""
  if transformation == 'sparsemax':
    return sparsemax(scalars)
  return nn.softmax(scalars)


def pool(states: Array, mask: Array, pooling: str) -> Array:
  """One vector a text.

  Args:
    states: [..., batch, length, emb_dim].
    mask: [batch, length], 1 where a token is not padding.
    pooling: one of ``POOLING``.

  Returns:
    float32 [..., batch, emb_dim].
  """
  states = states.astype(jnp.float32)
  if pooling == 'cls':
    return states[..., 0, :]
  if pooling == 'max':
    low = np.finfo(np.float32).min
    return jnp.max(jnp.where(mask[..., None] > 0, states, low), axis=-2)
  total = jnp.einsum('...blE,bl->...bE', states, mask.astype(jnp.float32))
  return total / jnp.maximum(jnp.sum(mask, axis=-1), 1)[..., None]


def _normed(config: RegressorConfig, states: Array, mask: Array) -> Array:
  """Normalises each layer over a text's tokens and features, if asked for."""
  states = states.astype(jnp.float32)
  if not config.layer_norm:
    return states
  inside = mask.astype(jnp.float32)[..., None]
  count = jnp.sum(inside, axis=(-2, -1), keepdims=True) * states.shape[-1]
  mean = jnp.sum(states * inside, axis=(-2, -1), keepdims=True) / count
  centred = (states - mean) * inside
  variance = jnp.sum(centred**2, axis=(-2, -1), keepdims=True) / count
  return (states - mean) / jnp.sqrt(variance + _NORM_EPSILON)


def mix(
  params: Params, config: RegressorConfig, states: Array, mask: Array
) -> Array:
  """Sums hidden states with learned weights.

  Args:
    params: 'scalars' [layers] and 'gamma' [1].
    config: says how weights and layers are normalised.
    states: [layers, batch, length, emb_dim].
    mask: [batch, length].

  Returns:
    float32 [batch, length, emb_dim].
  """
  states = _normed(config, states, mask)
  weights = layer_weights(params['scalars'], config.layer_transformation)
  return params['gamma'] * jnp.einsum('L,Lble->ble', weights, states)


def layer_vectors(config: RegressorConfig, states: Array, mask: Array) -> Array:
  """Pools each layer by itself, before the mix.

  Averages and first tokens commute with the mix, so that a frozen encoder's
  work on a text can be kept while the mix is still learned.

  Args:
    config: says how layers are normalised and pooled.
    states: [layers, batch, length, emb_dim].
    mask: [batch, length].

  Returns:
    float32 [batch, layers, emb_dim], for ``mix_vectors``.

  Raises:
    ValueError: pooling by maxima, which depends on the mix.
  """
  if config.layer == 'mix':
    if config.pooling == 'max':
      raise ValueError("pooling='max': layers cannot be pooled before the mix")
    states = _normed(config, states, mask)
  return jnp.swapaxes(pool(states, mask, config.pooling), 0, 1)


def mix_vectors(
  params: Params, config: RegressorConfig, vectors: Array
) -> Array:
  """The vectors that ``embed`` would give, from those of ``layer_vectors``.

  Args:
    params: 'mix' where layers are mixed.
    config: the estimator.
    vectors: [batch, layers, emb_dim].

  Returns:
    float32 [batch, emb_dim].
  """
  if config.layer != 'mix':
    return vectors[:, 0]
  mixed = params['mix']
  weights = layer_weights(mixed['scalars'], config.layer_transformation)
  return mixed['gamma'] * jnp.einsum('L,bLe->be', weights, vectors)


def embed(
  params: Params,
  config: RegressorConfig,
  tokens: Array,
  rng: Array | None = None,
) -> Array:
  """Texts to vectors: int [batch, length] -> float32 [batch, emb_dim].

  Args:
    params: 'encoder', and 'mix' where layers are mixed.
    config: the estimator.
    tokens: padded at their ends.
    rng: key for the encoder's dropout; None for none.
  """
  states = bert.hidden_states(
    params['encoder'], config.encoder, tokens, layers=config.layers, rng=rng
  )
  mask = (tokens != config.encoder.pad_id).astype(jnp.float32)
  if config.layer == 'mix':
    mixed = mix(params['mix'], config, states, mask)
  else:
    mixed = states[0]
  return pool(mixed, mask, config.pooling)


def features(
  hypothesis: Array, source: Array, reference: Array | None
) -> Array:
  """What the feed-forward network reads: [batch, emb_dim] each -> [batch, F].

  With a reference h, r, h * r, |h - r|, h * s, |h - s| as COMET has them;
  without one h, s, h * s, |h - s|.
  """
  by_source = [hypothesis * source, jnp.abs(hypothesis - source)]
  if reference is None:
    parts = [hypothesis, source, *by_source]
  else:
    parts = [
      hypothesis,
      reference,
      hypothesis * reference,
      jnp.abs(hypothesis - reference),
      *by_source,
    ]
  return jnp.concatenate(parts, axis=-1)


def feed_forward(
  params: Params,
  config: RegressorConfig,
  x: Array,
  rng: Array | None = None,
) -> Array:
  """The estimator's network: [batch, features] -> float32 [batch, outputs].

  Args:
    params: 'layers_N' with 'kernel' and 'bias', the last one the output.
    config: the estimator.
    x: the features.
    rng: key for dropout after hidden layers; None for none.
  """
  depth = len(config.hidden_sizes)
  x = x.astype(jnp.float32)
  for n in range(depth + 1):
    layer = params[f'layers_{n}']
    x = jnp.dot(x, layer['kernel']) + layer['bias']
    if n == depth:
      break
    x = ACTIVATIONS[config.activation](x)
    if rng is not None and config.dropout_rate:
      rng, key = jax.random.split(rng)
      keep = jax.random.bernoulli(key, 1.0 - config.dropout_rate, x.shape)
      x = jnp.where(keep, x / (1.0 - config.dropout_rate), 0.0)
  if config.final_activation:
    x = ACTIVATIONS[config.final_activation](x)
  return x


def predict(
  params: Params,
  config: RegressorConfig,
  hypothesis: Array,
  source: Array,
  reference: Array | None = None,
  rng: Array | None = None,
) -> Array:
  """Vectors to quality: [batch, emb_dim] each -> float32 [batch, outputs].

  Raises:
    ValueError: a reference is missing or not read.
  """
  if (reference is not None) != config.reference:
    raise ValueError(
      'this estimator reads '
      + ('a reference as well' if config.reference else 'no reference')
    )
  x = features(hypothesis, source, reference)
  return feed_forward(params['estimator'], config, x, rng)


def init_params(
  config: RegressorConfig, rng: Array, encoder: Params | None = None
) -> Params:
  """Random parameters; those of the encoder may be given.

  Returns:
    'encoder', 'estimator' and, where layers are mixed, 'mix'. Kernels as
    PyTorch initialises linear layers, which COMET leaves as they are.
  """
  encoder_rng, rng = jax.random.split(rng)
  if encoder is None:
    encoder = bert.init_params(config.encoder, encoder_rng)
  params: dict[str, Any] = {'encoder': encoder, 'estimator': {}}
  if config.layer == 'mix':
    params['mix'] = {
      'scalars': jnp.zeros(len(config.layers), jnp.float32),
      'gamma': jnp.ones(1, jnp.float32),
    }
  widths = (config.features, *config.hidden_sizes, len(config.outputs))
  for n, (inner, outer) in enumerate(zip(widths, widths[1:], strict=False)):
    params['estimator'][f'layers_{n}'] = _linear(
      jax.random.fold_in(rng, n), inner, outer
    )
  return params


def _linear(rng: Array, inner: int, outer: int) -> dict[str, Array]:
  kernel_rng, bias_rng = jax.random.split(rng)
  bound = inner**-0.5
  return {
    'kernel': jax.random.uniform(
      kernel_rng, (inner, outer), jnp.float32, -bound, bound
    ),
    'bias': jax.random.uniform(bias_rng, (outer,), jnp.float32, -bound, bound),
  }


def widen(
  params: Params,
  config: RegressorConfig,
  outputs: Sequence[str],
) -> tuple[Params, RegressorConfig]:
  """One output to several (COMES_MT): each begins as a copy of the one.

  Args:
    params: of an estimator with one output.
    config: its shape.
    outputs: names of the new outputs.

  Raises:
    ValueError: there is more than one output already.
  """
  if len(config.outputs) != 1:
    raise ValueError(
      f'the estimator has the outputs {", ".join(config.outputs)}; only one '
      'can be widened'
    )
  last = f'layers_{len(config.hidden_sizes)}'
  estimator = dict(params['estimator'])
  estimator[last] = {
    'kernel': jnp.tile(estimator[last]['kernel'], (1, len(outputs))),
    'bias': jnp.tile(estimator[last]['bias'], len(outputs)),
  }
  return (
    {**params, 'estimator': estimator},
    dataclasses.replace(config, outputs=tuple(outputs)),
  )


def logical_axes(params: Params) -> Params:
  """Names every axis of every parameter of an estimator."""
  axes: dict[str, Any] = {'encoder': bert.logical_axes(params['encoder'])}
  if 'mix' in params:
    axes['mix'] = {'scalars': ('layers',), 'gamma': ('one',)}
  axes['estimator'] = {
    name: {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
    for name in params['estimator']
  }
  return axes
