"""Encoders from and to Hugging Face folders: BERT, RoBERTa, XLM-RoBERTa.

A folder holds ``config.json``, the weights and the tokenizer's files. Names are
mapped both ways, and settings that the network of ``nn/bert.py`` does not have
are refused. Nothing is executed and nothing is downloaded. Not here: T5
(``checkpoints/formats/huggingface/checkpoint.py``).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import files
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.nn.bert import ACTIVATIONS, BertConfig

CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'

MODEL_TYPES = kinds.ENCODER_TYPES
# All but BERT's number positions from behind the padding.
_OFFSET_TYPES = MODEL_TYPES[1:]

# Ours -> theirs, within a layer; kernels are transposed.
_LAYER_NAMES = {
  'attention/query': 'attention.self.query',
  'attention/key': 'attention.self.key',
  'attention/value': 'attention.self.value',
  'attention/out': 'attention.output.dense',
  'attention_norm': 'attention.output.LayerNorm',
  'wi': 'intermediate.dense',
  'wo': 'output.dense',
  'mlp_norm': 'output.LayerNorm',
}
# XLM-R XL's own names of its norms.
_PRE_NORM_NAMES = {
  'attention_norm': 'attention.self_attn_layer_norm',
  'mlp_norm': 'LayerNorm',
}
_LEAVES = {'kernel': 'weight', 'bias': 'bias', 'scale': 'weight'}
# Prefixes that heads put before an encoder's names.
_PREFIXES = ('', 'bert.', 'roberta.', 'xlm_roberta.', '0.auto_model.', 'model.')


class EncoderError(CheckpointError):
  """A folder holds no encoder that can be read; the message says why."""


@dataclasses.dataclass(frozen=True)
class EncoderBundle:
  """An encoder with its tokenizer.

  Attributes:
    config: the network's shape.
    params: nested dict of float32 arrays under the names of ``nn/bert.py``.
    tokenizer: text to ids.
    name: what to call it.
  """

  config: BertConfig
  params: Mapping[str, Any]
  tokenizer: SubwordTokenizer
  name: str


def is_encoder(path: str | os.PathLike[str]) -> bool:
  """Whether ``path`` is a Hugging Face folder of such an encoder."""
  config = Path(path) / CONFIG_FILE
  if not config.is_file():
    return False
  try:
    found = json.loads(config.read_text('utf-8'))
  except ValueError:
    return False
  return isinstance(found, dict) and found.get('model_type') in MODEL_TYPES


def load_encoder(path: str | os.PathLike[str]) -> EncoderBundle:
  """Loads an encoder from a folder.

  Args:
    path: a Hugging Face folder; heads beside the encoder are ignored.

  Raises:
    EncoderError: not such a folder, a setting that is not known, weights that
      are missing or of another shape.
    FileNotFoundError: there is no such folder.
  """
  folder = Path(path)
  if not folder.is_dir():
    raise FileNotFoundError(
      f'no encoder {str(path)!r}: there is no such folder'
    )
  config = read_config(folder)
  params = read_params(config, huggingface_weights.open_folder(folder))
  tokenizer = load_tokenizer(folder)
  check_vocabulary(tokenizer, config, folder)
  return EncoderBundle(config, params, tokenizer, folder.resolve().name)


def check_vocabulary(
  tokenizer: SubwordTokenizer,
  config: BertConfig,
  where: str | os.PathLike[str],
) -> None:
  """Raises EncoderError where a tokenizer has ids without an embedding.

  Args:
    tokenizer: text to ids.
    config: the network's shape.
    where: the tokenizer's folder, for the message.
  """
  if tokenizer.vocab_size > config.vocab_size:
    raise EncoderError(
      f'{os.fspath(where)}: the tokenizer has {tokenizer.vocab_size} ids, the '
      f"embedding only {config.vocab_size} rows; give the encoder's own"
    )


def read_config(folder: Path) -> BertConfig:
  """Reads ``config.json``.

  Raises:
    EncoderError: it is missing or damaged, or says what is not known here.
  """
  path = folder / CONFIG_FILE
  try:
    found = json.loads(path.read_text('utf-8'))
  except FileNotFoundError:
    raise EncoderError(f'{folder}: there is no {CONFIG_FILE}') from None
  except ValueError as error:
    raise EncoderError(f'{path}: damaged ({error})') from error
  return config_from_settings(found, str(path))


def config_from_settings(found: Mapping[str, Any], where: str) -> BertConfig:
  """Turns Hugging Face's settings into ours.

  Args:
    found: what ``config.json`` says.
    where: the file, for messages.

  Raises:
    EncoderError: a setting is missing or not known here.
  """
  kind = found.get('model_type')
  if kind not in MODEL_TYPES:
    raise EncoderError(
      f'{where}: model_type {kind!r} is not one of {", ".join(MODEL_TYPES)}'
    )
  expected = {
    'position_embedding_type': ('absolute', None),
    'is_decoder': (False, None),
    'add_cross_attention': (False, None),
  }
  for key, values in expected.items():
    if found.get(key) not in values:
      raise EncoderError(f'{where}: {key} {found[key]!r} is not supported')
  activation = found.get('hidden_act', 'gelu')
  if activation == 'swish':
    activation = 'silu'
  if activation not in ACTIVATIONS:
    raise EncoderError(
      f'{where}: hidden_act {activation!r} is not one of {sorted(ACTIVATIONS)}'
    )
  offset_type = kind in _OFFSET_TYPES
  pad_id = int(found.get('pad_token_id', 1 if offset_type else 0) or 0)
  try:
    return BertConfig(
      vocab_size=int(found['vocab_size']),
      emb_dim=int(found['hidden_size']),
      num_heads=int(found['num_attention_heads']),
      mlp_dim=int(found['intermediate_size']),
      num_layers=int(found['num_hidden_layers']),
      max_positions=int(found['max_position_embeddings']),
      position_offset=pad_id + 1 if offset_type else 0,
      type_vocab_size=int(found.get('type_vocab_size', 2)),
      pad_id=pad_id,
      activation=activation,
      norm_epsilon=float(found.get('layer_norm_eps', 1e-12)),
      pre_norm=kind == 'xlm-roberta-xl',
      dropout_rate=float(found.get('hidden_dropout_prob', 0.1)),
    )
  except KeyError as error:
    raise EncoderError(f'{where}: there is no setting {error}') from None


def settings_from_config(config: BertConfig) -> dict[str, Any]:
  """The ``config.json`` with which `transformers` loads the encoder."""
  if config.pre_norm:
    kind, name = 'xlm-roberta-xl', 'XLMRobertaXLModel'
  elif config.position_offset:
    kind, name = 'xlm-roberta', 'XLMRobertaModel'
  else:
    kind, name = 'bert', 'BertModel'
  return {
    'architectures': [name],
    'model_type': kind,
    'vocab_size': config.vocab_size,
    'hidden_size': config.emb_dim,
    'num_attention_heads': config.num_heads,
    'intermediate_size': config.mlp_dim,
    'num_hidden_layers': config.num_layers,
    'max_position_embeddings': config.max_positions,
    'type_vocab_size': config.type_vocab_size,
    'pad_token_id': config.pad_id,
    'hidden_act': config.activation,
    'layer_norm_eps': config.norm_epsilon,
    'hidden_dropout_prob': config.dropout_rate,
    'attention_probs_dropout_prob': config.dropout_rate,
  }


def parameter_names(config: BertConfig) -> Iterator[tuple[str, str, bool]]:
  """Yields (our name, Hugging Face's, whether it is transposed)."""
  for ours, theirs in (
    ('word', 'word_embeddings'),
    ('position', 'position_embeddings'),
    ('type', 'token_type_embeddings'),
  ):
    yield f'embeddings/{ours}', f'embeddings.{theirs}.weight', False
  names = dict(_LAYER_NAMES)
  norms = [('embeddings/norm', 'embeddings.LayerNorm')]
  if config.pre_norm:
    names.update(_PRE_NORM_NAMES)
    norms = [('final_norm', 'encoder.LayerNorm')]
  for ours, theirs in norms:
    yield f'{ours}/scale', f'{theirs}.weight', False
    yield f'{ours}/bias', f'{theirs}.bias', False
  for layer in range(config.num_layers):
    for ours, theirs in names.items():
      leaf = 'scale' if ours.endswith('norm') else 'kernel'
      for end in (leaf, 'bias'):
        yield (
          f'layers_{layer}/{ours}/{end}',
          f'encoder.layer.{layer}.{theirs}.{_LEAVES[end]}',
          end == 'kernel',
        )


def read_params(
  config: BertConfig, weights: Mapping[str, LazyArray]
) -> dict[str, Any]:
  """Reads an encoder's parameters, float32, whatever stands beside them.

  Raises:
    EncoderError: some are missing or of another shape; all are named.
  """
  prefix = next(
    (
      p for p in _PREFIXES if f'{p}embeddings.word_embeddings.weight' in weights
    ),
    None,
  )
  if prefix is None:
    raise EncoderError(
      'there is no embeddings.word_embeddings.weight among '
      f'{len(weights)} arrays: not an encoder of this family'
    )
  params: dict[str, Any] = {}
  missing = []
  for ours, theirs, transposed in parameter_names(config):
    # Old checkpoints call the norms' parameters gamma and beta.
    old = theirs.replace('LayerNorm.weight', 'LayerNorm.gamma').replace(
      'LayerNorm.bias', 'LayerNorm.beta'
    )
    name = next(
      (n for n in (prefix + theirs, prefix + old) if n in weights), ''
    )
    if not name:
      missing.append(prefix + theirs)
      continue
    array = np.asarray(weights[name].read(), np.float32)
    _set(params, ours, np.ascontiguousarray(array.T) if transposed else array)
  if missing:
    raise EncoderError(
      f'{len(missing)} parameters are missing: {", ".join(missing[:5])}'
      + (', ...' if len(missing) > 5 else '')
    )
  _check_shapes(config, params)
  return params


def _set(tree: dict[str, Any], name: str, value: np.ndarray) -> None:
  *parents, last = name.split('/')
  for parent in parents:
    tree = tree.setdefault(parent, {})
  tree[last] = value


def _get(tree: Mapping[str, Any], name: str) -> Any:
  for part in name.split('/'):
    tree = tree[part]
  return tree


def _check_shapes(config: BertConfig, params: Mapping[str, Any]) -> None:
  d, m = config.emb_dim, config.mlp_dim
  shapes = {
    'embeddings/word': (config.vocab_size, d),
    'embeddings/position': (config.max_positions, d),
    'embeddings/type': (config.type_vocab_size, d),
  }
  wrong = []
  want: tuple[int, ...]
  for name, _, _ in parameter_names(config):
    array = _get(params, name)
    inner = re.search(r'/(wi|wo)/(kernel|bias)$', name)
    if name in shapes:
      want = shapes[name]
    elif name.endswith('kernel'):
      want = {'wi': (d, m), 'wo': (m, d)}.get(inner[1] if inner else '', (d, d))
    else:
      want = (m,) if inner and inner[1] == 'wi' else (d,)
    if array.shape != want:
      wrong.append(f'{name} has shape {array.shape}, not {want}')
  if wrong:
    raise EncoderError('; '.join(wrong[:5]))


def encoder_tensors(
  config: BertConfig, params: Mapping[str, Any], prefix: str = ''
) -> dict[str, np.ndarray]:
  """An encoder's parameters under Hugging Face's names and layouts."""
  tensors = {}
  for ours, theirs, transposed in parameter_names(config):
    array = np.asarray(_get(params, ours))
    tensors[prefix + theirs] = np.ascontiguousarray(
      array.T if transposed else array
    )
  return tensors


def save_encoder(
  bundle: EncoderBundle,
  folder: str | os.PathLike[str],
  dtype: str = 'float32',
) -> None:
  """Writes a folder that ``AutoModel.from_pretrained`` loads.

  Args:
    bundle: the encoder.
    folder: made if need be; each file appears whole or not at all.
    dtype: of the stored weights, 'float32' or 'bfloat16'.
  """
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  settings = settings_from_config(bundle.config) | {'dtype': dtype}
  tensors = encoder_tensors(bundle.config, bundle.params)
  write_folder(path, settings, tensors, dtype)
  bundle.tokenizer.save(path)


def write_folder(
  path: Path,
  settings: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  dtype: str,
) -> None:
  """Writes ``config.json`` and ``model.safetensors``."""
  kind = np.dtype(ml_dtypes.bfloat16) if dtype == 'bfloat16' else np.float32
  stored = {name: array.astype(kind) for name, array in tensors.items()}
  with files.write_atomically(path / WEIGHTS_FILE, 'wb') as out:
    out.write(safetensors.numpy.save(stored, {'format': 'pt'}))
  with files.write_atomically(path / CONFIG_FILE) as out:
    json.dump(settings, out, indent=2)
    out.write('\n')
