"""What checkpoints of all formats are read into and written from: lazy arrays.

A format is a module of this package, `checkpoints/FORMAT.py`, that reads

    open_source(path, options) -> Source

and, if it can be written, writes into an existing empty folder

    write(source, folder, *, dtype, max_shard_bytes) -> None

A `Source` has its weights under T5X's names, joined by '/'
('encoder/layers_0/attention/query/kernel' [embed, joined_kv]), in T5X's
layouts, and reads nothing until an array, or a block of one, is asked for.
Writers go through `LazyArray.blocks`, so that a conversion needs the memory of
a block, whatever the size of the model. `checkpoints/layouts.py` says which
names and shapes a network has and stacks layers for scanned ones.

No JAX here. Not here: what any one format looks like.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from t5score_jax.data import vocab
from t5score_jax.errors import T5ScoreError

if TYPE_CHECKING:
  from t5score_jax.nn.t5 import T5Config

Index = tuple[slice, ...]
Shape = tuple[int, ...]

#: Dtypes in which weights are stored, by the names that options use.
DTYPES = {
  'float32': np.dtype(np.float32),
  'bfloat16': np.dtype(ml_dtypes.bfloat16),
}
#: What is read and written at a time, in bytes, unless a format has reasons.
BLOCK_BYTES = 32 << 20
#: Size of the files of a sharded model, in bytes, unless it is said.
SHARD_BYTES = 5 * 10**9
_SHOWN = 20


class CheckpointError(T5ScoreError, ValueError):
  """A checkpoint is missing, damaged or of another model; says which."""


class ContradictionError(CheckpointError):
  """An option says something else than the checkpoint itself."""

  exit_code = 2


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
  """An array that is read when it is asked for, whole or in part.

  Attributes:
    shape: Its shape.
    dtype: Its NumPy dtype; `ml_dtypes.bfloat16` is one.
    fetch: Index -> that part. The index has one slice an axis, with
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

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """Size in bytes."""
    return self.size * self.dtype.itemsize

  def read(self, index: Index | None = None) -> np.ndarray:
    """Reads the array, or the part of it that one slice an axis names.

    Raises:
      CheckpointError: What is stored can't be read, or is of another shape.
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
    """The shape of a block that costs little to read and little memory.

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
      axes: Which axis of this array each new one is; reversed by default.
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
    """The slice at one place of an axis, which is dropped."""

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
  """Arrays of one shape along a new axis; a part reads what it touches."""
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


@dataclasses.dataclass(frozen=True)
class Options:
  """What a reader is told that the files may not say; None: not told.

  Where the files say it, it may only be what they say (`check_options`).

  Attributes:
    activation: Of the feed-forward blocks, such as 'gelu' or 'relu'; of a
      gated one the gate's.
    vocabulary: 'bytes' or the path of a SentencePiece model.
  """

  activation: str | None = None
  vocabulary: str | None = None


@dataclasses.dataclass(frozen=True)
class Source:
  """A model, wherever and in whatever format it lies.

  Attributes:
    config: The network; `scan_layers` says how `weights` are laid out, which
      is how they are stored (`layouts.relayout` changes it).
    weights: LazyArrays by name, of exactly the names and shapes of
      `layouts.parameter_shapes(config)`.
    vocabulary: None if nothing says which.
    settings: See `Bundle.settings`.
    provenance: What is known of the origin, JSON-serialisable: 'format',
      'path' and 'step' if there is one.
    notes: What was assumed, a sentence each, for people.
  """

  config: T5Config
  weights: Weights
  vocabulary: vocab.Vocabulary | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()

  @property
  def size(self) -> int:
    """Number of parameters."""
    return sum(array.size for array in self.weights.values())

  def need_vocabulary(self) -> vocab.Vocabulary:
    """The vocabulary.

    Raises:
      CheckpointError: It isn't known.
    """
    if self.vocabulary is None:
      raise CheckpointError(
        f'{self.provenance.get("path", "the checkpoint")}: nothing says which '
        f'vocabulary its {self.config.vocab_size} ids are of: give '
        '--vocabulary, the path of a SentencePiece model or `bytes`'
      )
    return self.vocabulary


def choose_vocabulary(
  spec: str | None, config: T5Config, *folders: Path
) -> tuple[vocab.Vocabulary | None, tuple[str, ...]]:
  """The vocabulary named, found in a folder, or implied by the network's size.

  Args:
    spec: As `Options.vocabulary`.
    config: 384 rows without a file mean ByT5's bytes.
    *folders: Each may hold `vocabulary.model` or `spiece.model`.

  Returns:
    The vocabulary, None if nothing says which, and what was assumed.

  Raises:
    CheckpointError: No such file, not a vocabulary, or one of too many ids.
  """
  notes: tuple[str, ...] = ()
  if spec is None:
    names = ('vocabulary.model', 'spiece.model')
    places = [folder / name for folder in folders for name in names]
    spec = next((str(place) for place in places if place.is_file()), None)
  if spec is None and config.vocab_size == 384:
    spec = 'bytes'
    notes = (
      'vocabulary bytes: assumed, as there are 384 ids and no vocabulary.model '
      '(--vocabulary says otherwise)',
    )
  if spec is None:
    return None, ()
  found = _load_vocabulary(spec)
  if found.vocab_size > config.vocab_size:
    raise CheckpointError(
      f'the vocabulary {spec} has {found.vocab_size} ids, the network only '
      f'{config.vocab_size}: they do not belong together'
    )
  return found, notes


def check_options(
  options: Options,
  config: T5Config,
  vocabulary: vocab.Vocabulary | None,
  place: Path,
) -> None:
  """Checks that options repeat what a checkpoint says, if they are given.

  Args:
    options: What the reader is told.
    config: The network that the checkpoint says it has.
    vocabulary: The one that it says it has; None if it says none. Sentinels,
      which a file may lack, are not compared.
    place: Where it says so, for the message.

  Raises:
    ContradictionError: They say something else.
    CheckpointError: `options.vocabulary` names no vocabulary.
  """
  said = config.mlp_activations[0]
  if options.activation not in (None, said):
    raise ContradictionError(
      f'--activation {options.activation}: {place} says {said}; leave the '
      'option out'
    )
  if options.vocabulary is None or vocabulary is None:
    return
  if _pieces(_load_vocabulary(options.vocabulary)) != _pieces(vocabulary):
    raise ContradictionError(
      f'--vocabulary {options.vocabulary}: {place} says {vocabulary}, with '
      'which the network was trained; leave the option out'
    )


def _load_vocabulary(spec: str) -> vocab.Vocabulary:
  try:
    return vocab.load_vocabulary(spec)
  except (OSError, ValueError) as error:
    raise CheckpointError(str(error)) from error


def _pieces(vocabulary: vocab.Vocabulary) -> bytes:
  """What defines a vocabulary, but for its sentinels."""
  if isinstance(vocabulary, vocab.SentencePieceVocabulary):
    return vocabulary.bare_model_bytes
  return b''


def diff(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> str:
  """Says in which parameters two sets differ, for error messages.

  Layers that differ in the same way share a line: `layers_{0-23}`.

  Args:
    expected: Shapes by name, of the network.
    found: Shapes by name, of the checkpoint.

  Returns:
    A line a difference (`missing`, `unexpected`, `other shape`), at most 20
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
