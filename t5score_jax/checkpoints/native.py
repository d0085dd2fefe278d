"""A run's own checkpoints: saved by Orbax, restored on any number of devices.

MODEL_DIR/checkpoint_N/ appears whole or not at all: Orbax writes a temporary
folder in the background and renames it. Beside the checkpoints lie
`config.json` and the vocabulary, so that each of them scores by itself, and
`selection.json`, which says how the best is told. Not here: the weights of
other programs, and what ships (`checkpoints/bundle.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import (
  cross_encoders,
  descriptions,
  layouts,
  registry,
  regressors,
  selection,
  weights,
)
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.selection import (
  SELECTION_FILE,
  Selection,
  find_checkpoint,
)
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import records
from t5score_jax.nn import bert, heads
from t5score_jax.runtime import processes

__all__ = [
  'SELECTION_FILE',
  'CheckpointError',
  'Checkpoints',
  'Selection',
  'claim',
  'find_checkpoint',
  'initial_params',
  'load_for_scoring',
  'load_regressor',
]

PyTree = Any

_LOGGER = logging.getLogger(__name__)
# `t5score train` silences what libraries log; what is assumed of a checkpoint
# has to be said all the same.
_LOGGER.setLevel(logging.WARNING)

_STATE, _NUMBERS = selection.STATE, selection.NUMBERS
_ENCODER = 'encoder/'
# What may differ between a checkpoint and the model that continues it.
_FREE_FIELDS = ('dropout_rate', 'dtype', 'remat')


class _Keep(checkpoint_managers.PreservationPolicy):
  """Keeps the latest `keep` checkpoints, and the best."""

  def __init__(self, keep: int):
    self.keep = keep
    self.best_step: int | None = None

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> Sequence[bool]:
    del context
    latest = len(checkpoints) - self.keep
    return [
      index >= latest or info.step == self.best_step
      for index, info in enumerate(checkpoints)
    ]


class Checkpoints:
  """The checkpoints of one MODEL_DIR.

  A context manager: leaving it waits for saves that are under way.
  """

  def __init__(self, model_dir: str | os.PathLike[str], keep: int = 3):
    """Opens a folder; what a killed save left behind is removed.

    Args:
      model_dir: An existing folder.
      keep: How many of the latest to keep, at least 1; the best stays too.

    Raises:
      ValueError: `keep` is below 1.
    """
    if keep < 1:
      raise ValueError(f'keep = {keep}: at least one checkpoint must stay')
    # Orbax reports every file it touches through absl.
    logging.getLogger('absl').setLevel(logging.ERROR)
    self._policy = _Keep(keep)
    self._folder = Path(model_dir).absolute()
    if processes.is_first():
      selection.remove_unfinished(self._folder)
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        step_prefix='checkpoint',
        enable_async_checkpointing=True,
        preservation_policy=self._policy,
      ),
    )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, kind: Any, *unused: Any) -> None:
    # After an error the other processes may be gone, and closing waits for
    # them.
    if kind is None or processes.count() == 1:
      self._manager.close()

  @property
  def steps(self) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return sorted(self._manager.all_steps())

  @property
  def latest(self) -> int | None:
    """The last of them."""
    return self._manager.latest_step()

  def save(
    self,
    step: int,
    state: PyTree,
    numbers: Mapping[str, float] | None = None,
    best_step: int | None = None,
  ) -> None:
    """Starts to save; returns as soon as the state may change again.

    Args:
      step: Updates made.
      state: The training state.
      numbers: An evaluation at this step, kept with the checkpoint.
      best_step: The step whose checkpoint must not be removed.
    """
    if step in self._manager.all_steps():
      return
    self._policy.best_step = best_step
    self._manager.save(
      step,
      args=ocp.args.Composite(
        **{
          _STATE: ocp.args.StandardSave(_by_name(state)),
          _NUMBERS: ocp.args.JsonSave(dict(numbers or {})),
        }
      ),
    )

  def restore(self, shapes: PyTree, step: int | None = None) -> PyTree:
    """Restores a state where `shapes` says it should live.

    Args:
      shapes: The state as `jax.ShapeDtypeStruct`s with shardings; the number
        of devices may differ from that of the save.
      step: Which; the latest by default.

    Raises:
      CheckpointError: No such checkpoint, or one of another shape.
    """
    step = self.latest if step is None else step
    if step is None:
      raise CheckpointError(f'{self._folder}: there is no checkpoint')
    folder = self._folder / f'checkpoint_{step}'
    _check_shapes(
      _by_name(shapes),
      _stored(folder),
      f'{folder} does not fit this model and optimizer. To train these '
      'weights with other settings, name the folder as '
      'INITIAL_CHECKPOINT_PATH of a new MODEL_DIR',
    )
    restored = self._manager.restore(
      step,
      args=ocp.args.Composite(
        **{_STATE: ocp.args.StandardRestore(_by_name(shapes))}
      ),
    )
    return jax.tree_util.tree_map_with_path(
      lambda path, _: functools.reduce(
        lambda place, key: place[key], _names(path), restored[_STATE]
      ),
      shapes,
    )

  def annotate(self, step: int, numbers: Mapping[str, float]) -> None:
    """Keeps an evaluation with a complete checkpoint that has none.

    Args:
      step: Of the checkpoint.
      numbers: See `save`. Process 0 writes them.
    """
    if processes.is_first():
      path = self._folder / f'checkpoint_{step}' / _NUMBERS / 'metadata'
      with records.write_atomically(path) as stream:
        json.dump(dict(numbers), stream)
    processes.barrier(f'annotated {step}')

  def wait(self) -> None:
    """Waits until every save has been completed."""
    self._manager.wait_until_finished()


def claim(
  model_dir: str | os.PathLike[str],
  config: Any = None,
  vocabulary: Any = None,
  settings: Mapping[str, Any] | None = None,
  selection: Selection | None = None,
) -> Path:
  """Makes MODEL_DIR, or checks that it belongs to this model.

  Args:
    model_dir: The run's folder.
    config: The network's, see `checkpoints/descriptions.py`. Without it and a
      vocabulary nothing describes the model, and its checkpoints cannot score
      by themselves.
    vocabulary: A `data.vocab.Vocabulary`, or an encoder's tokenizer.
    settings: How the model wants to be used (`Bundle.settings`).
    selection: How the best checkpoint is told.

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
    with records.write_atomically(folder / SELECTION_FILE) as stream:
      json.dump(dataclasses.asdict(selection), stream, indent=2)
      stream.write('\n')
  return folder


