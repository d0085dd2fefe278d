"""Mines sentence pairs that are likely translations, from vectors.

    by_margin     sentence vectors: the ratio margin of Artetxe and Schwenk,
                  equation 5 of UScore (Belouadi and Eger 2023, section 3.2),
                  cosines in both directions
    by_distance   word vectors: the nearest by centroid, and among them the
                  exact word mover's distance (section 3.1)

Every sentence is in at most one pair; the best pairs come first. Not here:
texts and encoders (`crosslingual/corpus.py`), filters
(`crosslingual/filters.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from t5score_jax.crosslingual import neighbours, transport

#: Neighbours for the ratio margin (k = 5) and word mover's mining (k = 20).
MARGIN_NEIGHBOURS, DISTANCE_NEIGHBOURS = 5, 20

# Called with the number of source sentences done and their total.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Pairs:
  """P pairs of sentences, the best first.

  Attributes:
    sources: Int [P], indices of source sentences.
    targets: Int [P], indices of target sentences.
    scores: Float32 [P], larger is better.
  """

  sources: np.ndarray
  targets: np.ndarray
  scores: np.ndarray

  def __len__(self) -> int:
    return len(self.scores)

  def first(self, count: int) -> Pairs:
    """The best `count` pairs."""
    return Pairs(
      self.sources[:count], self.targets[:count], self.scores[:count]
    )

  def take(self, rows: Sequence[int]) -> Pairs:
    """The pairs of these rows."""
    index = np.asarray(rows, np.int64)
    return Pairs(self.sources[index], self.targets[index], self.scores[index])


def no_pairs() -> Pairs:
  """The result if there is nothing to compare."""
  none = np.zeros(0, np.int64)
  return Pairs(none, none, np.zeros(0, np.float32))


def by_margin(
  sources: np.ndarray,
  targets: np.ndarray,
  k: int = MARGIN_NEIGHBOURS,
  backend: str = 'auto',
) -> Pairs:
  """Pairs by the ratio margin.

      margin(x, y) = cos(x, y) / (sum_{z in N_x} cos(x, z) / 2k
                                  + sum_{z in N_y} cos(y, z) / 2k)

  N_x are the k nearest targets of a source x, N_y the k nearest sources of a
  target y. Candidates are the neighbours in both directions.

  Args:
    sources: Unit vectors, float32 [n, width].
    targets: Unit vectors, float32 [m, width].
    k: Number of neighbours; with fewer sentences, all of them.
    backend: See `neighbours.nearest`.
  """
  return pairs_of_neighbours(
    *neighbours.nearest(sources, targets, k, backend),
    *neighbours.nearest(targets, sources, k, backend),
  )


def pairs_of_neighbours(
  forward: np.ndarray,
  targets_of: np.ndarray,
  backward: np.ndarray,
  sources_of: np.ndarray,
) -> Pairs:
  """Pairs by the ratio margin, given the neighbours in both directions.

  Args:
    forward: Cosines of each source's nearest targets, float32 [n, k].
    targets_of: These targets, int [n, k].
    backward: Cosines of each target's nearest sources, float32 [m, k].
    sources_of: These sources, int [m, k].
  """
  if not (forward.size and backward.size):
    return no_pairs()
  around_source, around_target = forward.mean(1), backward.mean(1)
  x = np.repeat(np.arange(len(forward)), forward.shape[1])
  y = np.repeat(np.arange(len(backward)), backward.shape[1])
  all_sources = np.concatenate([x, sources_of.ravel()])
  all_targets = np.concatenate([targets_of.ravel(), y])
  cosines = np.concatenate([forward.ravel(), backward.ravel()])
  margins = ratio_margin(
    cosines, around_source[all_sources], around_target[all_targets]
  )
  return one_to_one(all_sources, all_targets, margins)


def ratio_margin(
  cosines: np.ndarray, around_source: np.ndarray, around_target: np.ndarray
) -> np.ndarray:
  """Equation 5 from the mean cosines of both sentences' neighbours, [P].

  If the sum of these means is not positive, the ratio would reward
  dissimilarity; the margin is then -inf.
  """
  around = (around_source + around_target) / 2
  positive = around > 0
  with np.errstate(divide='ignore', invalid='ignore'):
    return np.where(positive, cosines / around, -np.inf).astype(np.float32)


def by_distance(
  source_words: Sequence[np.ndarray],
  target_words: Sequence[np.ndarray],
  k: int = DISTANCE_NEIGHBOURS,
  backend: str = 'auto',
  progress: Progress | None = None,
) -> Pairs:
  """Pairs by the word mover's distance; scores are 1 - distance.

  Args:
    source_words: The unit vectors of each source sentence's words, [n_i,
      width], mapped if the source is mapped.
    target_words: Likewise for target sentences.
    k: Number of targets, nearest by centroid, that are compared exactly.
    backend: See `neighbours.nearest`.
    progress: Called after every sentence.
  """
  if not (len(source_words) and len(target_words)):
    return no_pairs()
  x, y = (
    np.stack([transport.centroid(words) for words in side])
    for side in (source_words, target_words)
  )
  rows = nearest_centroids(x, y, k, backend)
  best = np.zeros(len(rows), np.int64)
  scores = np.zeros(len(rows), np.float32)
  for n, candidates in enumerate(rows):
    words = source_words[n]
    best[n], distance = nearest_exactly(
      words, [(int(c), target_words[c]) for c in candidates]
    )
    scores[n] = 1.0 - distance
    if progress:
      progress(n + 1, len(rows))
  return one_to_one(np.arange(len(best)), best, scores)


def nearest_centroids(
  sources: np.ndarray, targets: np.ndarray, k: int, backend: str = 'auto'
) -> np.ndarray:
  """The k targets with the nearest centroids, int [n, k], nearest first.

  Args:
    sources: Centroids, float [n, width].
    targets: Centroids, float [m, width].
    k: Number of targets.
    backend: See `neighbours.nearest`.
  """
  # |x - y|^2 = |x|^2 - 2 (x y - |y|^2 / 2): with one more dimension, the
  # largest dot products give the smallest distances.
  ones = np.ones((len(sources), 1))
  half = -0.5 * np.sum(targets**2, 1, keepdims=True)
  x = np.concatenate([sources, ones], 1).astype(np.float32)
  y = np.concatenate([targets, half], 1).astype(np.float32)
  return neighbours.nearest(x, y, k, backend)[1]


def nearest_exactly(
  words: np.ndarray, candidates: Sequence[tuple[int, np.ndarray]]
) -> tuple[int, float]:
  """The candidate with the smallest word mover's distance, and the distance.

  Candidates whose relaxed distance is not below the best exact one are skipped
  (prefetch and prune, Kusner et al. 2015, section 4.3).

  Args:
    words: Unit vectors of the sentence's words, [n, width].
    candidates: At least one index with its words' vectors.
  """
  sizes = [len(vectors) for _, vectors in candidates]
  if not (len(words) and all(sizes)):
    costs = [transport.cost(words, vectors) for _, vectors in candidates]
    bounds = np.array([transport.relaxed(one) for one in costs])
  else:
    # One product for all candidates, split at the ends of their words.
    all_costs = transport.cost(
      words, np.concatenate([vectors for _, vectors in candidates])
    )
    ends = np.cumsum(sizes)
    costs = np.split(all_costs, ends[:-1], axis=1)
    bounds = transport.relaxed_many(all_costs, ends)
  best, least = -1, np.inf
  for n in np.argsort(bounds, kind='stable'):
    if bounds[n] >= least:
      break
    distance = transport.exact(costs[n])
    if distance < least:
      best, least = candidates[n][0], distance
  return best, float(least)


def one_to_one(
  sources: np.ndarray, targets: np.ndarray, scores: np.ndarray
) -> Pairs:
  """Keeps each sentence's best pair, from the best pair downwards."""
  # Ties are in corpus order, so results do not depend on blocks.
  order = np.lexsort((targets, sources, -scores))
  kept: list[int] = []
  used_sources: set[int] = set()
  used_targets: set[int] = set()
  for n in order:
    source, target = int(sources[n]), int(targets[n])
    if source in used_sources or target in used_targets:
      continue
    if not np.isfinite(scores[n]):
      continue
    used_sources.add(source)
    used_targets.add(target)
    kept.append(int(n))
  return Pairs(sources, targets, scores).take(kept)
