"""Batches of one length bucket at a time, from several arrays on disk.

A batch padded to the longest text of all wastes most of its work on padding.
Here every batch comes whole from one of several datasets, each with a shape and
batch size of its own, so that a batch of long texts has fewer of them. Not for
mixing kinds within a batch (`inputs.MixtureDataset`).
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.training import inputs, shares


class BucketedDataset:
  """Draws, for every batch, the dataset it comes from.

  Attributes:
    rates: Probability of each dataset, float64 [datasets].
  """

  def __init__(
    self,
    datasets: Sequence[inputs.Dataset],
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
      inputs.DatasetError: Rates that do not fit the datasets.
    """
    if rates is None:
      rates = [_batches_per_epoch(dataset) for dataset in datasets]
    weights = np.asarray(rates, np.float64)
    if len(weights) != len(datasets) or not len(datasets):
      raise inputs.DatasetError(
        f'{len(datasets)} datasets need as many rates, not {len(weights)}'
      )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or not sum(rates):
      raise inputs.DatasetError(
        f'rates must be 0 or more, not all 0: {list(rates)}'
      )
    if run_length < 1:
      raise inputs.DatasetError(f'run_length={run_length}: must be 1 or more')
    self.rates = weights / weights.sum()
    self._datasets = list(datasets)
    self._seed = seed
    self._run_length = run_length

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[inputs.Batch]:
    """See `inputs.Dataset`."""
    choices = self._choices()
    before = list(itertools.islice(choices, start_step))
    streams: dict[int, Iterator[inputs.Batch]] = {}
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


def _batches_per_epoch(dataset: inputs.Dataset) -> float:
  if not isinstance(dataset, inputs.ArrayDataset):
    raise inputs.DatasetError(
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
    path: Folder of folders made by `scripts/cache_batches.py`.
    batch_tokens: Tokens of a batch, padding included: a bucket whose largest
      array has n tokens an example gets `batch_tokens // n` examples.
    pattern: Which folders, as a glob.
    weights: Glob -> factor on how often a bucket is drawn; 1 for others.
    seed: Of the draws and of the order within each bucket.
    run_length: See `BucketedDataset`.
    row_multiple: Every batch has a multiple of it as examples: the devices
      over which it is split, times microbatches.

  Raises:
    inputs.DatasetError: No folder fits, a glob of `weights` fits none, or
      `row_multiple` examples have more than `batch_tokens` tokens.
  """
  folders = _folders(path, pattern)
  datasets, rates, used = [], [], set()
  for index, folder in enumerate(folders):
    rows = _rows(folder, batch_tokens, row_multiple)
    dataset = inputs.ArrayDataset(folder, rows, seed=seed + index)
    rate = _batches_per_epoch(dataset)
    for name, factor in (weights or {}).items():
      if fnmatch.fnmatch(folder.name, name):
        used.add(name)
        rate *= factor
    datasets.append(dataset)
    rates.append(rate)
  if idle := sorted(set(weights or {}) - used):
    raise inputs.DatasetError(f'weights: no folder of {path} fits {idle}')
  return BucketedDataset(datasets, rates, seed, run_length)


def held_out(
  path: str | os.PathLike[str],
  batch_tokens: int,
  pattern: str = '*',
  row_multiple: int = 1,
) -> list[inputs.ArrayDataset]:
  """Opens the buckets of a folder for reading each example once.

  Args:
    path: See `from_folder`.
    batch_tokens: Likewise.
    pattern: Likewise.
    row_multiple: Likewise.

  Raises:
    inputs.DatasetError: Likewise.
  """
  return [
    inputs.ArrayDataset(
      folder, _rows(folder, batch_tokens, row_multiple), shuffle=False
    )
    for folder in _folders(path, pattern)
  ]


def _folders(path: str | os.PathLike[str], pattern: str) -> list[Path]:
  folders = sorted(f for f in Path(path).glob(pattern) if f.is_dir())
  if not folders:
    raise inputs.DatasetError(f'{path}: no folder of arrays fits {pattern!r}')
  return folders


def _rows(folder: Path, batch_tokens: int, row_multiple: int) -> int:
  """Examples of a bucket in a batch."""
  # Its size is not known before an example was seen.
  probe = inputs.ArrayDataset(folder, 1, shuffle=False)
  tokens = max(x.size for x in next(probe.epoch()).values())
  if tokens * row_multiple > batch_tokens:
    what = 'an example has' if row_multiple == 1 else f'{row_multiple} have'
    raise inputs.DatasetError(
      f'{folder}: {what} {tokens * row_multiple} tokens, more than '
      f'batch_tokens={batch_tokens}'
    )
  return batch_tokens // tokens // row_multiple * row_multiple
