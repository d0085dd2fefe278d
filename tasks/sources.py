"""A SeqIO data source that reads files with a Python generator.

All tasks that read a corpus in its published layout use it. Its order is
deterministic: files come in the given order or in one that depends on the seed,
and the examples of each file in its order or shuffled with the seed. A reader's
error names file, line and field. Files are read once before the first batch to
count examples, so errors are raised early and unchanged.

Not for very large corpora that are read repeatedly: cache these tasks
(`caching`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

Reader = Callable[[str], Iterator[Mapping[str, Any]]]

TEXT_PAIR = {
  'inputs': tf.TensorSpec([], tf.string),
  'targets': tf.TensorSpec([], tf.string),
}
JUDGED_GROUP = {
  'shared': tf.TensorSpec([], tf.string),
  'hypotheses': tf.TensorSpec([None], tf.string),
  'ratings': tf.TensorSpec([None], tf.float32),
}


class FileSource(seqio.DataSource):
  """Examples that a Python function reads from files; each file is a shard."""

  def __init__(
    self,
    files: Mapping[str, Sequence[str | os.PathLike[str]]],
    read: Reader,
    signature: Mapping[str, tf.TensorSpec],
    shuffle_buffer_size: int = 20_000,
  ):
    """Stores the arguments; nothing is read yet.

    Args:
      files: The files of each split, in order.
      read: Yields the examples of one file, always the same.
      signature: Shape and type of each feature.
      shuffle_buffer_size: Size of the shuffle buffer. SeqIO shuffles again
        after preprocessing.

    Raises:
      ValueError: No split, or a split without files.
    """
    if not files or not all(files.values()):
      raise ValueError(f'every split needs at least one file: {dict(files)}')
    super().__init__(splits=list(files))
    self._files = {
      split: tuple(os.fspath(path) for path in paths)
      for split, paths in files.items()
    }
    self._read = read
    self._signature = dict(signature)
    self._buffer = shuffle_buffer_size
    self._counts: dict[str, int] = {}

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """False: at most one shard per file; beyond that SeqIO shards examples."""
    return False

  def list_shards(self, split: str) -> Sequence[str]:
    """The files of a split."""
    return self._files[split]

  def num_input_examples(self, split: str) -> int:
    """Counts the examples of a split, reading its files the first time.

    Raises:
      RecordError: A file is malformed.
      OSError: A file can't be read.
    """
    if split not in self._counts:
      self._counts[split] = sum(
        1 for path in self._files[split] for _ in self._read(path)
      )
    return self._counts[split]

  def get_dataset(
    self,
    split: str = 'train',
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """See `seqio.DataSource`; the last three arguments have no effect."""
    del sequence_length, use_cached, num_epochs
    paths = list(self._files[split])
    if shard_info is not None:
      paths = paths[shard_info.index :: shard_info.num_shards]
    if shuffle:
      order = np.random.default_rng(seed).permutation(len(paths))
      paths = [paths[index] for index in order]

    def examples() -> Iterator[Mapping[str, Any]]:
      for path in paths:
        yield from self._read(path)

    dataset = tf.data.Dataset.from_generator(
      examples, output_signature=self._signature
    )
    return dataset.shuffle(self._buffer, seed=seed) if shuffle else dataset
