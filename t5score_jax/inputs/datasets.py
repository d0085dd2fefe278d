"""Training batches from arrays on disk and from SeqIO.

A dataset has `batches(start_step, share)`, an endless iterator of dicts of
NumPy arrays with the batch on axis 0. The order depends on the seed, not on the
number of processes, each of which reads its share of every batch;
`batches(start_step=n)` yields what an uninterrupted run would after n batches.
`ArrayDataset` needs no TensorFlow; `SeqioDataset` imports it on construction.
`inputs/feature_converters.py` documents the keys of batches.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from t5score_jax.data import folders
from t5score_jax.errors import InputError
from t5score_jax.inputs import positions, shares, shuffling, skipping
from t5score_jax.runtime import processes, tensorflow_settings, validation

Batch = shuffling.Batch

# Written beside the arrays by scripts/prepare/cache_batches.py.
INFO_FILE = 'info.json'
# In it: {array: [least, greatest]} of the arrays of token ids.
IDS = 'ids'


class DatasetError(InputError):
  """Training data is missing or unsuitable."""


@runtime_checkable
class Dataset(Protocol):
  """Batches for the training loop."""

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[Batch]:
    """Yields the share's rows of every batch from `start_step` on.

    Raises:
      shares.ShareError: The batch cannot be divided so.
    """


class ArrayDataset(shuffling.ShuffledDataset):
  """A folder of memory-mapped `.npy` arrays, one per batch key.

  Integers are read as int32 and floats as float32, whatever their stored type.
  A folder with `decoder_target_tokens` may lack `decoder_input_tokens`, which
  are the targets shifted right, and `decoder_loss_weights`, which are 1 except
  on padding.

  Attributes:
    path: The folder, or an `.npz` file, which is read into memory.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Opens the arrays without reading them.

    Args:
      path: Folder with `KEY.npy`, or an `.npz` file with these keys.
      batch_size: Examples per batch over all processes.
      seed: Seed of the order.
      shuffle: Whether to shuffle; otherwise examples keep their stored order.

    Raises:
      DatasetError: No arrays, arrays of different lengths, or an invalid batch
        size.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    self.path = Path(path)
    self._arrays = _open_arrays(self.path)
    lengths = {key: len(array) for key, array in self._arrays.items()}
    count = next(iter(lengths.values()))
    if len(set(lengths.values())) > 1 or not count:
      raise DatasetError(
        f'{self.path}: all arrays need the same number of examples, at '
        f'least one; they have {lengths}'
      )
    super().__init__(count, batch_size, seed, shuffle)

  @property
  def info(self) -> dict[str, Any]:
    """The description that `scripts/prepare/cache_batches.py` wrote, or {}."""
    path = self.path / INFO_FILE
    return json.loads(path.read_text('utf-8')) if path.is_file() else {}

  def _gather(self, rows: np.ndarray | slice) -> Batch:
    """Reads stored examples; subclasses extend it."""
    batch = {key: _widen(array[rows]) for key, array in self._arrays.items()}
    return {**derived(batch), **batch}

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """Yields (file, array of token ids, examples on axis 0)."""
    for key, array in self._arrays.items():
      if key == 'tokens' or key.endswith('_tokens'):
        yield self.path / f'{key}.npy', array


@contextlib.contextmanager
def new_array_folder(
  path: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Path]:
  """Creates a folder for `ArrayDataset` atomically.

  Args:
    path: The folder; its parents are created.
    overwrite: Whether to replace an earlier folder of arrays.

  Yields:
    A temporary folder for the arrays and `INFO_FILE`.

  Raises:
    FileExistsError: The name is taken (with `overwrite`: by something other
      than arrays).
  """
  path = Path(path)
  if path.exists() and not overwrite:
    raise FileExistsError(f'{path}: exists already (see --overwrite)')
  if path.exists() and not (path / INFO_FILE).is_file():
    raise FileExistsError(
      f'{path}: exists and is not a folder of arrays (it has no {INFO_FILE}); '
      'choose another name'
    )
  with folders.new_folder(path) as temporary:
    yield temporary


