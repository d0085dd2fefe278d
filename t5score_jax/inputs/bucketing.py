"""Batches from length buckets, each with its own shape and batch size.

If every batch is padded to the longest text of the data, most of the work is
wasted on padding. Here every batch comes from one of several datasets, and
batches of long texts are smaller. `datasets.MixtureDataset` mixes datasets
within a batch.
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
from t5score_jax.inputs import texts as text_arrays
from t5score_jax.inputs.datasets import (
  ArrayDataset,
  Batch,
  Dataset,
  DatasetError,
  normalised_rates,
)
from t5score_jax.runtime import validation

# Bucket boundaries in tokens, closest where most pairs of sentences lie.
LENGTHS = (24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384)


class BucketedDataset:
  """Draws a dataset for every batch.

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
    """Initializes the draws.

    Args:
      datasets: The datasets, each with batches of one shape.
      rates: Relative rates; by default proportional to the batches per epoch of
        each `ArrayDataset`, so that their epochs keep pace.
      seed: Seed of the draws.
      run_length: Consecutive batches from one dataset: `steps_per_call` of the
        training loop or a multiple allows stacking batches of one shape.

    Raises:
      DatasetError: Another number of rates, or invalid ones.
    """
    if rates is None:
      rates = [_batches_per_epoch(dataset) for dataset in datasets]
    validation.check(validation.Positive, DatasetError, run_length=run_length)
    self.rates = normalised_rates(rates, len(datasets))
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
        # Opened on first use, after the batches that it had before.
        streams[choice] = self._datasets[choice].batches(
          before.count(choice), share
        )
      yield next(streams[choice])

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """See `ArrayDataset.token_arrays`."""
    for dataset in self._datasets:
      if hasattr(dataset, 'token_arrays'):
        yield from dataset.token_arrays()

  def _choices(self) -> Iterator[int]:
    generator = np.random.default_rng(self._seed)
    while True:
      drawn = int(generator.choice(len(self.rates), p=self.rates))
      yield from itertools.repeat(drawn, self._run_length)


def _batches_per_epoch(dataset: Dataset) -> float:
  if not isinstance(dataset, ArrayDataset):
    raise DatasetError(
      f'give rates: the size of a {type(dataset).__name__} is unknown'
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
    path: Folder of folders from `scripts/prepare/cache_batches.py`.
    batch_tokens: Tokens per batch, padding included: a bucket whose largest
      array has n tokens per example has `batch_tokens // n` examples per batch.
    pattern: Glob of folders to open.
    weights: Factors on the rates of buckets, by glob; 1 for others.
    seed: Seed of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: Batch sizes are multiples of it: the devices over which a
      batch is split, times microbatches.

  Raises:
    DatasetError: No folder matches, a glob of `weights` matches none, or
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
    raise DatasetError(f'weights: no folder of {path} matches {idle}')
  return BucketedDataset(datasets, rates, seed, run_length)


def by_length(
  path: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  seed: int = 0,
  run_length: int = 1,
  row_multiple: int = 1,
) -> BucketedDataset:
  """Divides one folder of arrays into length buckets.

  An example belongs to the smallest bucket that fits its `tokens`; all arrays
  of the full length are cut to the bucket's.

  Args:
    path: Folder with `tokens.npy`, int [N, length], padded at the end with
      `pad_id` of `info.json`, by default 0.
    batch_tokens: Tokens per batch, padding included.
    lengths: Bucket boundaries, ascending; the arrays' length is added.
    seed: Seed of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: See `from_folder`.

  Raises:
    DatasetError: No such arrays, or `batch_tokens` is less than an example.
  """
  buckets = _buckets(path, batch_tokens, lengths, row_multiple, seed)
  return BucketedDataset(buckets, None, seed, run_length)


def held_out(
  path: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  row_multiple: int = 1,
) -> list[ArrayDataset]:
  """Returns the buckets of `by_length` for reading each example once."""
  return _buckets(path, batch_tokens, lengths, row_multiple, None)


def texts_by_length(
  path: str | os.PathLike[str],
  texts: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  seed: int = 0,
  run_length: int = 1,
  row_multiple: int = 1,
) -> BucketedDataset:
  """Divides the instances of `texts.TextsDataset` into length buckets.

  An instance belongs to the smallest bucket that fits its longest text; its
  texts are padded to the bucket's length.

  Args:
    path: Folder of the instances.
    texts: Folder of their texts, as tokens.
    batch_tokens: Tokens per batch and role, padding included.
    lengths: Bucket boundaries, ascending; that of the longest text is added.
    seed: Seed of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: See `from_folder`.

  Raises:
    DatasetError: No such arrays, or `batch_tokens` is less than an instance.
  """
  buckets = _texts_buckets(
    path, texts, batch_tokens, lengths, row_multiple, seed
  )
  return BucketedDataset(buckets, None, seed, run_length)


def texts_held_out(
  path: str | os.PathLike[str],
  texts: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int] = LENGTHS,
  row_multiple: int = 1,
) -> list[ArrayDataset]:
  """Returns the buckets of `texts_by_length` for reading each once."""
  return _texts_buckets(path, texts, batch_tokens, lengths, row_multiple, None)


