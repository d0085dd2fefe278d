"""Batches of a finite number of examples, reshuffled each epoch.

The common part of datasets with random access: `datasets.ArrayDataset` and
`rated_records.RecordsDataset`. Not here: streams without random access (SeqIO).
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Iterator

import numpy as np

from t5score_jax.inputs import shares

Batch = dict[str, np.ndarray]


class ShuffledDataset(abc.ABC):
  """Examples by number; a batch may span two epochs, so that all are full.

  Attributes:
    batch_size: Examples per batch over all processes.
    num_examples: Examples per epoch.
  """

  def __init__(
    self, num_examples: int, batch_size: int, seed: int, shuffle: bool
  ):
    """Sets the order.

    Args:
      num_examples: Examples per epoch.
      batch_size: Examples per batch over all processes.
      seed: Seed of the order.
      shuffle: Whether to shuffle; otherwise examples keep their order.
    """
    self.num_examples = num_examples
    self.batch_size = batch_size
    self._seed = seed
    self._shuffle = shuffle
    self._permutation = functools.lru_cache(maxsize=2)(self._shuffled)

  def examples(self, positions: np.ndarray) -> Batch:
    """Gathers examples by their positions in the endless shuffled sequence.

    Args:
      positions: int64 [N], at least 0; position p is example p modulo
        `num_examples` of epoch p // `num_examples`.
    """
    epochs, offsets = np.divmod(positions, self.num_examples)
    rows = offsets.copy()
    if self._shuffle:
      for epoch in np.unique(epochs):
        chosen = epochs == epoch
        rows[chosen] = self._permutation(int(epoch))[offsets[chosen]]
    return self._gather(rows)

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """See `datasets.Dataset`."""
    rows = share.rows(self.batch_size)
    for step in itertools.count(start_step):
      yield self.examples(step * self.batch_size + rows)

  def epoch(self) -> Iterator[Batch]:
    """Yields every example once in order; the last batch is short."""
    for start in range(0, self.num_examples, self.batch_size):
      yield self._gather(
        slice(start, min(start + self.batch_size, self.num_examples))
      )

  @abc.abstractmethod
  def _gather(self, rows: np.ndarray | slice) -> Batch:
    """Reads examples by number."""

  def _shuffled(self, epoch: int) -> np.ndarray:
    generator = np.random.default_rng([self._seed, epoch])
    return generator.permutation(self.num_examples)
