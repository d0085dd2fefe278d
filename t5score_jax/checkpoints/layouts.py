"""Names and shapes of a T5 network's parameters, scanned and not.

T5X has two layouts. Unscanned, each layer has its own arrays, and attention
kernels are matrices. Scanned, layers are stacked on axis 1, attention kernels
have an axis of heads, and every layer has its own relative position bias.
`relayout` converts between them without reading arrays; `infer_config` infers a
network's configuration from the shapes of its parameters.

Not here: files of any format (`formats/`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import numpy as np

from t5score_jax.checkpoints.weights import (
  CheckpointError,
  LazyArray,
  Shape,
  Weights,
  check,
  stacked,
)
from t5score_jax.nn.t5 import T5Config

_SIDES = ('encoder', 'decoder')
_ATTENTION = {
  'encoder': ('attention',),
  'decoder': ('self_attention', 'encoder_decoder_attention'),
}
_NORMS = {
  'encoder': ('pre_attention', 'pre_mlp'),
  'decoder': ('pre_self_attention', 'pre_cross_attention', 'pre_mlp'),
}
_BIAS = 'relpos_bias/rel_embedding'
_EMBEDDING = 'token_embedder/embedding'
_LOGITS = 'decoder/logits_dense/kernel'
_PROJECTION = re.compile(r'attention/(query|key|value|out)/kernel')
_LAYER = re.compile(r'(encoder|decoder)/layers_(\d+)/(.+)')


def parameter_shapes(config: T5Config) -> dict[str, Shape]:
  """Shapes by name of all parameters, as `nn.t5.init_params` would make them.

  Args:
    config: The network; `scan_layers` chooses the layout.

  Returns:
    Shapes by '/'-joined name, sorted.
  """
  shapes: dict[str, Shape] = {_EMBEDDING: (config.vocab_size, config.emb_dim)}
  if not config.logits_via_embedding:
    shapes[_LOGITS] = (config.emb_dim, config.vocab_size)
  for side in _SIDES:
    shapes[f'{side}/{side}_norm/scale'] = (config.emb_dim,)
    if not config.biases_per_layer:
      shapes[f'{side}/{_BIAS}'] = _bias_shape(config)
    depth = _depth(config, side)
    for name, shape in _layer_shapes(config, side).items():
      if config.scan_layers:
        shapes[f'{side}/{side}/{name}'] = (shape[0], depth, *shape[1:])
      else:
        for layer in range(depth):
          shapes[f'{side}/layers_{layer}/{name}'] = shape
  return dict(sorted(shapes.items()))


def _layer_shapes(config: T5Config, side: str) -> dict[str, Shape]:
  """Shapes of one layer, without its axis."""
  emb, mlp = config.emb_dim, config.mlp_dim
  inner: Shape = (config.num_heads * config.head_dim,)
  if config.scan_layers:
    inner = (config.num_heads, config.head_dim)
  shapes: dict[str, Shape] = {
    f'{norm}_layer_norm/scale': (emb,) for norm in _NORMS[side]
  }
  for attention in _ATTENTION[side]:
    for name in ('query', 'key', 'value'):
      shapes[f'{attention}/{name}/kernel'] = (emb, *inner)
    shapes[f'{attention}/out/kernel'] = (*inner, emb)
  count = len(config.mlp_activations)
  for name in ['wi'] if count == 1 else [f'wi_{i}' for i in range(count)]:
    shapes[f'mlp/{name}/kernel'] = (emb, mlp)
  shapes['mlp/wo/kernel'] = (mlp, emb)
  if config.biases_per_layer:
    shapes[_BIAS] = _bias_shape(config)
  return shapes


def _bias_shape(config: T5Config) -> Shape:
  return config.num_heads, config.relative_attention_num_buckets


def _depth(config: T5Config, side: str) -> int:
  if side == 'encoder':
    return config.num_encoder_layers
  return config.num_decoder_layers


def relayout(
  config: T5Config, weights: Weights, scan_layers: bool
) -> tuple[T5Config, dict[str, LazyArray]]:
  """Converts weights to the layout for scanned or for unscanned layers.

  Values are unchanged. A position bias that the layers share is repeated for
  each scanned layer. Conversely, scanned layers whose biases are bit-identical
  share one again, and others keep their own (`relative_attention_per_layer` in
  the configuration): only these small arrays are read here. With one layer per
  side, scanned or not, the bias counts as shared.

  Args:
    config: The network of `weights`.
    weights: The weights by name.
    scan_layers: The target layout.

  Returns:
    The new configuration and weights.
  """
  if config.scan_layers == scan_layers:
    return config, dict(weights)
  if scan_layers:
    made = _scan(config, weights)
    return dataclasses.replace(config, scan_layers=True), made
  made = _unscan(config, weights)
  shared = _share_biases(config, made)
  config = dataclasses.replace(
    config, scan_layers=False, relative_attention_per_layer=not shared
  )
  return config, dict(sorted(made.items()))


def _scan(config: T5Config, weights: Weights) -> dict[str, LazyArray]:
  made = {n: a for n, a in weights.items() if not _LAYER.fullmatch(n)}
  for side in _SIDES:
    depth = _depth(config, side)
    shared = made.pop(f'{side}/{_BIAS}', None)
    if shared is not None:
      made[f'{side}/{side}/{_BIAS}'] = stacked([shared] * depth, 1)
    for name in _layer_shapes(config, side):
      layers = [weights[f'{side}/layers_{i}/{name}'] for i in range(depth)]
      if found := _PROJECTION.search(name):
        axis = 0 if found[1] == 'out' else 1
        layers = [array.split_axis(axis, config.head_dim) for array in layers]
      made[f'{side}/{side}/{name}'] = stacked(layers, 1)
  return dict(sorted(made.items()))


def _unscan(config: T5Config, weights: Weights) -> dict[str, LazyArray]:
  made: dict[str, LazyArray] = {}
  for name, array in weights.items():
    side, _, rest = name.partition('/')
    if side not in _SIDES or not rest.startswith(f'{side}/'):
      made[name] = array
      continue
    rest = rest.removeprefix(f'{side}/')
    for layer in range(_depth(config, side)):
      one = array.pick(1, layer)
      if found := _PROJECTION.search(rest):
        one = one.merge_axes(0 if found[1] == 'out' else 1)
      made[f'{side}/layers_{layer}/{rest}'] = one
  return made


def _share_biases(config: T5Config, weights: dict[str, LazyArray]) -> bool:
  """Replaces the layers' biases by one for the stack, if all are equal."""
  first = {}
  for side in _SIDES:
    names = [
      f'{side}/layers_{layer}/{_BIAS}' for layer in range(_depth(config, side))
    ]
    values = [weights[name].read().tobytes() for name in names]
    if not names or any(value != values[0] for value in values):
      return False
    first[side] = weights[names[0]]
  for name in [n for n in weights if n.endswith(_BIAS)]:
    del weights[name]
  for side, array in first.items():
    weights[f'{side}/{_BIAS}'] = array
  return True


