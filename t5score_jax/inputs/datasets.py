"""Where training batches come from: arrays on disk, or SeqIO.

A dataset has `batches(start_step, share)`, an endless iterator of dicts of
NumPy arrays with the batch on axis 0. The order depends on the seed alone, not
on the number of processes, each of which reads its share of every batch, and
`batches(start_step=n)` goes on exactly where an unbroken run would be after n
batches. `ArrayDataset` needs no TensorFlow; `SeqioDataset` imports it when it
is made. Not here: what stands in a batch (`inputs/feature_converters.py`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from t5score_jax.data import folders
from t5score_jax.errors import T5ScoreError
from t5score_jax.inputs import shares
from t5score_jax.runtime import tensorflow_settings, validation

Batch = dict[str, np.ndarray]

# Written beside the arrays by scripts/prepare/cache_batches.py.
INFO_FILE = 'info.json'


class DatasetError(T5ScoreError, ValueError):
  """Training data is missing or does not fit; the message says what to do."""


@runtime_checkable
class Dataset(Protocol):
  """What the trunk asks of its data."""

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """Yields the share's rows of every batch from `start_step` on.

    Raises:
      shares.ShareError: The batch cannot be divided so.
    """


class ArrayDataset:
  """A folder of memory-mapped `.npy` arrays, one a batch key.

  Examples are shuffled anew each epoch; a batch may span two epochs, so that
  every batch is full. Integers come out as int32 and floats as float32,
  whatever (smaller) type they are stored in. Two keys may be left out of a
  folder with `decoder_target_tokens`: `decoder_input_tokens`, which are those
  shifted right, and `decoder_loss_weights`, 1 where they are not padding.

  Attributes:
    path: The folder, or an `.npz` file, which is read into memory.
    batch_size: Examples a batch over all processes.
    num_examples: Examples in an epoch.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Opens the arrays; nothing is read yet.

    Args:
      path: Folder with `KEY.npy`, or an `.npz` file with the keys inside.
      batch_size: Examples a batch over all processes.
      seed: Of the order.
      shuffle: Whether to shuffle; otherwise examples come in stored order.

    Raises:
      DatasetError: No arrays, arrays of different lengths, or a batch size
        that is none.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    self.path = Path(path)
    self._arrays = _open_arrays(self.path)
    self.batch_size = batch_size
    self._seed = seed
    self._shuffle = shuffle
    lengths = {key: len(array) for key, array in self._arrays.items()}
    self.num_examples = next(iter(lengths.values()))
    if len(set(lengths.values())) > 1 or not self.num_examples:
      raise DatasetError(
        f'{self.path}: every array needs the same number of examples, at '
        f'least one; found {lengths}'
      )
    self._permutation = functools.lru_cache(maxsize=2)(self._shuffled)

  @property
  def info(self) -> dict[str, Any]:
    """Reads what `cache_batches.py` wrote about the data; {} without it."""
    path = self.path / INFO_FILE
    return json.loads(path.read_text('utf-8')) if path.is_file() else {}

  def examples(self, positions: np.ndarray) -> Batch:
    """Gathers examples by their place in the endless shuffled sequence.

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
    batch = {key: _widen(array[rows]) for key, array in self._arrays.items()}
    return _derive(batch)

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """See `Dataset`."""
    rows = share.rows(self.batch_size)
    for step in itertools.count(start_step):
      yield self.examples(step * self.batch_size + rows)

  def epoch(self) -> Iterator[Batch]:
    """Yields every example once in stored order; the last batch is short."""
    for start in range(0, self.num_examples, self.batch_size):
      stop = min(start + self.batch_size, self.num_examples)
      yield _derive(
        {k: _widen(array[start:stop]) for k, array in self._arrays.items()}
      )

  def _shuffled(self, epoch: int) -> np.ndarray:
    generator = np.random.default_rng([self._seed, epoch])
    return generator.permutation(self.num_examples)


@contextlib.contextmanager
def new_array_folder(
  path: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Path]:
  """A folder for `ArrayDataset` that appears whole or not at all.

  Args:
    path: Its name; its parents are made.
    overwrite: Whether an earlier folder of arrays is replaced.

  Yields:
    A temporary folder, to be filled; `INFO_FILE` must be among its files.

  Raises:
    FileExistsError: The name is taken (with `overwrite`: by something else
      than arrays, which is left alone).
  """
  path = Path(path)
  if path.exists() and not overwrite:
    raise FileExistsError(f'{path}: is there already (see --overwrite)')
  if path.exists() and not (path / INFO_FILE).is_file():
    raise FileExistsError(
      f'{path}: is there, and is no folder of arrays (it has no {INFO_FILE}); '
      'it is left as it is, choose another name'
    )
  with folders.new_folder(path) as temporary:
    yield temporary


class MixtureDataset:
  """Examples of several `ArrayDataset`s, drawn independently by rate.

  Keys must agree; arrays of different lengths are padded with 0 to the
  longest.
  """

  def __init__(
    self,
    datasets: Sequence[ArrayDataset],
    rates: Sequence[float],
    batch_size: int,
    seed: int = 0,
  ):
    """Sets up the mixture.

    Args:
      datasets: What to mix; their own batch sizes are not used.
      rates: Share of each, in any unit.
      batch_size: Examples a batch over all processes.
      seed: Of the draws.

    Raises:
      DatasetError: Numbers or keys that do not fit together.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    weights = np.asarray(rates, np.float64)
    if len(weights) != len(datasets) or not len(datasets):
      raise DatasetError(
        f'{len(datasets)} datasets need as many rates, not {len(weights)}'
      )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or not sum(rates):
      raise DatasetError(f'rates must be 0 or more, not all 0: {list(rates)}')
    self._datasets = list(datasets)
    self._rates = weights / weights.sum()
    self.batch_size = batch_size
    self._seed = seed
    first = [dataset.examples(np.zeros(1, np.int64)) for dataset in datasets]
    for dataset, batch in zip(datasets, first, strict=True):
      if set(batch) != set(first[0]):
        raise DatasetError(
          f'{dataset.path} has the keys {sorted(batch)}, {datasets[0].path} '
          f'has {sorted(first[0])}: only the same kind of batch can be mixed'
        )
    self._shapes = {
      key: tuple(np.max([batch[key].shape[1:] for batch in first], axis=0))
      for key in first[0]
    }

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """See `Dataset`."""
    generator = np.random.default_rng(self._seed)
    used = np.zeros(len(self._datasets), np.int64)
    rows = share.rows(self.batch_size)
    for step in itertools.count():
      choices = generator.choice(
        len(self._rates), size=self.batch_size, p=self._rates
      )
      # [B, datasets]: how many of each dataset came before, in this batch.
      hits = choices[:, None] == np.arange(len(self._datasets))
      positions = (
        used[choices]
        + (np.cumsum(hits, axis=0) - hits)[np.arange(self.batch_size), choices]
      )
      used = used + hits.sum(axis=0)
      if step >= start_step:
        yield self._gather(choices[rows], positions[rows])

  def _gather(self, choices: np.ndarray, positions: np.ndarray) -> Batch:
    batch: Batch = {}
    for index in np.unique(choices):
      chosen = np.flatnonzero(choices == index)
      part = self._datasets[index].examples(positions[chosen])
      for key, value in part.items():
        whole = batch.setdefault(
          key, np.zeros((len(choices), *self._shapes[key]), value.dtype)
        )
        inner: tuple[Any, ...] = tuple(map(slice, value.shape[1:]))
        whole[(chosen, *inner)] = value
    return batch


