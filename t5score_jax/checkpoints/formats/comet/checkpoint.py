"""Unbabel COMET checkpoints: `hparams.yaml` and a `.ckpt`, read and written.

Reads the regression metrics with and without reference (RegressionMetric,
ReferencelessRegression), and those that read texts jointly (UnifiedMetric,
XCOMETMetric). Settings mean what they mean to unbabel-comet 2.2, and
those that are not supported are errors. The `.ckpt` is read without executing
what it pickles. It holds neither the encoder's tokenizer nor its number of
attention heads, which come from the encoder's own files. Not here: this
library's own layout (`checkpoints/regressors.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from t5score_jax.checkpoints.formats.comet import settings as comet_settings
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.torch import reader, writer
from t5score_jax.checkpoints.regressors import Regressor, check_shapes
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import files
from t5score_jax.data.subwords import (
  SENTENCEPIECE_FILE,
  TOKENIZER_FILE,
  SubwordTokenizer,
  load_tokenizer,
)
from t5score_jax.data.unigram import xlmr_json
from t5score_jax.nn import heads, unified

WEIGHTS_FILE = 'checkpoints/model.ckpt'
# COMET reads this many tokens fewer than the encoder has positions: 510 of
# XLM-R's 514, 508 of BERT's 512.
_UNUSED_POSITIONS = 4
# The same for sequences of several texts.
_UNUSED_JOINTLY = 2


def load_comet(
  path: str | os.PathLike[str],
  tokenizer: str | os.PathLike[str] | None = None,
  num_heads: int | None = None,
  layer_transformation: str | None = None,
) -> Regressor:
  """Reads a COMET checkpoint.

  If `hparams.yaml` and the `.ckpt` both have a setting, the `.ckpt` takes
  precedence, as in COMET. Texts are truncated as in COMET (setting `max_length`
  of the result).

  Args:
    path: The folder with `hparams.yaml`, or the `.ckpt` in it.
    tokenizer: The encoder's folder, or one with its tokenizer; by default the
      checkpoint's.
    num_heads: Attention heads of the encoder. By default taken from a
      `config.json` in the tokenizer's or the checkpoint's folder, or from the
      published encoder that `pretrained_model` names.
    layer_transformation: 'softmax' or 'sparsemax', overriding the setting.
      The published QE and XL models ran softmax although their settings say
      sparsemax.

  Raises:
    CheckpointError: Not a COMET checkpoint, an unsupported setting or
      parameter, or an unknown number of heads.
    ContradictionError: `num_heads` contradicts the encoder's `config.json`.
  """
  folder, weights_path = _find(Path(path))
  settings_path = folder / comet_settings.FILE
  tensors, stored = reader.open_checkpoint(weights_path)
  settings = comet_settings.merge(
    settings_path, comet_settings.read(settings_path), stored
  )
  if layer_transformation:
    settings['layer_transformation'] = layer_transformation
  places = [*([Path(tokenizer)] if tokenizer else []), folder]
  encoder = comet_settings.encoder_config(
    settings, tensors, num_heads, places, str(weights_path)
  )
  # Before the weights, which may be large.
  chosen = _tokenizer(places[0])
  encoders.check_vocabulary(chosen, encoder, places[0])
  config = comet_settings.regressor_config(settings, encoder, settings_path)
  params = _read_params(config, tensors, str(weights_path))
  joint = isinstance(config, unified.UnifiedConfig)
  unused = _UNUSED_JOINTLY if joint else _UNUSED_POSITIONS
  length = max(1, encoder.max_positions - unused)
  kept = {'name': folder.resolve().name, 'max_length': length}
  return Regressor(config, params, chosen, kept)


def _find(path: Path) -> tuple[Path, Path]:
  if path.is_file():
    folder = path.parent
    if not (folder / comet_settings.FILE).is_file():
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
  if not (folder / comet_settings.FILE).is_file():
    raise CheckpointError(f'{folder}: there is no {comet_settings.FILE}')
  return folder, weights


def _read_params(
  config: heads.RegressorConfig, tensors: Mapping[str, LazyArray], where: str
) -> dict[str, Any]:
  params = encoders.read_named(head_names(config), tensors, where)
  weights = {
    name.removeprefix(comet_settings.ENCODER): array
    for name, array in tensors.items()
    if name.startswith(comet_settings.ENCODER)
  }
  params['encoder'] = encoders.read_params(config.encoder, weights, where)
  if config.layer == 'mix':
    scalars = [params.pop(f'scalar_{n}') for n in range(len(config.layers))]
    params['mix']['scalars'] = np.concatenate(scalars)
  check_shapes(config, params, where)
  return params


def head_names(config: heads.RegressorConfig) -> list[tuple[str, str, bool]]:
  """(our name, COMET's, whether transposed) of parameters outside the encoder.

  The scalars of the layer mix are one array here, 'mix/scalars', but one per
  layer in COMET; they are listed as 'scalar_N'.
  """
  names = []
  for n in range(len(config.hidden_sizes) + 1):
    # An activation and dropout lie between two linear layers.
    ours, theirs = f'estimator/layers_{n}', f'estimator.ff.{3 * n}'
    names.append((f'{ours}/kernel', f'{theirs}.weight', True))
    names.append((f'{ours}/bias', f'{theirs}.bias', False))
  if config.pooling == 'pooler':
    pooler = f'{comet_settings.ENCODER}pooler.dense'
    names.append(('pooler/kernel', f'{pooler}.weight', True))
    names.append(('pooler/bias', f'{pooler}.bias', False))
  if config.layer == 'mix':
    mix = 'layerwise_attention'
    names.append(('mix/gamma', f'{mix}.gamma', False))
    for n in range(len(config.layers)):
      names.append((f'scalar_{n}', f'{mix}.scalar_parameters.{n}', False))
  if config.num_tags:
    names.append(('tagger/kernel', 'hidden2tag.weight', True))
    names.append(('tagger/bias', 'hidden2tag.bias', False))
  return names


def _tokenizer(folder: Path) -> SubwordTokenizer:
  try:
    return load_tokenizer(folder)
  except FileNotFoundError as error:
    raise CheckpointError(
      f'{error}. COMET takes the tokenizer from a model hub: give the folder '
      'of its encoder (option tokenizer)'
    ) from error


def save_comet(
  model: Regressor,
  folder: str | os.PathLike[str],
  encoder: str | os.PathLike[str] | None = None,
) -> None:
  """Writes a checkpoint that unbabel-comet loads, with the encoder's files.

  COMET has one output: several outputs become their mean, which is also the
  score of `metrics/comes.py`.

  Args:
    model: The regressor.
    folder: Created if necessary.
    encoder: Where COMET will look for the encoder's `config.json` and
      tokenizer: a folder, or a name on the hub. By default `folder`, as an
      absolute path, since COMET resolves it from its working directory.

  Raises:
    CheckpointError: COMET has no such encoder, activation or output.
  """
  path = Path(folder)
  model = _one_output(model)
  config = model.config
  settings = comet_settings.make(config, os.fspath(encoder or path.absolute()))
  params = dict(model.params)
  if config.layer == 'mix':
    scalars = np.asarray(params['mix']['scalars'])
    params |= {f'scalar_{n}': [value] for n, value in enumerate(scalars)}
  names = encoders.parameter_names(config.encoder, comet_settings.ENCODER)
  tensors = {
    **encoders.write_named(names, params['encoder']),
    **encoders.write_named(head_names(config), params),
  }
  (path / WEIGHTS_FILE).parent.mkdir(parents=True, exist_ok=True)
  writer.write_checkpoint(path / WEIGHTS_FILE, tensors, settings)
  model.tokenizer.save(path)
  if (path / SENTENCEPIECE_FILE).is_file():
    # COMET's protobuf is too old for transformers to convert the model itself.
    model_bytes = (path / SENTENCEPIECE_FILE).read_bytes()
    with files.write_atomically(path / TOKENIZER_FILE, 'wb') as out:
      out.write(xlmr_json(model_bytes))
  described = encoders.settings_from_config(config.encoder)
  with files.write_atomically(path / encoders.CONFIG_FILE) as out:
    json.dump(described, out, indent=2)
    out.write('\n')
  with files.write_atomically(path / comet_settings.FILE) as out:
    yaml.safe_dump(settings, out)


def _one_output(model: Regressor) -> Regressor:
  """The regressor with the mean of the outputs as its only output."""
  config = model.config
  if len(config.outputs) == 1:
    return model
  if config.final_activation:
    raise CheckpointError(
      f'COMET has one output, and the mean of {", ".join(config.outputs)} is '
      f'none behind a final activation ({config.final_activation})'
    )
  last = f'layers_{len(config.hidden_sizes)}'
  estimator = dict(model.params['estimator'])
  estimator[last] = {
    name: np.mean(array, -1, keepdims=True)
    for name, array in estimator[last].items()
  }
  return dataclasses.replace(
    model,
    config=dataclasses.replace(config, outputs=('score',)),
    params={**model.params, 'estimator': estimator},
  )
