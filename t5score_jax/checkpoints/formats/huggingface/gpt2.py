"""Reads and writes GPT-2 in Hugging Face folders.

A folder holds `config.json` (`model_type` gpt2), the weights, and the
tokenizer's files: `tokenizer.json`, or `vocab.json` and `merges.txt`. Settings
that the network of `nn/gpt2.py` does not support are refused. Nothing is
executed and nothing is downloaded.
"""

from __future__ import annotations

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
  LazyArray,
  check_fixed,
  read_json,
)
from t5score_jax.data.subwords import load_tokenizer
from t5score_jax.nn import gpt2
from t5score_jax.nn.bert import ACTIVATIONS

MODEL_TYPE = kinds.CAUSAL_TYPE
ARCHITECTURE = 'GPT2LMHeadModel'

# GPT-2's own value, which transformers assumes if the file states none.
_BEGIN_ID = 50256
_PREFIX = 'transformer.'
# Ours -> theirs, within a layer. Their linear layers are [in, out], as ours.
_LAYER_NAMES = {
  'attention_norm': 'ln_1',
  'attention/out': 'attn.c_proj',
  'mlp_norm': 'ln_2',
  'wi': 'mlp.c_fc',
  'wo': 'mlp.c_proj',
}
# Theirs are one array; a '/' in a name is here the part that it is.
_JOINED = 'attn.c_attn'
_PARTS = ('query', 'key', 'value')
# Settings that the network supports with these values only; None: the default.
_FIXED: Mapping[str, tuple[object, ...]] = {
  'scale_attn_weights': (True, None),
  'scale_attn_by_inverse_layer_idx': (False, None),
  'add_cross_attention': (False, None),
  'tie_word_embeddings': (True, None),
}


def is_language_model(model: object) -> bool:
  """Whether a loaded model is one that `load` returns."""
  config = getattr(model, 'config', None)
  return isinstance(config, gpt2.GPT2Config)


def load(path: str | os.PathLike[str]) -> encoders.EncoderBundle:
  """Loads a language model from a folder.

  Args:
    path: A Hugging Face folder.

  Returns:
    The network, whose `config` is a `GPT2Config`, with its tokenizer.

  Raises:
    CheckpointError: Not such a folder, an unknown setting, or weights that are
      missing or of another shape.
    FileNotFoundError: There is no such folder.
  """
  folder = Path(path)
  if not folder.is_dir():
    raise FileNotFoundError(
      f'no language model {str(path)!r}: there is no such folder'
    )
  config_file = folder / encoders.CONFIG_FILE
  config = config_from_settings(read_json(config_file), str(config_file))
  weights = huggingface_weights.open_folder(folder)
  params = read_params(config, weights, str(folder))
  tokenizer = load_tokenizer(folder)
  encoders.check_vocabulary(tokenizer, config, folder)
  return encoders.EncoderBundle(
    config, params, tokenizer, folder.resolve().name
  )


def config_from_settings(
  found: Mapping[str, Any], where: str
) -> gpt2.GPT2Config:
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
  activation = found.get('activation_function', 'gelu_new')
  same = {'gelu_pytorch_tanh': 'gelu_new', 'swish': 'silu'}
  activation = same.get(activation, activation)
  if activation not in ACTIVATIONS:
    raise CheckpointError(
      f'{where}: activation_function {activation!r} is not one of '
      f'{sorted(ACTIVATIONS)}'
    )
  needed = ('vocab_size', 'n_embd', 'n_head', 'n_layer', 'n_positions')
  if missing := [name for name in needed if found.get(name) is None]:
    raise CheckpointError(f'{where}: there is no {", ".join(missing)}')
  try:
    width, rows = int(found['n_embd']), int(found['vocab_size'])
    begin = found.get('bos_token_id', _BEGIN_ID)
    return gpt2.GPT2Config(
      vocab_size=rows,
      emb_dim=width,
      num_heads=int(found['n_head']),
      mlp_dim=int(found.get('n_inner') or 4 * width),
      num_layers=int(found['n_layer']),
      max_positions=int(found['n_positions']),
      activation=activation,
      norm_epsilon=float(found.get('layer_norm_epsilon', 1e-5)),
      dropout_rate=float(found.get('resid_pdrop', 0.1)),
      # Out of range for another vocabulary if the file has the default.
      begin_id=begin if isinstance(begin, int) and 0 <= begin < rows else None,
    )
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{where}: {error}') from error


