"""Writes torch's zip files, so that programs of PyTorch load what we made.

The file that `torch.save` would write for a dictionary of float32 tensors and
plain settings: a pickle of instructions, and one entry a tensor. torch is not
needed, and `torch.load(weights_only=True)` reads it. Not here: reading
(`torch_files.py`).
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.data import files

# The pickle instructions (protocol 2) that are needed, by their names in
# the library `pickletools`.
_PROTO, _STOP, _MARK, _TUPLE = b'\x80\x02', b'.', b'(', b't'
_EMPTY_DICT, _SETITEMS, _EMPTY_LIST, _APPENDS = b'}', b'u', b']', b'e'
_EMPTY_TUPLE, _REDUCE, _BINPERSID = b')', b'R', b'Q'
_NONE, _TRUE, _FALSE = b'N', b'\x88', b'\x89'
_ROOT = 'archive'


def write_checkpoint(
  path: str | os.PathLike[str],
  tensors: Mapping[str, np.ndarray],
  settings: Mapping[str, Any],
) -> None:
  """Writes what PyTorch Lightning loads as a checkpoint.

  Args:
    path: The file, which appears whole or not at all.
    tensors: Its 'state_dict', stored as float32.
    settings: Its 'hyper_parameters': text, numbers, None, lists of these.
  """
  arrays = list(tensors.values())
  state = {name: _Place(n) for n, name in enumerate(tensors)}
  content = {
    'epoch': 0,
    'global_step': 0,
    'pytorch-lightning_version': '2.0.0',
    'state_dict': state,
    'hyper_parameters': dict(settings),
  }
  pickled = _PROTO + _pickled(content, [a.shape for a in arrays]) + _STOP
  with (
    files.write_atomically(path, 'wb') as out,
    # Uncompressed, as torch maps the entries into memory.
    zipfile.ZipFile(out, 'w', zipfile.ZIP_STORED, allowZip64=True) as archive,
  ):
    archive.writestr(f'{_ROOT}/data.pkl', pickled)
    archive.writestr(f'{_ROOT}/byteorder', b'little')
    for n, array in enumerate(arrays):
      with archive.open(f'{_ROOT}/data/{n}', 'w', force_zip64=True) as entry:
        entry.write(np.ascontiguousarray(array, '<f4').data)
    archive.writestr(f'{_ROOT}/version', b'3\n')


class _Place:
  """The number of a tensor, where its description has to stand."""

  def __init__(self, number: int):
    self.number = number


def _pickled(value: Any, shapes: Sequence[tuple[int, ...]]) -> bytes:
  """Instructions that make a value."""
  if value is None:
    return _NONE
  if isinstance(value, bool):
    return _TRUE if value else _FALSE
  if isinstance(value, int):
    return _integer(value)
  if isinstance(value, float):
    return b'G' + struct.pack('>d', value)
  if isinstance(value, str):
    return _text(value)
  if isinstance(value, _Place):
    return _tensor(value.number, shapes[value.number])
  if isinstance(value, Mapping):
    items = b''.join(
      _text(key) + _pickled(item, shapes) for key, item in value.items()
    )
    return _EMPTY_DICT + _MARK + items + _SETITEMS
  if isinstance(value, Sequence):
    items = b''.join(_pickled(item, shapes) for item in value)
    return _EMPTY_LIST + _MARK + items + _APPENDS
  raise TypeError(f'a {type(value).__name__} cannot be stored: {value!r}')


def _integer(value: int) -> bytes:
  if -(2**31) <= value < 2**31:
    return b'J' + struct.pack('<i', value)
  size = value.bit_length() // 8 + 1
  return b'\x8a' + bytes([size]) + value.to_bytes(size, 'little', signed=True)


def _text(value: str) -> bytes:
  data = value.encode()
  return b'X' + struct.pack('<I', len(data)) + data


def _global(module: str, name: str) -> bytes:
  return f'c{module}\n{name}\n'.encode()


def _numbers(values: Sequence[int]) -> bytes:
  return _MARK + b''.join(_integer(int(n)) for n in values) + _TUPLE


def _tensor(number: int, shape: tuple[int, ...]) -> bytes:
  """A call that rebuilds a contiguous tensor from its storage."""
  strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
  storage = (
    _MARK
    + _text('storage')
    + _global('torch', 'FloatStorage')
    + _text(str(number))
    + _text('cpu')
    + _integer(math.prod(shape))
    + _TUPLE
    + _BINPERSID
  )
  hooks = _global('collections', 'OrderedDict') + _EMPTY_TUPLE + _REDUCE
  return (
    _global('torch._utils', '_rebuild_tensor_v2')
    + _MARK
    + storage
    + _integer(0)
    + _numbers(shape)
    + _numbers(strides)
    + _FALSE
    + hooks
    + _TUPLE
    + _REDUCE
  )
