"""Tie-calibrated and soft pairwise accuracy against counting; properties."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation, soft_accuracy, tie_calibration

FEW = st.integers(-2, 2).map(float)
SMALL = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


def grids(elements=FEW, systems=(2, 5), segments=(1, 6)):
  return st.tuples(st.integers(*systems), st.integers(*segments)).flatmap(
    lambda shape: st.tuples(
      hnp.arrays(np.float64, shape, elements=elements),
      hnp.arrays(np.float64, shape, elements=SMALL),
    )
  )


def by_counting(human, metric, by):
  """Deutsch et al. (2023): every threshold, every pair."""
  if by == 'item':
    groups = list(zip(human.T, metric.T, strict=True))
  elif by == 'system':
    groups = list(zip(human, metric, strict=True))
  else:
    groups = [(human.ravel(), metric.ravel())]
  groups = [(h[~np.isnan(h)], m[~np.isnan(h)]) for h, m in groups]
  groups = [(h, m) for h, m in groups if len(h) > 1]
  sizes = {0.0} | {
    abs(m[i] - m[j])
    for _, m in groups
    for i, j in itertools.combinations(range(len(m)), 2)
  }
  best = (-1.0, None)
  for threshold in sorted(sizes):
    each = []
    for h, m in groups:
      right = [
        np.sign(h[i] - h[j])
        == (0 if abs(m[i] - m[j]) <= threshold else np.sign(m[i] - m[j]))
        for i, j in itertools.combinations(range(len(h)), 2)
      ]
      each.append(np.mean(right))
    if each and np.mean(each) > best[0] + 1e-12:
      best = (np.mean(each), threshold)
  return best


@given(grids(), st.sampled_from(correlation.GROUPINGS))
@settings(max_examples=80, deadline=None)
def test_calibration_is_the_best_of_all_thresholds(grid, by):
  human, metric = grid
  expected, threshold = by_counting(human, metric, by)
  if threshold is None:
    with pytest.warns(correlation.ConstantInputWarning):
      assert tie_calibration.calibrate(human, metric, by).value == 0.0
    return
  result = tie_calibration.calibrate(human, metric, by)
  assert result.value == pytest.approx(expected)
  assert result.threshold == pytest.approx(threshold)
  assert result.untied <= result.value + 1e-12


def test_calibration_leaves_unrated_entries_out():
  rng = np.random.default_rng(0)
  human = np.round(rng.normal(size=(4, 8)))
  human[rng.random(human.shape) < 0.3] = np.nan
  metric = np.where(np.isnan(human), np.nan, rng.normal(size=human.shape))
  for by in correlation.GROUPINGS:
    result = tie_calibration.calibrate(human, metric, by)
    expected, threshold = by_counting(human, metric, by)
    assert result.value == pytest.approx(expected)
    assert result.threshold == pytest.approx(threshold)


@given(grids(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_calibration_keeps_under_order_and_scale(grid, random):
  human, metric = grid
  if human.shape[0] * human.shape[1] < 2:
    return
  value = tie_calibration.calibrate(human, metric).value
  systems = list(range(len(human)))
  segments = list(range(human.shape[1]))
  random.shuffle(systems)
  random.shuffle(segments)
  place = np.ix_(systems, segments)
  assert tie_calibration.calibrate(human[place], metric[place]).value == (
    pytest.approx(value)
  )
  # Powers of two scale without rounding; both signs turned change nothing.
  assert tie_calibration.calibrate(-human, -4 * metric).value == pytest.approx(
    value
  )


def test_a_constant_metric_gets_the_share_of_human_ties():
  human = np.array([[1.0, 1, 0], [1, 2, 3], [1, 1, 0]])
  result = tie_calibration.calibrate(human, np.ones((3, 3)))
  assert result.value == pytest.approx((1 + 1 / 3 + 1 / 3) / 3)
  assert result.threshold == 0.0


def test_outcomes_are_those_of_the_threshold():
  rng = np.random.default_rng(1)
  human = np.round(rng.normal(size=(5, 30)))
  metric = human + rng.normal(size=human.shape)
  pairs = tie_calibration.rated_pairs(human)
  result = tie_calibration.calibrate(human, metric, pairs=pairs)
  right = tie_calibration.correct_pairs(metric, pairs, result.threshold)
  assert (right * pairs.weights).sum() == pytest.approx(result.value)
  assert pairs.weights.sum() == pytest.approx(1.0)
  with pytest.raises(InputError):
    tie_calibration.correct_pairs(metric, pairs, -1)


def test_calibration_names_what_is_wrong(monkeypatch):
  human = np.zeros((3, 4))
  metric = np.zeros((3, 4))
  metric[1, 2] = np.nan
  with pytest.raises(ValueError, match='system 1, segment 2'):
    tie_calibration.calibrate(human, metric)
  with pytest.raises(InputError):
    tie_calibration.calibrate(human, metric[:2])
  with pytest.raises(InputError):
    tie_calibration.rated_pairs(human, 'document')
  with pytest.raises(InputError):
    tie_calibration.rated_pairs(np.full((2, 2), np.inf))
  monkeypatch.setattr(tie_calibration, 'MAX_PAIRS', 10)
  with pytest.raises(InputError):
    tie_calibration.rated_pairs(human, 'none')


@pytest.mark.parametrize('shape', [(1, 5), (1, 1)])
def test_one_system_has_no_pair_by_item(shape):
  with pytest.warns(correlation.ConstantInputWarning):
    result = tie_calibration.calibrate(np.ones(shape), np.ones(shape))
  assert (result.value, result.pairs, result.groups) == (0.0, 0, 0)


def exact_p_value(x, y):
  """All 2^N exchanges of two systems' segment scores."""
  difference = x - y
  seen = difference.sum()
  count = sum(
    np.dot(signs, difference) >= seen - 1e-9
    for signs in itertools.product((-1, 1), repeat=len(difference))
  )
  return count / 2 ** len(difference)


