"""Reads torch's checkpoint files (`pytorch_model.bin`) without executing them.

Such a file holds a pickle, and unpickling calls the functions that the pickle
names. Here only the few functions that rebuild tensors are allowed, and they
are replaced by this module's; any other is refused, with an error that names
it. Arrays are read lazily, from zip entries (torch since 1.6) or from a plain
sequence of storages (before). torch is not needed. Not here: safetensors
(`formats/safetensors_files.py`), and writing (`formats/torch/writer.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from t5score_jax.checkpoints.weights import (
  CheckpointError,
  LazyArray,
  Shape,
  open_shards,
)

#: torch's names of storages, and the dtypes of their elements.
_STORAGES = {
  'DoubleStorage': np.dtype('<f8'),
  'FloatStorage': np.dtype('<f4'),
  'HalfStorage': np.dtype('<f2'),
  'BFloat16Storage': np.dtype(ml_dtypes.bfloat16),
  'LongStorage': np.dtype('<i8'),
  'IntStorage': np.dtype('<i4'),
  'ShortStorage': np.dtype('<i2'),
  'CharStorage': np.dtype('i1'),
  'ByteStorage': np.dtype('u1'),
  'BoolStorage': np.dtype('?'),
}
# The numbers at the start of the format before zip files.
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
# Bytes of a pickle without the weights; a model of 10,000 arrays takes 2 MB.
_MAX_PICKLE = 256 << 20
# The maximum excess of a memoised object's number over the number of objects:
# pickles number them consecutively, but rewritten pickles have gaps.
_MEMO_GAP = 1 << 16
_ADVICE = (
  'it is not read, as it could run any program; save the model as '
  'safetensors where you trust it'
)


@dataclasses.dataclass(frozen=True)
class _Storage:
  """A sequence of elements in a file, under the file's name for it."""

  key: str
  dtype: np.dtype
  size: int

  @property
  def nbytes(self) -> int:
    """Its size in bytes."""
    return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A view of a storage; start and strides in elements."""

  storage: _Storage
  start: int
  shape: Shape
  strides: Shape


class _Rebuild:
  """Replaces torch's functions that build tensors; keeps no state.

  It has no attributes that a pickle could set.
  """

  __slots__ = ()


class _RebuildTensor(_Rebuild):
  __slots__ = ()

  def __call__(
    self, storage: Any, start: Any, shape: Any, strides: Any, *unused: Any
  ) -> _Tensor:
    del unused  # requires_grad, backward hooks, metadata
    numbers = (start, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(
      isinstance(number, int) and number >= 0 for number in numbers
    ):
      raise ValueError('a tensor is not described by numbers')
    last = start + sum(
      (n - 1) * step for n, step in zip(shape, strides, strict=True)
    )
    if math.prod(shape) and last >= storage.size:
      raise ValueError(
        f'a tensor of shape {tuple(shape)} reaches beyond its storage'
      )
    return _Tensor(storage, start, tuple(shape), tuple(strides))


class _RebuildParameter(_Rebuild):
  __slots__ = ()

  def __call__(self, tensor: Any, *unused: Any) -> _Tensor:
    del unused  # requires_grad, backward hooks
    if not isinstance(tensor, _Tensor):
      raise ValueError('a parameter is not made of a tensor')
    return tensor


_ALLOWED: Mapping[tuple[str, str], Any] = {
  ('collections', 'OrderedDict'): collections.OrderedDict,
  ('torch._utils', '_rebuild_tensor_v2'): _RebuildTensor(),
  ('torch._utils', '_rebuild_parameter'): _RebuildParameter(),
  # Strings, with which a pickle can do no harm.
  **{('torch', name): name for name in _STORAGES},
}


class _Inert:
  """Replaces anything else that a training program pickled; does nothing."""

  __slots__ = ()

  def __new__(cls, *unused: Any, **also_unused: Any) -> _Inert:
    del unused, also_unused
    return super().__new__(cls)

  def __call__(self, *unused: Any, **also_unused: Any) -> _Inert:
    return self

  def _ignore(self, *unused: Any) -> None:
    del unused

  # What an unpickler does to the objects that it creates.
  __setstate__ = __setitem__ = append = extend = add = update = _ignore


class _Unpickler(pickle.Unpickler):
  """Resolves only the names above.

  Attributes:
    storages: The storages that the pickle mentions, by their keys.
  """

  def __init__(self, stream: Any, inert: bool = False):
    super().__init__(stream)
    self.storages: dict[str, _Storage] = {}
    self._inert = inert

  def find_class(self, module: str, name: str) -> Any:
    """Our own object for a permitted name."""
    try:
      return _ALLOWED[module, name]
    except KeyError:
      if self._inert:
        return _Inert
      raise CheckpointError(
        f'its pickle asks for {module}.{name}, which no weights need: {_ADVICE}'
      ) from None

  def persistent_load(self, pid: Any) -> _Storage:
    """The description of a storage, without its content."""
    # ('storage', class, key, device, elements[, view of another one])
    kind, storage, key, _, size, *view = pid
    if kind != 'storage' or storage not in _STORAGES or any(view):
      raise ValueError(f'an unknown kind of storage: {pid!r}')
    if not isinstance(key, str) or not isinstance(size, int) or size < 0:
      raise ValueError(f'a storage without name or size: {pid!r}')
    made = _Storage(key, _STORAGES[storage], size)
    if self.storages.setdefault(key, made) != made:
      raise ValueError(f'two storages of the name {key}')
    return made


def _unpickler(stream: BinaryIO, inert: bool = False) -> _Unpickler:
  """Checks the pickle at a position of a stream; returns its unpickler.

  An unpickler allocates room for memoised objects up to the largest number in
  the pickle: ten bytes could take gigabytes.
  """
  start = stream.tell()
  memoised = 0
  for opcode, number, _ in pickletools.genops(stream):
    if 'PUT' in opcode.name or opcode.name == 'MEMOIZE':
      if isinstance(number, int) and number > memoised + _MEMO_GAP:
        raise ValueError(f'it numbers an object {number:,}')
      memoised += 1
  stream.seek(start)
  return _Unpickler(stream, inert)


def open_folder(
  folder: Path, stem: str = 'pytorch_model'
) -> dict[str, LazyArray]:
  """Opens STEM.bin, or the shards that STEM.bin.index.json names.

  Args:
    folder: Their folder.
    stem: The file's name before '.bin'.

  Returns:
    Arrays by name. Names of one file for the same elements, such as those
    of tied weights, share one object.

  Raises:
    CheckpointError: A file is missing, damaged, in another format, or would
      execute something.
  """
  return open_shards(folder / f'{stem}.bin', open_file)


def open_file(path: Path) -> dict[str, LazyArray]:
  """Opens one file; see `open_folder`."""
  return _arrays(path, *_load(path))


def open_checkpoint(path: Path) -> tuple[dict[str, LazyArray], dict[str, Any]]:
  """Opens a checkpoint of PyTorch Lightning.

  Other entries are ignored; objects in them become inert placeholders.

  Returns:
    The tensors of its `state_dict`, and the plain values (text, numbers, None,
    lists of these) of its `hyper_parameters`, if there are any.

  Raises:
    CheckpointError: The file is missing, damaged or of another format.
  """
  found, offsets = _load(path, inert=True)
  weights = found.get('state_dict') if isinstance(found, dict) else None
  if not isinstance(weights, dict):
    raise CheckpointError(f"{path}: holds no weights under 'state_dict'")
  tensors = {n: t for n, t in weights.items() if isinstance(t, _Tensor)}
  settings = found.get('hyper_parameters')
  return _arrays(path, tensors, offsets), {
    name: value
    for name, value in (settings if isinstance(settings, dict) else {}).items()
    if _is_plain(value)
  }


def _is_plain(value: Any) -> bool:
  if isinstance(value, list | tuple):
    return all(map(_is_plain, value))
  return value is None or isinstance(value, str | bool | int | float)


def _load(path: Path, inert: bool = False) -> tuple[Any, dict[str, int]]:
  """The object in a file, and the byte offset of each storage."""
  if not path.is_file():
    raise CheckpointError(f'{path}: no such file: the folder is incomplete')
  try:
    with open(path, 'rb') as stream:
      zipped = zipfile.is_zipfile(stream)
      stream.seek(0)
      return (_read_zip if zipped else _read_sequence)(stream, inert)
  except CheckpointError as error:
    raise CheckpointError(f'{path}: {error}') from error
  # Unpickling damaged bytes raises almost anything.
  except Exception as error:
    raise CheckpointError(
      f'{path}: not a whole file of torch weights ({error!r}): copy or '
      'download it again'
    ) from error


def _read_zip(stream: BinaryIO, inert: bool) -> tuple[Any, dict[str, int]]:
  with zipfile.ZipFile(stream) as archive:
    entries = {info.filename: info for info in archive.infolist()}
    (pickled,) = (n for n in entries if n.endswith('/data.pkl'))
    root = pickled.removesuffix('data.pkl')
    for name in (pickled, f'{root}byteorder'):
      if name in entries:
        _check_size(entries[name])
    if f'{root}byteorder' in entries:
      _check_order(archive.read(f'{root}byteorder') == b'little')
    unpickler = _unpickler(io.BytesIO(archive.read(pickled)), inert)
    found = unpickler.load()
  offsets = {}
  for key, storage in unpickler.storages.items():
    entry = entries[f'{root}data/{key}']
    _check_stored(entry)
    if entry.file_size < storage.nbytes:
      raise ValueError(
        f'{entry.file_size} bytes in {entry.filename}, not {storage.nbytes}'
      )
    stream.seek(entry.header_offset)
    header = stream.read(30)
    if header[:4] != b'PK\x03\x04':
      raise ValueError(f'no zip entry at byte {entry.header_offset}')
    # The lengths of its name and of the padding after it.
    lengths = struct.unpack('<HH', header[26:30])
    offsets[key] = entry.header_offset + 30 + sum(lengths)
  return found, offsets


def _read_sequence(stream: BinaryIO, inert: bool) -> tuple[Any, dict[str, int]]:
  """Reads a file of torch before 1.6: pickles, then storages."""
  if stream.peek(1)[:1] != b'\x80' or _unpickler(stream).load() != _MAGIC:  # type: ignore[attr-defined]
    raise CheckpointError('not a file that torch wrote')
  if (protocol := _unpickler(stream).load()) != _PROTOCOL:
    raise CheckpointError(f'of version {protocol!r} of the format, not 1001')
  _check_order(_unpickler(stream).load()['little_endian'])
  unpickler = _unpickler(stream, inert)
  found = unpickler.load()
  keys = _unpickler(stream).load()
  offsets = {}
  for key in keys:
    storage = unpickler.storages[key]
    count = int.from_bytes(stream.read(8), 'little')
    if count != storage.size:
      raise ValueError(f'{count} elements in {key}, not {storage.size}')
    offsets[key] = stream.tell()
    stream.seek(storage.nbytes, 1)
  end = stream.tell()
  if stream.seek(0, 2) < end:
    raise ValueError(f'it ends before byte {end}')
  return found, offsets


def _check_stored(entry: zipfile.ZipInfo) -> None:
  """Refuses compressed entries: a small file could fill the memory."""
  if entry.compress_type != zipfile.ZIP_STORED:
    raise CheckpointError(
      f'its part {entry.filename} is compressed; torch compresses none'
    )


def _check_size(entry: zipfile.ZipInfo) -> None:
  """Refuses parts that are read whole if they are unexpectedly large."""
  _check_stored(entry)
  if entry.file_size > _MAX_PICKLE:
    raise CheckpointError(
      f'its part {entry.filename} has {entry.file_size:,} bytes, more than '
      f'the {_MAX_PICKLE:,} that the names and shapes of weights may take'
    )


def _check_order(little: Any) -> None:
  if not little:
    raise CheckpointError('its numbers are big-endian; only little-endian is')


def _arrays(
  path: Path, found: Any, offsets: Mapping[str, int]
) -> dict[str, LazyArray]:
  """Lazy arrays of a dictionary of tensors."""
  if not isinstance(found, dict):
    raise CheckpointError(
      f'{path}: holds a {type(found).__name__}, not weights by name'
    )
  made: dict[_Tensor, LazyArray] = {}
  arrays = {}
  for name, tensor in found.items():
    if not isinstance(name, str) or not isinstance(tensor, _Tensor):
      raise CheckpointError(
        f'{path}: its entry {name!r} is a {type(tensor).__name__}, not '
        'weights: save the state_dict of the model alone'
      )
    if tensor not in made:
      storage = tensor.storage
      made[tensor] = LazyArray.mapped(
        path,
        storage.dtype,
        offsets[storage.key] + tensor.start * storage.dtype.itemsize,
        tensor.shape,
        tensor.strides,
      )
    arrays[name] = made[tensor]
  return arrays
