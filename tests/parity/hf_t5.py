"""Tiny random T5s of transformers, and their weights under T5X's names.

The oracle of `test_t5_parity.py` and of `tests/golden/make_t5.py`. Not an
importer of published checkpoints.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import torch
import transformers
from flax.traverse_util import unflatten_dict

from t5score_jax.nn import t5

_SHAPE = {
  'd_model': 16,
  'd_kv': 8,
  'd_ff': 24,
  'num_heads': 2,
  'num_layers': 2,
  'num_decoder_layers': 2,
  'dropout_rate': 0.0,
}
# All weights are multiples of this.
WEIGHT_STEP = 1 / 64


@dataclasses.dataclass(frozen=True)
class Case:
  """One member of the family: its class in transformers and our shape.

  Attributes:
    make: makes the transformers model, weights unset.
    config: the same shape as ours.
    input_length: of the encoder; beyond 128 reaches the last bucket.
    target_length: of the decoder.
  """

  make: Callable[[], torch.nn.Module]
  config: t5.T5Config
  input_length: int = 20
  target_length: int = 12


def _case(kind: str, changes: Mapping[str, object], **lengths: int) -> Case:
  values = {'vocab_size': 48, **_SHAPE, **changes}
  config_class = getattr(transformers, f'{kind}Config')
  model_class = getattr(transformers, f'{kind}ForConditionalGeneration')

  def make() -> torch.nn.Module:
    model = model_class(config_class(**values)).eval()
    if not values['tie_word_embeddings']:
      # transformers 5 ties whatever the configuration says, unless a
      # checkpoint brings a matrix of its own; published ones do.
      weight = model.lm_head.weight.detach().clone()
      model.lm_head.weight = torch.nn.Parameter(weight)
    return model

  gated = values['feed_forward_proj'] == 'gated-gelu'
  config = t5.T5Config(
    vocab_size=values['vocab_size'],
    emb_dim=values['d_model'],
    num_heads=values['num_heads'],
    head_dim=values['d_kv'],
    mlp_dim=values['d_ff'],
    num_encoder_layers=values['num_layers'],
    num_decoder_layers=values['num_decoder_layers'],
    mlp_activations=('gelu', 'linear') if gated else ('relu',),
    logits_via_embedding=values['tie_word_embeddings'],
    relative_attention_per_layer=kind == 'UMT5',
  )
  return Case(make, config, **lengths)


_GATED = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}

CASES = {
  '1_0': _case(
    'T5', {'feed_forward_proj': 'relu', 'tie_word_embeddings': True}
  ),
  '1_1': _case('T5', _GATED),
  'mt5': _case(
    'MT5', {**_GATED, 'num_heads': 3}, input_length=150, target_length=140
  ),
  # ByT5 has a heavy encoder and a light decoder.
  'byt5': _case(
    'T5',
    {**_GATED, 'vocab_size': 384, 'num_layers': 3, 'num_decoder_layers': 1},
    input_length=40,
  ),
  'umt5': _case('UMT5', _GATED, input_length=150, target_length=140),
}


def randomize(model: torch.nn.Module, seed: int) -> None:
  """Draws all weights such that every one of them shows in the output.

  They are multiples of `WEIGHT_STEP` that fit a byte, so that files of them
  are small and exact.
  """
  rng = np.random.default_rng(seed)
  with torch.no_grad():
    for name, weight in sorted(model.named_parameters()):
      value = rng.standard_normal(tuple(weight.shape))
      if name.endswith('layer_norm.weight'):
        value = 1.0 + 0.3 * value
      elif 'relative_attention_bias' not in name and 'shared' not in name:
        # [out, in]
        value = 1.2 * value / np.sqrt(weight.shape[1])
      if name.endswith('.q.weight'):
        # As T5 does, which divides no attention logits; larger ones would
        # amplify rounding beyond the tests' tolerance.
        value /= np.sqrt(_SHAPE['d_kv'])
      value = np.clip(np.round(value / WEIGHT_STEP), -127, 127) * WEIGHT_STEP
      weight.copy_(torch.from_numpy(value.astype(np.float32)))


_ATTENTIONS = {
  'SelfAttention': {'encoder': 'attention', 'decoder': 'self_attention'},
  'EncDecAttention': {'decoder': 'encoder_decoder_attention'},
}
_PROJECTIONS = {'q': 'query', 'k': 'key', 'v': 'value', 'o': 'out'}
_NORMS = {
  'encoder': ('pre_attention', 'pre_mlp'),
  'decoder': ('pre_self_attention', 'pre_cross_attention', 'pre_mlp'),
}


def _t5x_name(name: str, per_layer_bias: bool) -> str:
  """The T5X name of a transformers weight."""
  parts = name.removesuffix('.weight').split('.')
  if parts == ['shared']:
    return 'token_embedder/embedding'
  if parts == ['lm_head']:
    return 'decoder/logits_dense/kernel'
  side = parts[0]
  if parts[1:] == ['final_layer_norm']:
    return f'{side}/{side}_norm/scale'
  # side.block.I.layer.J.MODULE[.WEIGHT]
  layer, block, module = f'{side}/layers_{parts[2]}', int(parts[4]), parts[5]
  if module == 'layer_norm':
    return f'{layer}/{_NORMS[side][block]}_layer_norm/scale'
  if module == 'DenseReluDense':
    return f'{layer}/mlp/{parts[6]}/kernel'
  if parts[6] == 'relative_attention_bias':
    owner = layer if per_layer_bias else side
    return f'{owner}/relpos_bias/rel_embedding'
  attention = _ATTENTIONS[module][side]
  return f'{layer}/{attention}/{_PROJECTIONS[parts[6]]}/kernel'


def to_t5x(model: torch.nn.Module, config: t5.T5Config) -> dict[str, object]:
  """The model's weights as our parameter tree."""
  flat = {}
  for name, weight in model.named_parameters():
    value = weight.detach().numpy().copy()
    new = _t5x_name(name, config.biases_per_layer)
    # Linear layers are [out, in] there and [in, out] here; the position bias
    # is [buckets, heads] there and [heads, buckets] here.
    flat[new] = value if new.endswith(('embedding', 'scale')) else value.T
    if new.endswith('rel_embedding'):
      flat[new] = value.T
  return unflatten_dict(flat, sep='/')


