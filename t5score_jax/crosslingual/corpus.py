"""Monolingual corpora as vectors on disk, encoded shard by shard.

Shard files are written atomically, so an interrupted run resumes with the first
missing one. On disk, a sentence takes 4 bytes per dimension of its vector
(`SentenceVectors`), or 2 bytes per dimension of each of its words
(`WordVectors`). Memory holds one shard, and the mapped parts of the others.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5score_jax.crosslingual import words
from t5score_jax.data import files
from t5score_jax.data.subwords import Encoded
from t5score_jax.inference import encoding

#: Sentences per shard.
SHARD = 16384

# Called with the number of sentences encoded and their total.
Progress = Callable[[int, int], None]
Mapper = Callable[[np.ndarray], np.ndarray]


def shards(count: int) -> list[range]:
  """The sentences of each shard."""
  return [
    range(start, min(start + SHARD, count)) for start in range(0, count, SHARD)
  ]


def save(path: Path, **arrays: Any) -> None:
  """Writes named arrays to `path` atomically."""
  with files.write_atomically(path, 'wb') as out:
    np.savez(out, **arrays)


def sentence_vectors(
  encoder: encoding.TextEncoder, texts: Sequence[str]
) -> np.ndarray:
  """Unit vectors of sentences in memory, float32 [n, width].

  Args:
    encoder: Gives the states; of several layers, the last one counts.
    texts: At least one sentence.
  """
  found = [np.zeros(0)] * len(texts)
  for index, _, states in words.encode(encoder, texts):
    found[index] = _sentence_vector(states[-1])
  return np.array(found, np.float32)


def _sentence_vector(states: np.ndarray) -> np.ndarray:
  """The unit vector of a sentence, from states [tokens, width]."""
  return words.unit(states.mean(0))


class _Vectors:
  """A corpus whose vectors are in one file per shard.

  Args:
    folder: Where the shards are, or are written.
    name: The corpus, part of the files' names.
    texts: The sentences.
    encoder: Gives the states; of several layers, the last one counts.
    progress: Called after every sentence.
  """

  _KIND: ClassVar[str]

  def __init__(
    self,
    folder: Path,
    name: str,
    texts: Sequence[str],
    encoder: encoding.TextEncoder,
    progress: Progress | None = None,
  ):
    self._count = len(texts)
    self._paths = []
    for number, rows in enumerate(shards(len(texts))):
      path = folder / f'{name}-{self._KIND}-{number:05d}.npy'
      if not path.is_file():
        found = [np.zeros(0)] * len(rows)
        for done, (index, encoded, states) in enumerate(
          words.encode(encoder, texts[rows.start : rows.stop]), rows.start + 1
        ):
          found[index] = self._vector(encoded, states[-1])
          if progress:
            progress(done, len(texts))
        self._write(path, found)
      self._paths.append(path)

  def __len__(self) -> int:
    return self._count

  def _vector(self, encoded: Encoded, states: np.ndarray) -> np.ndarray:
    """Returns what is stored of a sentence's states, [tokens, width]."""
    raise NotImplementedError

  def _write(self, path: Path, found: list[np.ndarray]) -> None:
    """Writes a shard; `path` last."""
    raise NotImplementedError


class SentenceVectors(_Vectors):
  """Unit vectors of sentences: the means of their states.

  Arguments are those of `_Vectors`. Special tokens count, as in the mean
  pooling of sentence encoders.
  """

  _KIND = 'sentences'

  def shards(self) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each shard's first sentence and vectors, float32 [n, width]."""
    for rows, path in zip(shards(self._count), self._paths, strict=True):
      yield rows.start, np.load(path, mmap_mode='r')

  def _vector(self, encoded: Encoded, states: np.ndarray) -> np.ndarray:
    return _sentence_vector(states)

  def _write(self, path: Path, found: list[np.ndarray]) -> None:
    _save(path, np.array(found, np.float32))


class WordVectors(_Vectors, Sequence[np.ndarray]):
  """The unit vectors of the words of each sentence, read when needed.

  Arguments are those of `_Vectors`.
  """

  _KIND = 'words'

  def __init__(self, *args: Any, **options: Any):
    super().__init__(*args, **options)
    self._starts = [rows.start for rows in shards(self._count)]
    self._vectors = [np.load(path, mmap_mode='r') for path in self._paths]
    # Start and end of each sentence's words within its shard.
    self._ends = [
      np.concatenate([[0], np.cumsum(np.load(_counts_of(path)))])
      for path in self._paths
    ]

  def __getitem__(self, index):  # type: ignore[no-untyped-def]
    """The vectors of one sentence, float32 [words, width]."""
    if isinstance(index, slice):
      return [self[n] for n in range(*index.indices(self._count))]
    if not 0 <= index < self._count:
      raise IndexError(f'sentence {index} of {self._count}')
    shard = bisect.bisect_right(self._starts, index) - 1
    row = index - self._starts[shard]
    start, end = self._ends[shard][row : row + 2]
    return words.unit(self._vectors[shard][start:end].astype(np.float32))

  def centroids(self, mapper: Mapper | None = None) -> np.ndarray:
    """The mean of each sentence's (mapped) words, float32 [n, width]."""
    found = []
    for ends, vectors in zip(self._ends, self._vectors, strict=True):
      unit = words.unit(vectors.astype(np.float32))
      unit = unit if mapper is None else mapper(unit)
      counts = np.diff(ends)
      sums = np.zeros((len(counts), unit.shape[1]), np.float64)
      np.add.at(sums, np.repeat(np.arange(len(counts)), counts), unit)
      found.append(sums / np.maximum(counts, 1)[:, None])
    return np.concatenate(found).astype(np.float32)

  def _vector(self, encoded: Encoded, states: np.ndarray) -> np.ndarray:
    return words.vectors(encoded, states)

  def _write(self, path: Path, found: list[np.ndarray]) -> None:
    _save(_counts_of(path), np.array([len(vectors) for vectors in found]))
    _save(path, np.concatenate(found).astype(np.float16))


def _counts_of(path: Path) -> Path:
  """The file with the numbers of words of a shard's sentences."""
  return path.with_name(path.name.replace('-words-', '-counts-'))


def _save(path: Path, array: np.ndarray) -> None:
  with files.write_atomically(path, 'wb') as out:
    np.save(out, array)
