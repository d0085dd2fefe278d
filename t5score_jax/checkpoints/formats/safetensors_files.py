"""Reads and writes safetensors files block by block.

The safetensors library needs all arrays in memory to write a file, and its
NumPy interface does not read bfloat16. Here arrays are read lazily and written
as they are read, so that models may be larger than memory. Large models are
split into files of limited size with an index, like Hugging Face's shards.

A file consists of 8 bytes, the header's length (little-endian); the header,
JSON: name -> {dtype, shape, data_offsets}; and the arrays, row-major, without
gaps. Not here: the names and dtypes that a format needs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from t5score_jax.checkpoints.weights import (
  BLOCK_BYTES,
  CheckpointError,
  Index,
  LazyArray,
  Shape,
  open_shards,
)

_DTYPES = {
  'F64': np.dtype('<f8'),
  'F32': np.dtype('<f4'),
  'F16': np.dtype('<f2'),
  'BF16': np.dtype(ml_dtypes.bfloat16),
  'I64': np.dtype('<i8'),
  'I32': np.dtype('<i4'),
  'I16': np.dtype('<i2'),
  'I8': np.dtype('i1'),
  'U8': np.dtype('u1'),
  'BOOL': np.dtype('?'),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
# Bytes of a header, which is parsed in memory; also the library's limit.
_MAX_HEADER = 100_000_000
# Pieces with fewer contiguous bytes are not written one by one.
_SMALL_RUN = 4096


def open_folder(folder: Path, stem: str = 'model') -> dict[str, LazyArray]:
  """Opens STEM.safetensors, or the shards that its index names.

  Args:
    folder: Their folder.
    stem: The file's name before '.safetensors'.

  Returns:
    Arrays by name.

  Raises:
    CheckpointError: A file is missing, truncated or not in this format.
  """
  return open_shards(folder / f'{stem}.safetensors', open_file)


def open_file(path: Path) -> dict[str, LazyArray]:
  """Opens one file; see `open_folder`."""
  try:
    stream = open(path, 'rb')
  except FileNotFoundError:
    raise CheckpointError(
      f'{path}: no such file: the folder is incomplete'
    ) from None
  with stream:
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), 'little')
    if size < 8 or length > size - 8:
      raise _damaged(path, f'{size} bytes')
    if length > _MAX_HEADER:
      raise _damaged(path, f'a header of {length:,} bytes')
    text = stream.read(length)
  arrays = {}
  end = start = 8 + length
  try:
    header = json.loads(text)
    header.pop('__metadata__', None)
    for name, entry in header.items():
      shape = tuple(int(n) for n in entry['shape'])
      dtype = _DTYPES[entry['dtype']]
      first, last = entry['data_offsets']
      array = LazyArray.mapped(path, dtype, start + first, shape)
      if first < 0 or last - first != array.nbytes:
        raise ValueError(f'{shape} of {dtype} at {first} to {last}')
      arrays[name] = array
      end = max(end, start + last)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise _damaged(path, f'header: {error!r}') from error
  if end != size:
    raise _damaged(path, f'{size} bytes where {end} belong')
  return arrays


def _damaged(path: Path, problem: str) -> CheckpointError:
  return CheckpointError(
    f'{path}: not a whole safetensors file ({problem}): copy or download it '
    'again'
  )


def _contiguous(shape: Shape, index: Index) -> int:
  """The number of leading axes that a run of the part can't extend over."""
  axes = len(shape)
  while axes and index[axes - 1] == slice(0, shape[axes - 1]):
    axes -= 1
  return max(0, axes - 1)


def _runs(shape: Shape, index: Index, axes: int) -> Iterator[tuple[int, int]]:
  """Yields (first element, count) of the contiguous runs of a part."""
  strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
  count = math.prod(part.stop - part.start for part in index[axes:])
  base = sum(
    part.start * stride
    for part, stride in zip(index[axes:], strides[axes:], strict=True)
  )
  places = (range(part.start, part.stop) for part in index[:axes])
  for place in itertools.product(*places):
    yield base + sum(map(int.__mul__, place, strides)), count


