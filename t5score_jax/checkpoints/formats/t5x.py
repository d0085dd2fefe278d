"""Reads T5X's own checkpoints, in both of its layouts.

Legacy: a folder whose file `checkpoint` is msgpack (version 3) with small
arrays inline, and a folder of gzip-compressed zarr for each other array. Orbax:
`state/` in the folder is read directly, because the metadata around it names a
handler that only T5X has. Layers may be scanned or not, and saved from any
number of devices; the optimizer's state is not read.

T5X does not store the network's configuration: it is inferred from the shapes
(`layouts.infer_config`). Not here: writing T5X checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from flax import serialization

from t5score_jax.checkpoints import layouts, stores
from t5score_jax.checkpoints.source import Options, Source, choose_vocabulary
from t5score_jax.checkpoints.weights import (
  CheckpointError,
  LazyArray,
  shapes_of,
)

_FOLDER = re.compile(r'checkpoint_(\d+)')
_FILE, _STATE = 'checkpoint', 'state'
_VERSION = 3
_TARGET = 'target.'


def detect(path: Path) -> bool:
  """Whether a path is a T5X checkpoint, or a folder of them."""
  found = _find(path)
  return found is not None


def open_source(path: Path, options: Options) -> Source:
  """Opens a checkpoint.

  Args:
    path: `checkpoint_N`, the file `checkpoint` or the folder `state` in it, or
      a MODEL_DIR of T5X's, whose latest checkpoint is opened.
    options: What the files do not state.

  Returns:
    The model; its `vocabulary` is `vocabulary.model` in the folder or its
    parent, if there is one.

  Raises:
    CheckpointError: Not a T5X checkpoint, a damaged one, or one of another
      network.
  """
  folder = _find(path)
  if folder is None:
    raise CheckpointError(
      f'{path}: not a T5X checkpoint: neither a file `{_FILE}` of T5X nor a '
      f'folder `{_STATE}` with `{_TARGET}*`'
    )
  legacy = (folder / _FILE).is_file()
  stored = _legacy(folder) if legacy else _orbax(folder)
  try:
    config, notes = layouts.infer_config(shapes_of(stored), options.activation)
  except CheckpointError as error:
    raise CheckpointError(f'{folder}: {error}') from error
  vocabulary, more = choose_vocabulary(
    options.vocabulary, config, folder, folder.parent
  )
  match = _FOLDER.fullmatch(folder.name)
  return Source(
    config,
    stored,
    vocabulary,
    provenance={
      'format': 't5x',
      'layout': 'legacy' if legacy else 'orbax',
      'path': str(path),
      **({'step': int(match[1])} if match else {}),
    },
    notes=(*notes, *more),
  )


def _find(path: Path) -> Path | None:
  """The folder `checkpoint_N` that a path means."""
  if path.name == _STATE or (path.is_file() and path.name == _FILE):
    path = path.parent
  if not path.is_dir():
    return None
  if _is_checkpoint(path):
    return path
  steps = {
    int(match[1]): child
    for child in path.iterdir()
    if (match := _FOLDER.fullmatch(child.name))
  }
  complete = (steps[n] for n in sorted(steps, reverse=True))
  return next((child for child in complete if _is_checkpoint(child)), None)


def _is_checkpoint(folder: Path) -> bool:
  file = folder / _FILE
  if file.is_file():
    with open(file, 'rb') as stream:
      # A map with the keys version and optimizer; TensorFlow's file of the
      # same name is text.
      start = stream.read(64)
    return b'optimizer' in start or b'target' in start
  return (folder / _STATE).is_dir() and stores.has(folder / _STATE, _TARGET)


def _orbax(folder: Path) -> dict[str, LazyArray]:
  return stores.open_state(folder / _STATE, _TARGET)


def _legacy(folder: Path) -> dict[str, LazyArray]:
  path = folder / _FILE
  try:
    contents = serialization.msgpack_restore(path.read_bytes())
    version = int(contents.get('version', 0))
    target = contents.get('optimizer', contents)['target']
    if not isinstance(target, Mapping):
      raise TypeError(f'target is a {type(target).__name__}')
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise CheckpointError(
      f'{path}: not a whole checkpoint of T5X ({error!r}): copy it again'
    ) from error
  if version > _VERSION:
    raise CheckpointError(
      f'{path}: version {version}; this program knows up to {_VERSION}'
    )
  return {
    name: _leaf(folder, name, leaf, version)
    for name, leaf in _flatten(target, '')
  }


def _flatten(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
  found: list[tuple[str, Any]] = []
  for key, value in tree.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping) and 'driver' not in value:
      found.extend(_flatten(value, f'{name}/'))
    elif value is not None:
      found.append((name, value))
  return sorted(found)


def _leaf(folder: Path, name: str, leaf: Any, version: int) -> LazyArray:
  """An array, inline or in a folder of its own."""
  if isinstance(leaf, np.ndarray):
    return LazyArray.of(leaf)
  try:
    # Checkpoints saved in a bucket have the path beside the kvstore. Only its
    # last part counts: the rest is a location on another machine.
    path = leaf.get('path') or leaf['kvstore']['path']
    place = folder / Path(path).name
  except (AttributeError, KeyError, TypeError) as error:
    raise CheckpointError(
      f'{folder / _FILE}: {name} is neither an array nor the place of one'
    ) from error
  if not place.is_dir():
    raise CheckpointError(
      f'{place}: no such folder: the checkpoint is incomplete, copy it again'
    )
  array = stores.open_array({'driver': 'file', 'path': f'{place.absolute()}/'})
  if version < _VERSION and array.dtype == np.uint16:
    # Until version 2, bfloat16 was stored as integers of the same bits.
    bits = array
    return LazyArray(
      bits.shape,
      np.dtype(ml_dtypes.bfloat16),
      lambda index: bits.read(index).view(ml_dtypes.bfloat16),
      bits.block,
    )
  return array
