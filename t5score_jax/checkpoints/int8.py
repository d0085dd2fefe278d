"""Kernels and embeddings as int8 with a scale per output channel.

The form in which embedded models are stored: a quarter of float32. A matrix W
[rows, columns], whose rows are output channels, as in Hugging Face's layout, or
pieces of a vocabulary, is kept as q = round(W / s), int8, with s = max |W| /
127 of each row, float32, under the name of W and '.scale'. Vectors stay
float32. Reading gives float32 again, each value off by at most s / 2;
computation is not quantised. Not here: files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from t5score_jax.checkpoints.weights import CheckpointError, LazyArray, Weights

#: Ends the name of the scales of a matrix.
SCALE = '.scale'
_LARGEST = 127


def quantize(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Stores matrices as int8 with their scales, and all else as float32.

  Args:
    arrays: By name, finite.

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
    largest = np.abs(values).max(axis=1, initial=0.0, keepdims=True)
    scale = np.where(largest > 0, largest / _LARGEST, 1.0).astype(np.float32)
    # A scale that was rounded, or is denormal, may lead beyond the largest.
    quotients = np.clip(np.rint(values / scale), -_LARGEST, _LARGEST)
    stored[name] = quotients.astype(np.int8)
    stored[name + SCALE] = scale[:, 0]
  return stored


def dequantized(weights: Weights, where: str) -> dict[str, LazyArray]:
  """Arrays without scales, those that were quantised as float32.

  Args:
    weights: The arrays of a file; returned as they are where none is int8 with
      a scale.
    where: The file or folder, for messages.

  Raises:
    CheckpointError: Scales without a matrix of int8 that they fit.
  """
  found = dict(weights)
  for name in weights:
    matrix = name.removesuffix(SCALE)
    if name == matrix or matrix not in weights:
      continue
    array, scale = weights[matrix], found.pop(name)
    if array.dtype != np.int8 or array.shape[:1] != scale.shape:
      raise CheckpointError(
        f'{where}: {name} of shape {scale.shape} does not scale the rows of '
        f'{matrix}, {array.dtype} of shape {array.shape}'
      )
    found[matrix] = _product(array, scale)
  return found


def _product(array: LazyArray, scale: LazyArray) -> LazyArray:
  def fetch(index: tuple[slice, ...]) -> np.ndarray:
    factors = np.asarray(scale.read(index[:1]), np.float32)
    return array.read(index).astype(np.float32) * factors[:, None]

  return LazyArray(array.shape, np.dtype(np.float32), fetch, array.block)