def write_folder(
  folder: Path,
  arrays: Mapping[str, LazyArray],
  max_shard_bytes: int,
  stem: str = 'model',
  metadata: Mapping[str, str] | None = None,
) -> list[str]:
  """Writes arrays as one file or, if they are large, as shards and an index.

  Memory: a block (`weights.BLOCK_BYTES`), or an array's smallest readable block
  if that is larger.

  Args:
    folder: An existing folder.
    arrays: Arrays by name, in the dtypes in which they are stored.
    max_shard_bytes: Maximum size of a shard; a larger array is a shard of its
      own.
    stem: As `open_folder`.
    metadata: Strings for the header; HuggingFace needs {'format': 'pt'}.

  Returns:
    The names of the files written.

  Raises:
    OSError: The disk is full, or the folder can't be written.
  """
  shards = _shards(arrays, max_shard_bytes)
  if len(shards) == 1:
    name = f'{stem}.safetensors'
    write_file(folder / name, arrays, metadata)
    return [name]
  count = len(shards)
  places: dict[str, str] = {}
  for number, names in enumerate(shards, 1):
    file = f'{stem}-{number:05}-of-{count:05}.safetensors'
    write_file(folder / file, {n: arrays[n] for n in names}, metadata)
    places.update(dict.fromkeys(names, file))
  index = {
    'metadata': {'total_size': sum(a.nbytes for a in arrays.values())},
    'weight_map': dict(sorted(places.items())),
  }
  name = f'{stem}.safetensors.index.json'
  with open(folder / name, 'w', encoding='utf-8') as stream:
    json.dump(index, stream, indent=2)
    stream.write('\n')
  return [*sorted(set(places.values())), name]


def _shards(arrays: Mapping[str, LazyArray], max_bytes: int) -> list[list[str]]:
  """Distributes the names over shards, in order."""
  shards: list[list[str]] = [[]]
  filled = 0
  for name, array in arrays.items():
    if shards[-1] and filled + array.nbytes > max_bytes:
      shards.append([])
      filled = 0
    shards[-1].append(name)
    filled += array.nbytes
  return shards


def write_file(
  path: Path,
  arrays: Mapping[str, LazyArray],
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes one file; see `write_folder`."""
  header: dict[str, Any] = {}
  if metadata:
    header['__metadata__'] = dict(metadata)
  offset = 0
  for name, array in arrays.items():
    header[name] = {
      'dtype': _CODES[array.dtype],
      'shape': list(array.shape),
      'data_offsets': [offset, offset + array.nbytes],
    }
    offset += array.nbytes
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  try:
    _write_all(path, text, header, arrays)
  except OSError as error:
    # Errors of writing at an offset do not name the file.
    raise OSError(error.errno, error.strerror, str(path)) from error


def _write_all(
  path: Path,
  text: bytes,
  header: Mapping[str, Any],
  arrays: Mapping[str, LazyArray],
) -> None:
  descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
  try:
    start = 8 + len(text)
    _write(descriptor, memoryview(len(text).to_bytes(8, 'little') + text), 0)
    for name, array in arrays.items():
      offset = start + header[name]['data_offsets'][0]
      if _is_short(array) and not _is_short(array.transposed()):
        _write_turned(descriptor, offset, array, path)
      else:
        _write_array(descriptor, offset, array)
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _is_short(array: LazyArray) -> bool:
  """Whether an array would be written in many short pieces."""
  block = array.block_shape(BLOCK_BYTES)
  index = tuple(slice(0, size) for size in block)
  count = math.prod(block[_contiguous(array.shape, index) :])
  return (
    len(array.shape) == 2
    and array.size > 0
    and block != array.shape
    and count * array.dtype.itemsize < _SMALL_RUN
  )


def _write_turned(
  descriptor: int, offset: int, array: LazyArray, path: Path
) -> None:
  """Writes an array that can only be read by columns.

  Uses a temporary file in which the columns are rows: millions of short writes
  take longer than writing everything twice.
  """
  with tempfile.TemporaryDirectory(prefix='.turned.', dir=path.parent) as spool:
    turned = Path(spool) / 'turned.safetensors'
    write_file(turned, {'columns': array.transposed()})
    columns = open_file(turned)['columns']
    _write_array(descriptor, offset, columns.transposed())


def _write_array(descriptor: int, offset: int, array: LazyArray) -> None:
  itemsize = array.dtype.itemsize
  for index in array.blocks(BLOCK_BYTES):
    values = np.ascontiguousarray(array.read(index), array.dtype)
    flat = values.reshape(-1).view(np.uint8).data
    done = 0
    for place, count in _runs(
      array.shape, index, _contiguous(array.shape, index)
    ):
      nbytes = count * itemsize
      _write(descriptor, flat[done : done + nbytes], offset + place * itemsize)
      done += nbytes
  # Written pages are not needed again: without this, a file larger than memory
  # evicts everything else.
  with contextlib.suppress(OSError, AttributeError):
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _write(descriptor: int, buffer: memoryview, offset: int) -> None:
  done = 0
  while done < len(buffer):
    done += os.pwrite(descriptor, buffer[done:], offset + done)
