"""The head on top of an encoder: layer mix, pooling, COMET's regressor.

COMET's regressor (Rei et al. 2020) reads a hypothesis, a source and optionally
a reference. Each is encoded separately, mixed over layers and pooled to one
vector. Products and differences of the vectors go through a feed-forward
network. COMES (2022, section 3) has one output per quality dimension. Not here:
encoders (`nn/bert.py`) and losses (`models/losses.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.errors import OptionError
from t5score_jax.nn import bert

Array = jax.Array
Params = Mapping[str, Any]

POOLING = ('mean', 'cls', 'max', 'pooler')
# Parts of the parameters that a frozen encoder keeps.
ENCODER_PARTS = ('encoder', 'pooler')
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
  """Shape of COMET's regressor with its encoder; JSON-serializable.

  Attributes:
    encoder: The configuration of the encoder.
    outputs: Names of the outputs: one, or one per quality dimension.
    reference: Whether a reference is read; without one (COMET-QE) there are
      four features instead of six.
    hidden_sizes: Widths of the hidden layers of the feed-forward network.
    activation: Their activation, one of `ACTIVATIONS`.
    final_activation: Activation of the last layer; None for none.
    pooling: 'mean' over tokens (special tokens included), 'cls' or 'max';
      'pooler' is BERT's, a tanh layer on the first token of one layer.
    layer: 'mix' for a learned sum of all hidden states, or the index of one.
    layer_transformation: Normalization of the weights of the mix.
    layer_norm: Whether each layer is normalized over the tokens and features of
      a text before the mix.
    dropout_rate: Dropout in the feed-forward network, [0, 1).
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
        raise OptionError(f'{name}={value!r}: use one of {list(choices)}')
    if self.layer != 'mix' and not (
      isinstance(self.layer, int) and 0 <= self.layer <= self.encoder.num_layers
    ):
      raise OptionError(
        f"layer={self.layer!r}: use 'mix' or 0 to {self.encoder.num_layers}"
      )
    if self.pooling == 'pooler' and self.layer == 'mix':
      raise OptionError("pooling='pooler' needs one layer, not layer='mix'")
    if not self.outputs or len(set(self.outputs)) < len(self.outputs):
      raise OptionError(f'outputs={self.outputs}: one or more distinct names')

  @property
  def layers(self) -> tuple[int, ...]:
    """Indices of the hidden states that the pooled vector depends on."""
    if self.layer == 'mix':
      return tuple(range(self.encoder.num_layers + 1))
    return (int(self.layer),)

  @property
  def features(self) -> int:
    """Width of the input of the feed-forward network."""
    return (6 if self.reference else 4) * self.encoder.emb_dim

  @property
  def num_tags(self) -> int:
    """Number of word tags, for networks with tags (`nn/unified.py`)."""
    return 0


def sparsemax(x: Array) -> Array:
  """Projects onto the probability simplex, [n] -> [n]; sparse.

  Martins and Astudillo (2016), algorithm 1.
  """
  ordered = jnp.sort(x)[::-1]
  ranks = jnp.arange(1, x.shape[0] + 1)
  total = jnp.cumsum(ordered)
  support = jnp.sum(1 + ranks * ordered > total)
  threshold = (total[support - 1] - 1) / support
  return jnp.maximum(x - threshold, 0.0)


def layer_weights(scalars: Array, transformation: str) -> Array:
  """Weights of the layer mix: float32 [layers], sum 1."""
  if transformation == 'sparsemax':
    return sparsemax(scalars)
  return nn.softmax(scalars)


def pool(states: Array, mask: Array, pooling: str) -> Array:
  """Pools hidden states to one vector per text.

  Args:
    states: [..., batch, length, emb_dim].
    mask: [batch, length], 0 at padding, else 1.
    pooling: One of `POOLING`; 'pooler' gives the input of its layer.

  Returns:
    float32 [..., batch, emb_dim].
  """
  states = states.astype(jnp.float32)
  if pooling in ('cls', 'pooler'):
    return states[..., 0, :]
  if pooling == 'max':
    low = np.finfo(np.float32).min
    return jnp.max(jnp.where(mask[..., None] > 0, states, low), axis=-2)
  total = jnp.einsum('...blE,bl->...bE', states, mask.astype(jnp.float32))
  return total / jnp.maximum(jnp.sum(mask, axis=-1), 1)[..., None]


