"""Distances beside linear programmes, permutations and each other."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from t5score_jax.crosslingual import transport


def _exact(first, second):
  return transport.exact(transport.cost(first, second))


def _relaxed(first, second):
  return transport.relaxed(transport.cost(first, second))


def _texts(sizes, width=6, seed=0):
  generator = np.random.default_rng(seed)
  vectors = [generator.normal(size=(n, width)) for n in sizes]
  return [v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors]


def _linear_programme(first, second):
  """The transport problem as a linear programme over all flows."""
  n, m = len(first), len(second)
  costs = ((first[:, None] - second[None]) ** 2).sum(-1)
  rows = np.kron(np.eye(n), np.ones(m))
  columns = np.kron(np.ones(n), np.eye(m))
  found = scipy.optimize.linprog(
    costs.ravel(),
    A_eq=np.concatenate([rows, columns]),
    b_eq=np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)]),
  )
  return found.fun


@pytest.mark.parametrize('sizes', [(1, 1), (1, 4), (3, 5), (6, 4)])
def test_exact_is_the_linear_programme(sizes):
  first, second = _texts(sizes)
  expected = _linear_programme(first, second)
  assert _exact(first, second) == pytest.approx(expected, abs=1e-9)
  assert _exact(second, first) == pytest.approx(expected, abs=1e-9)


def test_equal_numbers_of_words_are_an_assignment():
  first, second = _texts((4, 4))
  costs = ((first[:, None] - second[None]) ** 2).sum(-1)
  best = min(
    costs[range(4), list(order)].mean()
    for order in itertools.permutations(range(4))
  )
  assert _exact(first, second) == pytest.approx(best, abs=1e-9)


def test_costs_are_squared_distances():
  # Of so many words that their product is computed in parts.
  first, second = _texts((40, 70), width=384)
  expected = ((first[:, None] - second[None]) ** 2).sum(-1)
  for costs in (transport.cost(first, second), transport.cost(second, first).T):
    np.testing.assert_allclose(costs, expected, atol=1e-12)


def test_many_distances_are_those_of_each():
  sizes = np.random.default_rng(0).integers(0, 9, (150, 2))
  first, second = zip(
    *(_texts(pair, seed=n) for n, pair in enumerate(sizes)), strict=True
  )
  ot = transport.optimal_transport()
  done = []
  found = transport.distances(first, second, done.append)
  expected = [
    ot.emd2([], [], ((x[:, None] - y[None]) ** 2).sum(-1))
    if len(x) and len(y)
    else 4.0 * (len(x) != len(y))
    for x, y in zip(first, second, strict=True)
  ]
  np.testing.assert_allclose(found, expected, atol=1e-9)
  assert done[-1] == 150
  assert done == sorted(done)
  assert transport.distances([], []).shape == (0,)


def test_bounds_of_many_are_those_of_each():
  text, *others = _texts((5, 3, 1, 7))
  costs = transport.cost(text, np.concatenate(others))
  np.testing.assert_allclose(
    transport.relaxed_many(costs, np.array([3, 4, 11])),
    [_relaxed(text, other) for other in others],
  )


def test_bounds_enclose_the_distance():
  for seed in range(20):
    first, second = _texts((seed % 5 + 1, 7 - seed % 4), seed=seed)
    exact = _exact(first, second)
    difference = transport.centroid(first) - transport.centroid(second)
    assert difference @ difference <= exact + 1e-9
    assert _relaxed(first, second) <= exact + 1e-9


def test_entropic_is_just_above():
  sizes = [(3, 5), (1, 4), (6, 6), (17, 9)]
  texts = [_texts(pair, seed=n) for n, pair in enumerate(sizes)]
  exact = np.array([_exact(*pair) for pair in texts])
  first, second = zip(*texts, strict=True)
  errors = [
    transport.entropic(first, second, strength, iterations) - exact
    for strength, iterations in ((0.2, 100), (0.02, 1000))
  ]
  assert (np.array(errors) > -1e-5).all()
  assert errors[1].max() < 0.02 < errors[0].max()
  # Others beside a pair change nothing.
  alone = transport.entropic(first[1:2], second[1:2])
  together = transport.entropic(first, second)
  np.testing.assert_allclose(alone[0], together[1], atol=1e-5)


def test_texts_without_words():
  (text,) = _texts((3,))
  nothing = np.zeros((0, 6))
  assert _exact(nothing, nothing) == 0
  assert _relaxed(nothing, nothing) == 0
  assert _exact(text, nothing) == transport.MAXIMUM
  assert _relaxed(nothing, text) == transport.MAXIMUM
  assert not transport.centroid(nothing).any()
  assert transport.entropic([], []).shape == (0,)
