"""Reads and writes BART in Hugging Face folders.

A folder holds `config.json` (`model_type` bart), the weights (safetensors or
torch's) and the tokenizer's files. Settings that the network of `nn/bart.py`
does not support are refused. Nothing is executed and nothing is downloaded.

In these folders the beginning of a text has id 0 and padding has id 1. The
reader swaps the two in the weights, and `BartBundle.ids` in encoded texts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.checkpoints.weights import (
  CheckpointError,
  check_fixed,
  read_json,
)
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.nn import bart
from t5score_jax.nn.bert import ACTIVATIONS

MODEL_TYPE = kinds.BART_TYPE
ARCHITECTURE = 'BartForConditionalGeneration'

_BIAS = 'final_logits_bias'
_SIDES = ('encoder', 'decoder')
# Ours -> theirs, within a layer; kernels are transposed.
_LAYER = {
  'attention/query': 'self_attn.q_proj',
  'attention/key': 'self_attn.k_proj',
  'attention/value': 'self_attn.v_proj',
  'attention/out': 'self_attn.out_proj',
  'attention_norm': 'self_attn_layer_norm',
  'wi': 'fc1',
  'wo': 'fc2',
  'mlp_norm': 'final_layer_norm',
}
_CROSS = {
  'cross_attention/query': 'encoder_attn.q_proj',
  'cross_attention/key': 'encoder_attn.k_proj',
  'cross_attention/value': 'encoder_attn.v_proj',
  'cross_attention/out': 'encoder_attn.out_proj',
  'cross_attention_norm': 'encoder_attn_layer_norm',
}
# Settings that the network supports with these values only; None: the default.
_FIXED: Mapping[str, tuple[object, ...]] = {
  'normalize_before': (False, None),
  'add_final_layer_norm': (False, None),
  'normalize_embedding': (True, None),
  'static_position_embeddings': (False, None),
  'extra_pos_embeddings': (2, None),
  'tie_word_embeddings': (True, None),
  'pad_token_id': (1, None),
  'bos_token_id': (0, None),
}


@dataclasses.dataclass(frozen=True)
class BartBundle:
  """BART with its tokenizer.

  Attributes:
    config: The network's shape.
    params: Nested dict of float32 arrays under the names of `nn/bart.py`.
    tokenizer: Encodes a text as the folder's ids.
    name: What to call it.
  """

  config: bart.BartConfig
  params: Mapping[str, Any]
  tokenizer: SubwordTokenizer
  name: str

  def ids(self, text: list[int]) -> tuple[int, ...]:
    """The network's ids of a text, given the folder's."""
    return tuple(1 - i if i < 2 else i for i in text)


def load(path: str | os.PathLike[str]) -> BartBundle:
  """Loads a model from a folder.

  Raises:
    CheckpointError: Not such a folder, an unknown setting, or weights that are
      missing or of another shape.
    FileNotFoundError: There is no such folder.
  """
  folder = Path(path)
  config_file = folder / encoders.CONFIG_FILE
  config = config_from_settings(read_json(config_file), str(config_file))
  weights = {
    name.removeprefix('model.'): array
    for name, array in huggingface_weights.open_folder(folder).items()
  }
  bias = weights.get(_BIAS)
  if bias is not None and np.any(bias.read()):
    raise CheckpointError(
      f'{folder}: {_BIAS} is not zero, which is not supported'
    )
  names = list(parameter_names(config))
  params = encoders.read_named(names, weights, str(folder))
  params['embeddings']['word'] = _swapped(params['embeddings']['word'])
  encoders.check_shapes(bart.init_params, config, params, str(folder))
  tokenizer = load_tokenizer(folder)
  encoders.check_vocabulary(tokenizer, config, folder)
  return BartBundle(config, params, tokenizer, folder.resolve().name)


def save(
  bundle: BartBundle, folder: str | os.PathLike[str], dtype: str = 'float32'
) -> None:
  """Writes a folder that `BartForConditionalGeneration` loads.

  Args:
    bundle: The model.
    folder: Created if necessary; each file appears whole or not at all.
    dtype: The dtype of the stored weights, 'float32' or 'bfloat16'.
  """
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  words = _swapped(np.asarray(bundle.params['embeddings']['word']))
  params = {**bundle.params, 'embeddings': {'word': words}}
  tensors = {
    f'model.{name}': array
    for name, array in encoders.write_named(
      parameter_names(bundle.config), params
    ).items()
  }
  tensors[_BIAS] = np.zeros((1, bundle.config.vocab_size), np.float32)
  settings = settings_from_config(bundle.config) | {'dtype': dtype}
  encoders.write_folder(path, settings, tensors, dtype)
  bundle.tokenizer.save(path)


def config_from_settings(
  found: Mapping[str, Any], where: str
) -> bart.BartConfig:
  """Turns Hugging Face's settings into ours.

  Args:
    found: The content of `config.json`.
    where: The file, for messages.

  Raises:
    CheckpointError: A setting is missing or unknown.
  """
  if found.get('model_type') != MODEL_TYPE:
    raise CheckpointError(
      f'{where}: model_type {found.get("model_type")!r} is not {MODEL_TYPE}'
    )
  check_fixed(found, _FIXED, where)
  for name in ('attention_heads', 'ffn_dim'):
    both = [found.get(f'{side}_{name}') for side in _SIDES]
    if both[0] != both[1]:
      raise CheckpointError(
        f'{where}: {name} of encoder and decoder are {both[0]} and {both[1]}; '
        'only equal ones are supported'
      )
  activation = found.get('activation_function', 'gelu')
  if activation not in ACTIVATIONS:
    raise CheckpointError(
      f'{where}: activation_function {activation!r} is not one of '
      f'{sorted(ACTIVATIONS)}'
    )
  try:
    return bart.BartConfig(
      vocab_size=int(found['vocab_size']),
      emb_dim=int(found['d_model']),
      num_heads=int(found['encoder_attention_heads']),
      mlp_dim=int(found['encoder_ffn_dim']),
      num_layers=int(found['encoder_layers']),
      num_decoder_layers=int(found['decoder_layers']),
      max_positions=int(found['max_position_embeddings']) + 2,
      activation=activation,
      start_id=int(found.get('decoder_start_token_id', 2)),
      scaled_embedding=bool(found.get('scale_embedding', False)),
    )
  except KeyError as error:
    raise CheckpointError(f'{where}: there is no setting {error}') from None


def settings_from_config(config: bart.BartConfig) -> dict[str, Any]:
  """The `config.json` with which `transformers` loads the model."""
  per_side = {
    'attention_heads': config.num_heads,
    'ffn_dim': config.mlp_dim,
  }
  return {
    'architectures': [ARCHITECTURE],
    'model_type': MODEL_TYPE,
    'is_encoder_decoder': True,
    'vocab_size': config.vocab_size,
    'd_model': config.emb_dim,
    **{f'{side}_{k}': v for side in _SIDES for k, v in per_side.items()},
    'encoder_layers': config.num_layers,
    'decoder_layers': config.num_decoder_layers,
    'num_hidden_layers': config.num_layers,
    'max_position_embeddings': config.max_positions - 2,
    'activation_function': config.activation,
    'scale_embedding': config.scaled_embedding,
    'decoder_start_token_id': config.start_id,
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
    'tie_word_embeddings': True,
  }


def parameter_names(
  config: bart.BartConfig,
) -> Iterator[tuple[str, str, bool]]:
  """Yields (our name, theirs without 'model.', whether it is transposed)."""
  yield 'embeddings/word', 'shared.weight', False
  for side in _SIDES:
    position = f'{side}.embed_positions.weight'
    yield f'{side}/embeddings/position', position, False
    blocks = {f'{side}/embeddings_norm': f'{side}.layernorm_embedding'}
    depth, layer = config.num_layers, _LAYER
    if side == 'decoder':
      depth, layer = config.num_decoder_layers, {**_LAYER, **_CROSS}
    for n in range(depth):
      for ours, theirs in layer.items():
        blocks[f'{side}/layers_{n}/{ours}'] = f'{side}.layers.{n}.{theirs}'
    for ours, theirs in blocks.items():
      leaf = 'scale' if ours.endswith('norm') else 'kernel'
      yield f'{ours}/{leaf}', f'{theirs}.weight', leaf == 'kernel'
      yield f'{ours}/bias', f'{theirs}.bias', False


def _swapped(words: np.ndarray) -> np.ndarray:
  """The word embedding with padding and beginning swapped."""
  return np.concatenate([words[1:2], words[:1], words[2:]])