def batch(case: Case, seed: int, rows: int = 3) -> dict[str, np.ndarray]:
  """Random texts of several lengths, padded, ending in `</s>`."""
  rng = np.random.default_rng(seed)

  def texts(length: int) -> np.ndarray:
    tokens = rng.integers(2, case.config.vocab_size, (rows, length))
    for i, row in enumerate(tokens):
      end = length - i * (length // 4)
      row[end - 1] = 1
      row[end:] = 0
    return tokens.astype(np.int32)

  return {
    'inputs': texts(case.input_length),
    'targets': texts(case.target_length)[::-1].copy(),
  }


def outputs(
  model: torch.nn.Module, inputs: np.ndarray, targets: np.ndarray
) -> dict[str, np.ndarray]:
  """What transformers computes: the arrays that `t5_outputs.compute` makes.

  Log-probabilities come from the float32 logits, in float64.
  """
  ids = torch.from_numpy(inputs).long()
  labels = torch.from_numpy(targets).long()
  decoder_ids = torch.nn.functional.pad(labels, (1, 0))[:, :-1]
  with torch.no_grad():
    made = model(
      input_ids=ids,
      attention_mask=(ids > 0).long(),
      decoder_input_ids=decoder_ids,
    )
    log_probs = torch.log_softmax(made.logits.double(), dim=-1)
  log_probs = log_probs.gather(-1, labels[..., None])[..., 0]
  weights = (labels > 0).double()
  return {
    'encoded': made.encoder_last_hidden_state.numpy(),
    'logits': made.logits.numpy(),
    'log_probs': (log_probs * weights).numpy(),
    'scores': ((log_probs * weights).sum(-1) / weights.sum(-1)).numpy(),
  }
