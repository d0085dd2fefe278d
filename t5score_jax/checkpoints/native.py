"""A run's own checkpoints: saved by Orbax, restored on any number of devices.

MODEL_DIR/checkpoint_N/ appears whole or not at all: Orbax writes a temporary
folder in the background and renames it. Beside the checkpoints are
`config.json` and the vocabulary, which let each checkpoint score by itself, and
`selection.json`, which defines the best. Not here: the weights of other
programs, and models to distribute (`checkpoints/bundle.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import (
  cross_encoders,
  descriptions,
  kinds,
  layouts,
  registry,
  regressors,
  selection,
  weights,
)
from t5score_jax.checkpoints.checkpointer import Checkpoints
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.checkpoints.formats.huggingface import (
  checkpoint as huggingface,
)
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.selection import (
  FOLDER,
  SELECTION_FILE,
  Selection,
  find_checkpoint,
)
from t5score_jax.checkpoints.source import Options
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import files

__all__ = [
  'SELECTION_FILE',
  'CheckpointError',
  'Checkpoints',
  'Selection',
  'claim',
  'find_checkpoint',
  'has_checkpoint',
  'inherited_settings',
  'initial_params',
  'open_initial',
  'read_initial',
]

PyTree = Any

_ENCODER = 'encoder/'
_OUTPUT = 'output/'
# Kinds of models whose description `descriptions.read` reads.
_DESCRIBED = (
  kinds.BUNDLE,
  kinds.METRICX,
  kinds.UNIEVAL,
  kinds.REGRESSOR,
  kinds.CROSS_ENCODER,
)
# Settings that may differ between a checkpoint and the model that resumes it.
_FREE_FIELDS = ('dropout_rate', 'dtype', 'remat')


def claim(
  model_dir: str | os.PathLike[str],
  config: Any = None,
  vocabulary: Any = None,
  settings: Mapping[str, Any] | None = None,
  selection: Selection | None = None,
) -> Path:
  """Creates MODEL_DIR, or checks that it belongs to this model.

  Args:
    model_dir: The run's folder.
    config: The network's, see `checkpoints/descriptions.py`. Without it and a
      vocabulary nothing describes the model, and its checkpoints cannot score
      by themselves.
    vocabulary: A `data.vocab.Vocabulary`, or an encoder's tokenizer.
    settings: The model's recommended use (`Bundle.settings`).
    selection: What defines the best checkpoint.

  Returns:
    The folder.

  Raises:
    CheckpointError: The folder belongs to another model, or is a file.
  """
  folder = Path(model_dir)
  if folder.exists() and not folder.is_dir():
    raise CheckpointError(f'MODEL_DIR {folder}: is a file, not a folder')
  described = config is not None and vocabulary is not None
  if described and (folder / descriptions.CONFIG_FILE).is_file():
    _check_description(folder, config, vocabulary)
  folder.mkdir(parents=True, exist_ok=True)
  if described:
    descriptions.write(folder, config, vocabulary, settings or {})
  if selection is not None:
    with files.write_atomically(folder / SELECTION_FILE) as stream:
      json.dump(dataclasses.asdict(selection), stream, indent=2)
      stream.write('\n')
  return folder


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def initial_params(
  path: Paths,
  shapes: PyTree,
  fresh: PyTree | None = None,
  new: str | None = None,
) -> PyTree:
  """Reads the weights a new run starts from: `open_initial`, `read_initial`."""
  stored = open_initial(path, shapes, None if fresh is None else new)
  return read_initial(stored, shapes, fresh)


def open_initial(
  path: Paths, shapes: PyTree, new: str | None = None
) -> dict[str, LazyArray]:
  """Opens the weights a new run starts from and checks their shapes.

  Weights of scanned layers can start a model of unscanned ones, and vice versa.

  Args:
    path: The name of an embedded model, a MODEL_DIR (its best checkpoint), a
      `checkpoint_N` in one, a checkpoint of any format of
      `checkpoints/registry.py`, or the folder of an encoder, a cross-encoder or
      a regressor. Several complement each other; the last one that has a
      parameter provides it.
    shapes: The parameters as `jax.ShapeDtypeStruct`s with shardings.
    new: Regular expression of parameters that may be missing, such as the head
      of a new regressor.

  Returns:
    The weights by name, to be read.

  Raises:
    FileNotFoundError: There is no such model.
    CheckpointError: No weights, or shapes that differ (with a diff).
  """
  paths = _paths(path)
  wanted = dict(bundles.flatten_names(shapes))
  stored: dict[str, LazyArray] = {}
  for one in paths:
    stored |= _open_initial(kinds.folder(one), wanted)
  if len(paths) > 1:
    # Each may hold more than is needed, such as an encoder beside a head.
    stored = {name: stored[name] for name in stored if name in wanted}
  elif not any(name.startswith(_ENCODER) for name in wanted):
    # A head that learns from vectors of an encoder elsewhere.
    stored = {n: a for n, a in stored.items() if not n.startswith(_ENCODER)}
  absent = {
    name
    for name in wanted
    if new is not None and name not in stored and re.search(new, name)
  }
  weights.check(
    weights.shapes_of({n: s for n, s in wanted.items() if n not in absent}),
    weights.shapes_of(stored),
    f'the weights in {", ".join(map(str, paths))} do not fit this model',
  )
  return stored


def read_initial(
  stored: Mapping[str, LazyArray], shapes: PyTree, fresh: PyTree | None = None
) -> PyTree:
  """Reads opened weights; each device reads only its shard.

  Args:
    stored: The weights, from `open_initial`.
    shapes: The parameters as `jax.ShapeDtypeStruct`s with shardings.
    fresh: Parameters on the devices, for those that are not stored.

  Returns:
    The parameters on the devices. The moving average is preferred.
  """
  random = dict(bundles.flatten_names(fresh)) if fresh is not None else {}
  placed = {
    name: _place(stored[name], want) if name in stored else random[name]
    for name, want in bundles.flatten_names(shapes)
  }
  return jax.tree_util.tree_map_with_path(
    lambda key, _: placed[
      jax.tree_util.keystr(key, simple=True, separator='/')
    ],
    shapes,
  )


def has_checkpoint(model_dir: str | os.PathLike[str]) -> bool:
  """Whether a run has a checkpoint to resume from."""
  folder = Path(model_dir)
  return folder.is_dir() and bool(selection.complete(folder))


def inherited_settings(
  model_dir: str | os.PathLike[str], initial: Paths | None = None
) -> dict[str, Any]:
  """The settings of a run that states none, so that it scores like its model.

  Args:
    model_dir: The run's folder: a resumed run keeps its settings.
    initial: Where the initial weights come from: a new run takes the settings
      of the last model that has any, except its name.
  """
  own = _settings(Path(model_dir))
  if own is not None:
    return own
  for one in reversed(_paths(initial or ())):
    settings = _settings(kinds.folder(one))
    if settings is not None:
      return {key: settings[key] for key in settings if key != 'name'}
  return {}


def _settings(folder: Path) -> dict[str, Any] | None:
  """The settings in a folder's description; None if it has none."""
  if FOLDER.fullmatch(folder.name):
    folder = folder.parent
  if huggingface.detect(folder):
    return huggingface.read_settings(folder)
  kind = kinds.described(folder)
  if kind not in _DESCRIBED:
    return None
  return descriptions.read(folder)[2]