def _pooled(
  params: Params, config: RegressorConfig, states: Array, mask: Array
) -> Array:
  """Applies `pool` and, for 'pooler', the layer of BERT's pooler."""
  vectors = pool(states, mask, config.pooling)
  if config.pooling != 'pooler':
    return vectors
  layer = params['pooler']
  return jnp.tanh(jnp.dot(vectors, layer['kernel']) + layer['bias'])


def _normed(config: RegressorConfig, states: Array, mask: Array) -> Array:
  """Normalizes each layer over tokens and features if `config.layer_norm`."""
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
    config: Normalization of weights and layers.
    states: [layers, batch, length, emb_dim].
    mask: [batch, length].

  Returns:
    float32 [batch, length, emb_dim].
  """
  states = _normed(config, states, mask)
  weights = layer_weights(params['scalars'], config.layer_transformation)
  return params['gamma'] * jnp.einsum('L,Lble->ble', weights, states)


def layer_vectors(
  params: Params, config: RegressorConfig, states: Array, mask: Array
) -> Array:
  """Pools each layer separately, before the mix.

  Mean and first-token pooling commute with the mix, so the output of a frozen
  encoder can be cached while the mix is still learned.

  Args:
    params: 'pooler' if that is the pooling.
    config: Normalization and pooling of layers.
    states: [layers, batch, length, emb_dim].
    mask: [batch, length].

  Returns:
    float32 [batch, layers, emb_dim], for `mix_vectors`.

  Raises:
    OptionError: Max pooling is combined with a mix; they do not commute.
  """
  if config.layer == 'mix':
    if config.pooling == 'max':
      raise OptionError("pooling='max': layers cannot be pooled before the mix")
    states = _normed(config, states, mask)
  return jnp.swapaxes(_pooled(params, config, states, mask), 0, 1)


def mix_vectors(
  params: Params, config: RegressorConfig, vectors: Array
) -> Array:
  """Mixes the output of `layer_vectors` into the output of `embed`.

  Args:
    params: 'mix' if layers are mixed.
    config: The configuration of the regressor.
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
  """Embeds texts: int [batch, length] -> float32 [batch, emb_dim].

  Args:
    params: 'encoder', and 'mix' or 'pooler' if the configuration has them.
    config: The configuration of the regressor.
    tokens: Padded at the end.
    rng: Key for dropout in the encoder; None for none.
  """
  states = bert.hidden_states(
    params['encoder'], config.encoder, tokens, layers=config.layers, rng=rng
  )
  mask = (tokens != config.encoder.pad_id).astype(jnp.float32)
  if config.layer == 'mix':
    mixed = mix(params['mix'], config, states, mask)
  else:
    mixed = states[0]
  return _pooled(params, config, mixed, mask)


