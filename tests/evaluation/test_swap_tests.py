"""PERM-BOTH of every statistic against swapping and computing again."""

import itertools

import numpy as np
import pytest
import scipy.stats

from t5score_jax.errors import InputError
from t5score_jax.evaluation import (
  clusters,
  correlation,
  darr,
  permutation,
  soft_accuracy,
  swap_tests,
  tie_calibration,
)
from tests.evaluation.test_bootstrap import example, swapped_loop


def pairs_of(metrics):
  names = list(metrics)
  return [(one, other) for one, other in itertools.combinations(names, 2)]


@pytest.mark.parametrize('unit', permutation.UNITS[:3])
@pytest.mark.parametrize('ties', ['discordant', 'neutral'])
def test_darr_against_a_loop(unit, ties):
  human, metrics = example()
  metrics['coarse'] = np.round(metrics['good'])
  pairs = darr.pairs_from_ratings(human, 0.8)
  result = swap_tests.permute_darr(
    pairs, metrics, ties=ties, unit=unit, resamples=40, seed=3
  )
  needed = np.zeros(human.shape, bool)
  needed[pairs.better, pairs.segments] = True
  needed[pairs.worse, pairs.segments] = True

  def tau(_, scores):
    return correlation.darr_tau(
      scores[pairs.better, pairs.segments],
      scores[pairs.worse, pairs.segments],
      ties,
    )

  for one, other in pairs_of(metrics):
    a, b = (np.where(needed, metrics[n], np.nan) for n in (one, other))
    expected = swapped_loop(human, a, b, unit, 40, 3, tau)
    assert result.p_value(one, other) == pytest.approx(expected)
  assert result.values[0] == pytest.approx(tau(human, metrics['good']))


@pytest.mark.parametrize('unit', permutation.UNITS[:3])
def test_any_statistic_against_a_loop(unit):
  human, metrics = example(segments=15)
  human[1, 5] = np.nan
  rated = ~np.isnan(human)

  def spearman(scores):
    return correlation.spearman(human[rated], scores[rated])

  result = swap_tests.permute_any(
    rated, metrics, spearman, unit=unit, resamples=30, seed=2, early_stop=False
  )
  for one, other in pairs_of(metrics):
    a, b = (np.where(rated, metrics[n], np.nan) for n in (one, other))
    expected = swapped_loop(
      human, a, b, unit, 30, 2, lambda _, s: spearman(np.where(rated, s, 0))
    )
    assert result.p_value(one, other) == pytest.approx(expected)
  # All 2^5 swaps of five systems.
  made = 32 if unit == 'systems' else 30
  assert (result.draws + made * np.eye(3) == made).all()


@pytest.mark.parametrize('uneven', [False, True])
def test_soft_accuracy_against_a_loop(uneven):
  human, metrics = example(systems=4, segments=25)
  if uneven:
    human[0, :4] = np.nan
    human[2, 10:14] = np.nan
  else:
    human[:, 7] = np.nan
  rated = ~np.isnan(human)
  # 101 permutations: not a whole number of eights.
  options = {'permutations': 101, 'seed': 5}
  result = swap_tests.permute_soft_accuracy(
    human, metrics, resamples=25, early_stop=False, **options
  )

  def accuracy(_, scores):
    return soft_accuracy.soft_pairwise_accuracy(human, scores, **options)

  for one, other in pairs_of(metrics):
    a, b = (np.where(rated, metrics[n], np.nan) for n in (one, other))
    expected = swapped_loop(human, a, b, 'both', 25, 5, accuracy)
    assert result.p_value(one, other) == pytest.approx(expected)
    assert result.values[list(metrics).index(one)] == accuracy(
      human, metrics[one]
    )


def test_outcomes_against_a_loop():
  rng = np.random.default_rng(0)
  shares = {'a': 0.7, 'b': 0.6, 'c': 0.5}
  correct = {name: rng.random(60) < share for name, share in shares.items()}
  weights = rng.integers(1, 4, size=60) / 100
  result = swap_tests.permute_correct_pairs(
    correct, weights, resamples=200, seed=1
  )
  signs = np.concatenate(list(swap_tests.random_signs(60, 200, 1)))
  for one, other in pairs_of(correct):
    difference = weights * (
      correct[one].astype(float) - correct[other].astype(float)
    )
    swapped = signs @ difference
    count = np.count_nonzero(swapped >= difference.sum() - 1e-9)
    assert result.p_value(one, other) == pytest.approx((1 + count) / 201)
  assert result.values[0] == pytest.approx(
    np.average(correct['a'], weights=weights)
  )


def test_outcomes_of_equal_weights_are_exact():
  # Few pairs, so that swaps often equal the seen difference.
  correct = {
    'a': np.array([1, 1, 1, 0], bool),
    'b': np.array([0, 0, 1, 0], bool),
  }
  result = swap_tests.permute_correct_pairs(
    correct, np.full(4, 0.25), resamples=4000, seed=0
  )
  assert result.p_value('a', 'b') == pytest.approx(1 / 4, abs=0.03)
  assert result.p_value('b', 'a') == 1.0


def testrandom_signs_are_fair_and_independent():
  signs = np.concatenate(list(swap_tests.random_signs(37, 4000, 9)))
  assert signs.shape == (4000, 37) and set(np.unique(signs)) == {-1.0, 1.0}
  assert np.abs(signs.mean(axis=0)).max() < 0.08
  between = np.corrcoef(signs.T) - np.eye(37)
  assert np.abs(between).max() < 0.08