class MixtureDataset:
  """Examples of several datasets, drawn independently by rate.

  All need the same keys; shorter arrays are padded with 0 to the longest.
  """

  def __init__(
    self,
    datasets: Sequence[Any],
    rates: Sequence[float],
    batch_size: int,
    seed: int = 0,
  ):
    """Initializes the mixture.

    Args:
      datasets: `ArrayDataset`s, or others with `examples`, `token_arrays` and
        `path`; their batch sizes are not used.
      rates: Relative rates of the datasets.
      batch_size: Examples per batch over all processes.
      seed: Seed of the draws.

    Raises:
      DatasetError: Another number of rates, or different keys.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    self._datasets = list(datasets)
    self._rates = normalised_rates(rates, len(datasets))
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
      # [batch, datasets]: how many of each dataset precede, in this batch.
      hits = choices[:, None] == np.arange(len(self._datasets))
      positions = (
        used[choices]
        + (np.cumsum(hits, axis=0) - hits)[np.arange(self.batch_size), choices]
      )
      used = used + hits.sum(axis=0)
      if step >= start_step:
        yield self._gather(choices[rows], positions[rows])

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """See `ArrayDataset.token_arrays`."""
    for dataset in self._datasets:
      yield from dataset.token_arrays()

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

  The pipeline is deterministic. Every process reads all of it and keeps its
  rows of each batch, so that the batches do not depend on the number of
  processes; if reading is slower than training, `keep_order=False` gives each
  process a shard. A resumed run restores the pipeline's position where it can
  be saved (`inputs/positions.py`), and otherwise reads past earlier batches.
  """

  has_position = True

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
    module: str | None = None,
  ):
    """Finds the task without reading its data.

    Args:
      mixture_or_task_name: The registered name; import its module first.
      task_feature_lengths: Maximum length in tokens by feature.
      feature_converter: 'encoder_decoder', 'pair' or 'group'
        (`inputs/feature_converters.py`), or any SeqIO feature converter.
      batch_size: Examples per batch over all processes.
      split: The task's split.
      seed: Seed of SeqIO's shuffling.
      use_cached: Whether to read SeqIO's cache.
      shuffle: Whether to shuffle.
      keep_order: Whether batches are independent of the number of processes.
        Otherwise each process reads a part of the files (SeqIO's `ShardInfo`),
        and a run must be resumed with the same number of processes.
      cache_dirs: Folders with SeqIO caches.
      module: The Python module that registers the task, imported first; None if
        a gin file imports it.

    Raises:
      InputError: An unknown task, split or feature converter, features or
        lengths that the converter does not read, no cache, or an invalid batch
        size.
    """
    validation.check(validation.Positive, DatasetError, batch_size=batch_size)
    with tensorflow_settings.quietly():
      import seqio  # imports TensorFlow

      from t5score_jax.inputs import task_checks

    import_tasks(module)
    if cache_dirs:
      seqio.add_global_cache_dirs(list(cache_dirs))
    try:
      self._source = seqio.get_mixture_or_task(mixture_or_task_name)
    except ValueError as error:
      raise DatasetError(
        f'no SeqIO task or mixture {mixture_or_task_name!r}: {error}; name '
        'the module that registers it (MIXTURE_OR_TASK_MODULE), or import it '
        'in a gin file'
      ) from None
    self._lengths = dict(task_feature_lengths)
    self._converter = task_checks.find_converter(feature_converter)
    task_checks.check_features(self._source, self._converter)
    task_checks.check_lengths(self._lengths, self._converter)
    self._has_examples = False
    # Of the first batch, by the part of it that a process reads.
    self._digests: dict[str, int] = {}
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
        f'no cache of {", ".join(absent)} in {list(cache_dirs)}: give its '
        'folder (CACHE_DIRS), or write one with scripts/prepare/cache_tasks.py'
      )

  def batches(
    self,
    start_step: int = 0,
    share: shares.Share = shares.WHOLE,
    position: positions.Positions | None = None,
  ) -> Iterator[Batch]:
    """See `Dataset`.

    Args:
      start_step: The step before the first batch.
      share: This process's part.
      position: Restores and records the position of the pipeline; None: batches
        before `start_step` are read.
    """
    rows = share.rows(self.batch_size)
    whole = self._keep_order or share.count == 1
    part = 'whole' if whole else f'{share.index}-of-{share.count}'

    def make() -> Any:
      dataset = self._dataset(None, shares.WHOLE if whole else share)
      size = self.batch_size if whole else len(rows)
      return dataset.batch(size, drop_remainder=True)

    if position is None:
      iterator, done = iter(make()), 0
    else:
      if part not in self._digests:
        next(self.batches(0, share), None)
      # All processes read the whole: one saves its position.
      name = None if whole and not processes.is_first() else part
      identity = self._identity(part)
      iterator, done = position.open(make, name, identity, start_step)
    batches = map(_plain, skipping.skip(iterator, start_step - done))
    for step, batch in enumerate(batches, start_step + 1):
      if position is not None:
        position.record(iterator, step)
      elif step == 1:
        self._digests[part] = positions.digest(batch)
      yield (
        {key: value[rows] for key, value in batch.items()} if whole else batch
      )

  def _identity(self, part: str) -> dict[str, Any]:
    """What a position of the pipeline belongs to."""
    return {
      'task': self._source.name,
      'split': self._split,
      'lengths': dict(sorted(self._lengths.items())),
      'converter': type(self._converter).__name__,
      'batch size': self.batch_size,
      'seed': self._seed,
      'shuffle': self._shuffle,
      'cached': self._use_cached,
      'share': part,
      'first batch': self._digests.get(part),
    }

  def epoch(self, repeats: int = 1) -> Iterator[Batch]:
    """Yields every example `repeats` times; the last batch is short."""
    dataset = self._dataset(num_epochs=repeats).batch(self.batch_size)
    yield from map(_plain, dataset.as_numpy_iterator())

  def _dataset(
    self, num_epochs: int | None, share: shares.Share = shares.WHOLE
  ) -> Any:
    import seqio

    from t5score_jax.inputs import task_checks

    if not self._has_examples:
      task_checks.check_examples(
        self._source, self._split, self._lengths, self._use_cached
      )
      self._has_examples = True
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