def initial_params(
  path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  shapes: PyTree,
  config: Any = None,
  fresh: PyTree | None = None,
  new: str | None = None,
) -> PyTree:
  """Reads the weights a new run starts from.

  Each device is given its part alone, read where it lies. Weights of scanned
  layers start a model of unscanned ones and the reverse.

  Args:
    path: A MODEL_DIR (its best checkpoint), a `checkpoint_N` in one, a
      checkpoint of any format of `checkpoints/registry.py`, or the folder of an
      encoder, a miniature or an estimator. Several complete each other; what
      two hold comes from the later.
    shapes: The parameters as `jax.ShapeDtypeStruct`s with shardings.
    config: Unused; the shapes say what is wanted.
    fresh: Parameters on the devices, for those that are new.
    new: Regular expression of parameters that keep their fresh values where no
      path holds them, such as the head of a new regressor.

  Returns:
    The parameters on the devices. The moving average is preferred.

  Raises:
    CheckpointError: Not such a folder, or shapes that differ (with a diff).
  """
  del config
  paths = [path] if isinstance(path, str | os.PathLike) else list(path)
  wanted = dict(bundles.flatten_names(shapes))
  stored: dict[str, LazyArray] = {}
  for one in paths:
    stored |= _open_initial(Path(one), wanted)
  if len(paths) > 1:
    # Each may hold more than is wanted of it: an encoder beside a head.
    stored = {name: stored[name] for name in stored if name in wanted}
  elif not any(name.startswith(_ENCODER) for name in wanted):
    # A head that learns from vectors of an encoder elsewhere.
    stored = {n: a for n, a in stored.items() if not n.startswith(_ENCODER)}
  found = weights.shapes_of(stored)
  kept: dict[str, Any] = {}
  if new is not None and fresh is not None:
    kept = {
      name: leaf
      for name, leaf in bundles.flatten_names(fresh)
      if name not in stored and re.search(new, name)
    }
  weights.check(
    weights.shapes_of({n: s for n, s in wanted.items() if n not in kept}),
    found,
    f'the weights in {", ".join(map(str, paths))} do not fit this model',
  )
  placed = {
    name: kept[name] if name in kept else _place(stored[name], want)
    for name, want in wanted.items()
  }
  return jax.tree_util.tree_map_with_path(
    lambda key, _: placed['/'.join(_names(key))], shapes
  )


