"""Selects a checkpoint of a run: the best, the latest, or one by name.

`selection.json` in MODEL_DIR defines the best; each checkpoint holds the
results of its evaluation. Not here: reading or writing a state.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.checkpoints.weights import CheckpointError

SELECTION_FILE = 'selection.json'
FOLDER = re.compile(r'checkpoint_(\d+)')
STATE, NUMBERS = 'state', 'numbers'
# In the names of folders that Orbax has not finished.
_UNFINISHED = '.orbax-checkpoint-tmp'


@dataclasses.dataclass(frozen=True)
class Selection:
  """What defines the best checkpoint.

  Attributes:
    metric: Name of an evaluator's result, such as 'held_out/loss'.
    mode: 'max' if higher values are better, else 'min'.
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
    """Index of the best evaluation (the first of equals), -1 if there is none.

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


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
  """Finds the checkpoint that a path refers to.

  Args:
    path: `checkpoint_N`, or the MODEL_DIR around such folders: the best one
      by `selection.json`, otherwise the latest.

  Raises:
    CheckpointError: There is none.
  """
  folder = Path(path).absolute()
  if not folder.is_dir():
    raise CheckpointError(f'{path}: no such folder')
  if FOLDER.fullmatch(folder.name):
    if not (folder / STATE).is_dir():
      raise CheckpointError(f'{path}: not a complete checkpoint')
    return folder
  found = complete(folder)
  if not found:
    raise CheckpointError(
      f'{path}: neither a bundle (config.json and model.safetensors) nor a '
      'folder with checkpoint_N folders'
    )
  steps = sorted(found)
  selection = _read_selection(folder)
  if selection is not None:
    rated = [(s, n) for s in steps if (n := numbers(found[s]))]
    best = selection.best([x for x in rated if selection.metric in x[1]])
    if best >= 0:
      return found[[s for s, n in rated if selection.metric in n][best]]
  return found[steps[-1]]


def complete(folder: Path) -> dict[int, Path]:
  """The complete checkpoints in an existing folder, by step."""
  return {
    int(match[1]): child
    for child in folder.iterdir()
    if (match := FOLDER.fullmatch(child.name)) and (child / STATE).is_dir()
  }


def unfinished(folder: Path) -> list[Path]:
  """Checkpoints of MODEL_DIR being saved, or left by a killed save."""
  return sorted(folder.glob(f'*{_UNFINISHED}*'))


def _read_selection(folder: Path) -> Selection | None:
  path = folder / SELECTION_FILE
  if not path.is_file():
    return None
  try:
    return Selection(**json.loads(path.read_text('utf-8')))
  except (ValueError, TypeError) as error:
    raise CheckpointError(f'{path}: damaged ({error})') from error


def numbers(checkpoint: Path) -> dict[str, float]:
  """The evaluation kept with a checkpoint."""
  path = checkpoint / NUMBERS / 'metadata'
  return json.loads(path.read_text('utf-8')) if path.is_file() else {}
