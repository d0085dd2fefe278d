"""Arrays in TensorStore's zarr layouts: T5X's folders and Orbax's OCDBT.

Arrays are read lazily, by chunk, for any number of saving devices. An Orbax
`state` folder is written chunk by chunk, since Orbax itself needs all arrays in
memory. Not here: which arrays there should be.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from t5score_jax.checkpoints.weights import (
  BLOCK_BYTES,
  CheckpointError,
  Index,
  LazyArray,
  Shape,
  grid,
)

_MANIFEST = 'manifest.ocdbt'
#: A file of zarr's metadata at the end of an array's key -> its driver.
_DRIVERS = {'.zarray': 'zarr', 'zarr.json': 'zarr3'}
# No cache: blocks are read once, and conversions must save memory.
_CONTEXT = {'cache_pool': {'total_bytes_limit': 0}}
# TensorStore's exceptions for missing or damaged files and full disks.
ERRORS = (ValueError, OSError, NotImplementedError, RuntimeError)


def open_array(kvstore: Mapping[str, Any], driver: str = 'zarr') -> LazyArray:
  """Opens one array.

  Args:
    kvstore: TensorStore's specification of its location, including the
      array's own folder.
    driver: 'zarr' or 'zarr3'.

  Raises:
    CheckpointError: It is missing or damaged.
  """
  return _lazy(_opening(kvstore, driver), str(kvstore.get('path')))


def open_state(folder: Path, prefix: str = '') -> dict[str, LazyArray]:
  """Opens the arrays of an Orbax folder, OCDBT or a zarr folder an array.

  Args:
    folder: Usually `checkpoint_N/state`.
    prefix: The part of the tree to open, such as 'params.'.

  Returns:
    Arrays by '/'-joined name, without the prefix; none if there is no such
    part.

  Raises:
    CheckpointError: The folder or an array in it can't be read.
  """
  base = _kvstore(folder)
  opened = {
    name: _opening({**base, 'path': _path(base, key)}, driver)
    for name, key, driver in _array_keys(folder, base, prefix)
  }
  return {
    name: _lazy(future, f'{folder}: {name}') for name, future in opened.items()
  }


def has(folder: Path, prefix: str) -> bool:
  """Whether an Orbax folder holds arrays of that part of the tree.

  Raises:
    CheckpointError: The folder can't be read.
  """
  return any(_array_keys(folder, _kvstore(folder), prefix))


def _kvstore(folder: Path) -> dict[str, Any]:
  place = f'file://{folder.absolute()}/'
  if (folder / _MANIFEST).is_file():
    return {'driver': 'ocdbt', 'base': place}
  return {'driver': 'file', 'path': f'{folder.absolute()}/'}


def _path(base: Mapping[str, Any], key: str) -> str:
  return f'{base.get("path", "")}{key}/'


def _array_keys(
  folder: Path, base: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
  """Yields (name without prefix, key, driver) of the arrays."""
  for key in _keys(folder, base, prefix):
    place, _, file = key.rpartition('/')
    if file in _DRIVERS and place.startswith(prefix):
      # Orbax joins the names of a tree by '.'.
      name = place.removeprefix(prefix).replace('.', '/')
      yield name, place, _DRIVERS[file]


def _keys(folder: Path, base: Mapping[str, Any], prefix: str) -> Iterator[str]:
  if base['driver'] == 'file':
    for child in sorted(folder.iterdir()):
      for file in _DRIVERS:
        if (child / file).is_file():
          yield f'{child.name}/{file}'
    return
  try:
    store = ts.KvStore.open(dict(base)).result()
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ''
    listed = store.list(ts.KvStore.KeyRange(prefix, end)).result()
  except ERRORS as error:
    raise _unreadable(str(folder), error) from error
  yield from (key.decode() for key in listed)


def _opening(kvstore: Mapping[str, Any], driver: str) -> Any:
  return ts.open(
    {
      'driver': driver,
      'kvstore': dict(kvstore),
      # Nothing else writes here, and checking again costs a disk access.
      'recheck_cached_data': False,
      'recheck_cached_metadata': False,
      'context': _CONTEXT,
    },
    open=True,
    read=True,
  )


def _lazy(future: Any, place: str) -> LazyArray:
  try:
    store = future.result()
  except ERRORS as error:
    raise _unreadable(place, error) from error
  chunks = store.chunk_layout.read_chunk.shape or store.shape

  def fetch(index: Index) -> np.ndarray:
    try:
      return store[index].read().result() if index else store.read().result()
    except ERRORS as error:
      raise _unreadable(place, error) from error

  return LazyArray(
    tuple(store.shape),
    store.dtype.numpy_dtype,
    fetch,
    tuple(min(c, s) for c, s in zip(chunks, store.shape, strict=True)),
  )


def _unreadable(place: str, error: BaseException) -> CheckpointError:
  return CheckpointError(f'{place}: cannot be read ({_brief(error)})')


def _brief(error: BaseException) -> str:
  """TensorStore's message, without locations in its source code."""
  if found := re.search(r": ([^:\[]+) \[os_error_code='\d+'", str(error)):
    return found[1]
  text = re.sub(r'\s*\[(source locations|tensorstore_spec)=.*', '', str(error))
  return ' '.join(text.split())[:300]


