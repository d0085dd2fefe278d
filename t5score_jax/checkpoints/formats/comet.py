"""Unbabel COMET checkpoints in and out: ``hparams.yaml`` and a ``.ckpt``.

The regression metrics with and without reference are read (RegressionMetric,
ReferencelessRegression): feature order, layer mix and activations follow the
checkpoint's own settings, and a setting that is not understood is an error.
The ``.ckpt`` is read without executing what it pickles. It does not hold the
encoder's tokenizer, which has to be given as a folder. Not here: our own
layout (``checkpoints/regressors.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.torch import reader, writer
from t5score_jax.checkpoints.regressors import Regressor, check_shapes
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import files
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.nn import bert, heads

SETTINGS_FILE = 'hparams.yaml'
WEIGHTS_FILE = 'checkpoints/model.ckpt'

_CLASSES = {'regression_metric': True, 'referenceless_regression_metric': False}
# COMET's word -> ours.
_POOLING = {'avg': 'mean', 'max': 'max', 'cls': 'cls', 'default': 'cls'}
_ACTIVATIONS = {
  'Tanh': 'tanh',
  'ReLU': 'relu',
  'GELU': 'gelu',
  'Sigmoid': 'sigmoid',
  'LeakyReLU': 'leaky_relu',
}
# encoder_model -> what the weights do not say: (position offset, epsilon of
# the norms, pad id, norms before the blocks).
_ENCODERS: dict[str, tuple[int, float, int, bool]] = {
  'BERT': (0, 1e-12, 0, False),
  'XLM-RoBERTa': (2, 1e-5, 1, False),
  'XLM-RoBERTa-XL': (2, 1e-5, 1, True),
}
# Settings of training, and of where the encoder came from.
_IGNORED = frozenset(
  'activations batch_size class_identifier dropout encoder_learning_rate'
  ' encoder_model final_activation hidden_sizes input_segments'
  ' keep_embeddings_frozen layer layer_norm layer_transformation'
  ' layerwise_decay learning_rate load_weights_from_checkpoint loss'
  ' nr_frozen_epochs optimizer pool pretrained_model train_data'
  ' validation_data warmup_steps local_files_only load_pretrained_weights'
  ' outputs'.split()
)
# Width of a head where nothing says how many there are, by encoder width.
_HEAD_WIDTHS = {2560: 80, 4096: 128}
_HEAD_WIDTH = 64


def load_comet(
  path: str | os.PathLike[str],
  tokenizer: str | os.PathLike[str] | None = None,
  num_heads: int | None = None,
  layer_transformation: str | None = None,
) -> Regressor:
  """Reads a COMET checkpoint.

  Args:
    path: the folder with ``hparams.yaml``, or the ``.ckpt`` in it.
    tokenizer: the folder of the encoder's tokenizer; by default the
      checkpoint's.
    num_heads: attention heads of the encoder, which neither the weights nor
      the settings say. By default heads of 64 (80 and 128 in XLM-R XL, XXL).
    layer_transformation: 'softmax' or 'sparsemax', in place of the setting.
      The published QE and XL models ran softmax although theirs say sparsemax.

  Raises:
    CheckpointError: not such a checkpoint, or a setting or parameter that is
      not understood.
  """
  folder, weights_path = _find(Path(path))
  settings = _read_settings(folder / SETTINGS_FILE)
  tensors = reader.open_file(weights_path, entry='state_dict')
  encoder = _encoder_config(settings, tensors, num_heads, str(weights_path))
  place = Path(tokenizer) if tokenizer else folder
  # Before the weights, of which there may be many.
  chosen = _tokenizer(place)
  encoders.check_vocabulary(chosen, encoder, place)
  config = _regressor_config(settings, encoder, layer_transformation)
  params = _read_params(config, tensors, str(weights_path))
  return Regressor(config, params, chosen, {'name': folder.resolve().name})


def _find(path: Path) -> tuple[Path, Path]:
  if path.is_file():
    folder = path.parent
    if not (folder / SETTINGS_FILE).is_file():
      folder = folder.parent
    weights = path
  else:
    folder = path
    found = sorted([*path.glob('*.ckpt'), *path.glob('checkpoints/*.ckpt')])
    if len(found) != 1:
      raise CheckpointError(
        f'{path}: there are {len(found)} .ckpt files; name the one to read'
        if found
        else f'{path}: there is no .ckpt file, nor checkpoints/*.ckpt'
      )
    weights = found[0]
  if not (folder / SETTINGS_FILE).is_file():
    raise CheckpointError(f'{folder}: there is no {SETTINGS_FILE}')
  return folder, weights


def _read_settings(path: Path) -> dict[str, Any]:
  try:
    found = yaml.safe_load(path.read_text('utf-8'))
  except (yaml.YAMLError, UnicodeDecodeError) as error:
    mark = getattr(error, 'problem_mark', None)
    line = '' if mark is None else f', line {mark.line + 1}'
    # A marked error's own text has several lines.
    said = getattr(error, 'problem', None) or error
    raise CheckpointError(f'{path}{line}: not YAML ({said})') from error
  if not isinstance(found, dict):
    raise CheckpointError(f'{path}: not a list of settings')
  unknown = sorted(set(found) - _IGNORED)
  if unknown:
    raise CheckpointError(
      f'{path}: settings that are not understood: {", ".join(unknown)}'
    )
  return found


def _choose(
  settings: Mapping[str, Any], name: str, default: Any, known: Mapping[Any, Any]
) -> Any:
  value = settings.get(name, default)
  if value not in known:
    raise CheckpointError(
      f'{SETTINGS_FILE}: {name} {value!r} is not one of '
      f'{", ".join(str(key) for key in known)}'
    )
  return known[value]


def _regressor_config(
  settings: Mapping[str, Any],
  encoder: bert.BertConfig,
  layer_transformation: str | None,
) -> heads.RegressorConfig:
  identifier = settings.get('class_identifier', 'regression_metric')
  if identifier not in _CLASSES:
    raise CheckpointError(
      f'{SETTINGS_FILE}: class_identifier {identifier!r} is not one of '
      f'{", ".join(_CLASSES)}'
    )
  # Before the setting existed, programs normalised layers and ran softmax.
  norm = settings.get('layer_norm', 'layer_transformation' not in settings)
  transformation = layer_transformation or settings.get(
    'layer_transformation', 'softmax'
  )
  layer = settings.get('layer', 'mix')
  final = settings.get('final_activation')
  outputs = settings.get('outputs', ['score'])
  try:
    return heads.RegressorConfig(
      encoder=encoder,
      outputs=tuple(outputs),
      reference=_CLASSES[identifier],
      hidden_sizes=tuple(int(n) for n in settings['hidden_sizes']),
      activation=_choose(settings, 'activations', 'Tanh', _ACTIVATIONS),
      final_activation=_ACTIVATIONS[final] if final else None,
      pooling=_choose(settings, 'pool', 'avg', _POOLING),
      layer=layer if layer == 'mix' else int(layer),
      layer_transformation=transformation,
      layer_norm=bool(norm),
      dropout_rate=float(settings.get('dropout', 0.1)),
    )
  except (KeyError, ValueError, TypeError) as error:
    raise CheckpointError(f'{SETTINGS_FILE}: {error}') from error


def _encoder_config(
  settings: Mapping[str, Any],
  tensors: Mapping[str, LazyArray],
  num_heads: int | None,
  where: str,
) -> bert.BertConfig:
  """The encoder's shape, read off its weights."""
  kind = settings.get('encoder_model', 'XLM-RoBERTa')
  offset, epsilon, pad_id, pre_norm = _choose(
    {'encoder_model': kind}, 'encoder_model', kind, _ENCODERS
  )

  def shape(name: str) -> tuple[int, ...]:
    try:
      return tensors[f'encoder.model.{name}.weight'].shape
    except KeyError:
      raise CheckpointError(
        f'{where}: there is no encoder.model.{name}.weight'
      ) from None

  vocab_size, width = shape('embeddings.word_embeddings')
  if num_heads is None:
    num_heads = max(1, width // _HEAD_WIDTHS.get(width, _HEAD_WIDTH))
  elif num_heads < 1 or width % num_heads:
    raise CheckpointError(
      f'{num_heads} attention heads: the width of the encoder is {width}, '
      'which they must divide'
    )
  layers = {
    int(match[1])
    for name in tensors
    if (match := re.match(r'encoder\.model\.encoder\.layer\.(\d+)\.', name))
  }
  return bert.BertConfig(
    vocab_size=vocab_size,
    emb_dim=width,
    num_heads=num_heads,
    mlp_dim=shape('encoder.layer.0.intermediate.dense')[0],
    num_layers=len(layers),
    max_positions=shape('embeddings.position_embeddings')[0],
    position_offset=offset,
    type_vocab_size=shape('embeddings.token_type_embeddings')[0],
    pad_id=pad_id,
    norm_epsilon=epsilon,
    pre_norm=pre_norm,
  )


def _read_params(
  config: heads.RegressorConfig, tensors: Mapping[str, LazyArray], where: str
) -> dict[str, Any]:
  readers = {
    name.removeprefix('encoder.model.'): array
    for name, array in tensors.items()
    if name.startswith('encoder.model.')
  }
  try:
    params: dict[str, Any] = {
      'encoder': encoders.read_params(config.encoder, readers)
    }
  except encoders.EncoderError as error:
    raise CheckpointError(f'{where}: {error}') from error
  flat = {}
  missing = []
  for ours, theirs, transposed in head_names(config):
    if theirs not in tensors:
      missing.append(theirs)
      continue
    array = np.asarray(tensors[theirs].read(), np.float32)
    flat[ours] = np.ascontiguousarray(array.T if transposed else array)
  if missing:
    raise CheckpointError(f'{where}: there is no {", ".join(missing)}')
  if config.layer == 'mix':
    scalars = [
      tensors[f'layerwise_attention.scalar_parameters.{n}'].read().reshape(())
      for n in range(len(config.layers))
    ]
    flat['mix/scalars'] = np.asarray(scalars, np.float32)
  params.update(bundles.nest(flat))
  check_shapes(config, dict(bundles.flatten_names(params)), where)
  return params


def head_names(config: heads.RegressorConfig) -> list[tuple[str, str, bool]]:
  """(our name, COMET's, whether transposed) of what is not the encoder.

  The mix's scalars are one array here and one a layer there.
  """
  names = []
  for n in range(len(config.hidden_sizes) + 1):
    # Between two linear layers stand an activation and dropout.
    for ours, theirs in (('kernel', 'weight'), ('bias', 'bias')):
      names.append(
        (
          f'estimator/layers_{n}/{ours}',
          f'estimator.ff.{3 * n}.{theirs}',
          ours == 'kernel',
        )
      )
  if config.layer == 'mix':
    names.append(('mix/gamma', 'layerwise_attention.gamma', False))
  return names


def _tokenizer(folder: Path) -> SubwordTokenizer:
  try:
    return load_tokenizer(folder)
  except FileNotFoundError as error:
    raise CheckpointError(
      f'{error}. COMET takes the tokenizer from a model hub: give the folder '
      'of its encoder (option tokenizer)'
    ) from error


def save_comet(model: Regressor, folder: str | os.PathLike[str]) -> None:
  """Writes COMET's layout, float32, with the tokenizer's files beside it.

  Args:
    model: the regressor. Several outputs are named in the setting `outputs`,
      which COMET itself does not have.
    folder: made if need be.

  Raises:
    CheckpointError: an encoder that COMET has no word for.
  """
  path = Path(folder)
  config = model.config
  settings = _settings(config)
  tensors = {
    f'encoder.model.{name}': array
    for name, array in encoders.encoder_tensors(
      config.encoder, model.params['encoder']
    ).items()
  }
  flat = dict(bundles.flatten_names(model.params))
  for ours, theirs, transposed in head_names(config):
    array = np.asarray(flat[ours], np.float32)
    tensors[theirs] = np.ascontiguousarray(array.T if transposed else array)
  if config.layer == 'mix':
    for n, value in enumerate(np.asarray(flat['mix/scalars'], np.float32)):
      name = f'layerwise_attention.scalar_parameters.{n}'
      tensors[name] = np.asarray([value], np.float32)
  (path / WEIGHTS_FILE).parent.mkdir(parents=True, exist_ok=True)
  writer.write_checkpoint(path / WEIGHTS_FILE, tensors, settings)
  model.tokenizer.save(path)
  with files.write_atomically(path / SETTINGS_FILE) as out:
    yaml.safe_dump(settings, out)


def _settings(config: heads.RegressorConfig) -> dict[str, Any]:
  encoder = config.encoder
  traits = (encoder.position_offset, encoder.pad_id, encoder.pre_norm)
  kind = next(
    (
      name
      for name, (offset, _, pad_id, pre_norm) in _ENCODERS.items()
      if (offset, pad_id, pre_norm) == traits
    ),
    None,
  )
  if kind is None:
    raise CheckpointError('COMET has no word for this kind of encoder')
  activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  pooling = {'mean': 'avg', 'max': 'max', 'cls': 'cls'}
  found: dict[str, Any] = {
    'class_identifier': next(
      name for name, has in _CLASSES.items() if has == config.reference
    ),
    'encoder_model': kind,
    'pretrained_model': '.',
    'pool': pooling[config.pooling],
    'layer': config.layer,
    'layer_transformation': config.layer_transformation,
    'layer_norm': config.layer_norm,
    'hidden_sizes': list(config.hidden_sizes),
    'activations': activations[config.activation],
    'final_activation': (
      activations[config.final_activation] if config.final_activation else None
    ),
    'dropout': config.dropout_rate,
  }
  if config.outputs != ('score',):
    found['outputs'] = list(config.outputs)
  return found
