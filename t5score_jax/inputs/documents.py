"""Batches of whole documents, in which every text is encoded once.

A document of SummEval has 561 training instances of COMES (17 summaries, 11
references, 3 experts) and 29 texts. A batch has the texts of some documents and
the instances as rows of indices, so that the cost of a step is the encoding of
its texts. `inputs/texts.py` draws instances one by one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.inputs import datasets, shares
from t5score_jax.inputs import texts as text_arrays
from t5score_jax.runtime import validation


def steps(
  path: str | os.PathLike[str], documents: int, epochs: float = 1.0
) -> int:
  """Returns the number of steps of some epochs, for gin files.

  Args:
    path: Folder of the instances.
    documents: Documents per step.
    epochs: Number of epochs.

  Returns:
    At least 1, unless `epochs` is 0.

  Raises:
    datasets.DatasetError: There are no instances, or a number is invalid.
  """
  validation.check(
    validation.Positive, datasets.DatasetError, documents=documents
  )
  file = Path(path) / 'source.npy'
  if not file.is_file():
    raise datasets.DatasetError(f'{file}: no such array')
  count = len(np.unique(np.load(file)))
  return text_arrays.count_steps(count, documents, epochs)


class DocumentsDataset:
  """All instances of a source in one batch, with each text once.

  The arrays are those of `texts.TextsDataset`. A batch has, for each role,
  `ROLE_tokens` int32 [documents * texts, length] and `ROLE_rows` int32
  [documents * instances], the text of each instance; `ratings` float32
  [documents * instances, outputs], NaN where there is no instance; and, if the
  arrays have it, `system` int32 [documents * instances]. `texts` and
  `instances` are those of the largest document, `length` is that of the longest
  text, or three quarters of it if that suffices.

  Attributes:
    batch_size: Maximum number of instances per batch over all processes.
    num_documents: Documents per epoch.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    texts: str | os.PathLike[str],
    documents: int = 1,
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Opens the arrays.

    Args:
      path: Folder of the instances.
      texts: Folder of the texts, as tokens.
      documents: Documents per batch over all processes.
      seed: Seed of the order.
      shuffle: Whether to shuffle each epoch.

    Raises:
      datasets.DatasetError: Arrays are missing, or refer to missing texts.
    """
    validation.check(
      validation.Positive, datasets.DatasetError, documents=documents
    )
    self._arrays = text_arrays.Instances(path, texts)
    self._documents = documents
    self._seed = seed
    self._shuffle = shuffle
    sources = self._arrays.rows['source']
    order = np.argsort(sources, kind='stable')
    _, starts = np.unique(sources[order], return_index=True)
    self._members = np.split(order, starts[1:])
    self.num_documents = len(self._members)
    self._instances = max(map(len, self._members))
    self._places = {
      role: max(len(np.unique(numbers[m])) for m in self._members)
      for role, numbers in self._arrays.rows.items()
    }
    self.batch_size = documents * self._instances

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """See `datasets.ArrayDataset.token_arrays`."""
    yield self._arrays.file, self._arrays.table

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[datasets.Batch]:
    """See `datasets.Dataset`; a process reads the texts of its documents."""
    own = share.rows(self._documents)
    for step in itertools.count(start_step):
      places = step * self._documents + np.arange(self._documents)
      epochs, offsets = np.divmod(places, self.num_documents)
      chosen = [
        int(self._order(epoch)[offset])
        for epoch, offset in zip(epochs.tolist(), offsets, strict=True)
      ]
      yield self._batch(chosen, own)

  def epoch(self) -> Iterator[datasets.Batch]:
    """Yields every document once in stored order, in batches of one shape."""
    for start in range(0, self.num_documents, self._documents):
      stop = min(start + self._documents, self.num_documents)
      yield self._batch(range(start, stop), np.arange(self._documents))

  def _order(self, epoch: int) -> np.ndarray:
    if not self._shuffle:
      return np.arange(self.num_documents)
    generator = np.random.default_rng([self._seed, epoch])
    return generator.permutation(self.num_documents)

  def _batch(
    self, everything: Sequence[int], own: np.ndarray
  ) -> datasets.Batch:
    """Makes a batch of documents.

    Args:
      everything: The documents of the batch over all processes; fewer than
        its slots at the end of an epoch.
      own: The slots of this process.
    """
    arrays = self._arrays
    count = len(own)
    size = count * self._instances
    chosen = [everything[place] for place in own if place < len(everything)]
    ratings = np.full((size, arrays.ratings.shape[1]), np.nan, np.float32)
    batch: datasets.Batch = {'ratings': ratings}
    if arrays.system is not None:
      batch[text_arrays.SYSTEM_KEY] = np.zeros(size, np.int32)
    for n, document in enumerate(chosen):
      members = self._members[document]
      part = slice(n * self._instances, n * self._instances + len(members))
      ratings[part] = arrays.ratings[members]
      if arrays.system is not None:
        batch[text_arrays.SYSTEM_KEY][part] = arrays.system[members]
    whole = np.concatenate([self._members[document] for document in everything])
    for role, numbers in arrays.rows.items():
      places = self._places[role]
      width = arrays.width(role, numbers[whole])
      # Empty slots have a text as well: the mean of padding is undefined.
      filling = arrays.texts(role, numbers[whole[:1]], width)
      tokens = np.repeat(filling, count * places, 0)
      rows = np.full(size, own[0] * places, np.int32)
      for n, document in enumerate(chosen):
        members = self._members[document]
        used, local = np.unique(numbers[members], return_inverse=True)
        start = n * places
        tokens[start : start + len(used)] = arrays.texts(role, used, width)
        part = slice(n * self._instances, n * self._instances + len(members))
        rows[part] = own[n] * places + local.reshape(-1)
      batch[f'{role}_tokens'] = tokens
      batch[f'{role}_rows'] = rows
    return batch
