"""The examples of a SeqIO task for inference, each once and in order.

`inputs/datasets.py` makes batches for training. Imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio

from t5score_jax.errors import T5ScoreError


class TaskError(T5ScoreError, ValueError):
  """There is no such task, split or feature."""


@dataclasses.dataclass(frozen=True)
class TaskExample:
  """An example of an encoder-decoder task.

  Attributes:
    inputs: Ids, ending with `</s>`.
    targets: Ids, ending with `</s>`.
    inputs_text: The text before tokenization, or else the decoded ids.
    targets_text: Likewise.
  """

  inputs: tuple[int, ...]
  targets: tuple[int, ...]
  inputs_text: str
  targets_text: str


def tasks_of(mixture_or_task_name: str) -> list[str]:
  """Returns the names of a mixture's tasks, or of the one task.

  Raises:
    TaskError: The name is not registered.
  """
  try:
    source = seqio.get_mixture_or_task(mixture_or_task_name)
  except ValueError as error:
    raise TaskError(
      f'no SeqIO task or mixture {mixture_or_task_name!r}: {error}; name the '
      'module that registers it (MIXTURE_OR_TASK_MODULE), or import it in a '
      'gin file'
    ) from None
  return [task.name for task in seqio.get_subtasks(source)]


def vocab_size(task_name: str) -> int:
  """Returns the size of the larger of the task's two vocabularies."""
  features = seqio.get_mixture_or_task(task_name).output_features
  return max(
    features[name].vocabulary.vocab_size
    for name in ('inputs', 'targets')
    if name in features
  )


def read(
  task_name: str,
  lengths: Mapping[str, int],
  split: str,
  use_cached: bool = False,
) -> Iterator[TaskExample]:
  """Yields the examples of a task in their order, each once.

  Args:
    task_name: The registered name.
    lengths: Maximum number of ids by feature, `</s>` included.
    split: The task's split.
    use_cached: Whether to read SeqIO's cache.

  Raises:
    TaskError: An unknown split, or a feature that is not a sequence of ids.
  """
  task = seqio.get_mixture_or_task(task_name)
  if split not in task.splits:
    raise TaskError(
      f'{task_name} has no split {split!r}, only {sorted(task.splits)}'
    )
  for name in ('inputs', 'targets'):
    feature = task.output_features.get(name)
    if feature is None or feature.rank != 1:
      raise TaskError(
        f'{task_name} is not a task of inputs and targets (feature {name!r}); '
        'pairs and groups are for training'
      )
  dataset = task.get_dataset(
    sequence_length=dict(lengths),
    split=split,
    use_cached=use_cached,
    shuffle=False,
    num_epochs=1,
  )
  for row in dataset.as_numpy_iterator():
    ids = {n: _ended(row[n], task, n) for n in ('inputs', 'targets')}
    texts = {n: _text(row, n, ids[n], task) for n in ids}
    yield TaskExample(
      ids['inputs'], ids['targets'], texts['inputs'], texts['targets']
    )


def _ended(ids: np.ndarray, task: Any, feature: str) -> tuple[int, ...]:
  """Returns the ids, ending with `</s>`."""
  end = task.output_features[feature].vocabulary.eos_id
  row = tuple(int(i) for i in ids)
  return row if row and row[-1] == end else (*row, int(end))


def _text(
  row: Mapping[str, Any], feature: str, ids: tuple[int, ...], task: Any
) -> str:
  text = row.get(f'{feature}_pretokenized')
  if isinstance(text, bytes):
    return text.decode('utf-8', 'replace')
  return task.output_features[feature].vocabulary.decode(list(ids))