def features(
  hypothesis: Array, source: Array, reference: Array | None
) -> Array:
  """Input of the feed-forward network: [batch, emb_dim] each -> [batch, F].

  As in COMET: h, r, h * r, |h - r|, h * s, |h - s|; without a reference
  h, s, h * s, |h - s|.
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
  """Feed-forward network: [batch, features] -> float32 [batch, outputs].

  Args:
    params: 'layers_N' with 'kernel' and 'bias'; the last is the output.
    config: The configuration of the regressor.
    x: The features.
    rng: Key for dropout after hidden layers; None for none.
  """
  layer = params['layers_0']
  x = jnp.dot(x.astype(jnp.float32), layer['kernel']) + layer['bias']
  return after_first_layer(params, config, x, rng)


def after_first_layer(
  params: Params,
  config: RegressorConfig,
  x: Array,
  rng: Array | None = None,
) -> Array:
  """`feed_forward` after the sums of its first layer, [batch, width]."""
  depth = len(config.hidden_sizes)
  for n in range(1, depth + 1):
    x = ACTIVATIONS[config.activation](x)
    if rng is not None and config.dropout_rate:
      rng, key = jax.random.split(rng)
      keep = jax.random.bernoulli(key, 1.0 - config.dropout_rate, x.shape)
      x = jnp.where(keep, x / (1.0 - config.dropout_rate), 0.0)
    layer = params[f'layers_{n}']
    x = jnp.dot(x, layer['kernel']) + layer['bias']
  if config.final_activation:
    x = ACTIVATIONS[config.final_activation](x)
  return x


# The first layer is linear in `features`. For pairs of a few texts, most of it
# is computed once per text: its output is the sum of these three functions.


def hypothesis_terms(params: Params, hypothesis: Array, source: Array) -> Array:
  """The terms of h, h * s and |h - s| in the first layer, with the bias.

  Args:
    params: Parameters of the feed-forward network.
    hypothesis: [batch, emb_dim].
    source: [batch, emb_dim].

  Returns:
    [batch, width of the first layer].
  """
  kernel = _by_feature(params, hypothesis)
  parts = [hypothesis, hypothesis * source, jnp.abs(hypothesis - source)]
  kernel = jnp.concatenate([kernel[:1], kernel[4:]])
  terms = jnp.dot(jnp.concatenate(parts, -1), _joined(kernel))
  return terms + params['layers_0']['bias']


def reference_terms(params: Params, reference: Array) -> Array:
  """The term of r in the first layer: [batch, emb_dim] -> [batch, width]."""
  return jnp.dot(reference, _by_feature(params, reference)[1])


def pair_terms(params: Params, hypothesis: Array, reference: Array) -> Array:
  """The terms of h * r and |h - r| in the first layer; symmetric."""
  kernel = _by_feature(params, hypothesis)
  parts = [hypothesis * reference, jnp.abs(hypothesis - reference)]
  return jnp.dot(jnp.concatenate(parts, -1), _joined(kernel[2:4]))


def _by_feature(params: Params, vectors: Array) -> Array:
  """The first kernel as [6, emb_dim, width], in the order of `features`."""
  kernel = params['layers_0']['kernel']
  return kernel.reshape(6, vectors.shape[-1], kernel.shape[-1])


def _joined(kernel: Array) -> Array:
  return kernel.reshape(-1, kernel.shape[-1])


def predict(
  params: Params,
  config: RegressorConfig,
  hypothesis: Array,
  source: Array,
  reference: Array | None = None,
  rng: Array | None = None,
) -> Array:
  """Predicts quality: [batch, emb_dim] each -> float32 [batch, outputs].

  Raises:
    ValueError: The reference is missing or not expected.
  """
  if (reference is not None) != config.reference:
    raise OptionError(
      'the regressor needs '
      + ('a reference' if config.reference else 'no reference')
    )
  x = features(hypothesis, source, reference)
  return feed_forward(params['estimator'], config, x, rng)


def init_params(
  config: RegressorConfig, rng: Array, encoder: Params | None = None
) -> Params:
  """Random parameters; those of the encoder may be passed.

  Returns:
    'encoder', 'estimator' and, where the configuration has them, 'mix',
    'pooler' and 'tagger'. Kernels have PyTorch's default initialization, as in
    COMET.
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
  if config.pooling == 'pooler':
    width = config.encoder.emb_dim
    params['pooler'] = _linear(jax.random.fold_in(encoder_rng, 0), width, width)
  widths = (config.features, *config.hidden_sizes, len(config.outputs))
  for n, (inner, outer) in enumerate(zip(widths, widths[1:], strict=False)):
    params['estimator'][f'layers_{n}'] = _linear(
      jax.random.fold_in(rng, n), inner, outer
    )
  # For networks that also tag words (`nn/unified.py`).
  if config.num_tags:
    key = jax.random.fold_in(rng, len(widths))
    params['tagger'] = _linear(key, config.encoder.emb_dim, config.num_tags)
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
  """Copies a single output to several; COMES_MT is trained from the result.

  Args:
    params: Parameters of a regressor with one output.
    config: Its configuration.
    outputs: Names of the new outputs.

  Raises:
    OptionError: The regressor has more than one output.
  """
  if len(config.outputs) != 1:
    raise OptionError(
      f'the regressor has the outputs {", ".join(config.outputs)}; only a '
      'regressor with one output can be widened'
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
  """Names every axis of every parameter of a regressor."""
  axes: dict[str, Any] = {'encoder': bert.logical_axes(params['encoder'])}
  if 'mix' in params:
    axes['mix'] = {'scalars': ('layers',), 'gamma': ('one',)}
  if 'pooler' in params:
    axes['pooler'] = {'kernel': ('embed', 'joined_kv'), 'bias': ('joined_kv',)}
  axes['estimator'] = {
    name: {'kernel': ('embed', 'mlp'), 'bias': ('mlp',)}
    for name in params['estimator']
  }
  if 'tagger' in params:
    axes['tagger'] = {'kernel': ('embed', 'types'), 'bias': ('types',)}
  return axes