def settings_from_config(config: gpt2.GPT2Config) -> dict[str, Any]:
  """The `config.json` with which `transformers` loads the model."""
  return {
    'architectures': [ARCHITECTURE],
    'model_type': MODEL_TYPE,
    'vocab_size': config.vocab_size,
    'n_embd': config.emb_dim,
    'n_head': config.num_heads,
    'n_inner': config.mlp_dim,
    'n_layer': config.num_layers,
    'n_positions': config.max_positions,
    'activation_function': config.activation,
    'layer_norm_epsilon': config.norm_epsilon,
    'resid_pdrop': config.dropout_rate,
    'embd_pdrop': config.dropout_rate,
    'attn_pdrop': config.dropout_rate,
    'bos_token_id': config.begin_id,
    'eos_token_id': config.begin_id,
    'tie_word_embeddings': True,
  }


def read_params(
  config: gpt2.GPT2Config, weights: Mapping[str, LazyArray], where: str
) -> dict[str, Any]:
  """Reads the parameters, float32; other arrays are ignored.

  These are the masks in old files (`attn.bias`), and the output matrix
  (`lm_head.weight`), which is the word embedding.

  Args:
    config: The network's shape.
    weights: Arrays by name, with or without the prefix 'transformer.'.
    where: The file or folder, for messages.

  Raises:
    CheckpointError: Some are missing or of another shape; the error names all.
  """
  plain = {name.removeprefix(_PREFIX): array for name, array in weights.items()}
  if 'wte.weight' not in plain:
    raise CheckpointError(
      f'{where}: there is no wte.weight among {len(weights)} arrays: not a '
      'GPT-2'
    )
  params = encoders.read_named(
    _parameter_names(config), {**plain, **_separate(plain, where)}, where
  )
  encoders.check_shapes(gpt2.init_params, config, params, where)
  return params


def save(
  bundle: encoders.EncoderBundle,
  folder: str | os.PathLike[str],
  dtype: str = 'float32',
) -> None:
  """Writes a folder that `GPT2LMHeadModel.from_pretrained` loads.

  Args:
    bundle: The model; its `config` is a `GPT2Config`.
    folder: Created if necessary; each file appears whole or not at all.
    dtype: The dtype of the stored weights, 'float32' or 'bfloat16'.
  """
  config = bundle.config
  assert isinstance(config, gpt2.GPT2Config)
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  tensors = encoders.write_named(_parameter_names(config), bundle.params)
  settings = settings_from_config(config) | {'dtype': dtype}
  encoders.write_folder(path, settings, _join(tensors), dtype)
  bundle.tokenizer.save(path)


def _parameter_names(
  config: gpt2.GPT2Config,
) -> Iterator[tuple[str, str, bool]]:
  """Yields (our name, theirs without the prefix, False: not transposed)."""
  yield 'embeddings/word', 'wte.weight', False
  yield 'embeddings/position', 'wpe.weight', False
  yield 'final_norm/scale', 'ln_f.weight', False
  yield 'final_norm/bias', 'ln_f.bias', False
  for n in range(config.num_layers):
    for ours, theirs in _LAYER_NAMES.items():
      leaf = 'scale' if ours.endswith('norm') else 'kernel'
      yield f'layers_{n}/{ours}/{leaf}', f'h.{n}.{theirs}.weight', False
      yield f'layers_{n}/{ours}/bias', f'h.{n}.{theirs}.bias', False
    for part in _PARTS:
      ours, theirs = f'layers_{n}/attention/{part}', f'h.{n}.{_JOINED}'
      yield f'{ours}/kernel', f'{theirs}.weight/{part}', False
      yield f'{ours}/bias', f'{theirs}.bias/{part}', False


def _separate(
  weights: Mapping[str, LazyArray], where: str
) -> dict[str, LazyArray]:
  """Splits the arrays that hold query, key and value."""
  parts = {}
  for name, array in weights.items():
    if not name.endswith((f'.{_JOINED}.weight', f'.{_JOINED}.bias')):
      continue
    axis = len(array.shape) - 1
    width, rest = divmod(array.shape[axis], len(_PARTS))
    if rest:
      raise CheckpointError(
        f'{where}: {name} {list(array.shape)} does not hold query, key and '
        'value'
      )
    split = array.split_axis(axis, width)
    for n, part in enumerate(_PARTS):
      parts[f'{name}/{part}'] = split.pick(axis, n)
  return parts


def _join(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The inverse of `_separate`, under names with the prefix."""
  joined = {}
  for name, array in tensors.items():
    whole, _, part = name.partition('/')
    if part and part != _PARTS[0]:
      continue
    if part:
      array = np.concatenate([tensors[f'{whole}/{p}'] for p in _PARTS], -1)
    joined[_PREFIX + whole] = array
  return joined
