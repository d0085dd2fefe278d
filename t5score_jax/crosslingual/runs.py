"""Mines two corpora in a folder: encode, search, pair. Each step resumes.

Not here: the command line (`commands/mine.py`), arithmetic on arrays
(`crosslingual/mining.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.crosslingual import (
  corpus,
  filters,
  mining,
  neighbours,
  remap,
)
from t5score_jax.inference import encoding

# Called with a step's name, the number of sentences done and their total.
Progress = Callable[[str, int, int], None]


def _step(
  progress: Progress | None, name: str
) -> Callable[[int, int], None] | None:
  if progress is None:
    return None
  return lambda done, total: progress(name, done, total)


def by_margin(
  folder: Path,
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: encoding.TextEncoder,
  k: int = mining.MARGIN_NEIGHBOURS,
  backend: str = 'auto',
  progress: Progress | None = None,
) -> mining.Pairs:
  """Mines pairs by the ratio margin of sentence vectors.

  Args:
    folder: An existing folder of this run alone; existing files are reused.
    sources: Sentences of the source language.
    targets: Sentences of the target language.
    encoder: Gives the states; of several layers, the last one counts.
    k: Number of neighbours.
    backend: See `neighbours.nearest`.
    progress: Called from time to time.
  """
  if not (len(sources) and len(targets)):
    return mining.no_pairs()
  sides = [
    corpus.SentenceVectors(
      folder, name, texts, encoder, _step(progress, f'encode {name}s')
    )
    for name, texts in (('source', sources), ('target', targets))
  ]
  found: list[np.ndarray] = []
  for name, queries, base in (
    ('source', sides[0], sides[1]),
    ('target', sides[1], sides[0]),
  ):
    parts = []
    for start, vectors in queries.shards():
      path = folder / f'{name}-neighbours-{start:09d}.npz'
      if not path.is_file():
        values, rows = neighbours.nearest_in_shards(
          vectors, base.shards(), k, backend
        )
        corpus.save(path, values=values, rows=rows)
      with np.load(path) as saved:
        parts.append((saved['values'], saved['rows']))
      if progress:
        progress(f'search for {name}s', start + len(vectors), len(queries))
    found += [np.concatenate(column) for column in zip(*parts, strict=True)]
  return mining.pairs_of_neighbours(*found)


def by_distance(
  folder: Path,
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: encoding.TextEncoder,
  k: int = mining.DISTANCE_NEIGHBOURS,
  chosen_map: remap.Map | None = None,
  backend: str = 'auto',
  progress: Progress | None = None,
) -> mining.Pairs:
  """Mines pairs by the word mover's distance.

  Args:
    folder: As for `by_margin`.
    sources: Likewise.
    targets: Likewise.
    encoder: Likewise.
    k: Number of targets, nearest by centroid, that are compared exactly.
    chosen_map: Applied to the source's words.
    backend: As for `by_margin`.
    progress: Likewise.
  """
  if not (len(sources) and len(targets)):
    return mining.no_pairs()
  x, y = (
    corpus.WordVectors(
      folder, name, texts, encoder, _step(progress, f'encode {name}s')
    )
    for name, texts in (('source', sources), ('target', targets))
  )
  # Vectors depend on the encoder, searches on the map.
  suffix = f'-{chosen_map.digest()}' if chosen_map else ''
  centroids = functools.cache(lambda: (x.centroids(chosen_map), y.centroids()))
  parts = []
  for rows in corpus.shards(len(x)):
    path = folder / f'distances{suffix}-{rows.start:09d}.npz'
    if not path.is_file():
      ours, theirs = centroids()
      candidates = mining.nearest_centroids(
        ours[rows.start : rows.stop], theirs, k, backend
      )
      best = np.zeros(len(rows), np.int64)
      scores = np.zeros(len(rows), np.float32)
      for n, row in enumerate(rows):
        vectors = x[row] if chosen_map is None else chosen_map(x[row])
        best[n], distance = mining.nearest_exactly(
          vectors, [(int(c), y[int(c)]) for c in candidates[n]]
        )
        scores[n] = 1.0 - distance
        if progress:
          progress('compare', row + 1, len(x))
      corpus.save(path, best=best, scores=scores)
    with np.load(path) as saved:
      parts.append((saved['best'], saved['scores']))
  best, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
  return mining.one_to_one(np.arange(len(best)), best, scores)


def without_copies(
  pairs: mining.Pairs,
  sources: Sequence[str],
  targets: Sequence[str],
  most_overlap: float,
) -> mining.Pairs:
  """Drops pairs whose texts overlap by more than `most_overlap`."""
  return pairs.take(
    filters.pairs(
      [sources[n] for n in pairs.sources],
      [targets[n] for n in pairs.targets],
      most_overlap,
    )
  )
