"""Saves and restores the training state of one run, with Orbax.

Each checkpoint appears whole or not at all, with digests of its files. Not
here: weights for a new run or for scoring (`checkpoints/native.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import integrity, selection, weights
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import files
from t5score_jax.errors import OptionError
from t5score_jax.runtime import processes

PyTree = Any

_STATE, _NUMBERS = selection.STATE, selection.NUMBERS
_DATA = 'data_position'


@functools.cache
def ignore_late_writes() -> None:
  """Drops late reports of TensorStore's threads that nothing waits for.

  After a save has failed, some of its files may still be written. Their threads
  report to Orbax's event loop, which is closed by then.
  """
  report = sys.unraisablehook

  def unless_late(found: sys.UnraisableHookArgs) -> None:
    if str(found.exc_value) != 'Event loop is closed':
      report(found)

  sys.unraisablehook = unless_late


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


class _FilesHandler(ocp.CheckpointHandler):
  """Writes files with given contents, those of each process."""

  def save(self, directory: Any, args: _SaveFiles) -> None:
    for name, content in args.files.items():
      with files.write_atomically(Path(directory) / name, 'wb') as stream:
        stream.write(content)

  def restore(self, directory: Any, *args: Any, **options: Any) -> Any:
    raise NotImplementedError('files are read without Orbax')


@ocp.args.register_with_handler(_FilesHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SaveFiles(ocp.args.CheckpointArgs):
  files: Mapping[str, bytes]


class Checkpoints:
  """The checkpoints of one MODEL_DIR.

  A context manager: leaving it waits for saves that are under way. A save that
  fails in the background is reported by the next call of any method.
  """

  def __init__(
    self,
    model_dir: str | os.PathLike[str],
    keep: int = 3,
    skip_damaged: bool = False,
  ):
    """Opens a folder and removes incomplete checkpoints of a killed save.

    Args:
      model_dir: An existing folder.
      keep: Number of latest checkpoints to keep, at least 1, beside the best.
      skip_damaged: Whether to set aside damaged checkpoints after the last
        whole one, instead of raising an error.

    Raises:
      OptionError: `keep` is below 1.
      CheckpointError: The latest checkpoint is damaged; the message names the
        file and the last whole checkpoint.
    """
    if keep < 1:
      raise OptionError(f'keep = {keep}: at least one checkpoint must stay')
    # Through absl, Orbax reports every file it touches, and a failure once per
    # thread, sometimes after `_naming_failures` has named it. asyncio reports
    # failures of its tasks that nothing waits for any more.
    for name in ('absl', 'asyncio'):
      logging.getLogger(name).setLevel(logging.CRITICAL)
    ignore_late_writes()
    self._policy = _Keep(keep)
    self._folder = Path(model_dir).absolute()
    self._saving: int | None = None
    processes.on_first(lambda: _prepare(self._folder, skip_damaged))
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        step_prefix='checkpoint',
        enable_async_checkpointing=True,
        async_options=ocp.AsyncOptions(
          # Otherwise threads wait five minutes for a folder nobody creates.
          create_directories_asynchronously=False,
          post_finalization_callback=self._write_digests,
        ),
        preservation_policy=self._policy,
      ),
    )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, kind: Any, *unused: Any) -> None:
    if kind is None:
      with self._naming_failures():
        self._manager.close()
    # After an error other processes may have ended, and closing waits for them.
    elif processes.count() == 1:
      with contextlib.suppress(Exception):
        self._manager.close()
        for path in selection.unfinished(self._folder):
          shutil.rmtree(path)

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
    data_position: Mapping[str, bytes] | None = None,
  ) -> None:
    """Starts a save; returns as soon as the state may change again.

    Args:
      step: The number of updates made.
      state: The training state.
      numbers: The evaluation at this step, stored with the checkpoint.
      best_step: The step whose checkpoint must not be removed.
      data_position: Files of this process about its position in the data
        (`inputs/positions.py`), by name; None in all processes or in none.

    Raises:
      CheckpointError: This checkpoint or the previous one cannot be saved.
    """
    self.wait()
    if step in self._manager.all_steps():
      return
    self._policy.best_step = best_step
    self._saving = step
    items = {
      _STATE: ocp.args.StandardSave(_by_name(state)),
      _NUMBERS: ocp.args.JsonSave(dict(numbers or {})),
    }
    if data_position is not None:
      items[_DATA] = _SaveFiles(data_position)
    with self._naming_failures():
      self._manager.save(step, args=ocp.args.Composite(**items))

  def data_position(self) -> Path | None:
    """The folder of `data_position` in the latest checkpoint, if any."""
    if self.latest is None:
      return None
    return self._folder / f'checkpoint_{self.latest}' / _DATA

  def restore(self, shapes: PyTree, step: int | None = None) -> PyTree:
    """Restores a state with the shardings of `shapes`.

    Args:
      shapes: The state as `jax.ShapeDtypeStruct`s with shardings; the number
        of devices may differ from that of the save.
      step: The checkpoint's step; the latest by default.

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
    try:
      restored = self._manager.restore(
        step,
        args=ocp.args.Composite(
          **{_STATE: ocp.args.StandardRestore(_by_name(shapes))}
        ),
      )
    except Exception as error:  # Orbax raises whatever its libraries raise.
      raise CheckpointError(
        f'{folder}: cannot be restored: {integrity.cause(error)}'
      ) from error
    return jax.tree_util.tree_map_with_path(
      lambda path, _: functools.reduce(
        lambda place, key: place[key], _names(path), restored[_STATE]
      ),
      shapes,
    )

  def annotate(self, step: int, numbers: Mapping[str, float]) -> None:
    """Stores an evaluation with a complete checkpoint that has none.

    Args:
      step: Of the checkpoint.
      numbers: See `save`. Process 0 writes them.
    """
    if processes.is_first():
      folder = self._folder / f'checkpoint_{step}'
      path = folder / _NUMBERS / 'metadata'
      with integrity.changing(folder, path):
        with files.write_atomically(path) as stream:
          json.dump(dict(numbers), stream)
    processes.barrier(f'annotated {step}')

  def set_aside(self, step: int, prefix: str) -> str:
    """Renames a checkpoint, so that nothing reads it; returns the new name."""
    folder = self._folder / f'checkpoint_{step}'
    if processes.is_first():
      _set_aside(folder, prefix)
    processes.barrier(f'set aside {step}')
    self._manager.reload()
    return f'{prefix}_{folder.name}'

  def check(self) -> None:
    """Raises CheckpointError if a save in the background has failed."""
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self.wait()

  def wait(self) -> None:
    """Waits until every save has been completed.

    Raises:
      CheckpointError: A save has failed.
    """
    with self._naming_failures():
      self._manager.wait_until_finished()
    self._saving = None

  @contextlib.contextmanager
  def _naming_failures(self) -> Iterator[None]:
    """Names the checkpoint that cannot be saved, in one line."""
    try:
      yield
    except Exception as error:
      raise CheckpointError(
        f'{self._folder}/checkpoint_{self._saving}: cannot be saved: '
        f'{integrity.cause(error)}'
      ) from error

  def _write_digests(self) -> None:
    """Called by Orbax before it renames a complete temporary folder."""
    if processes.is_first():
      [folder] = selection.unfinished(self._folder)
      integrity.write(folder)