def test_all_swap_tests_are_calibrated_under_the_null():
  rng = np.random.default_rng(1)
  p_values = {'correct': [], 'darr': [], 'soft': []}
  for trial in range(60):
    human = rng.normal(size=(4, 30)) + rng.normal(size=(4, 1))
    metrics = {k: human + 2 * rng.normal(size=human.shape) for k in 'ab'}
    pairs = tie_calibration.rated_pairs(human)
    correct = {
      n: tie_calibration.correct_pairs(m, pairs, 0.1)
      for n, m in metrics.items()
    }
    ranked = darr.pairs_from_ratings(human, 0.5)
    options = {'resamples': 99, 'seed': trial}
    for name, result in (
      (
        'correct',
        swap_tests.permute_correct_pairs(correct, pairs.weights, **options),
      ),
      ('darr', swap_tests.permute_darr(ranked, metrics, **options)),
      (
        'soft',
        swap_tests.permute_soft_accuracy(
          human, metrics, permutations=64, early_stop=False, **options
        ),
      ),
    ):
      p_values[name].append(result.p_value('a', 'b'))
  # Pairs of one segment are not independent, so the test of correct may be
  # too bold (WMT's choice): it is only asked to be centred.
  assert np.mean(p_values['correct']) == pytest.approx(0.5, abs=0.15)
  for name in ('darr', 'soft'):
    assert scipy.stats.kstest(p_values[name], 'uniform').pvalue > 0.01, name


def test_early_stop_decides_alike_with_fewer_swaps():
  human, metrics = example(segments=60)
  metrics['twin'] = metrics['good'] + 1e-3 * np.random.default_rng(1).normal(
    size=human.shape
  )
  rated = np.ones(human.shape, bool)

  def pearson(scores):
    return correlation.pearson(human.ravel(), scores.ravel())

  result, whole = (
    swap_tests.permute_any(
      rated, metrics, pearson, resamples=400, early_stop=stop
    )
    for stop in (True, False)
  )
  assert (whole.draws[~np.eye(4, dtype=bool)] == 400).all()
  names = list(metrics)
  clear = names.index('good'), names.index('noise')
  assert result.draws[clear] == permutation.BLOCK
  assert ((result.p_values < 0.05) == (whole.p_values < 0.05)).all()


def test_identical_metrics_never_differ():
  human, metrics = example(segments=20)
  twins = {'a': metrics['good'], 'b': metrics['good'].copy()}
  ranked = darr.pairs_from_ratings(human, 0.5)
  for result in (
    swap_tests.permute_darr(ranked, twins, resamples=20),
    swap_tests.permute_soft_accuracy(human, twins, resamples=20),
    permutation.permute_pearson(human, twins, resamples=20),
    permutation.permute_systems(human, twins, resamples=20),
  ):
    assert result.p_value('a', 'b') == result.p_value('b', 'a') == 1.0


def test_swap_tests_refuse_what_they_cannot_do():
  human, metrics = example(segments=20)
  ranked = darr.pairs_from_ratings(human, 0.5)
  with pytest.raises(ValueError, match="not 'excluded'"):
    swap_tests.permute_darr(ranked, metrics, ties='excluded')
  with pytest.raises(InputError):
    swap_tests.permute_darr(darr.pairs_from_ratings(human, 1e9), metrics)
  with pytest.raises(InputError):
    swap_tests.permute_correct_pairs({'a': np.ones(3, bool)}, np.ones(3))
  with pytest.raises(InputError):
    swap_tests.permute_correct_pairs(
      {'a': np.ones(3, bool), 'b': np.ones(3, bool)}, np.zeros(3)
    )
  with pytest.raises(InputError):
    swap_tests.permute_correct_pairs(
      {'a': np.ones(3, bool), 'b': np.ones(3, bool)}, np.ones(3), resamples=0
    )
  metrics['good'][0, 0] = np.nan
  with pytest.raises(InputError):
    swap_tests.permute_any(np.ones(human.shape, bool), metrics, np.mean)


def testrow_counts_of_long_rows():
  rng = np.random.default_rng(0)
  flags = rng.random((5, 8 * 700)) < 0.9
  np.testing.assert_array_equal(swap_tests.row_counts(flags), flags.sum(axis=1))


def test_clusters_follow_wmts_greedy_rule():
  # d is worse than a, but a is no longer in the cluster that d might join.
  p = np.ones((4, 4))
  p[0, 1], p[0, 2], p[0, 3] = 0.3, 0.04, 0.01
  p[1, 2], p[1, 3], p[2, 3] = 0.2, 0.01, 0.4
  assert clusters.rank_clusters([0.9, 0.8, 0.7, 0.6], p) == [1, 1, 2, 2]
  order = [2, 0, 3, 1]
  assert clusters.rank_clusters(
    np.array([0.9, 0.8, 0.7, 0.6])[order], p[np.ix_(order, order)]
  ) == [2, 1, 2, 1]


def test_marks_are_those_of_the_paper():
  names = ['bleu', 'prism', 'bart', 'comet']
  values = [0.1, 0.3, 0.29, 0.4]
  p = np.ones((4, 4))
  p[1, 0] = p[2, 0] = p[3, 0] = 0.01
  p[3, 1], p[3, 2], p[1, 2] = 0.02, 0.04, 0.3
  assert clusters.marks(names, values, p, names[:3]) == ['', '†', '†', '‡']
  assert clusters.marks(names, values, p) == ['', '', '', '‡']
  # A p-value alone is not enough: the other must have the higher value.
  p[0, 3] = 0.001
  assert clusters.marks(names, values, p)[3] == '‡'
