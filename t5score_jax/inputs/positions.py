"""Saves the position of a SeqIO pipeline, where a resumed run continues.

The state of the pipeline's iterator (offsets in files, shuffle buffers, random
seeds) is written with each checkpoint. It belongs to one task, seed, batch size
and share. If the state does not match these, is damaged, or cannot be saved
(Python generators and functions), the resumed run reads past the earlier
batches (`inputs/skipping.py`). Both ways give the same batches. Datasets with
random access need no saved position. TensorFlow is imported when needed.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.errors import one_line
from t5score_jax.inputs import shares

_IDENTITY_FILE = 'identity.json'
_STATE = 'iterator'  # The first part of the names of TensorFlow's files.
# Least number of seconds between states apart from those of checkpoints that
# are due: a run that is preempted between these reads past few batches.
_SECONDS = 30.0
# Multiple of its own duration that passes before the next state.
_RARE = 50.0


class Positions:
  """The positions of one run's iterator in this process.

  Another thread reads the iterator ahead; it records states by the number of
  steps that it has read.
  """

  def __init__(
    self,
    intervals: Sequence[int | None] = (),
    folder: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
    seconds: float = _SECONDS,
  ):
    """Initializes without any position.

    Args:
      intervals: Steps at whose multiples checkpoints are saved, or None.
      folder: The saved positions of the checkpoint from which the run resumes,
        a file per share; None for a new run.
      note: Prints a message.
      seconds: Seconds between states at other steps.
    """
    self._intervals = [every for every in intervals if every]
    self._folder = folder
    self._note = note
    self._seconds = seconds
    self._due = time.monotonic() + seconds
    self._name: str | None = None
    self._identity: dict[str, Any] = {}
    # (step, file), ascending; the reading thread appends.
    self._states: collections.deque[tuple[int, bytes]] = collections.deque()

  def open(
    self,
    make: Callable[[], Any],
    name: str | None,
    identity: Mapping[str, Any],
    start: int,
  ) -> tuple[Iterator[Any], int]:
    """Opens an iterator at the saved position.

    Args:
      make: Makes a `tf.data.Dataset` of batches. The second iterator of one
        dataset would have another order.
      name: Name of this process's share; None if another process saves it
        too, and this one does not.
      identity: What the position belongs to; JSON-serialisable.
      start: Number of batches that the run has read.

    Returns:
      The iterator, and the number of batches before its position, at most
      `start`: 0 without a saved position of this pipeline.
    """
    self._name = name
    self._identity = {**identity, 'tensorflow': _version()}
    if self._folder is None or not self._folder.is_dir():
      return iter(make()), 0
    path = self._folder / f'{identity["share"]}.zip'
    try:
      iterator = iter(make())
      content = path.read_bytes()
      step = _restore(iterator, content, self._identity, start)
      self._states.append((step, content))
      return iterator, step
    except Exception as error:  # noqa: BLE001 (of zipfile, JSON, TensorFlow)
      self._note(
        f'the saved position in the data is not used, earlier batches are read '
        f'again ({path}: {one_line(str(error))[:200]})'
      )
      return iter(make()), 0

  def record(self, iterator: Any, step: int) -> None:
    """Records the state of the iterator after a step, if one is due.

    Args:
      iterator: Of `open`.
      step: Number of batches that have been read.
    """
    now = time.monotonic()
    saves = any(step % every == 0 for every in self._intervals)
    if self._name is None or not (saves or now >= self._due):
      return
    try:
      content = _save(iterator, {**self._identity, 'step': step})
    except Exception as error:  # noqa: BLE001 (any of TensorFlow)
      self._name = None
      self._note(
        'the position in the data cannot be saved: a resumed run reads past '
        f'the earlier batches ({one_line(str(error))[:200]}); SeqIO caches '
        '(scripts/prepare/cache_tasks.py) and arrays (cache_batches.py) need '
        'no such reading'
      )
      return
    self._states.append((step, content))
    end = time.monotonic()
    self._due = end + max(self._seconds, _RARE * (end - now))

  def at(self, step: int) -> dict[str, bytes] | None:
    """Returns the last position up to a step, {file name: content}.

    Earlier ones are dropped, so that a call at every step bounds their memory.

    Args:
      step: The step of the training, not below that of the last call.

    Returns:
      {} if this process saves none; None if the dataset has no positions.
    """
    if not self._identity:
      return None
    while len(self._states) > 1 and self._states[1][0] <= step:
      self._states.popleft()
    if self._name is None or not self._states or self._states[0][0] > step:
      return {}
    return {f'{self._name}.zip': self._states[0][1]}


def batches(
  dataset: Any, start: int, share: shares.Share, position: Positions
) -> Iterator[dict[str, np.ndarray]]:
  """Reads a dataset, with its position if that can be saved."""
  if getattr(dataset, 'has_position', False):
    return dataset.batches(start, share, position)
  return dataset.batches(start, share=share)


def digest(batch: Mapping[str, np.ndarray]) -> int:
  """Returns a checksum of a batch, which shows that a pipeline has changed."""
  value = 0
  for key, array in sorted(batch.items()):
    value = zlib.crc32(f'{key} {array.shape} {array.dtype}'.encode(), value)
    value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
  return value


def _save(iterator: Any, identity: Mapping[str, Any]) -> bytes:
  import tensorflow as tf

  stream = io.BytesIO()
  with tempfile.TemporaryDirectory() as folder:
    tf.train.Checkpoint(iterator=iterator).write(f'{folder}/{_STATE}')
    with zipfile.ZipFile(
      stream, 'w', zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
      archive.writestr(_IDENTITY_FILE, json.dumps(identity))
      for path in sorted(Path(folder).glob(f'{_STATE}.*')):
        archive.write(path, path.name)
  return stream.getvalue()


def _restore(
  iterator: Any, content: bytes, identity: Mapping[str, Any], start: int
) -> int:
  """Moves an iterator to a saved state; returns the step of the state."""
  import tensorflow as tf

  with (
    contextlib.closing(zipfile.ZipFile(io.BytesIO(content))) as archive,
    tempfile.TemporaryDirectory() as folder,
  ):
    saved = json.loads(archive.read(_IDENTITY_FILE))
    step = int(saved.pop('step'))
    # Through JSON, which has no tuples.
    wanted = json.loads(json.dumps(identity))
    if differing := sorted(
      key for key in wanted | saved if wanted.get(key) != saved.get(key)
    ):
      raise ValueError(
        'it is of another run: '
        + ', '.join(
          f'{key} {saved.get(key)} there, {wanted.get(key)} here'
          for key in differing
        )
      )
    if not 0 <= step <= start:
      raise ValueError(f'it is of step {step}, the checkpoint of step {start}')
    for name in archive.namelist():
      if name.startswith(f'{_STATE}.'):
        (Path(folder) / Path(name).name).write_bytes(archive.read(name))
    tf.train.Checkpoint(iterator=iterator).read(
      f'{folder}/{_STATE}'
    ).assert_consumed()
  return step


def _version() -> str:
  import tensorflow as tf

  return str(tf.__version__)
