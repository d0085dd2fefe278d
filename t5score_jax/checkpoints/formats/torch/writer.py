"""Writes torch's zip files, for PyTorch programs to load.

The file is the one that `torch.save` would write for a dictionary of float32
tensors and plain settings: a pickle, and one entry per tensor. torch is not
needed, and `torch.load(weights_only=True)` reads the file. Not here: reading
(`formats/torch/reader.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import io
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from t5score_jax.data import files

_ROOT = 'archive'


def write_checkpoint(
  path: str | os.PathLike[str],
  tensors: Mapping[str, np.ndarray],
  settings: Mapping[str, Any],
) -> None:
  """Writes a checkpoint that PyTorch Lightning loads.

  Args:
    path: The file, which appears whole or not at all.
    tensors: Its 'state_dict', stored as float32.
    settings: Its 'hyper_parameters': text, numbers, None, lists of these.
  """
  content = {
    'epoch': 0,
    'global_step': 0,
    'pytorch-lightning_version': '2.0.0',
    'state_dict': {
      name: _Tensor(str(n), array.shape)
      for n, (name, array) in enumerate(tensors.items())
    },
    'hyper_parameters': dict(settings),
  }
  pickled = io.BytesIO()
  _Pickler(pickled, protocol=2).dump(content)
  with (
    files.write_atomically(path, 'wb') as out,
    # Uncompressed, as torch maps the entries into memory.
    zipfile.ZipFile(out, 'w', zipfile.ZIP_STORED, allowZip64=True) as archive,
  ):
    archive.writestr(f'{_ROOT}/data.pkl', pickled.getvalue())
    archive.writestr(f'{_ROOT}/byteorder', b'little')
    for n, array in enumerate(tensors.values()):
      with archive.open(f'{_ROOT}/data/{n}', 'w', force_zip64=True) as entry:
        entry.write(np.ascontiguousarray(array, '<f4').data)
    archive.writestr(f'{_ROOT}/version', b'3\n')


@dataclasses.dataclass(frozen=True)
class _Global:
  """A name that the reader of a pickle imports; here nothing is imported."""

  module: str
  name: str

  def __call__(self, *unused: Any) -> None:
    """Pickles store calls of callables only."""


@dataclasses.dataclass(frozen=True)
class _Storage:
  key: str
  size: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A contiguous tensor, which the reader builds from its storage."""

  key: str
  shape: tuple[int, ...]

  def __reduce__(self) -> tuple[Any, ...]:
    storage = _Storage(self.key, math.prod(self.shape))
    strides = tuple(
      math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))
    )
    hooks: Any = collections.OrderedDict()
    return (
      _Global('torch._utils', '_rebuild_tensor_v2'),
      (storage, 0, self.shape, strides, False, hooks),
    )


# The Python pickler: the C pickler only writes names that it can import.
class _Pickler(pickle._Pickler):
  """Writes names of torch's functions, whether or not torch is installed."""

  def persistent_id(self, obj: Any) -> Any:
    """The description of a storage, which is outside the pickle."""
    if isinstance(obj, _Storage):
      kind = _Global('torch', 'FloatStorage')
      return ('storage', kind, obj.key, 'cpu', obj.size)
    return None

  def save_name(self, obj: _Global) -> None:
    """Writes a name."""
    name = f'{obj.module}\n{obj.name}\n'.encode()
    self.write(pickle.GLOBAL + name)  # type: ignore[attr-defined]

  # Class -> the method that writes its instances.
  dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch, _Global: save_name}
