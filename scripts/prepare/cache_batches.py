r"""Writes a SeqIO task or mixture as arrays: training without TensorFlow.

    T5SCORE_DATA=my/data python scripts/prepare/cache_batches.py \
        wmt_da_2017_groups -o my/arrays --import t5score_jax.tasks.wmt_da \
        --features group --lengths inputs=64,targets=64,ratings=8

    t5score train --gin_file=models/mt5_small.gin \
        --gin_file=runs/train_groups.gin --gin_file=runs/arrays.gin \
        --gin.ARRAYS="'my/arrays'" ...

The folder holds `KEY.npy` for each key of a batch, [examples, ...], and
`info.json`, which describes their origin. Numbers are stored in the smallest
type that keeps them all exactly; `datasets.ArrayDataset` widens them. What
follows from `decoder_target_tokens` (decoder inputs, loss weights) is left out.
The folder appears whole or not at all.

A task is written once (`--epochs 1`); its random steps, such as noise or the
splitting of large groups, differ in each further epoch. A mixture has no
epochs: give `--examples`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from t5score_jax.inputs import datasets

_CHUNK = 1024
_TARGETS = 'decoder_target_tokens'
_INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.int32)


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument('task', help='name of a SeqIO task or mixture')
  result.add_argument(
    '-o',
    '--output',
    required=True,
    type=pathlib.Path,
    metavar='FOLDER',
    help='the new folder; it must not exist, see --overwrite',
  )
  result.add_argument(
    '--import',
    dest='modules',
    action='append',
    required=True,
    metavar='MODULE',
    help='a module that registers tasks when it is imported; repeatable',
  )
  result.add_argument(
    '--features',
    default='encoder_decoder',
    choices=('encoder_decoder', 'pair', 'group'),
    help='the feature converter (default: %(default)s)',
  )
  result.add_argument(
    '--lengths',
    default='inputs=64,targets=64',
    metavar='NAME=N,...',
    help='the most tokens of each feature, </s> included; longer texts are cut '
    '(default: %(default)s)',
  )
  result.add_argument(
    '--split', default='train', help='split of the task (default: %(default)s)'
  )
  amount = result.add_mutually_exclusive_group()
  amount.add_argument(
    '--epochs',
    type=int,
    metavar='N',
    help='passes over the task (default: 1)',
  )
  amount.add_argument(
    '--examples',
    type=int,
    metavar='N',
    help='number of examples; the task is repeated as needed',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    metavar='N',
    help='seed of the order and of random preprocessing (default: %(default)s)',
  )
  result.add_argument(
    '--no-shuffle',
    dest='shuffle',
    action='store_false',
    help="keep the task's order; training shuffles anyway",
  )
  result.add_argument(
    '--use-cached',
    action='store_true',
    help="read SeqIO's cache (scripts/prepare/cache_tasks.py)",
  )
  result.add_argument(
    '--overwrite', action='store_true', help='replace the folder if it exists'
  )
  return result


def parse_lengths(text: str) -> dict[str, int]:
  """Reads 'inputs=64,targets=64'.

  Raises:
    ValueError: Not of this form, or a length below 1.
  """
  lengths = {}
  for part in text.split(','):
    name, equals, number = part.partition('=')
    if not (name and equals and number.isdecimal() and int(number)):
      raise ValueError(
        f'--lengths {text}: {part!r} is not NAME=N, as in inputs=64,targets=64'
      )
    lengths[name] = int(number)
  return lengths


def read(
  dataset: datasets.SeqioDataset, epochs: int | None, examples: int | None
) -> Iterator[datasets.Batch]:
  """Yields batches until there are enough examples."""
  if examples is None:
    yield from dataset.epoch(epochs or 1)
    return
  left = examples
  for batch in dataset.batches():
    yield {key: value[:left] for key, value in batch.items()}
    left -= len(next(iter(batch.values())))
    if left <= 0:
      return


class _Column:
  """Writes the values of one key to a temporary file as they arrive."""

  def __init__(self, path: pathlib.Path, first: np.ndarray):
    self._path = path
    self._stream = open(path, 'wb')  # noqa: SIM115 (closed by finish)
    self._shape, self._dtype = first.shape[1:], first.dtype
    self._low, self._high = 0, 0
    self._is_half = first.dtype.kind == 'f'
    self.length = 0

  def add(self, values: np.ndarray) -> None:
    self._stream.write(np.ascontiguousarray(values, self._dtype).tobytes())
    self.length += len(values)
    if self._dtype.kind == 'f':
      with np.errstate(over='ignore'):
        half = values.astype(np.float16).astype(values.dtype)
      self._is_half &= np.array_equal(half, values, equal_nan=True)
    else:
      self._low = min(self._low, int(values.min(initial=0)))
      self._high = max(self._high, int(values.max(initial=0)))

  @property
  def range(self) -> list[int]:
    """The least and the greatest integer, or 0."""
    return [self._low, self._high]

  def finish(self, target: pathlib.Path) -> np.dtype:
    """Writes the .npy file in the smallest type, a block at a time."""
    self._stream.close()
    shape = (self.length, *self._shape)
    stored = np.memmap(self._path, self._dtype, 'r', shape=shape)
    array = np.lib.format.open_memmap(
      target, mode='w+', dtype=self._smallest(), shape=shape
    )
    for start in range(0, self.length, _CHUNK):
      array[start : start + _CHUNK] = stored[start : start + _CHUNK]
    array.flush()
    self._path.unlink()
    return array.dtype

  def discard(self) -> None:
    self._stream.close()
    self._path.unlink()

  def _smallest(self) -> np.dtype:
    """The smallest type that holds all values exactly."""
    if self._dtype.kind == 'f':
      return np.dtype(np.float16 if self._is_half else np.float32)
    for kind in _INTEGERS:
      limits = np.iinfo(kind)
      if limits.min <= self._low and self._high <= limits.max:
        return np.dtype(kind)
    return self._dtype


def derived(batch: Mapping[str, np.ndarray]) -> set[str]:
  """The keys of a batch that `ArrayDataset` derives with the same values."""
  if _TARGETS not in batch:
    return set()
  targets = batch[_TARGETS]
  shifted = np.zeros_like(targets)
  shifted[..., 1:] = targets[..., :-1]
  would = {
    'decoder_input_tokens': shifted,
    'decoder_loss_weights': targets > 0,
  }
  return {
    key
    for key, value in would.items()
    if key in batch and np.array_equal(batch[key], value)
  }


def write(
  folder: pathlib.Path,
  batches: Iterable[datasets.Batch],
  info: Mapping[str, Any],
  overwrite: bool = False,
) -> dict[str, Any]:
  """Writes batches as a folder of arrays; it appears whole or not at all.

  Args:
    folder: The new folder; its parents are created.
    batches: Batches whose keys and shapes are equal, except the first axis.
    info: Content of `info.json`, to which `examples`, `arrays` and `ids` are
      added.
    overwrite: Whether to replace a folder of this name.

  Returns:
    The content of `info.json`.

  Raises:
    FileExistsError: The folder exists.
    ValueError: There are no examples.
  """
  with datasets.new_array_folder(folder, overwrite) as temporary:
    columns: dict[str, _Column] = {}
    superfluous: set[str] | None = None
    for batch in batches:
      found = derived(batch)
      superfluous = found if superfluous is None else superfluous & found
      for key, values in batch.items():
        if key not in columns:
          columns[key] = _Column(temporary / f'{key}.raw', values)
        columns[key].add(values)
    if not any(column.length for column in columns.values()):
      raise ValueError('there is no example: is the split empty?')
    arrays, ids, count = {}, {}, 0
    for key, column in columns.items():
      if key in (superfluous or ()):
        column.discard()
        continue
      count = column.length
      arrays[key] = str(column.finish(temporary / f'{key}.npy'))
      if key.endswith('_tokens'):
        ids[key] = column.range
    info = {**info, 'examples': count, 'arrays': arrays, datasets.IDS: ids}
    (temporary / datasets.INFO_FILE).write_text(
      json.dumps(info, indent=2) + '\n', 'utf-8'
    )
  return dict(info)


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args(arguments)
  try:
    lengths = parse_lengths(args.lengths)
  except ValueError as error:
    command.error(str(error))
  for name in ('epochs', 'examples'):
    if (number := getattr(args, name)) is not None and number < 1:
      command.error(f'--{name} {number}: must be at least 1')
  try:
    import seqio  # slow: --help does not need it

    for module in args.modules:
      importlib.import_module(module)
    dataset = datasets.SeqioDataset(
      args.task,
      lengths,
      args.features,
      batch_size=min(args.examples or _CHUNK, _CHUNK),
      split=args.split,
      seed=args.seed,
      use_cached=args.use_cached,
      shuffle=args.shuffle,
    )
    source = seqio.get_mixture_or_task(args.task)
    if isinstance(source, seqio.Mixture) and not args.examples:
      raise ValueError(
        f'{args.task} is a mixture, which has no end: say how many --examples'
      )
    info = {
      'task': args.task,
      'split': args.split,
      'features': args.features,
      'lengths': lengths,
      'epochs': args.epochs or (None if args.examples else 1),
      'seed': args.seed,
      'vocab_sizes': {
        name: feature.vocabulary.vocab_size
        for name, feature in source.output_features.items()
        if name in ('inputs', 'targets')
      },
    }
    batches = read(dataset, args.epochs, args.examples)
    info = write(args.output, batches, info, args.overwrite)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  sizes = ', '.join(f'{key} {dtype}' for key, dtype in info['arrays'].items())
  print(f'{args.output}: {info["examples"]} examples; {sizes}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