def normalised_rates(rates: Sequence[float], count: int) -> np.ndarray:
  """Returns the rates of `count` datasets, float64 [count], with sum 1.

  Raises:
    DatasetError: Another number of rates, or rates below 0 or all 0.
  """
  weights = np.asarray(rates, np.float64)
  if len(weights) != count or not count:
    raise DatasetError(f'{count} datasets need as many rates, not {len(rates)}')
  if not np.all(np.isfinite(weights)) or weights.min() < 0 or not sum(rates):
    raise DatasetError(f'rates must be 0 or more, not all 0: {list(rates)}')
  return weights / weights.sum()


def import_tasks(module: str | None) -> None:
  """Imports a module that registers SeqIO tasks.

  Raises:
    DatasetError: There is no such module.
  """
  if not module:
    return
  try:
    importlib.import_module(module)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{module}.'.startswith(f'{error.name}.'):
      raise  # One that the module itself imports.
    raise DatasetError(
      f'MIXTURE_OR_TASK_MODULE = {module!r}: no module {error.name!r}; is its '
      'folder in PYTHONPATH?'
    ) from error


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
      'scripts/prepare/cache_batches.py writes one'
    )
  if not arrays:
    raise DatasetError(f'{path}: there is no .npy file in this folder')
  return dict(sorted(arrays.items()))


def _widen(array: np.ndarray) -> np.ndarray:
  kind = np.int32 if array.dtype.kind in 'iub' else np.float32
  return np.asarray(array, kind)


def derived(batch: Mapping[str, np.ndarray]) -> Batch:
  """The keys of a batch that follow from its `decoder_target_tokens`."""
  if (targets := batch.get('decoder_target_tokens')) is None:
    return {}
  shifted = np.zeros_like(targets)
  shifted[..., 1:] = targets[..., :-1]
  return {
    'decoder_input_tokens': shifted,
    'decoder_loss_weights': (targets > 0).astype(np.float32),
  }


def _plain(batch: Mapping[str, Any]) -> Batch:
  return {
    key: _widen(np.asarray(value))
    for key, value in batch.items()
    if np.asarray(value).dtype.kind in 'iubf'
  }
