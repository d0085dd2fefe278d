"""Batches of one length bucket at a time, from several arrays on disk.

A batch padded to the longest text of all wastes most of its work on padding.
Here every batch comes whole from one of several datasets, each with a shape and
batch size of its own, so that a batch of long texts has fewer of them. Not for
mixing kinds within a batch (`datasets.MixtureDataset`).
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.inputs import shares
from t5score_jax.inputs.datasets import (
  ArrayDataset,
  Batch,
  Dataset,
  DatasetError,
)
from t5score_jax.runtime import validation

# Of buckets, in tokens; close together where most pairs of sentences lie.
LENGTHS = (24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384)


class BucketedDataset:
  """Draws, for every batch, the dataset it comes from.

  Attributes:
    rates: Probability of each dataset, float64 [datasets].
  """

  def __init__(
    self,
    datasets: Sequence[Dataset],
    rates: Sequence[float] | None = None,
    seed: int = 0,
    run_length: int = 1,
  ):
    """Sets up the draws.

    Args:
      datasets: Each gives whole batches, of its own shape.
      rates: Share of the batches, in any unit; by default every
        `ArrayDataset` gets as many as it has (epochs stay in step).
      seed: Of the draws.
      run_length: Batches that come from one dataset in a row; with
        `steps_per_call` of the training loop or a multiple, so that batches
        of one shape can be stacked.

    Raises:
      DatasetError: Rates that do not fit the datasets.
    """
    if rates is None:
      rates = [_batches_per_epoch(dataset) for dataset in datasets]
    weights = np.asarray(rates, np.float64)
    if len(weights) != len(datasets) or not len(datasets):
      raise DatasetError(
        f'{len(datasets)} datasets need as many rates, not {len(weights)}'
      )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or not sum(rates):
      raise DatasetError(f'rates must be 0 or more, not all 0: {list(rates)}')
    validation.check(validation.Positive, DatasetError, run_length=run_length)
    self.rates = weights / weights.sum()
    self._datasets = list(datasets)
    self._seed = seed
    self._run_length = run_length

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """See `Dataset`."""
    choices = self._choices()
    before = list(itertools.islice(choices, start_step))
    streams: dict[int, Iterator[Batch]] = {}
    for choice in choices:
      if choice not in streams:
        # Opened on first use: each goes on where its own share ended.
        streams[choice] = self._datasets[choice].batches(
          before.count(choice), share
        )
      yield next(streams[choice])

  def _choices(self) -> Iterator[int]:
    generator = np.random.default_rng(self._seed)
    while True:
      drawn = int(generator.choice(len(self.rates), p=self.rates))
      yield from itertools.repeat(drawn, self._run_length)


def _batches_per_epoch(dataset: Dataset) -> float:
  if not isinstance(dataset, ArrayDataset):
    raise DatasetError(
      f'rates are needed: a {type(dataset).__name__} has no known size'
    )
  return dataset.num_examples / dataset.batch_size


def from_folder(
  path: str | os.PathLike[str],
  batch_tokens: int,
  pattern: str = '*',
  weights: Mapping[str, float] | None = None,
  seed: int = 0,
  run_length: int = 1,
  row_multiple: int = 1,
) -> BucketedDataset:
  """Opens every folder of arrays in `path` as a bucket.

  Args:
    path: Folder of folders made by `scripts/prepare/cache_batches.py`.
    batch_tokens: Tokens of a batch, padding included: a bucket whose largest
      array has n tokens an example gets `batch_tokens // n` examples.
    pattern: Which folders, as a glob.
    weights: Glob -> factor on how often a bucket is drawn; 1 for others.
    seed: Of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: Every batch has a multiple of it as examples: the devices
      over which it is split, times microbatches.

  Raises:
    DatasetError: No folder fits, a glob of `weights` fits none, or
      `row_multiple` examples have more than `batch_tokens` tokens.
  """
  _check(batch_tokens, row_multiple)
  folders = _folders(path, pattern)
  datasets, rates, used = [], [], set()
  for index, folder in enumerate(folders):
    rows = _rows(folder, batch_tokens, row_multiple)
    dataset = ArrayDataset(folder, rows, seed=seed + index)
    rate = _batches_per_epoch(dataset)
    for name, factor in (weights or {}).items():
      if fnmatch.fnmatch(folder.name, name):
        used.add(name)
        rate *= factor
    datasets.append(dataset)
    rates.append(rate)
  if idle := sorted(set(weights or {}) - used):
    raise DatasetError(f'weights: no folder of {path} fits {idle}')
  return BucketedDataset(datasets, rates, seed, run_length)


def by_length(
  path: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  seed: int = 0,
  run_length: int = 1,
  row_multiple: int = 1,
) -> BucketedDataset:
  """Cuts one folder of arrays into buckets of length.

  An example goes into the bucket of the smallest length that holds its
  `tokens`; all its arrays of that length are cut with them.

  Args:
    path: Folder with `tokens.npy`, int [N, length], padded at the end with 0.
    batch_tokens: Tokens of a batch, padding included.
    lengths: Of the buckets, ascending; the arrays' own is added.
    seed: Of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: See `from_folder`.

  Raises:
    DatasetError: No such arrays, or `batch_tokens` that hold no
      example.
  """
  buckets = _buckets(path, batch_tokens, lengths, row_multiple, seed)
  return BucketedDataset(buckets, None, seed, run_length)


def held_out(
  path: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  row_multiple: int = 1,
) -> list[ArrayDataset]:
  """The buckets of `by_length`, for reading each example once."""
  return _buckets(path, batch_tokens, lengths, row_multiple, None)


class _Bucket(ArrayDataset):
  """Some examples of a folder, cut to a length."""

  def __init__(
    self,
    path: str | os.PathLike[str],
    rows: np.ndarray,
    length: int,
    batch_size: int,
    seed: int | None,
  ):
    super().__init__(path, batch_size, seed or 0, shuffle=seed is not None)
    longest = self._arrays['tokens'].shape[1]
    views: dict[str, Any] = {
      key: _View(array, rows, length if array.shape[1:] == (longest,) else None)
      for key, array in self._arrays.items()
    }
    self._arrays = views
    self.num_examples = len(rows)


class _View:
  """Some rows of an array that stays on disk, cut to a length."""

  def __init__(self, array: np.ndarray, rows: np.ndarray, length: int | None):
    self._array = array
    self._rows = rows
    self._length = length

  def __getitem__(self, index: Any) -> np.ndarray:
    found = self._array[self._rows[index]]
    return found if self._length is None else found[:, : self._length]


def _buckets(
  path: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int],
  row_multiple: int,
  seed: int | None,
) -> list[ArrayDataset]:
  _check(batch_tokens, row_multiple)
  file = Path(path) / 'tokens.npy'
  if not file.is_file():
    raise DatasetError(f'{file}: there is no such array')
  tokens = np.load(file, mmap_mode='r')
  longest = tokens.shape[1]
  # The place after the last token, so that a 0 inside would not count.
  sizes = longest - np.argmax(np.asarray(tokens)[:, ::-1] != 0, axis=1)
  rungs = np.unique([*(n for n in lengths if n < longest), longest])
  needed = rungs[np.searchsorted(rungs, sizes)]
  buckets: list[ArrayDataset] = []
  for index, length in enumerate(rungs.tolist()):
    rows = np.flatnonzero(needed == length)
    size = batch_tokens // length // row_multiple * row_multiple
    if not len(rows):
      continue
    if not size:
      raise DatasetError(
        f'{file}: {row_multiple} example(s) of {length} tokens are more than '
        f'batch_tokens={batch_tokens}'
      )
    own = None if seed is None else seed + index
    buckets.append(_Bucket(path, rows, length, size, own))
  return buckets


def _check(batch_tokens: int, row_multiple: int) -> None:
  validation.check(
    validation.Positive,
    DatasetError,
    batch_tokens=batch_tokens,
    row_multiple=row_multiple,
  )


def _folders(path: str | os.PathLike[str], pattern: str) -> list[Path]:
  folders = sorted(f for f in Path(path).glob(pattern) if f.is_dir())
  if not folders:
    raise DatasetError(f'{path}: no folder of arrays fits {pattern!r}')
  return folders


def _rows(folder: Path, batch_tokens: int, row_multiple: int) -> int:
  """Examples of a bucket in a batch."""
  # Its size is not known before an example was seen.
  probe = ArrayDataset(folder, 1, shuffle=False)
  tokens = max(x.size for x in next(probe.epoch()).values())
  if tokens * row_multiple > batch_tokens:
    what = 'an example has' if row_multiple == 1 else f'{row_multiple} have'
    raise DatasetError(
      f'{folder}: {what} {tokens * row_multiple} tokens, more than '
      f'batch_tokens={batch_tokens}'
    )
  return batch_tokens // tokens // row_multiple * row_multiple