def write_state(
  folder: Path,
  arrays: Mapping[str, LazyArray],
  block_bytes: int = BLOCK_BYTES,
  apart: Mapping[str, int] | None = None,
) -> None:
  """Writes an Orbax `state` folder, which Orbax restores as a nested dict.

  Chunks are at most `block_bytes`, so that any number of devices reads what it
  needs, and each is written once. Memory: two blocks and their compressed
  copies, where a block is `block_bytes` or what the source can only read in one
  piece.

  Args:
    folder: A new folder.
    arrays: By '/'-joined name; of the dtypes they are stored in.
    block_bytes: Size of a chunk.
    apart: The axis of layers by name, along which a chunk has one index.

  Raises:
    OSError: The disk is full, or the folder can't be written.
  """
  folder.mkdir()
  tree: dict[str, Any] = {}
  described = []
  for name, array in arrays.items():
    chunks = _chunks(array, block_bytes, (apart or {}).get(name))
    _write_array(folder, name.replace('/', '.'), array, chunks)
    keys = name.split('/')
    tree[str(tuple(keys))] = {
      'key_metadata': [{'key': key, 'key_type': 2} for key in keys],
      'value_metadata': {
        'value_type': 'jax.Array',
        'skip_deserialize': False,
        'write_shape': list(array.shape),
      },
    }
    shapes = {
      'param_name': name.replace('/', '.'),
      'write_shape': list(array.shape),
      'chunk_shape': list(chunks),
      'ext_metadata': None,
    }
    described.append({'array_metadata': shapes})
  metadata = {
    'tree_metadata': tree,
    'use_ocdbt': True,
    'use_zarr3': False,
    'store_array_data_equal_to_fill_value': True,
    'custom_metadata': None,
  }
  _write_json(folder / '_METADATA', metadata)
  (folder / 'array_metadatas').mkdir()
  _write_json(
    folder / 'array_metadatas' / 'process_0', {'array_metadatas': described}
  )


def write_checkpoint_metadata(
  folder: Path, handlers: Mapping[str, str]
) -> None:
  """Writes the file that tells Orbax the contents of `checkpoint_N`.

  Args:
    folder: `checkpoint_N`.
    handlers: Item -> the class of Orbax that reads it.
  """
  now = time.time_ns()
  metadata = {
    'item_handlers': dict(handlers),
    'metrics': {},
    'performance_metrics': {},
    'init_timestamp_nsecs': now,
    'commit_timestamp_nsecs': now,
    'custom_metadata': {},
  }
  _write_json(folder / '_CHECKPOINT_METADATA', metadata)


def _write_json(path: Path, value: Any) -> None:
  path.write_text(json.dumps(value), encoding='utf-8')


def _chunks(array: LazyArray, limit: int, apart: int | None) -> Shape:
  """Chooses the shape of chunks.

  They are about equal along all axes, so that reading rows costs no more than
  reading columns. They are multiples of the blocks in which the array can be
  read, or equal parts of such a block if it is larger than `limit` bytes.
  """
  chunks = [
    max(1, min(part, size))
    for part, size in zip(array.block, array.shape, strict=True)
  ]
  nbytes = math.prod(chunks) * array.dtype.itemsize
  if nbytes > limit:
    for axis, size in enumerate(chunks):
      pieces = min(-(-nbytes // limit), size)
      chunks[axis] = next(
        size // n for n in range(pieces, size + 1) if size % n == 0
      )
      nbytes = nbytes // size * chunks[axis]
    return tuple(chunks)
  while True:
    axes = [
      axis
      for axis, size in enumerate(array.shape)
      if chunks[axis] < size and axis != apart
    ]
    if not axes or 2 * nbytes > limit:
      return tuple(chunks)
    axis = min(axes, key=lambda a: chunks[a])
    chunks[axis] = min(2 * chunks[axis], array.shape[axis])
    nbytes = math.prod(chunks) * array.dtype.itemsize


def _write_array(
  folder: Path, name: str, array: LazyArray, chunks: Shape
) -> None:
  """Writes one array: chunk by chunk, or several that are read together."""
  together = tuple(map(max, chunks, array.block))
  specification = {
    'driver': 'zarr',
    'kvstore': {
      'driver': 'ocdbt',
      'base': f'file://{folder.absolute()}/',
      'path': f'{name}/',
    },
    'dtype': array.dtype.name,
    'metadata': {
      'shape': list(array.shape),
      'chunks': list(chunks),
      'compressor': {'id': 'zstd', 'level': 1},
    },
    'store_data_equal_to_fill_value': True,
    'context': _CONTEXT,
  }
  written = None
  try:
    store = ts.open(specification, create=True).result()
    for index in grid(array.shape, together):
      values = array.read(index)
      if written is not None:
        written.result()
      # Writing continues while the next block is read.
      written = store[index].write(values)
    if written is not None:
      written.result()
  except CheckpointError:
    raise
  except ERRORS as error:
    raise OSError(f'{folder}: cannot be written ({_brief(error)})') from error