def _open_initial(
  folder: Path, wanted: Mapping[str, Any]
) -> Mapping[str, LazyArray]:
  """Opens the parameters of any network, in the layout that is wanted."""
  if not orbax.detect(folder):
    if regressors.is_regressor(folder):
      biases = [n for n in wanted if re.fullmatch(r'estimator/.*/bias', n)]
      last = wanted[max(biases)].shape[-1] if biases else None
      return regressors.open_weights(folder, last)
    if cross_encoders.is_cross_encoder(folder):
      return _in_memory(cross_encoders.load(folder).params)
    if encoders.is_encoder(folder):
      return _in_memory({'encoder': encoders.load_encoder(folder).params})
  stored = _open_weights(folder)
  found = weights.shapes_of(stored)
  scanned = layouts.is_scanned(weights.shapes_of(wanted))
  if layouts.is_scanned(found) != scanned:
    # The activation, which shapes do not say, has no part in a layout.
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
  return registry.load(name).open_source(folder, weights.Options()).weights


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


def load_for_scoring(path: str | os.PathLike[str]) -> bundles.Bundle:
  """Loads a model from wherever it lies.

  Args:
    path: A bundle, a MODEL_DIR (its best checkpoint by `selection.json`,
      otherwise its latest), a `checkpoint_N` in one, or a checkpoint of any
      format of `checkpoints/registry.py`, T5X's for one.

  Returns:
    A bundle with float32 NumPy weights, the moving average where the run had
    one.

  Raises:
    CheckpointError: Nothing of the kind, or a damaged one.
  """
  folder = Path(path)
  name = registry.detect(folder)
  source = registry.load(name).open_source(folder, weights.Options())
  for note in source.notes:
    _LOGGER.warning('%s: %s', folder, note)
  return bundles.read_source(source)


def load_regressor(
  path: str | os.PathLike[str],
) -> regressors.Regressor | cross_encoders.CrossEncoder:
  """Loads an estimator or a miniature from wherever it lies.

  Args:
    path: Its folder, the MODEL_DIR of a run (its best checkpoint), or a
      `checkpoint_N` in one.

  Raises:
    CheckpointError: Nothing of the kind, or a damaged one.
    FileNotFoundError: There is no such folder.
  """
  folder = Path(path)
  if not folder.is_dir():
    raise FileNotFoundError(f'no model {str(path)!r}: there is no such folder')
  if not orbax.detect(folder):
    kind = regressors if regressors.is_regressor(folder) else cross_encoders
    loaded: regressors.Regressor | cross_encoders.CrossEncoder = kind.load(
      folder
    )
    return loaded
  checkpoint = selection.find_checkpoint(folder)
  config, tokenizer, settings = descriptions.read(checkpoint.parent)
  stored = orbax.open_weights(checkpoint)
  if isinstance(config, heads.RegressorConfig):
    where = str(checkpoint)
    return regressors.assemble(config, tokenizer, settings, stored, where)
  if not isinstance(config, bert.BertConfig):
    raise CheckpointError(f'{path}: a run of T5, not of a regressor')
  arrays = {n: np.asarray(a.read(), np.float32) for n, a in stored.items()}
  params = bundles.nest(arrays)
  return cross_encoders.CrossEncoder(config, params, tokenizer, settings)


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


def _by_name(tree: PyTree) -> dict[str, Any]:
  """A state as a plain nested dict, whatever classes it is made of."""
  nested: dict[str, Any] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    *parents, last = _names(path)
    place = nested
    for parent in parents:
      place = place.setdefault(parent, {})
    place[last] = leaf
  return nested


def _names(path: Any) -> list[str]:
  return [jax.tree_util.keystr((key,), simple=True) for key in path]


def _stored(checkpoint: Path) -> dict[str, Any]:
  """Shapes and dtypes of what a checkpoint holds."""
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      metadata = checkpointer.metadata(checkpoint / _STATE)
  except (OSError, ValueError, KeyError) as error:
    raise CheckpointError(f'{checkpoint}: cannot be read ({error})') from error
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
    metadata.item_metadata.tree,
  )


def _check_shapes(wanted: PyTree, stored: PyTree, message: str) -> None:
  weights.check(
    weights.shapes_of(dict(bundles.flatten_names(wanted))),
    weights.shapes_of(dict(bundles.flatten_names(stored))),
    message,
  )