def _prepare(folder: Path, skip_damaged: bool) -> None:
  """Removes unfinished checkpoints and checks the latest one."""
  for path in selection.unfinished(folder):
    # Orbax could do so, but in a thread that nothing waits for.
    shutil.rmtree(path)
  steps = {
    int(match[1]): child
    for child in folder.iterdir()
    if (match := selection.FOLDER.fullmatch(child.name))
  }
  damaged: dict[Path, str] = {}
  whole = None
  for step in sorted(steps, reverse=True):
    if not (text := integrity.damage(steps[step])):
      whole = steps[step]
      break
    damaged[steps[step]] = text
  if not damaged:
    return
  if not skip_damaged or whole is None:
    advice = (
      'no other checkpoint is whole: choose another MODEL_DIR'
      if whole is None
      else f'{whole.name} is whole: --gin.SKIP_DAMAGED=True continues from it'
    )
    raise CheckpointError(f'{next(iter(damaged.values()))}; {advice}')
  for path in damaged:
    _set_aside(path, 'damaged')


def _set_aside(folder: Path, prefix: str) -> None:
  """Renames a checkpoint; an earlier one of that name is removed."""
  target = folder.with_name(f'{prefix}_{folder.name}')
  shutil.rmtree(target, ignore_errors=True)
  folder.rename(target)


def _by_name(tree: PyTree) -> dict[str, Any]:
  """A state as a plain nested dict, whatever its classes."""
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
