"""Linear maps from the vectors of one language into the space of another.

Multilingual encoders place translations close together, but not at the same
point. Two kinds of linear maps are estimated from word pairs that are likely
translations of each other, and applied to the source side (Zhao et al. 2020;
Belouadi and Eger 2023, section 3.1):

    CLP   the rotation that brings sources to targets: orthogonal Procrustes,
          W = U V^T of the singular value decomposition X^T Y = U S V^T
    UMD   removes the direction in which the languages differ most: the first
          right-singular vector v of X - Y; x - (x v) v

Vectors have unit length before and after the map. A map is a small file that
records its encoder, layer and languages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from t5score_jax.crosslingual import words
from t5score_jax.data import files
from t5score_jax.errors import InputError, OptionError

METHODS = ('umd', 'clp')
_FORMAT = 't5score-remap-1'
_DAMAGED = (safetensors.SafetensorError, ValueError, KeyError, TypeError)


class RemapError(InputError):
  """A file holds no map or a map for another encoder."""


@dataclasses.dataclass(frozen=True)
class Map:
  """A linear map of unit vectors.

  Attributes:
    method: 'umd' or 'clp'.
    weights: Float32: the removed direction [width] of UMD, the rotation
      [width, width] of CLP.
    encoder: The encoder's name.
    checkpoint: Digest of the encoder's weights; see
      `checkpoints/bundle.py:checkpoint_hash`.
    layer: The hidden states that it maps.
    source: The language that is mapped, for example 'de'; '' if not stated.
    target: The language that it is mapped to.
    pairs: Number of word pairs that it was estimated from.
    rounds: Number of rounds of mining and estimation.
  """

  method: str
  weights: np.ndarray
  encoder: str = ''
  checkpoint: str = ''
  layer: int = -1
  source: str = ''
  target: str = ''
  pairs: int = 0
  rounds: int = 1

  def __call__(self, vectors: np.ndarray) -> np.ndarray:
    """Maps unit vectors [..., width] to unit vectors of the same shape."""
    if self.method == 'clp':
      return words.unit(vectors @ self.weights)
    along = vectors @ self.weights
    return words.unit(vectors - along[..., None] * self.weights)

  def digest(self) -> str:
    """Twelve hexadecimal digits that identify the map, for signatures."""
    weights = np.ascontiguousarray(self.weights, '<f4')
    return hashlib.sha256(self.method.encode() + weights.tobytes()).hexdigest()[
      :12
    ]


def estimate(
  sources: np.ndarray, targets: np.ndarray, method: str, **about: Any
) -> Map:
  """Estimates a map from pairs of word vectors.

  Args:
    sources: Unit vectors, float [pairs, width].
    targets: Unit vectors of their translations, float [pairs, width].
    method: 'umd' or 'clp'.
    **about: The other attributes of `Map`.

  Raises:
    OptionError: The method is unknown.
    RemapError: There are no pairs.
  """
  if method not in METHODS:
    raise OptionError(f'method {method!r}: use one of {", ".join(METHODS)}')
  if not len(sources):
    raise RemapError('no word pairs: nothing to estimate a map from')
  x, y = sources.astype(np.float64), targets.astype(np.float64)
  if method == 'clp':
    left, _, right = np.linalg.svd(x.T @ y)
    weights = left @ right
  else:
    # The eigenvector of the largest eigenvalue: [width, width], not [pairs].
    difference = x - y
    _, vectors = np.linalg.eigh(difference.T @ difference)
    weights = vectors[:, -1]
    # Its sign is arbitrary, and the map does not depend on it; files should
    # not either.
    weights = weights * np.sign(weights[np.argmax(np.abs(weights))])
  return Map(method, weights.astype(np.float32), pairs=len(x), **about)


def save(chosen: Map, path: str | os.PathLike[str]) -> None:
  """Writes a map atomically."""
  about = dataclasses.asdict(chosen)
  weights = np.ascontiguousarray(about.pop('weights'), np.float32)
  data = safetensors.numpy.save(
    {'weights': weights}, {'format': _FORMAT, 'map': json.dumps(about)}
  )
  with files.write_atomically(Path(path), 'wb') as out:
    out.write(data)


def load(path: str | os.PathLike[str]) -> Map:
  """Reads a map.

  Raises:
    FileNotFoundError: There is no such file.
    RemapError: The file is damaged or holds no map.
  """
  if not Path(path).is_file():
    raise FileNotFoundError(
      f'no map {os.fspath(path)!r}: there is no such file'
    )
  try:
    with safetensors.safe_open(path, 'numpy') as found:
      about = found.metadata() or {}
      if about.get('format') != _FORMAT:
        raise ValueError(f'its format is not {_FORMAT}')
      return _checked(json.loads(about['map']), found.get_tensor('weights'))
  except (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
  ) as error:
    raise RemapError(
      f'{os.fspath(path)}: not a map, as `t5score remap` writes them ({error})'
    ) from error


def _checked(about: Mapping[str, Any], weights: np.ndarray) -> Map:
  found = Map(weights=weights, **about)
  if found.method not in METHODS:
    raise ValueError(f'method {found.method!r}')
  width = weights.shape[-1]
  expected = (width, width) if found.method == 'clp' else (width,)
  if weights.shape != expected:
    raise ValueError(f'{found.method} with weights of shape {weights.shape}')
  return found


def check(
  chosen: Map, checkpoint: str, layer: int, where: str | os.PathLike[str]
) -> None:
  """Checks that a map is for this encoder and layer.

  Raises:
    RemapError: It is for another one.
  """
  if chosen.checkpoint and chosen.checkpoint != checkpoint:
    raise RemapError(
      f'{os.fspath(where)}: estimated for the encoder {chosen.encoder} with '
      f'weights {chosen.checkpoint}, not for {checkpoint}; estimate a map for '
      'this encoder with `t5score remap`'
    )
  if chosen.layer != layer:
    raise RemapError(
      f'{os.fspath(where)}: maps layer {chosen.layer}, not layer {layer}'
    )
