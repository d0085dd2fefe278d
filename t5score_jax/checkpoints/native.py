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
from t5score_jax.data import records

PyTree = Any

SELECTION_FILE = 'selection.json'
_FOLDER = re.compile(r'checkpoint_(\d+)')
_STATE, _NUMBERS = 'state', 'numbers'
# What may differ between a checkpoint and the model that continues it.
_FREE_FIELDS = ('dropout_rate', 'dtype', 'remat')


class CheckpointError(ValueError):
  """A checkpoint is missing or of another model; the message says which."""


@dataclasses.dataclass(frozen=True)
class Selection:
  """How the best checkpoint is told.

  Attributes:
    metric: Name of an evaluator's number, such as 'held_out/loss'.
    mode: 'max' or 'min': which end is good.
    patience: Evaluations in a row without a new best after which training
      ends; None: never.
  """

  metric: str
  mode: str = 'max'
  patience: int | None = None

  def __post_init__(self) -> None:
    if self.mode not in ('max', 'min'):
      raise ValueError(f"mode = {self.mode!r}: use 'max' or 'min'")

  def best(self, history: Sequence[tuple[int, Mapping[str, float]]]) -> int:
    """Index of the best evaluation (the first of equals), -1 without any.

    Args:
      history: (step, numbers) of each evaluation, in order.

    Raises:
      CheckpointError: An evaluation that lacks the metric.
    """
    sign = 1.0 if self.mode == 'max' else -1.0
    best, best_value = -1, -np.inf
    for index, (_, numbers) in enumerate(history):
      if self.metric not in numbers:
        raise CheckpointError(
          f'no evaluator gives {self.metric!r}, by which the best checkpoint '
          f'is to be selected; there are {sorted(numbers)}'
        )
      value = numbers[self.metric]
      if value is not None and sign * value > best_value:
        best, best_value = index, sign * value
    return best

  def exhausted(
    self, history: Sequence[tuple[int, Mapping[str, float]]]
  ) -> bool:
    """Whether `patience` evaluations have passed since the best."""
    if self.patience is None or not history:
      return False
    return len(history) - 1 - self.best(history) >= self.patience


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
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        step_prefix='checkpoint',
        cleanup_tmp_directories=True,
        enable_async_checkpointing=True,
        preservation_policy=self._policy,
      ),
    )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *unused: Any) -> None:
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
    config: The network's `T5Config`. Without it and a vocabulary nothing
      describes the model, and its checkpoints cannot score by themselves.
    vocabulary: A `data.vocab.Vocabulary`.
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
  if described and (folder / bundles.CONFIG_FILE).is_file():
    _check_description(folder, config, vocabulary)
  folder.mkdir(parents=True, exist_ok=True)
  if described:
    bundles.write_description(folder, config, vocabulary, settings or {})
  if selection is not None:
    with records.write_atomically(folder / SELECTION_FILE) as stream:
      json.dump(dataclasses.asdict(selection), stream, indent=2)
      stream.write('\n')
  return folder


def initial_params(
  path: str | os.PathLike[str], shapes: PyTree, config: Any = None
) -> PyTree:
  """Reads the weights a new run starts from.

  Args:
    path: A MODEL_DIR (its best checkpoint), a `checkpoint_N` in one, or a
      bundle.
    shapes: The parameters as `jax.ShapeDtypeStruct`s with shardings.
    config: The network's configuration, for the message should it differ.

  Returns:
    The parameters on the devices. The moving average is preferred.

  Raises:
    CheckpointError: Not such a folder, or shapes that differ (all are named).
  """
  del config
  folder = Path(path)
  message = f'the weights in {folder} do not fit this model'
  if bundles.is_bundle(folder):
    params = _nested(bundles.load_bundle(folder).params)
    _check_shapes(shapes, params, message)
    return jax.tree.map(
      lambda leaf, want: jax.device_put(
        np.asarray(leaf, want.dtype), want.sharding
      ),
      params,
      shapes,
    )
  checkpoint = find_checkpoint(folder)
  key, stored = _stored_params(checkpoint)
  _check_shapes(shapes, stored, message)
  return _restore_part(checkpoint, key, shapes)


