"""Reads and writes BERT, RoBERTa and XLM-RoBERTa in Hugging Face folders.

A folder holds `config.json`, the weights and the tokenizer's files. Names are
mapped both ways, and settings that the network of `nn/bert.py` does not support
are refused. Nothing is executed and nothing is downloaded. Not here: T5
(`checkpoints/formats/huggingface/checkpoint.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import int8, kinds, packaged
from t5score_jax.checkpoints.formats.huggingface import deberta, distilbert
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.checkpoints.formats.huggingface.config import model_type
from t5score_jax.checkpoints.weights import (
  DTYPES,
  CheckpointError,
  LazyArray,
  check_fixed,
  diff,
  read_json,
  shapes_of,
)
from t5score_jax.data import files
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.errors import OptionError
from t5score_jax.nn import shapes
from t5score_jax.nn.bert import ACTIVATIONS, BertConfig, init_params
from t5score_jax.nn.deberta import DebertaConfig

CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'

MODEL_TYPES = kinds.ENCODER_TYPES
# These number positions from the id after padding.
_OFFSET_TYPES = ('roberta', 'xlm-roberta', 'camembert', 'xlm-roberta-xl')

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
# Settings that the networks support with these values only; None: the default.
_FIXED: Mapping[str, tuple[object, ...]] = {
  'position_embedding_type': ('absolute', None),
  'is_decoder': (False, None),
  'add_cross_attention': (False, None),
}
_LEAVES = {'kernel': 'weight', 'bias': 'bias', 'scale': 'weight'}
# Prefixes that heads put before an encoder's names.
_PREFIXES = (
  *('', 'bert.', 'roberta.', 'xlm_roberta.', 'deberta.'),
  *('0.auto_model.', 'model.'),
)


@dataclasses.dataclass(frozen=True)
class EncoderBundle:
  """An encoder with its tokenizer.

  Attributes:
    config: The network's shape.
    params: Nested dict of float32 arrays under the names of `nn/bert.py`.
    tokenizer: Encodes texts as ids.
    name: Its name.
  """

  config: BertConfig
  params: Mapping[str, Any]
  tokenizer: SubwordTokenizer
  name: str


def is_encoder(path: str | os.PathLike[str]) -> bool:
  """Whether `path` is a Hugging Face folder of such an encoder."""
  return model_type(Path(path)) in MODEL_TYPES


def load_encoder(path: str | os.PathLike[str]) -> EncoderBundle:
  """Loads an encoder from a folder.

  Args:
    path: A Hugging Face folder; heads beside the encoder are ignored.

  Raises:
    CheckpointError: Not such a folder, an unknown setting, or weights that are
      missing or of another shape.
    FileNotFoundError: There is no such folder.
  """
  folder = Path(path)
  if not folder.is_dir():
    raise FileNotFoundError(
      f'no encoder {str(path)!r}: there is no such folder'
    )
  config = read_config(folder)
  params = read_params(
    config, huggingface_weights.open_folder(folder), str(folder)
  )
  tokenizer = load_tokenizer(folder)
  check_vocabulary(tokenizer, config, folder)
  return EncoderBundle(config, params, tokenizer, packaged.name_of(folder))


def check_vocabulary(
  tokenizer: SubwordTokenizer,
  config: BertConfig,
  where: str | os.PathLike[str],
) -> None:
  """Raises CheckpointError if a tokenizer has ids without an embedding.

  Args:
    tokenizer: The tokenizer.
    config: The network's shape.
    where: The tokenizer's folder, for the message.
  """
  if tokenizer.vocab_size > config.vocab_size:
    raise CheckpointError(
      f'{os.fspath(where)}: the tokenizer has {tokenizer.vocab_size} ids, the '
      f"embedding only {config.vocab_size} rows; give the encoder's own"
    )


def read_config(folder: Path) -> BertConfig:
  """Reads `config.json`.

  Raises:
    CheckpointError: It is missing or damaged, or has an unknown setting.
  """
  path = folder / CONFIG_FILE
  return config_from_settings(read_json(path), str(path))


def config_from_settings(found: Mapping[str, Any], where: str) -> BertConfig:
  """Turns Hugging Face's settings into ours.

  Args:
    found: The content of `config.json`.
    where: The file, for messages.

  Raises:
    CheckpointError: A setting is missing or unknown.
  """
  kind = found.get('model_type')
  if kind not in MODEL_TYPES:
    raise CheckpointError(
      f'{where}: model_type {kind!r} is not one of {", ".join(MODEL_TYPES)}'
    )
  if kind == deberta.MODEL_TYPE:
    return deberta.config_from_settings(found, where)
  if kind == distilbert.MODEL_TYPE:
    found = distilbert.as_bert(found)
  check_fixed(found, _FIXED, where)
  activation = found.get('hidden_act', 'gelu')
  if activation == 'swish':
    activation = 'silu'
  if activation not in ACTIVATIONS:
    raise CheckpointError(
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
    raise CheckpointError(f'{where}: there is no setting {error}') from None


def settings_from_config(config: BertConfig) -> dict[str, Any]:
  """The `config.json` with which `transformers` loads the encoder."""
  if isinstance(config, DebertaConfig):
    return deberta.settings_from_config(config)
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


def parameter_names(
  config: BertConfig, prefix: str = ''
) -> Iterator[tuple[str, str, bool]]:
  """Yields (our name, Hugging Face's, whether it is transposed).

  Args:
    config: The network's shape.
    prefix: The prefix of Hugging Face's names, such as 'bert.'.
  """
  if isinstance(config, DebertaConfig):
    yield from deberta.parameter_names(config, prefix)
    return
  embeddings = f'{prefix}embeddings'
  for ours, theirs in (
    ('word', 'word_embeddings'),
    ('position', 'position_embeddings'),
    ('type', 'token_type_embeddings'),
  ):
    yield f'embeddings/{ours}', f'{embeddings}.{theirs}.weight', False
  names = dict(_LAYER_NAMES)
  norms = [('embeddings/norm', f'{embeddings}.LayerNorm')]
  if config.pre_norm:
    names.update(_PRE_NORM_NAMES)
    norms = [('final_norm', f'{prefix}encoder.LayerNorm')]
  for ours, theirs in norms:
    yield f'{ours}/scale', f'{theirs}.weight', False
    yield f'{ours}/bias', f'{theirs}.bias', False
  for layer in range(config.num_layers):
    for ours, theirs in names.items():
      leaf = 'scale' if ours.endswith('norm') else 'kernel'
      for end in (leaf, 'bias'):
        yield (
          f'layers_{layer}/{ours}/{end}',
          f'{prefix}encoder.layer.{layer}.{theirs}.{_LEAVES[end]}',
          end == 'kernel',
        )


def read_params(
  config: BertConfig, weights: Mapping[str, LazyArray], where: str
) -> dict[str, Any]:
  """Reads an encoder's parameters, float32; other weights are ignored.

  Args:
    config: The network's shape.
    weights: Arrays by name.
    where: The file or folder, for messages.

  Raises:
    CheckpointError: Some are missing or of another shape; the error names all.
  """
  if any('.q_lin.' in name for name in weights):
    weights = distilbert.renamed(weights)
  prefix = next(
    (
      p for p in _PREFIXES if f'{p}embeddings.word_embeddings.weight' in weights
    ),
    None,
  )
  if prefix is None:
    raise CheckpointError(
      f'{where}: there is no embeddings.word_embeddings.weight among '
      f'{len(weights)} arrays: not an encoder of this family'
    )
  # Old checkpoints call the norms' parameters gamma and beta.
  current = {
    name.replace('Norm.gamma', 'Norm.weight').replace(
      'Norm.beta', 'Norm.bias'
    ): array
    for name, array in weights.items()
    if name.startswith(prefix)
  }
  params = read_named(parameter_names(config, prefix), current, where)
  check_shapes(init_params, config, params, where)
  return params


def read_named(
  names: Iterable[tuple[str, str, bool]],
  weights: Mapping[str, LazyArray],
  where: str,
) -> dict[str, Any]:
  """Reads parameters that have other names and layouts in a file.

  Args:
    names: (our name, the file's, whether it is transposed) of each.
    weights: The file's arrays by name.
    where: The file or folder, for messages.

  Returns:
    Nested dict of float32 arrays.

  Raises:
    CheckpointError: Some are missing; the error names the first few.
  """
  arrays = {}
  missing = []
  for ours, theirs, transposed in names:
    if theirs in weights:
      array = np.asarray(weights[theirs].read(), np.float32)
      arrays[ours] = np.ascontiguousarray(array.T if transposed else array)
    else:
      missing.append(theirs)
  if missing:
    raise CheckpointError(
      f'{where}: {len(missing)} parameters are missing: '
      + ', '.join(missing[:5])
      + (', ...' if len(missing) > 5 else '')
    )
  return bundles.nest(arrays)


def write_named(
  names: Iterable[tuple[str, str, bool]], params: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The inverse of `read_named`: float32 arrays by the file's names."""
  arrays = dict(bundles.flatten_names(params))
  tensors = {}
  for ours, theirs, transposed in names:
    array = np.asarray(arrays[ours], np.float32)
    tensors[theirs] = np.ascontiguousarray(array.T if transposed else array)
  return tensors


def check_shapes(
  init: shapes.Init, config: Any, params: Mapping[str, Any], where: str
) -> None:
  """Raises CheckpointError, with a diff, unless shapes are those of `init`.

  Args:
    init: (configuration, random key) -> parameters; not executed.
    config: The network's configuration.
    params: Nested or flat dict of arrays.
    where: The file or folder, for messages.
  """
  expected = shapes.param_shapes(init, config)
  both = (
    shapes_of(dict(bundles.flatten_names(tree))) for tree in (expected, params)
  )
  if text := diff(*both):
    raise CheckpointError(f'{where}: the weights do not fit:\n{text}')


def save_encoder(
  bundle: EncoderBundle,
  folder: str | os.PathLike[str],
  dtype: str = 'float32',
) -> None:
  """Writes a folder that `AutoModel.from_pretrained` loads.

  Args:
    bundle: The encoder.
    folder: Created if necessary; each file appears whole or not at all.
    dtype: The dtype of the stored weights, 'float32' or 'bfloat16'.
  """
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  settings = settings_from_config(bundle.config) | {'dtype': dtype}
  tensors = write_named(parameter_names(bundle.config), bundle.params)
  write_folder(path, settings, tensors, dtype)
  bundle.tokenizer.save(path)


def truncated(bundle: EncoderBundle, layers: int) -> EncoderBundle:
  """An encoder with the first layers of another, and equal states.

  Args:
    bundle: The encoder.
    layers: Number of layers to keep; negative numbers count from the end.

  Returns:
    The encoder; the same one if it has no more layers.

  Raises:
    OptionError: There are fewer layers, or middle layers' states are not
      normalized as those of the last layer are (XLM-R XL).
  """
  depth = bundle.config.num_layers
  number = layers + depth + 1 if layers < 0 else layers
  if not 1 <= number <= depth:
    raise OptionError(f'layer {layers}: the encoder has 1 to {depth}')
  if number == depth:
    return bundle
  if bundle.config.pre_norm:
    raise OptionError(
      f'layer {layers}: {bundle.name} has a norm behind its last layer only'
    )
  return dataclasses.replace(
    bundle,
    config=dataclasses.replace(bundle.config, num_layers=number),
    params=selected_layers(bundle.params, range(number)),
  )


def selected_layers(
  params: Mapping[str, Any], layers: Sequence[int]
) -> dict[str, Any]:
  """The parameters of an encoder with only these of its layers.

  Args:
    params: Of the encoder.
    layers: Layers to keep, numbered from 0.

  Returns:
    All other parameters, and those of the layers, renumbered in this order.
  """
  kept = {k: v for k, v in params.items() if not k.startswith('layers_')}
  chosen = {f'layers_{n}': params[f'layers_{m}'] for n, m in enumerate(layers)}
  return {**kept, **chosen}


def write_mean_pooling(config: BertConfig, folder: Path) -> None:
  """Writes the files that make `sentence-transformers` average the states.

  Args:
    config: The network's shape.
    folder: An encoder's folder, as `save_encoder` writes it.
  """
  kind = 'sentence_transformers.models'
  (folder / '1_Pooling').mkdir(exist_ok=True)
  for name, value in (
    (
      'modules.json',
      [
        {'idx': 0, 'name': '0', 'path': '', 'type': f'{kind}.Transformer'},
        {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': f'{kind}.Pooling'},
      ],
    ),
    (
      'sentence_bert_config.json',
      {'max_seq_length': config.max_length, 'do_lower_case': False},
    ),
    (
      '1_Pooling/config.json',
      {
        'word_embedding_dimension': config.emb_dim,
        'pooling_mode_cls_token': False,
        'pooling_mode_mean_tokens': True,
        'pooling_mode_max_tokens': False,
        'pooling_mode_mean_sqrt_len_tokens': False,
      },
    ),
  ):
    with files.write_atomically(folder / name) as out:
      json.dump(value, out, indent=2)
      out.write('\n')


def write_folder(
  path: Path,
  settings: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  dtype: str,
) -> None:
  """Writes `config.json` and `model.safetensors`."""
  if dtype == 'int8':
    stored = int8.quantize(tensors)
  else:
    kind = DTYPES[dtype]
    stored = {name: array.astype(kind) for name, array in tensors.items()}
  with files.write_atomically(path / WEIGHTS_FILE, 'wb') as out:
    out.write(safetensors.numpy.save(stored, {'format': 'pt'}))
  with files.write_atomically(path / CONFIG_FILE) as out:
    json.dump(settings, out, indent=2)
    out.write('\n')