def test_p_values_are_those_of_all_exchanges():
  rng = np.random.default_rng(2)
  scores = rng.normal(size=(4, 10)) + np.linspace(0, 0.6, 4)[:, None]
  pairs = soft_accuracy.system_pairs(scores)
  result = soft_accuracy.p_values(pairs.contrasts(scores), 20000)
  for p, i, j in zip(result, pairs.first, pairs.second, strict=True):
    assert p == pytest.approx(exact_p_value(scores[i], scores[j]), abs=0.015)


def test_soft_accuracy_is_one_minus_the_mean_difference_of_confidence():
  rng = np.random.default_rng(3)
  human = rng.normal(size=(5, 40)) + rng.normal(size=(5, 1))
  metric = human + rng.normal(size=human.shape)
  pairs = soft_accuracy.system_pairs(human)
  gold, ours = (
    soft_accuracy.p_values(pairs.contrasts(s), 500, 7) for s in (human, metric)
  )
  result = soft_accuracy.soft_pairwise_accuracy(
    human, metric, permutations=500, seed=7
  )
  assert result == pytest.approx(1 - np.abs(gold - ours).mean())
  assert result == soft_accuracy.soft_pairwise_accuracy(
    human, 3 * metric + 1, permutations=500, seed=7
  )


def test_systems_are_compared_on_the_segments_rated_for_both():
  rng = np.random.default_rng(4)
  human = rng.normal(size=(3, 30))
  human[0, :10] = np.nan
  human[1, 20:] = np.nan
  metric = rng.normal(size=human.shape) + 100 * np.arange(30)
  metric[np.isnan(human)] = np.nan
  pairs = soft_accuracy.system_pairs(human)
  assert pairs.common.sum(axis=1).tolist() == [10, 20, 20]
  contrasts = pairs.contrasts(metric)
  # However hard some segments are, they do not shift the systems.
  assert np.abs(contrasts).max() < 20
  result = soft_accuracy.soft_pairwise_accuracy(human, metric)
  each = []
  for i, j in itertools.combinations(range(3), 2):
    both = ~np.isnan(human[i]) & ~np.isnan(human[j])
    p, q = (
      soft_accuracy.p_values((s[i] - s[j])[None, both], 1000, 5)[0]
      for s in (human, metric)
    )
    each.append(abs(p - q))
  assert result == pytest.approx(1 - np.mean(each), abs=0.05)


@given(grids(SMALL, (2, 5), (2, 8)), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_soft_accuracy_keeps_under_order_of_systems(grid, random):
  human, metric = grid
  if np.ptp(human) == 0:
    return
  options = {'permutations': 2000}
  value = soft_accuracy.soft_pairwise_accuracy(human, metric, **options)
  assert 0 <= value <= 1
  assert soft_accuracy.soft_pairwise_accuracy(human, human, **options) == 1.0
  order = list(range(len(human)))
  random.shuffle(order)
  # A pair that is turned round tests the other direction: p becomes 1 - p but
  # for the exchanges that change nothing.
  turned = soft_accuracy.soft_pairwise_accuracy(
    human[order], metric[order], **options
  )
  same = np.mean(
    [
      2.0 ** -np.count_nonzero(s[i] != s[j])
      for s in (human, metric)
      for i, j in itertools.combinations(range(len(human)), 2)
    ]
  )
  assert turned == pytest.approx(value, abs=0.08 + 4 * same)


def test_soft_accuracy_names_what_is_wrong():
  human = np.zeros((3, 4)) + np.arange(4)
  with pytest.raises(InputError):
    soft_accuracy.soft_pairwise_accuracy(human[:1], human[:1])
  metric = human.copy()
  metric[2, 1] = np.nan
  with pytest.raises(ValueError, match='system 2, segment 1'):
    soft_accuracy.soft_pairwise_accuracy(human, metric)
  apart = np.array([[1.0, np.nan], [np.nan, 1.0]])
  with pytest.raises(InputError):
    soft_accuracy.soft_pairwise_accuracy(apart, apart)
  with pytest.raises(InputError):
    soft_accuracy.soft_pairwise_accuracy(human, human, permutations=0)
  with pytest.warns(correlation.ConstantInputWarning):
    assert (
      soft_accuracy.soft_pairwise_accuracy(np.ones((2, 3)), human[:2, :3])
      == 0.0
    )


@pytest.mark.parametrize('order', [[0, 1, 2], [2, 1, 0]])
def test_soft_accuracy_of_constant_scores_is_zero(order):
  human = np.random.default_rng(0).normal(size=(3, 20)) + [[0], [1], [2]]
  with pytest.warns(correlation.ConstantInputWarning):
    value = soft_accuracy.soft_pairwise_accuracy(
      human[order], np.full(human.shape, 7.0)
    )
  assert value == 0.0


def test_one_segment_is_defined():
  human = np.array([[2.0], [1.0]])
  assert soft_accuracy.soft_pairwise_accuracy(human, 3 * human) == 1.0
  assert tie_calibration.calibrate(human, 3 * human).value == 1.0
