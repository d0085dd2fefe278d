"""HuggingFace's names of a T5 network's weights, and ours (T5X's).

Linear layers are [out, in] in HuggingFace and [in, out] here; position biases
are [buckets, heads] there and [heads, buckets] here. All matrices except the
embedding are transposed. Not here: files.
"""

from __future__ import annotations

import re

from t5score_jax.checkpoints.weights import LazyArray, Weights

EMBEDDING = 'shared.weight'
HEAD = 'lm_head.weight'
#: Further names of the embedding, if a file has them.
EMBEDDING_COPIES = (
  'encoder.embed_tokens.weight',
  'decoder.embed_tokens.weight',
)
#: Written by early releases, used by none.
UNUSED = (
  'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight',
)

_TOP = {
  EMBEDDING: 'token_embedder/embedding',
  HEAD: 'decoder/logits_dense/kernel',
  'encoder.final_layer_norm.weight': 'encoder/encoder_norm/scale',
  'decoder.final_layer_norm.weight': 'decoder/decoder_norm/scale',
}
_TOP_BACK = {ours: theirs for theirs, ours in _TOP.items()}
_PROJECTIONS = {'q': 'query', 'k': 'key', 'v': 'value', 'o': 'out'}
# Side -> (norm, module, our name) of each of their sublayers.
_SUBLAYERS = {
  'encoder': (
    ('pre_attention_layer_norm', 'SelfAttention', 'attention'),
    ('pre_mlp_layer_norm', 'DenseReluDense', 'mlp'),
  ),
  'decoder': (
    ('pre_self_attention_layer_norm', 'SelfAttention', 'self_attention'),
    (
      'pre_cross_attention_layer_norm',
      'EncDecAttention',
      'encoder_decoder_attention',
    ),
    ('pre_mlp_layer_norm', 'DenseReluDense', 'mlp'),
  ),
}
_BIAS = 'relpos_bias/rel_embedding'
_THEIR_BIAS = 'layer.0.SelfAttention.relative_attention_bias'


def _layer_names() -> dict[tuple[str, str], str]:
  """(side, their name within a block) -> our name within a layer."""
  names = {}
  for side, sublayers in _SUBLAYERS.items():
    names[side, _THEIR_BIAS] = _BIAS
    for i, (norm, theirs, ours) in enumerate(sublayers):
      names[side, f'layer.{i}.layer_norm'] = f'{norm}/scale'
      inner = {name: name for name in ('wi', 'wi_0', 'wi_1', 'wo')}
      if theirs != 'DenseReluDense':
        inner = _PROJECTIONS
      for there, here in inner.items():
        names[side, f'layer.{i}.{theirs}.{there}'] = f'{ours}/{here}/kernel'
  return names


_LAYER = _layer_names()
_LAYER_BACK = {(side, ours): theirs for (side, theirs), ours in _LAYER.items()}
_BLOCK = re.compile(r'(encoder|decoder)\.block\.(\d+)\.(.+)\.weight')
_OURS = re.compile(r'(encoder|decoder)/layers_(\d+)/(.+)')


def to_ours(name: str, biases_per_layer: bool) -> str:
  """Our name of a weight; HuggingFace's name if there is none.

  Args:
    name: Such as 'encoder.block.0.layer.1.DenseReluDense.wo.weight'.
    biases_per_layer: Whether each layer has its own position biases (umT5);
      otherwise all layers share the first layer's.
  """
  if name in _TOP:
    return _TOP[name]
  match = _BLOCK.fullmatch(name)
  if not match or (match[1], match[3]) not in _LAYER:
    return name
  side, layer, inner = match.groups()
  if inner == _THEIR_BIAS and not biases_per_layer:
    return f'{side}/{_BIAS}' if layer == '0' else name
  return f'{side}/layers_{layer}/{_LAYER[side, inner]}'


def to_theirs(name: str) -> str:
  """HuggingFace's name of one of our weights, which must not be scanned."""
  if name in _TOP_BACK:
    return _TOP_BACK[name]
  side, _, inner = name.partition('/')
  if inner == _BIAS:
    return f'{side}.block.0.{_THEIR_BIAS}.weight'
  match = _OURS.fullmatch(name)
  assert match, name
  side, layer, inner = match.groups()
  return f'{side}.block.{layer}.{_LAYER_BACK[side, inner]}.weight'


def turn(name: str, array: LazyArray) -> LazyArray:
  """Converts an array from their layout to ours or, equally, back.

  Args:
    name: HuggingFace's name.
    array: In either layout.
  """
  if name == EMBEDDING or len(array.shape) != 2:
    return array
  return array.transposed()


def all_to_theirs(weights: Weights) -> dict[str, LazyArray]:
  """Unscanned weights in HuggingFace's names, layout and order."""
  made = {}
  for name, array in weights.items():
    theirs = to_theirs(name)
    made[theirs] = turn(theirs, array)
  return dict(sorted(made.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[int, list[tuple[bool, int, str]]]:
  """The embedding, the encoder, the decoder, the output; layers by number."""
  first = name.split('.')[0]
  place = ['shared', 'encoder', 'decoder', 'lm_head'].index(first)
  return place, [
    (not part.isdigit(), int(part) if part.isdigit() else 0, part)
    for part in name.split('.')
  ]
