"""Mined pairs against brute force over all pairs, in NumPy."""

import numpy as np
import pytest

from t5score_jax.crosslingual import mining, transport


def _unit(*shape, seed):
  vectors = np.random.default_rng(seed).normal(size=shape)
  return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _greedy(scores):
  """One-to-one pairs from a matrix of scores, the best first."""
  scores = scores.copy()
  while np.isfinite(scores).any():
    x, y = np.unravel_index(np.argmax(scores), scores.shape)
    yield int(x), int(y), scores[x, y]
    scores[x], scores[:, y] = -np.inf, -np.inf


def _margins(x, y, k):
  """Equation 5 for all pairs."""
  cosines = x @ y.T
  near_x = np.sort(cosines, 1)[:, -k:].sum(1) / (2 * k)
  near_y = np.sort(cosines, 0)[-k:].sum(0) / (2 * k)
  return cosines / (near_x[:, None] + near_y[None])


@pytest.mark.parametrize('backend', ['faiss', 'jax'])
def test_margins_are_equation_5(backend):
  x = _unit(12, 6, seed=0)
  y = _unit(9, 6, seed=1)
  y[:5] = _unit(5, 6, seed=2) * 0.2 + x[[3, 8, 0, 11, 5]]
  y /= np.linalg.norm(y, axis=1, keepdims=True)
  # With all as neighbours, every pair is a candidate.
  for k in (3, 12):
    found = mining.by_margin(x.astype('f'), y.astype('f'), k, backend)
    margins = _margins(x, y, min(k, 9)) if k == 3 else None
    if margins is None:
      cosines = x @ y.T
      around = (cosines.mean(1)[:, None] + cosines.mean(0)[None]) / 2
      margins = np.where(around > 0, cosines / around, -np.inf)
    for source, target, score in zip(
      found.sources, found.targets, found.scores, strict=True
    ):
      assert score == pytest.approx(margins[source, target], rel=1e-4)
  assert len(set(found.targets)) == len(found)
  assert len(set(found.sources)) == len(found)
  expected = list(_greedy(margins))
  assert [*zip(found.sources, found.targets, strict=True)] == [
    (x, y) for x, y, _ in expected
  ]


def test_translations_are_found_in_any_order():
  x = _unit(40, 16, seed=0)
  order = np.random.default_rng(1).permutation(40)
  y = x[order] + 0.05 * _unit(40, 16, seed=2)
  found = mining.by_margin(x.astype('f'), y.astype('f'))
  assert len(found) == 40
  assert (found.sources == order[found.targets]).all()
  assert (np.diff(found.scores) <= 0).all()


def _sentences(count, seed):
  generator = np.random.default_rng(seed)
  return [
    _unit(size, 6, seed=seed + n)
    for n, size in enumerate(generator.integers(1, 6, count))
  ]


def test_distances_are_the_least_of_all():
  x, y = _sentences(8, 0), _sentences(7, 100)
  distances = np.array(
    [[transport.exact(transport.cost(a, b)) for b in y] for a in x]
  )
  found = mining.by_distance(x, y, k=7)
  nearest = distances.argmin(1)
  for source, target, score in zip(
    found.sources, found.targets, found.scores, strict=True
  ):
    assert target == nearest[source]
    assert score == pytest.approx(1 - distances[source, target], abs=1e-6)
  # Of the sentences with one nearest target, the closest has it.
  assert set(found.targets) == set(nearest)


def test_candidates_are_the_nearest_centroids():
  x, y = _sentences(8, 0), _sentences(7, 100)
  means = [np.array([v.mean(0) for v in side]) for side in (x, y)]
  squares = ((means[0][:, None] - means[1][None]) ** 2).sum(-1)
  found = mining.nearest_centroids(*means, 3)
  np.testing.assert_array_equal(found, np.argsort(squares, 1)[:, :3])


def test_nothing_in_common_gives_nothing():
  vectors = _unit(3, 6, seed=0).astype('f')
  for x, y in ((vectors[:0], vectors), (vectors, vectors[:0])):
    assert len(mining.by_margin(x, y)) == 0
    assert len(mining.by_distance(list(x[:, None]), list(y[:, None]))) == 0
  # Opposite vectors: the margin would be positive, the cosine is not.
  assert len(mining.by_margin(vectors[:1], -vectors[:1])) == 0