def is_scanned(names: Iterable[str]) -> bool:
  """Whether any of these names is a parameter of scanned layers."""
  return any(
    name.startswith(('encoder/encoder/', 'decoder/decoder/')) for name in names
  )


def infer_config(
  shapes: Mapping[str, Shape], activation: str | None = None
) -> tuple[T5Config, tuple[str, ...]]:
  """Infers a network's configuration from the shapes of its parameters.

  Shapes do not show the activation of the feed-forward blocks. Gated blocks get
  that of T5 1.1, mT5 and ByT5 (gelu) by default, others that of T5 1.0 (relu).
  Nor do shapes show the largest relative distance with its own position bias:
  128 is assumed, as in every published T5.

  Args:
    shapes: Shapes by T5X's names, of scanned or unscanned layers.
    activation: Activation of the feed-forward blocks (of the gate, if gated).

  Returns:
    The configuration and a sentence for each assumption.

  Raises:
    CheckpointError: Parameters that no T5 network has, with the diff from the
      closest network.
  """
  scanned = is_scanned(shapes)
  first = '{0}/{0}' if scanned else '{0}/layers_0'
  encoder, decoder = (first.format(side) for side in _SIDES)

  def shape(name: str, ndim: int) -> Shape:
    if len(shapes.get(name, ())) != ndim:
      raise CheckpointError(
        f'not the parameters of a T5 network: {name} of {ndim} axes is '
        f'{shapes.get(name, "missing")}; there are '
        f'{", ".join(sorted(shapes)[:3])}, ... ({len(shapes)} in all)'
      )
    return tuple(shapes[name])

  vocab_size, emb_dim = shape(_EMBEDDING, 2)
  gated = f'{encoder}/mlp/wi_0/kernel' in shapes
  wi = shape(
    f'{encoder}/mlp/{"wi_0" if gated else "wi"}/kernel', 2 + int(scanned)
  )
  query = shape(f'{encoder}/attention/query/kernel', 4 if scanned else 2)
  per_layer = scanned or f'encoder/{_BIAS}' not in shapes
  bias = shape(
    f'{encoder if per_layer else "encoder"}/{_BIAS}', 2 + int(scanned)
  )
  head_dim = query[-1] if scanned else query[1] // max(1, bias[0])
  notes = []
  if activation is None:
    activation = 'gelu' if gated else 'relu'
    notes.append(
      f'activation {activation}: assumed, as the feed-forward blocks are '
      f'{"gated" if gated else "not gated"} (--activation says otherwise)'
    )
  try:
    config = T5Config(
      vocab_size=vocab_size,
      emb_dim=emb_dim,
      num_heads=bias[0],
      head_dim=head_dim,
      mlp_dim=wi[-1],
      num_encoder_layers=_count(shapes, 'encoder', wi if scanned else None),
      num_decoder_layers=_count(
        shapes,
        'decoder',
        shape(f'{decoder}/mlp/wo/kernel', 3) if scanned else None,
      ),
      mlp_activations=(activation, 'linear') if gated else (activation,),
      logits_via_embedding=_LOGITS not in shapes,
      relative_attention_num_buckets=bias[-1],
      relative_attention_per_layer=per_layer and not scanned,
      scan_layers=scanned,
    )
  except ValueError as error:
    raise CheckpointError(f'--activation: {error}') from error
  check(
    parameter_shapes(config),
    shapes,
    'the parameters are not those of a T5 network',
  )
  return config, tuple(notes)


def _count(
  shapes: Mapping[str, Shape], side: str, stacked_shape: Shape | None
) -> int:
  """The number of layers of a side."""
  if stacked_shape is not None:
    return stacked_shape[1]
  matches = (_LAYER.fullmatch(name) for name in shapes)
  return max((int(m[2]) + 1 for m in matches if m and m[1] == side), default=0)


def finite(name: str, values: np.ndarray) -> np.ndarray:
  """The values, if all are finite.

  Raises:
    CheckpointError: They are not; the message names the parameter.
  """
  if not np.isfinite(values).all():
    raise CheckpointError(
      f'the weight {name} is not finite: the checkpoint is damaged, or '
      'training had diverged when it was saved'
    )
  return values