def load_for_scoring(path: str | os.PathLike[str]) -> bundles.Bundle:
  """Loads a model from wherever it lies.

  Args:
    path: A bundle, a MODEL_DIR (its best checkpoint by `selection.json`,
      otherwise its latest) or a `checkpoint_N` in one.

  Returns:
    A bundle with float32 NumPy weights, the moving average where the run had
    one.

  Raises:
    CheckpointError: Nothing of the kind.
    BundleError: A damaged bundle or description.
  """
  folder = Path(path)
  if bundles.is_bundle(folder):
    return bundles.load_bundle(folder)
  checkpoint = find_checkpoint(folder)
  config, vocabulary, settings = bundles.read_description(checkpoint.parent)
  key, stored = _stored_params(checkpoint)
  params = _restore_part(checkpoint, key, stored)
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
  return bundles.Bundle(config, params, vocabulary, settings)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
  """Finds the checkpoint that a path means.

  Args:
    path: `checkpoint_N`, or the MODEL_DIR around such folders: the best one
      by `selection.json`, otherwise the latest.

  Raises:
    CheckpointError: There is none.
  """
  folder = Path(path).absolute()
  if not folder.is_dir():
    raise CheckpointError(f'{path}: no such folder')
  if _FOLDER.fullmatch(folder.name):
    if not (folder / _STATE).is_dir():
      raise CheckpointError(f'{path}: not a complete checkpoint')
    return folder
  found = {
    int(match[1]): child
    for child in folder.iterdir()
    if (match := _FOLDER.fullmatch(child.name)) and (child / _STATE).is_dir()
  }
  if not found:
    raise CheckpointError(
      f'{path}: neither a bundle (config.json and model.safetensors) nor a '
      'folder with checkpoint_N folders'
    )
  steps = sorted(found)
  selection = _read_selection(folder)
  if selection is not None:
    rated = [(s, n) for s in steps if (n := _numbers(found[s]))]
    best = selection.best([x for x in rated if selection.metric in x[1]])
    if best >= 0:
      return found[[s for s, n in rated if selection.metric in n][best]]
  return found[steps[-1]]


def _read_selection(folder: Path) -> Selection | None:
  path = folder / SELECTION_FILE
  if not path.is_file():
    return None
  try:
    return Selection(**json.loads(path.read_text('utf-8')))
  except (ValueError, TypeError) as error:
    raise CheckpointError(f'{path}: damaged ({error})') from error


def _numbers(checkpoint: Path) -> dict[str, float]:
  """The evaluation kept with a checkpoint."""
  path = checkpoint / _NUMBERS / 'metadata'
  return json.loads(path.read_text('utf-8')) if path.is_file() else {}


def _check_description(folder: Path, config: Any, vocabulary: Any) -> None:
  try:
    old_config, old_vocabulary, _ = bundles.read_description(folder)
  except bundles.BundleError as error:
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


def _nested(params: Mapping[str, Any]) -> dict[str, Any]:
  return {
    key: _nested(value) if isinstance(value, Mapping) else value
    for key, value in params.items()
  }


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


def _stored_params(checkpoint: Path) -> tuple[str, dict[str, Any]]:
  stored = _stored(checkpoint)
  for key in ('ema', 'params'):
    if stored.get(key):
      return key, stored[key]
  raise CheckpointError(f'{checkpoint}: holds no parameters')


def _restore_part(checkpoint: Path, key: str, shapes: PyTree) -> PyTree:
  """Reads one subtree of a state; the optimizer's state stays on the disk."""
  item = {key: shapes}
  with ocp.PyTreeCheckpointer() as checkpointer:
    restored = checkpointer.restore(
      checkpoint / _STATE,
      args=ocp.args.PyTreeRestore(
        item=item,
        restore_args=jax.tree.map(_restore_args, item),
        partial_restore=True,
      ),
    )
  return restored[key]


def _restore_args(leaf: Any) -> ocp.RestoreArgs:
  if getattr(leaf, 'sharding', None) is None:
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(
    sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
  )


def _check_shapes(wanted: PyTree, stored: PyTree, message: str) -> None:
  want = {n: tuple(x.shape) for n, x in bundles.flatten_names(wanted)}
  have = {n: tuple(x.shape) for n, x in bundles.flatten_names(stored)}
  lines = [
    f'  {name}: {have.get(name, "missing")} there, '
    f'{want.get(name, "unknown")} here'
    for name in sorted(set(want) | set(have))
    if want.get(name) != have.get(name)
  ]
  if lines:
    shown = lines[:20] + ([f'  ... {len(lines)} in all'] * (len(lines) > 20))
    raise CheckpointError(message + ':\n' + '\n'.join(shown))
