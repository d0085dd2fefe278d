"""torch's two file formats written by hand, so that tests need no torch."""

import io
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np

STORAGES = {
  np.dtype(np.float32): 'FloatStorage',
  np.dtype(np.float64): 'DoubleStorage',
  np.dtype(np.float16): 'HalfStorage',
  np.dtype(ml_dtypes.bfloat16): 'BFloat16Storage',
  np.dtype(np.int64): 'LongStorage',
}


def atom(value) -> bytes:
  """Opcodes that push a plain value."""
  return pickle.dumps(value, 2)[2:-1]


def name(module: str, attribute: str) -> bytes:
  """Opcodes that push what a name stands for."""
  return f'c{module}\n{attribute}\n'.encode()


EMPTY = name('collections', 'OrderedDict') + b')R'


def tensor(
  key: str, storage: np.ndarray, start=0, shape=None, strides=None
) -> bytes:
  """Opcodes that push a tensor: a view of a storage."""
  shape = storage.shape if shape is None else shape
  if strides is None:
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
  pid = (
    b'('
    + atom('storage')
    + name('torch', STORAGES[storage.dtype])
    + atom(key)
    + atom('cpu')
    + atom(storage.size)
    + b'tQ'
  )
  parts = (atom(start), atom(tuple(shape)), atom(tuple(strides)), atom(False))
  return (
    name('torch._utils', '_rebuild_tensor_v2')
    + b'('
    + pid
    + b''.join(parts)
    + EMPTY
    + b'tR'
  )


def dictionary(items: dict[str, bytes], state: bytes = b'') -> bytes:
  """A pickle of a dictionary whose values are opcodes."""
  body = b''.join(atom(key) + value for key, value in items.items())
  return b'\x80\x02' + EMPTY + b'(' + body + b'u' + state + b'.'


def zipped(
  pickled: bytes,
  storages: dict[str, np.ndarray],
  compression=zipfile.ZIP_STORED,
  byteorder=b'little',
) -> bytes:
  """The file that torch writes since 1.6."""
  made = io.BytesIO()
  with zipfile.ZipFile(made, 'w', compression) as archive:
    archive.writestr('archive/data.pkl', pickled)
    archive.writestr('archive/byteorder', byteorder)
    for key, storage in storages.items():
      archive.writestr(f'archive/data/{key}', storage.tobytes())
    archive.writestr('archive/version', b'3\n')
  return made.getvalue()


def sequence(pickled: bytes, storages: dict[str, np.ndarray]) -> bytes:
  """The file that torch wrote before."""
  system = {'protocol_version': 1001, 'little_endian': True, 'type_sizes': {}}
  parts = [0x1950A86A20F9469CFC6C, 1001, system]
  made = [pickle.dumps(part, 2) for part in parts]
  made += [pickled, pickle.dumps(sorted(storages), 2)]
  for key in sorted(storages):
    made.append(struct.pack('<q', storages[key].size))
    made.append(storages[key].tobytes())
  return b''.join(made)


def plain(arrays: dict[str, np.ndarray], form=zipped) -> bytes:
  """A file of arrays, each in a storage of its own."""
  keys = {array: str(i) for i, array in enumerate(arrays)}
  return form(
    dictionary({n: tensor(keys[n], array) for n, array in arrays.items()}),
    {keys[n]: array for n, array in arrays.items()},
  )
