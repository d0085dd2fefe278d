"""Regressor folders: an encoder with COMET's or COMES's head, ready to score.

`config.json` (kind 'estimator'; 'unified' and 'xcomet' for `nn/unified.py`:
shapes, names of outputs, settings), `model.safetensors` under the names of
`nn/heads.py`, and the tokenizer's files. Not here: COMET's own layout
(`checkpoints/formats/comet/checkpoint.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import int8, kinds
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import (
  CheckpointError,
  LazyArray,
  read_json,
)
from t5score_jax.data import files
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.nn import heads, unified

FORMAT = 1
CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'


@dataclasses.dataclass(frozen=True)
class Regressor:
  """A regressor that can score.

  Attributes:
    config: The shapes.
    params: Nested dict of float32 arrays, see `nn/heads.py`.
    tokenizer: Encodes texts as ids.
    settings: Recommended use; all optional. `name` (str),
      `max_length` (tokens per text), `windows` and `stride` (how longer
      texts are read, see `inference/embedding.py`).
  """

  config: heads.RegressorConfig
  params: Mapping[str, Any]
  tokenizer: SubwordTokenizer
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def is_regressor(path: str | os.PathLike[str]) -> bool:
  """Whether `path` is a folder of this kind."""
  return kinds.described(path) in kinds.REGRESSORS


def kind(config: heads.RegressorConfig) -> str:
  """The kind of a regressor's folder, one of `kinds.REGRESSORS`."""
  if not isinstance(config, unified.UnifiedConfig):
    return kinds.REGRESSOR
  return kinds.XCOMET if config.xcomet else kinds.UNIFIED


def save(
  model: Regressor, folder: str | os.PathLike[str], dtype: str = 'float32'
) -> None:
  """Writes a folder; each file appears whole or not at all.

  Args:
    model: The regressor.
    folder: Created if necessary.
    dtype: The dtype of the stored weights, 'float32', 'bfloat16' or 'int8'
      (`checkpoints/int8.py`).

  Raises:
    CheckpointError: 'int8', and a weight is not finite.
  """
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  stored = np.dtype(ml_dtypes.bfloat16) if dtype == 'bfloat16' else np.float32
  tensors = {
    name: np.ascontiguousarray(np.asarray(array), dtype=stored)
    for name, array in bundles.flatten_names(model.params)
  }
  if dtype == 'int8':
    kernels = {name for name in tensors if name.endswith('/kernel')}
    tensors = int8.quantize(tensors, kernels)
  with files.write_atomically(path / WEIGHTS_FILE, 'wb') as out:
    out.write(safetensors.numpy.save(tensors))
  write_description(path, model.config, model.tokenizer, model.settings)


def write_description(
  folder: str | os.PathLike[str],
  config: heads.RegressorConfig,
  tokenizer: SubwordTokenizer,
  settings: Mapping[str, Any],
) -> None:
  """Writes everything but the weights into an existing folder."""
  path = Path(folder)
  tokenizer.save(path)
  description = {
    'format': FORMAT,
    'kind': kind(config),
    'model': dataclasses.asdict(config),
    'settings': dict(settings),
  }
  with files.write_atomically(path / CONFIG_FILE) as out:
    json.dump(description, out, indent=2)
    out.write('\n')


def read_description(
  folder: str | os.PathLike[str],
) -> tuple[heads.RegressorConfig, SubwordTokenizer, dict[str, Any]]:
  """Reads what `write_description` wrote.

  Raises:
    CheckpointError: Not such a folder, or a damaged one.
  """
  path = Path(folder)
  if not is_regressor(path):
    raise CheckpointError(f'{path}: not a regressor (kind in {CONFIG_FILE})')
  try:
    found = read_json(path / CONFIG_FILE)
    if found['format'] != FORMAT:
      raise CheckpointError(f'{path}: format {found["format"]} is not known')
    joint = found['kind'] != kinds.REGRESSOR
    make = unified.UnifiedConfig if joint else heads.RegressorConfig
    config = make(**found['model'])
    tokenizer = load_tokenizer(path)
    encoders.check_vocabulary(tokenizer, config.encoder, path)
    return config, tokenizer, dict(found['settings'])
  except CheckpointError:
    raise
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise CheckpointError(f'{path}: damaged ({error})') from error


def open_weights(
  folder: str | os.PathLike[str], outputs: int | None = None
) -> dict[str, LazyArray]:
  """Opens the weights of a folder by name.

  Args:
    folder: A folder that `save` wrote.
    outputs: The number of outputs: a regressor with one output gets copies of
      it, as by `heads.widen` (COMES_MT).
  """
  tensors = _open(Path(folder))
  last = max(n for n in tensors if n.startswith('estimator/layers_'))
  last = last.rpartition('/')[0]
  for leaf in ('kernel', 'bias'):
    array = tensors[f'{last}/{leaf}']
    if outputs is not None and array.shape[-1] == 1 != outputs:
      wide = np.repeat(array.read(), outputs, axis=-1)
      tensors[f'{last}/{leaf}'] = LazyArray.of(wide)
  return tensors


def _open(folder: Path) -> dict[str, LazyArray]:
  stored = safetensors_files.open_folder(folder)
  return int8.dequantized(stored, str(folder))


def load(folder: str | os.PathLike[str]) -> Regressor:
  """Loads a folder that `save` wrote.

  Raises:
    CheckpointError: Not such a folder, or a damaged one.
  """
  path = Path(folder)
  config, tokenizer, settings = read_description(path)
  try:
    tensors = _open(path)
  except (OSError, ValueError) as error:
    raise CheckpointError(f'{path}: damaged ({error})') from error
  return assemble(config, tokenizer, settings, tensors, str(path))


def assemble(
  config: heads.RegressorConfig,
  tokenizer: SubwordTokenizer,
  settings: Mapping[str, Any],
  tensors: Mapping[str, LazyArray],
  where: str,
) -> Regressor:
  """Combines a description and weights.

  Raises:
    CheckpointError: The weights belong to another regressor.
  """
  check_shapes(config, tensors, where)
  params = bundles.nest(
    {
      name: np.asarray(array.read(), np.float32)
      for name, array in tensors.items()
    }
  )
  return Regressor(config, params, tokenizer, settings)


def check_shapes(
  config: heads.RegressorConfig, tensors: Mapping[str, Any], where: str
) -> None:
  """Raises CheckpointError unless these are the regressor's parameters."""
  encoders.check_shapes(heads.init_params, config, tensors, where)
