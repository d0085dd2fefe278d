"""Lazy arrays, the representation of weights between all formats.

An array, or a block of one, is read when it is needed. Writers iterate over
`LazyArray.blocks`, so that a conversion needs the memory of a block, whatever
the size of the model. Imports no JAX. Not here: the other contents of a
checkpoint (`checkpoints/source.py`), and files of any format (`formats/`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from t5score_jax.errors import T5ScoreError

Index = tuple[slice, ...]
Shape = tuple[int, ...]

#: Dtypes in which weights are stored, by the names that options use.
DTYPES = {
  'float32': np.dtype(np.float32),
  'bfloat16': np.dtype(ml_dtypes.bfloat16),
}
#: Bytes read and written at a time, unless a format needs another size.
BLOCK_BYTES = 32 << 20
#: Default size of the files of a sharded model, in bytes.
SHARD_BYTES = 5 * 10**9
_SHOWN = 20
#: Contiguous bytes that are worth a separate read.
RUN_BYTES = 16 << 10


class CheckpointError(T5ScoreError, ValueError):
  """A checkpoint is missing, damaged or belongs to another model."""


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
  """An array that is read on demand, whole or in part.

  Attributes:
    shape: Its shape.
    dtype: Its NumPy dtype; `ml_dtypes.bfloat16` is one.
    fetch: Index -> that part. The index has one slice per axis, with
      0 <= start <= stop <= size and step 1.
    block: The shape in which reading costs least, such as rows of a file or
      chunks of a store. Parts smaller than that cost as much as a block.
  """

  shape: Shape
  dtype: np.dtype
  fetch: Callable[[Index], np.ndarray]
  block: Shape

  @classmethod
  def of(cls, array: np.ndarray) -> LazyArray:
    """An array that is in memory already."""
    block = (1,) * array.ndim
    return cls(array.shape, array.dtype, lambda index: array[index], block)

  @classmethod
  def whole(
    cls, shape: Sequence[int], dtype: Any, read: Callable[[], np.ndarray]
  ) -> LazyArray:
    """An array that can only be read as a whole."""
    shape = tuple(shape)
    return cls(shape, np.dtype(dtype), lambda index: read()[index], shape)

  @classmethod
  def mapped(
    cls,
    path: Path,
    dtype: Any,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
  ) -> LazyArray:
    """An array in a file, which must not be moved.

    Args:
      path: The file.
      dtype: The dtype of its elements.
      offset: The byte at which the first element begins.
      shape: Its shape.
      strides: In elements; those of a row-major array by default.
    """
    shape, dtype = tuple(shape), np.dtype(dtype)
    if strides is None:
      strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    steps = [step * dtype.itemsize for step in strides]
    span = 1 + sum((n - 1) * k for n, k in zip(shape, strides, strict=True))

    def fetch(index: Index) -> np.ndarray:
      if not math.prod(shape):
        return np.zeros(shape, dtype)[index]
      # Mapped for this part only: pages read before take no memory.
      elements = np.memmap(path, dtype, 'r', offset, (span,))
      return np.array(
        np.lib.stride_tricks.as_strided(elements, shape, steps)[index],
        subok=False,
      )

    # Contiguous elements, enough of them to be worth a read.
    run = max(1, RUN_BYTES // dtype.itemsize)
    block = tuple(
      min(size, run) if step == 1 else 1
      for size, step in zip(shape, strides, strict=True)
    )
    return cls(shape, dtype, fetch, block)

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """Size in bytes."""
    return self.size * self.dtype.itemsize

  def read(self, index: Index | None = None) -> np.ndarray:
    """Reads the array, or the part given by one slice per axis.

    Raises:
      CheckpointError: The data can't be read, or have another shape.
    """
    if index is None:
      index = tuple(slice(0, size) for size in self.shape)
    found = self.fetch(index)
    shape = tuple(part.stop - part.start for part in index)
    if found.shape != shape:
      raise CheckpointError(
        f'an array of shape {shape} was to be read; found {found.shape}'
      )
    return found

  def block_shape(self, max_bytes: int = BLOCK_BYTES) -> Shape:
    """The shape of a block that is cheap to read and takes little memory.

    Args:
      max_bytes: Size of a block, in this array's dtype; exceeded only where
        the array's own `block` is larger.
    """
    block = [
      min(part, size) for part, size in zip(self.block, self.shape, strict=True)
    ]
    if not self.size:
      return tuple(block)
    for axis in reversed(range(len(block))):
      nbytes = math.prod(block) * self.dtype.itemsize
      times = max(1, max_bytes // nbytes)
      block[axis] = min(block[axis] * times, self.shape[axis])
    return tuple(block)

  def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Index]:
    """Yields indices of blocks of `block_shape` that cover the array.

    They come in row-major order; those at the ends may be smaller.
    """
    if self.size:
      yield from grid(self.shape, self.block_shape(max_bytes))

  def astype(self, dtype: Any) -> LazyArray:
    """The same values in another dtype."""
    dtype = np.dtype(dtype)
    if dtype == self.dtype:
      return self
    return dataclasses.replace(
      self,
      dtype=dtype,
      fetch=lambda index: np.asarray(self.fetch(index)).astype(dtype),
    )

  def transposed(self, axes: Sequence[int] | None = None) -> LazyArray:
    """The array with its axes permuted, `array.transpose(axes)`.

    Args:
      axes: The axis of this array for each new axis; reversed by default.
    """
    order = tuple(axes or range(len(self.shape))[::-1])
    inverse = tuple(order.index(axis) for axis in range(len(order)))

    def permute(shape: Shape) -> Shape:
      return tuple(shape[axis] for axis in order)

    return LazyArray(
      permute(self.shape),
      self.dtype,
      lambda index: self.fetch(tuple(index[i] for i in inverse)).transpose(
        order
      ),
      permute(self.block),
    )

  def split_axis(self, axis: int, inner: int) -> LazyArray:
    """[..., outer * inner, ...] -> [..., outer, inner, ...]."""
    outer, rest = divmod(self.shape[axis], inner)
    if rest:
      raise CheckpointError(
        f'{self.shape[axis]} columns of an array of shape {self.shape} do not '
        f'divide into heads of {inner}'
      )

    def fetch(index: Index) -> np.ndarray:
      rows, columns = index[axis], index[axis + 1]
      span = slice(rows.start * inner, rows.stop * inner)
      found = self.fetch((*index[:axis], span, *index[axis + 2 :]))
      shape = found.shape
      rest = (rows.stop - rows.start, inner, *shape[axis + 1 :])
      found = found.reshape(*shape[:axis], *rest)
      return found[(slice(None),) * (axis + 1) + (columns,)]

    def split(shape: Shape, rows: int) -> Shape:
      return (*shape[:axis], rows, inner, *shape[axis + 1 :])

    return LazyArray(
      split(self.shape, outer),
      self.dtype,
      fetch,
      split(self.block, max(1, self.block[axis] // inner)),
    )

  def merge_axes(self, axis: int) -> LazyArray:
    """[..., outer, inner, ...] -> [..., outer * inner, ...]."""
    inner = self.shape[axis + 1]

    def fetch(index: Index) -> np.ndarray:
      rows = index[axis]
      first, last = rows.start // inner, -(-rows.stop // inner)
      span = (slice(first, last), slice(0, inner))
      found = self.fetch((*index[:axis], *span, *index[axis + 1 :]))
      shape = found.shape
      rest = (shape[axis] * inner, *shape[axis + 2 :])
      found = found.reshape(*shape[:axis], *rest)
      skip = first * inner
      part = slice(rows.start - skip, rows.stop - skip)
      return found[(slice(None),) * axis + (part,)]

    def merge(shape: Shape, size: int) -> Shape:
      return (*shape[:axis], size, *shape[axis + 2 :])

    return LazyArray(
      merge(self.shape, self.shape[axis] * inner),
      self.dtype,
      fetch,
      merge(self.block, self.block[axis] * inner),
    )

  def pick(self, axis: int, place: int) -> LazyArray:
    """The slice at one index of an axis, which is dropped."""

    def fetch(index: Index) -> np.ndarray:
      one = slice(place, place + 1)
      return self.fetch((*index[:axis], one, *index[axis:])).squeeze(axis)

    def drop(shape: Shape) -> Shape:
      return (*shape[:axis], *shape[axis + 1 :])

    return LazyArray(drop(self.shape), self.dtype, fetch, drop(self.block))


def grid(shape: Shape, block: Shape) -> Iterator[Index]:
  """Indices of the blocks of one shape that cover an array of another."""
  steps = [
    [slice(i, min(i + part, size)) for i in range(0, size, part)]
    for part, size in zip(block, shape, strict=True)
  ]
  yield from itertools.product(*steps)


def stacked(arrays: Sequence[LazyArray], axis: int) -> LazyArray:
  """Stacks arrays of one shape along a new axis; parts are read as needed."""
  first = arrays[0]
  if any(a.shape != first.shape or a.dtype != first.dtype for a in arrays):
    raise CheckpointError(
      'layers of different shapes or dtypes cannot be stacked: '
      f'{sorted({(a.shape, str(a.dtype)) for a in arrays})}'
    )

  def fetch(index: Index) -> np.ndarray:
    rest = (*index[:axis], *index[axis + 1 :])
    parts = [array.fetch(rest) for array in arrays[index[axis]]]
    if parts:
      return np.stack(parts, axis)
    shape = [part.stop - part.start for part in index]
    return np.zeros(shape, first.dtype)

  return LazyArray(
    (*first.shape[:axis], len(arrays), *first.shape[axis:]),
    first.dtype,
    fetch,
    (*first.block[:axis], 1, *first.block[axis:]),
  )


Weights = Mapping[str, LazyArray]


def check_fixed(
  found: Mapping[str, Any],
  fixed: Mapping[str, Collection[object]],
  where: str,
) -> None:
  """Checks settings that a network supports with certain values only.

  Args:
    found: The content of a `config.json`.
    fixed: The supported values of each; None stands for "not stated".
    where: The file, for messages.

  Raises:
    CheckpointError: A setting has another value.
  """
  for key, values in fixed.items():
    if found.get(key) not in values:
      raise CheckpointError(
        f'{where}: {key} {found.get(key)!r} is not supported'
      )


def read_json(path: Path) -> dict[str, Any]:
  """Reads a JSON object.

  Raises:
    CheckpointError: There is no such file, or it is not a JSON object.
  """
  try:
    found = json.loads(path.read_bytes())
  except FileNotFoundError:
    raise CheckpointError(
      f'{path}: no such file: the folder is incomplete, or not a model'
    ) from None
  except (OSError, ValueError) as error:
    raise CheckpointError(f'{path}: not JSON ({error})') from error
  if not isinstance(found, dict):
    raise CheckpointError(f'{path}: must hold a JSON object')
  return found


def open_shards(
  path: Path, open_file: Callable[[Path], dict[str, LazyArray]]
) -> dict[str, LazyArray]:
  """Opens a file of weights, or its shards if it is replaced by an index.

  Args:
    path: The file; Hugging Face's index of its shards is PATH.index.json.
    open_file: Opens one file.

  Returns:
    Arrays by name.

  Raises:
    CheckpointError: The index or a shard is missing or damaged.
  """
  index = path.with_name(f'{path.name}.index.json')
  if not index.is_file():
    return open_file(path)
  try:
    shard_of = json.loads(index.read_text('utf-8'))['weight_map']
    shards = sorted(set(shard_of.values()))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise CheckpointError(
      f'{index}: not an index of shards ({error!r})'
    ) from error
  arrays: dict[str, LazyArray] = {}
  for name in shards:
    if Path(name).name != name:
      raise CheckpointError(
        f'{index}: the shard {name!r} is not in this folder'
      )
    arrays.update(open_file(path.with_name(name)))
  if missing := sorted(set(shard_of) - set(arrays)):
    raise CheckpointError(
      f'{index}: names {missing[0]}, which its shard does not hold'
    )
  return arrays


def diff(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> str:
  """Describes how two sets of parameters differ, for error messages.

  Layers that differ in the same way share a line: `layers_{0-23}`.

  Args:
    expected: Shapes by name, of the network.
    found: Shapes by name, of the checkpoint.

  Returns:
    A line per difference (`missing`, `unexpected`, `other shape`), at most 20
    and then their number; '' if there are none.
  """
  groups: dict[tuple[str, str, str], list[int]] = {}
  for name in sorted(set(expected) | set(found), key=_natural):
    want, have = expected.get(name), found.get(name)
    if want is not None and have is not None and tuple(want) == tuple(have):
      continue
    if have is None:
      kind, text = 'missing', _show(want)
    elif want is None:
      kind, text = 'unexpected', _show(have)
    else:
      kind, text = 'other shape', f'{_show(have)}, expected {_show(want)}'
    numbers = re.findall(r'(?<=\blayers_)\d+', name)
    general = re.sub(r'(?<=\blayers_)\d+', '{}', name)
    groups.setdefault((kind, general, text), []).extend(map(int, numbers[:1]))
  lines = []
  for (kind, name, text), numbers in groups.items():
    if numbers:
      name = name.replace('{}', _ranges(numbers), 1)
    lines.append(f'  {kind:<11} {name} {text}')
  shown = lines[:_SHOWN]
  if len(lines) > _SHOWN:
    shown.append(f'  ... {len(lines)} lines in all')
  return '\n'.join(shown)


def check(
  expected: Mapping[str, Shape], found: Mapping[str, Shape], message: str
) -> None:
  """Raises CheckpointError with `message` and the diff if there is one."""
  if lines := diff(expected, found):
    raise CheckpointError(f'{message}:\n{lines}')


def shapes_of(weights: Mapping[str, Any]) -> dict[str, Shape]:
  """Shapes by name."""
  return {name: tuple(array.shape) for name, array in weights.items()}


def _natural(name: str) -> list[Any]:
  """A key that sorts layers_2 before layers_10."""
  return [
    int(part) if part.isdigit() else part for part in re.split(r'(\d+)', name)
  ]


def _ranges(numbers: Sequence[int]) -> str:
  """[0, 1, 2, 5] -> '{0-2,5}'; one alone -> '5'."""
  runs: list[list[int]] = []
  for number in sorted(numbers):
    if runs and number == runs[-1][1] + 1:
      runs[-1][1] = number
    else:
      runs.append([number, number])
  text = ','.join(f'{a}-{b}' if a != b else str(a) for a, b in runs)
  return text if len(numbers) == 1 else f'{{{text}}}'


def _show(shape: Shape | None) -> str:
  return '[' + ', '.join(str(size) for size in shape or ()) + ']'