class SeqioDataset:
  """A SeqIO task or mixture through a feature converter (needs TensorFlow).

  Deterministic: the pipeline's seed is fixed. Every process reads the whole
  pipeline and keeps its rows of each batch, so that batches are those of one
  process; where reading is slower than training, `keep_order=False` gives each
  a shard of its own. To resume, batches that were already used are read and
  thrown away; cache the data as arrays where that takes too long.
  """

  def __init__(
    self,
    mixture_or_task_name: str,
    task_feature_lengths: Mapping[str, int],
    feature_converter: Any,
    batch_size: int,
    split: str = 'train',
    seed: int = 0,
    use_cached: bool = False,
    shuffle: bool = True,
    keep_order: bool = True,
    cache_dirs: Sequence[str] = (),
  ):
    """Finds the task; nothing is read yet.

    Args:
      mixture_or_task_name: As registered; import the module that does so.
      task_feature_lengths: Feature -> longest sequence, in tokens.
      feature_converter: 'encoder_decoder', 'pair' or 'group'
        (`inputs/feature_converters.py`), or any SeqIO feature converter.
      batch_size: Examples a batch over all processes.
      split: Of the task.
      seed: Of SeqIO's shuffling.
      use_cached: Whether to read SeqIO's cache.
      shuffle: Whether to shuffle.
      keep_order: Whether batches do not depend on the number of processes.
        Otherwise each reads a part of the files (SeqIO's `ShardInfo`), which
        is less work; a run must then be resumed with as many processes.
      cache_dirs: Folders in which SeqIO looks for caches.

    Raises:
      DatasetError: No such task, split, feature converter or cache, or a batch
        size that is none.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    import seqio  # TensorFlow: only where it is used.

    tensorflow_settings.keep_off_accelerators()
    if cache_dirs:
      seqio.add_global_cache_dirs(list(cache_dirs))
    try:
      self._source = seqio.get_mixture_or_task(mixture_or_task_name)
    except ValueError as error:
      raise DatasetError(
        f'no SeqIO task or mixture {mixture_or_task_name!r}: {error}; does a '
        'gin file import the module that registers it?'
      ) from None
    self._lengths = dict(task_feature_lengths)
    self._converter = _feature_converter(feature_converter)
    self.batch_size = batch_size
    self._split = split
    self._seed = seed
    self._use_cached = use_cached
    self._shuffle = shuffle
    self._keep_order = keep_order
    if split not in self._source.splits:
      raise DatasetError(
        f'{mixture_or_task_name} has no split {split!r}, only '
        f'{sorted(self._source.splits)}'
      )
    tasks = seqio.get_subtasks(self._source) if use_cached else []
    if absent := [task.name for task in tasks if task.cache_dir is None]:
      raise DatasetError(
        f'no cache of {", ".join(absent)} in {list(cache_dirs)}: name its '
        'folder (CACHE_DIRS), or make it by scripts/prepare/cache_tasks.py'
      )

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """See `Dataset`."""
    rows = share.rows(self.batch_size)
    if self._keep_order or share.count == 1:
      dataset = self._dataset(None).batch(self.batch_size, drop_remainder=True)
      whole = dataset.skip(start_step).as_numpy_iterator()
      for batch in whole:
        yield {key: value[rows] for key, value in _plain(batch).items()}
    else:
      dataset = self._dataset(None, share).batch(len(rows), drop_remainder=True)
      yield from map(_plain, dataset.skip(start_step).as_numpy_iterator())

  def epoch(self, repeats: int = 1) -> Iterator[Batch]:
    """Yields every example `repeats` times; the last batch is short."""
    dataset = self._dataset(num_epochs=repeats).batch(self.batch_size)
    yield from map(_plain, dataset.as_numpy_iterator())

  def _dataset(
    self, num_epochs: int | None, share: shares.Share = shares.WHOLE
  ) -> Any:
    import seqio

    shards = None
    if share.count > 1:
      shards = seqio.ShardInfo(share.index, share.count)
    dataset = self._source.get_dataset(
      sequence_length=self._lengths,
      split=self._split,
      use_cached=self._use_cached,
      shuffle=self._shuffle,
      seed=self._seed,
      shard_info=shards,
      num_epochs=num_epochs,
    )
    return self._converter(dataset, self._lengths)


def _feature_converter(converter: Any) -> Any:
  if not isinstance(converter, str):
    return converter
  from t5score_jax.inputs import feature_converters

  known = {
    'encoder_decoder': feature_converters.EncDecFeatureConverter,
    'pair': feature_converters.PairFeatureConverter,
    'group': feature_converters.GroupFeatureConverter,
  }
  if converter not in known:
    raise DatasetError(
      f'feature_converter = {converter!r}: use one of {sorted(known)}'
    )
  return known[converter]()


def _open_arrays(path: Path) -> dict[str, np.ndarray]:
  if path.suffix == '.npz' and path.is_file():
    with np.load(path) as stored:
      arrays = {key: stored[key] for key in stored.files}
  elif path.is_dir():
    arrays = {
      file.stem: np.load(file, mmap_mode='r') for file in path.glob('*.npy')
    }
  else:
    raise DatasetError(
      f'{path}: no such folder of .npy arrays (or .npz file); '
      'scripts/prepare/cache_batches.py makes one'
    )
  if not arrays:
    raise DatasetError(f'{path}: there is no .npy file in this folder')
  return dict(sorted(arrays.items()))


def _widen(array: np.ndarray) -> np.ndarray:
  kind = np.int32 if array.dtype.kind in 'iub' else np.float32
  return np.asarray(array, kind)


def _derive(batch: Batch) -> Batch:
  """Adds the keys that follow from `decoder_target_tokens`."""
  targets = batch.get('decoder_target_tokens')
  if targets is None:
    return batch
  if 'decoder_input_tokens' not in batch:
    shifted = np.zeros_like(targets)
    shifted[..., 1:] = targets[..., :-1]
    batch['decoder_input_tokens'] = shifted
  if 'decoder_loss_weights' not in batch:
    batch['decoder_loss_weights'] = (targets > 0).astype(np.float32)
  return batch


def _plain(batch: Mapping[str, Any]) -> Batch:
  return {
    key: _widen(np.asarray(value))
    for key, value in batch.items()
    if np.asarray(value).dtype.kind in 'iubf'
  }
