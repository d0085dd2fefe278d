"""Checks that batches suit the model that trains on them.

Without these, an array of another kind raises a KeyError inside the loss, a
token id beyond the vocabulary reads as NaN, and batches without a pair of
different ratings train at loss 0.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5score_jax.errors import T5ScoreError, one_line
from t5score_jax.inputs import datasets
from t5score_jax.models import t5score

# Consecutive batches without a pair after which training is pointless.
_MOST_WITHOUT_PAIR = 100
_CHUNK = 2**16


def check_fit(batch: Mapping[str, Any], model: Any, params: Any) -> None:
  """Checks that a model's loss can be computed from a batch.

  Args:
    batch: Arrays by name.
    model: The model.
    params: Its parameters, or their shapes.

  Raises:
    DatasetError: An array is missing or has another shape or type.
  """
  shapes = {
    key: jax.ShapeDtypeStruct(value.shape, value.dtype)
    for key, value in batch.items()
  }
  name = type(model).__name__
  arrays = ', '.join(f'{k} {list(v.shape)}' for k, v in sorted(shapes.items()))
  try:
    jax.eval_shape(lambda p, b: model.loss_fn(p, b, None), params, shapes)
  except T5ScoreError:
    raise
  except KeyError as error:
    if error.args[:1] and error.args[0] in batch:
      raise
    raise datasets.DatasetError(
      f'{name} reads {error}, which the batches lack; they have {arrays}: '
      'choose the model or the feature converter of the other kind'
    ) from error
  except (TypeError, ValueError, IndexError) as error:
    problem = one_line(str(error))[:200]
    raise datasets.DatasetError(
      f'{name} cannot read batches of {arrays}: {problem}'
    ) from error


def check_arrays(dataset: datasets.Dataset, model: Any) -> None:
  """Checks all token ids of a dataset of arrays; others are not read.

  Files whose type, or whose range in `info.json`, leaves no doubt are not read
  either.

  Raises:
    DatasetError: An id is negative, or not in the model's vocabulary, or an
      array is not of integers.
  """
  size = _vocab_size(model)
  if size is None or not hasattr(dataset, 'token_arrays'):
    return
  for file, array in dataset.token_arrays():
    low, high = _range(file, array)
    if 0 <= low and high < size:
      continue
    for start in range(0, len(array), _CHUNK):
      _check_ids(str(file), array[start : start + _CHUNK], size, start)


def checked(
  batches: Iterator[datasets.Batch],
  model: Any,
  step: int,
  note: Callable[[str], None],
  whole: bool = True,
) -> Iterator[datasets.Batch]:
  """Yields batches after checking their token ids and pairs.

  Args:
    batches: The batches.
    model: The model.
    step: The step before the first batch.
    note: Prints a message; called for the first batch without a pair.
    whole: Whether these are whole batches, not the share of a process, which
      may be without a pair.

  Raises:
    DatasetError: An id is not in the model's vocabulary, or no batch has a
      pair.
  """
  size = _vocab_size(model)
  without = 0
  noted = False
  for step, batch in enumerate(batches, step + 1):  # noqa: B020
    for key, value in batch.items():
      if size is not None and _is_tokens(key):
        _check_ids(f'step {step}, {key}', value, size)
    if whole and _has_no_pair(batch, model):
      without += 1
      if not noted:
        noted = True
        note(
          f'the batch of step {step} has no pair of hypotheses with different '
          'ratings: its contrastive loss is 0'
        )
      if without == _MOST_WITHOUT_PAIR:
        raise datasets.DatasetError(
          f'none of the {without} batches up to step {step} has a pair of '
          'hypotheses with different ratings: nothing would be learned'
        )
    else:
      without = 0
    yield batch


def _has_no_pair(batch: Mapping[str, np.ndarray], model: Any) -> bool:
  if isinstance(model, t5score.GroupModel):
    # Padding is no hypothesis: it never has the highest or lowest rating.
    rated = np.where(batch['group_mask'] > 0, batch['ratings'], np.nan)
    spread = np.fmax.reduce(rated, axis=1) - np.fmin.reduce(rated, axis=1)
    return not np.any(spread > model.min_gap)
  if isinstance(model, t5score.PairModel):
    ratings = batch['ratings']
    return not np.any(ratings[:, 0] > ratings[:, 1])
  return False


def _is_tokens(key: str) -> bool:
  return key == 'tokens' or key.endswith('_tokens')


def _vocab_size(model: Any) -> int | None:
  """The number of rows of a model's embedding, if it is known."""
  config = getattr(model, 'config', None)
  for part in (config, getattr(config, 'encoder', None)):
    if isinstance(size := getattr(part, 'vocab_size', None), int):
      return size
  return None


def _range(file: Path, array: np.ndarray) -> tuple[int, int]:
  """Bounds of the ids in a file, without reading it."""
  if array.dtype.kind not in 'iu':
    raise datasets.DatasetError(
      f'{file}: token ids are integers, this array is {array.dtype}'
    )
  limits = np.iinfo(array.dtype)
  info = file.with_name(datasets.INFO_FILE)
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    low, high = json.loads(info.read_text('utf-8'))[datasets.IDS][file.stem]
    # An array that was replaced is later than its description.
    if file.stat().st_mtime_ns <= info.stat().st_mtime_ns:
      return int(low), int(high)
  return int(limits.min), int(limits.max)


def _check_ids(
  place: str, ids: np.ndarray, vocab_size: int, first: int = 0
) -> None:
  if not ids.size or (ids.min() >= 0 and ids.max() < vocab_size):
    return
  ids = np.asarray(ids)
  wrong = (ids < 0) | (ids >= vocab_size)
  index = np.unravel_index(int(np.argmax(wrong)), ids.shape)
  raise datasets.DatasetError(
    f'{place}: example {first + int(index[0])} has the token id '
    f"{int(ids[index])}, but the model's vocabulary has the ids 0 to "
    f'{vocab_size - 1}; were the arrays made with another vocabulary?'
  )
