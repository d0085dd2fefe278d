"""Converts checkpoints between formats, in the memory of a few blocks.

`open_source` opens a checkpoint, `describe` describes it, and `write` writes it
in another format, as a folder that appears whole or not at all. Not here:
formats (`checkpoints/registry.py`) and the command line.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t5score_jax.checkpoints import layouts, registry
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.source import Options, Source
from t5score_jax.checkpoints.weights import (
  BLOCK_BYTES,
  DTYPES,
  SHARD_BYTES,
  CheckpointError,
  Index,
  LazyArray,
)
from t5score_jax.data import folders

#: The formats that can also store scanned layers.
SCANNED = ('orbax',)
# Room for files besides weights: descriptions, vocabularies of 250,000 pieces.
_OVERHEAD = 32 << 20


def open_source(
  path: Path, options: Options | None = None, format_name: str | None = None
) -> Source:
  """Opens a checkpoint of any format.

  Args:
    path: Its path.
    options: What its files do not state.
    format_name: Its format; detected by default.

  Raises:
    CheckpointError: Its format is unknown, or it can't be read.
  """
  name = format_name or registry.detect(
    path, '--from names the format of one that is not recognised'
  )
  module = registry.load(name)
  if not path.exists():
    raise CheckpointError(f'{path}: no such file or folder')
  return module.open_source(path, options or Options())


def stored_dtype(source: Source) -> str:
  """The dtype that represents all weights exactly: 'float32' or 'bfloat16'."""
  small = DTYPES['bfloat16']
  if all(array.dtype == small for array in source.weights.values()):
    return 'bfloat16'
  return 'float32'


def target_layout(
  source: Source, format_name: str, scan_layers: bool | None
) -> bool:
  """Whether layers will be scanned in a format.

  Args:
    source: The model to convert.
    format_name: The format to write.
    scan_layers: The requested layout; None keeps the source's if possible.

  Raises:
    CheckpointError: The format has no scanned layers.
  """
  if format_name not in SCANNED:
    if scan_layers:
      raise CheckpointError(
        f'the format {format_name} has no scanned layers (--scan); '
        f'{", ".join(SCANNED)} has'
      )
    return False
  return source.config.scan_layers if scan_layers is None else scan_layers


def relaid(source: Source, scan_layers: bool) -> Source:
  """The source with its layers scanned or not; reads small arrays at most."""
  config, weights = layouts.relayout(source.config, source.weights, scan_layers)
  return dataclasses.replace(source, config=config, weights=weights)


def describe(source: Source, dtype: str) -> str:
  """A table of a model's parameters, its configuration, and what was assumed.

  Args:
    source: The model.
    dtype: The dtype in which it will be stored.
  """
  rows: dict[tuple[str, tuple[int, ...]], int] = {}
  for name, array in source.weights.items():
    general = re.sub(r'(?<=/layers_)\d+(?=/)', '*', name)
    key = (general, array.shape)
    rows[key] = rows.get(key, 0) + 1
  width = max(len(name) for name, _ in rows)
  lines = [
    f'{name:<{width}}  {str(list(shape)):<24}'
    + (f' x {count}' if count > 1 else '')
    for (name, shape), count in rows.items()
  ]
  size = source.size
  nbytes = size * DTYPES[dtype].itemsize
  lines += [
    '',
    f'{len(source.weights)} arrays, {size:,} parameters, {dtype}: '
    f'{nbytes / 1e9:.3f} GB',
    'config: '
    + ' '.join(
      f'{key}={value}'
      for key, value in dataclasses.asdict(source.config).items()
    ),
    f'vocabulary: {source.vocabulary or "unknown (--vocabulary)"}',
    'from: ' + ' '.join(f'{k}={v}' for k, v in source.provenance.items()),
  ]
  lines += [f'note: {note}' for note in source.notes]
  return '\n'.join(line.rstrip() for line in lines)


def check_output(folder: Path) -> None:
  """Checks before the work whether a new folder may be created.

  Raises:
    CheckpointError: The name is taken.
  """
  if folder.is_symlink() or (folder.exists() and not _empty(folder)):
    raise CheckpointError(
      f'{folder}: is there already; it is left as it is, choose another name'
    )


def _empty(folder: Path) -> bool:
  return folder.is_dir() and not any(folder.iterdir())


def write(
  source: Source,
  folder: Path,
  format_name: str,
  *,
  scan_layers: bool | None = None,
  dtype: str | None = None,
  max_shard_bytes: int = SHARD_BYTES,
  progress: Callable[[int], None] = lambda nbytes: None,
) -> Source:
  """Writes a model in a format; the folder appears whole or not at all.

  Args:
    source: The model.
    folder: A new name, or an empty folder.
    format_name: The format.
    scan_layers: See `target_layout`.
    dtype: 'float32' or 'bfloat16'; by default the one that is exact.
    max_shard_bytes: Maximum size of a file, if the format has shards.
    progress: Called with numbers of bytes (in `dtype`) as they are read.

  Returns:
    The source in the format's layout, as it was written.

  Raises:
    CheckpointError: The source is damaged or lacks what the format needs, the
      name is taken, or the disk is too small.
    OSError: The folder can't be written.
  """
  module = registry.load(format_name)
  if format_name not in registry.writable():
    raise CheckpointError(
      f'the format {format_name} can be read, not written; those that can be: '
      f'{", ".join(registry.writable())}'
    )
  check_output(folder)
  scan = target_layout(source, format_name, scan_layers)
  dtype = dtype or stored_dtype(source)
  crossing = _crossing(source) if source.config.scan_layers > scan else []
  _check_space(
    folder,
    source.size * DTYPES[dtype].itemsize
    + sum(source.weights[name].nbytes for name in crossing),
  )
  # A writer may read all weights more than once.
  passes = getattr(module, 'PASSES', 1)

  # Which may be made at one time.
  lock = threading.Lock()

  def advance(nbytes: int) -> None:
    with lock:
      progress(nbytes // passes)

  with folders.new_folder(folder) as temporary:
    with folders.scratch(folder) as spool:
      weights = dict(source.weights)
      for name in crossing:
        weights[name] = _by_layer(weights[name], spool)
      source = relaid(dataclasses.replace(source, weights=weights), scan)
      weights = {
        name: _checked(name, array.astype(DTYPES[dtype]), advance)
        for name, array in source.weights.items()
      }
      module.write(
        dataclasses.replace(source, weights=weights),
        temporary,
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
      )
  return source


def _check_space(folder: Path, nbytes: int) -> None:
  place = folder.absolute()
  while not place.exists():
    place = place.parent
  free = shutil.disk_usage(place).free
  if nbytes + _OVERHEAD > free:
    raise CheckpointError(
      f'{folder}: needs {nbytes / 1e9:.2f} GB, and the disk has '
      f'{free / 1e9:.2f} GB left: make room, or choose another disk'
    )


def _checked(
  name: str, array: LazyArray, progress: Callable[[int], None]
) -> LazyArray:
  """The array, whose parts raise an error unless they are finite."""

  def fetch(index: Index) -> np.ndarray:
    values = layouts.finite(name, array.fetch(index))
    progress(values.nbytes)
    return values

  return dataclasses.replace(array, fetch=fetch)


def _crossing(source: Source) -> list[str]:
  """Names of scanned arrays whose layers can't be read one by one.

  Their chunks hold several layers: reading layer by layer would decompress each
  chunk as often as there are layers in it.
  """
  return [
    name
    for name, array in source.weights.items()
    if layouts.is_scanned([name])
    and array.block[1] > 1
    and array.nbytes > BLOCK_BYTES
  ]


def _by_layer(array: LazyArray, spool: Path) -> LazyArray:
  """The array, copied to a file in which each layer is contiguous."""
  axes = (1, 0, *range(2, len(array.shape)))
  path = spool / f'{len(list(spool.iterdir()))}.safetensors'
  safetensors_files.write_file(path, {'layers': array.transposed(axes)})
  return safetensors_files.open_file(path)['layers'].transposed(axes)