def _paths(path: Paths) -> list[str | os.PathLike[str]]:
  return [path] if isinstance(path, str | os.PathLike) else list(path)


def _open_initial(
  folder: Path, wanted: Mapping[str, Any]
) -> Mapping[str, LazyArray]:
  """Opens the parameters of any network, in the requested layout."""
  if not orbax.detect(folder):
    if regressors.is_regressor(folder):
      biases = [n for n in wanted if re.fullmatch(r'estimator/.*/bias', n)]
      last = wanted[max(biases)].shape[-1] if biases else None
      return regressors.open_weights(folder, last)
    if cross_encoders.is_cross_encoder(folder):
      params = cross_encoders.load(folder).params
      if not any(name.startswith(_OUTPUT) for name in wanted):
        # The model has a head of another kind.
        params = {'encoder': params['encoder']}
      return _in_memory(params)
    if encoders.is_encoder(folder):
      return _in_memory({'encoder': encoders.load_encoder(folder).params})
  stored = _open_weights(folder)
  found = weights.shapes_of(stored)
  scanned = layouts.is_scanned(weights.shapes_of(wanted))
  if layouts.is_scanned(found) != scanned:
    # Shapes do not show the activation, but layouts do not depend on it.
    inferred, _ = layouts.infer_config(found)
    _, stored = layouts.relayout(inferred, stored, scanned)
  return stored


def _in_memory(params: PyTree) -> dict[str, LazyArray]:
  return {
    name: LazyArray.of(np.asarray(array))
    for name, array in bundles.flatten_names(params)
  }


def _open_weights(folder: Path) -> Mapping[str, LazyArray]:
  """Opens the parameters of any network, by name."""
  name = registry.detect(folder)
  if name == 'orbax':
    return orbax.open_weights(folder)
  return registry.load(name).open_source(folder, Options()).weights


def _place(array: LazyArray, want: Any) -> jax.Array:
  """Reads an array to where it will live."""
  read: dict[str, np.ndarray] = {}

  def part(index: Any) -> np.ndarray:
    bounds = tuple(
      slice(*one.indices(size)[:2])
      for one, size in zip(index, array.shape, strict=True)
    )
    if str(bounds) not in read:
      read[str(bounds)] = np.asarray(array.read(bounds), want.dtype)
    return read[str(bounds)]

  if want.sharding is None:
    return jax.device_put(part((slice(None),) * len(array.shape)))
  return jax.make_array_from_callback(array.shape, want.sharding, part)


def _check_description(folder: Path, config: Any, vocabulary: Any) -> None:
  try:
    old_config, old_vocabulary, _ = descriptions.read(folder)
  except (CheckpointError, OSError, ValueError) as error:
    raise CheckpointError(f'MODEL_DIR {folder}: {error}') from error
  old, new = dataclasses.asdict(old_config), dataclasses.asdict(config)
  lines = [
    f'  {name}: {old[name]} there, {new[name]} here'
    for name in new
    if name not in _FREE_FIELDS and old[name] != new[name]
  ]
  if old_vocabulary.fingerprint() != vocabulary.fingerprint():
    lines.append('  vocabulary: another one')
  if lines:
    raise CheckpointError(
      f'MODEL_DIR {folder} belongs to another model:\n'
      + '\n'.join(lines)
      + '\nChoose another MODEL_DIR, or the model that was trained there.'
    )
