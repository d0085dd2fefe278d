"""Stores kernels and embeddings as int8 with a scale per output channel.

Embedded models are stored in this form, which takes a quarter of float32's
space. The rows of a matrix W [rows, columns] are output channels, as in Hugging
Face's layout, or pieces of a vocabulary. W is stored as q = round(W / s), int8,
with s = max |W| / 127 of each row, float32 [rows], under the name of W and
'.scale'. In Flax's kernels the columns are output channels, and s is [1,
columns]. Vectors stay float32. Reading returns float32, with an error of at
most s / 2 per value; computation is not quantised. Not here: files.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from t5score_jax.checkpoints.weights import CheckpointError, LazyArray, Weights

#: Ends the name of the scales of a matrix.
SCALE = '.scale'
_LARGEST = 127


def quantize(
  arrays: Mapping[str, np.ndarray], columns: Container[str] = ()
) -> dict[str, np.ndarray]:
  """Stores matrices as int8 with their scales, and all else as float32.

  Args:
    arrays: By name, finite.
    columns: The matrices whose columns are output channels.

  Raises:
    CheckpointError: A value is not finite.
  """
  stored = {}
  for name, array in arrays.items():
    values = np.asarray(array, np.float32)
    if not np.isfinite(values).all():
      raise CheckpointError(f'{name}: a weight is not finite')
    if values.ndim != 2:
      stored[name] = values
      continue
    axis = 0 if name in columns else 1
    largest = np.abs(values).max(axis=axis, initial=0.0, keepdims=True)
    scale = np.where(largest > 0, largest / _LARGEST, 1.0).astype(np.float32)
    # With a rounded or denormal scale, values may exceed the maximum.
    quotients = np.clip(np.rint(values / scale), -_LARGEST, _LARGEST)
    stored[name] = quotients.astype(np.int8)
    stored[name + SCALE] = scale if axis == 0 else scale[:, 0]
  return stored


def dequantized(weights: Weights, where: str) -> dict[str, LazyArray]:
  """Arrays without scales; those that were quantised become float32.

  Args:
    weights: The arrays of a file; returned unchanged if none is int8 with a
      scale.
    where: The file or folder, for messages.

  Raises:
    CheckpointError: Scales without a matching int8 matrix.
  """
  found = dict(weights)
  for name in weights:
    matrix = name.removesuffix(SCALE)
    if name == matrix or matrix not in weights:
      continue
    array, scale = weights[matrix], found.pop(name)
    shapes = array.shape[:1], (1, *array.shape[1:])
    if array.dtype != np.int8 or scale.shape not in shapes:
      raise CheckpointError(
        f'{where}: {name} of shape {scale.shape} does not scale the rows or '
        f'columns of {matrix}, {array.dtype} of shape {array.shape}'
      )
    found[matrix] = _product(array, scale)
  return found


def _product(array: LazyArray, scale: LazyArray) -> LazyArray:
  def fetch(index: tuple[slice, ...]) -> np.ndarray:
    columns = len(scale.shape) > 1
    part = (slice(0, 1), *index[1:]) if columns else index[:1]
    factors = np.asarray(scale.read(part), np.float32)
    if not columns:
      factors = factors[:, None]
    return array.read(index).astype(np.float32) * factors

  return LazyArray(array.shape, np.dtype(np.float32), fetch, array.block)