def texts_steps(
  path: str | os.PathLike[str],
  texts: str | os.PathLike[str],
  batch_tokens: int,
  epochs: float = 1.0,
  lengths: Sequence[int] = LENGTHS,
  row_multiple: int = 1,
) -> int:
  """Returns the number of steps of some epochs of `texts_by_length`.

  Args:
    path: Folder of the instances.
    texts: Folder of their texts, as tokens.
    batch_tokens: Tokens per batch and role, padding included.
    epochs: Number of epochs.
    lengths: Bucket boundaries.
    row_multiple: See `from_folder`.

  Returns:
    At least 1, unless `epochs` is 0.

  Raises:
    DatasetError: No such arrays, or an invalid number.
  """
  buckets = _texts_buckets(
    path, texts, batch_tokens, lengths, row_multiple, None
  )
  batches = sum(map(_batches_per_epoch, buckets))
  return text_arrays.count_steps(1, 1, epochs * batches)


class _TextsBucket(text_arrays.TextsDataset):
  """Selected instances, whose texts are padded to a length."""

  def __init__(
    self,
    path: str | os.PathLike[str],
    texts: str | os.PathLike[str],
    rows: np.ndarray,
    length: int,
    batch_size: int,
    seed: int | None,
  ):
    super().__init__(
      path, texts, batch_size, seed=seed or 0, shuffle=seed is not None
    )
    views: dict[str, Any] = {
      key: _View(array, rows, None) for key, array in self._arrays.items()
    }
    self._arrays = views
    self._width = length
    self.num_examples = len(rows)


class _Bucket(ArrayDataset):
  """Selected examples of a folder, cut to a length."""

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
  """Selected rows of an array on disk, cut to a length."""

  def __init__(self, array: np.ndarray, rows: np.ndarray, length: int | None):
    self._array = array
    self._rows = rows
    self._length = length
    self.dtype = array.dtype

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: Any) -> np.ndarray:
    rows = self._array[self._rows[index]]
    return rows if self._length is None else rows[:, : self._length]


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
  pad = ArrayDataset(path, 1).info.get('pad_id', 0)
  # From the last token on, because such an id may precede it.
  sizes = longest - np.argmax(np.asarray(tokens)[:, ::-1] != pad, axis=1)
  return [
    _Bucket(path, rows, length, size, None if seed is None else seed + index)
    for index, rows, length, size in _divided(
      file, sizes, longest, batch_tokens, lengths, row_multiple
    )
  ]


def _texts_buckets(
  path: str | os.PathLike[str],
  texts: str | os.PathLike[str],
  batch_tokens: int,
  lengths: Sequence[int],
  row_multiple: int,
  seed: int | None,
) -> list[ArrayDataset]:
  _check(batch_tokens, row_multiple)
  arrays = text_arrays.Instances(path, texts)
  sizes = arrays.lengths()
  return [
    _TextsBucket(
      path, texts, rows, length, size, None if seed is None else seed + index
    )
    for index, rows, length, size in _divided(
      arrays.file, sizes, int(sizes.max()), batch_tokens, lengths, row_multiple
    )
  ]


def _divided(
  file: Path,
  sizes: np.ndarray,
  longest: int,
  batch_tokens: int,
  lengths: Sequence[int],
  row_multiple: int,
) -> Iterator[tuple[int, np.ndarray, int, int]]:
  """Yields the number, examples, length and batch size of each bucket."""
  boundaries = np.unique([*(n for n in lengths if n < longest), longest])
  needed = boundaries[np.searchsorted(boundaries, sizes)]
  for index, length in enumerate(boundaries.tolist()):
    rows = np.flatnonzero(needed == length)
    size = batch_tokens // length // row_multiple * row_multiple
    if not len(rows):
      continue
    if not size:
      raise DatasetError(
        f'{file}: {row_multiple} example(s) of {length} tokens are more than '
        f'batch_tokens={batch_tokens}'
      )
    yield index, rows, length, size


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
    raise DatasetError(f'{path}: no folder of arrays matches {pattern!r}')
  return folders


def _rows(folder: Path, batch_tokens: int, row_multiple: int) -> int:
  """Batch size of a bucket."""
  probe = ArrayDataset(folder, 1, shuffle=False)
  tokens = max(x.size for x in next(probe.epoch()).values())
  if tokens * row_multiple > batch_tokens:
    what = 'an example has' if row_multiple == 1 else f'{row_multiple} have'
    raise DatasetError(
      f'{folder}: {what} {tokens * row_multiple} tokens, more than '
      f'batch_tokens={batch_tokens}'
    )
  return batch_tokens // tokens // row_multiple * row_multiple
