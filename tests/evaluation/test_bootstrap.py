"""Bootstrap and permutation against slow, plain recomputation."""

import itertools

import numpy as np
import pytest
import scipy.stats

from t5score_jax.errors import InputError
from t5score_jax.evaluation import (
  bootstrap,
  correlation,
  darr,
  pair_bootstrap,
  permutation,
)


def example(systems=5, segments=40, seed=0):
  rng = np.random.default_rng(seed)
  human = rng.normal(size=(systems, segments)) + rng.normal(size=(systems, 1))
  metrics = {
    'good': 2 + human + 0.5 * rng.normal(size=human.shape),
    'weak': 10 * (human + 3 * rng.normal(size=human.shape)),
    'noise': rng.normal(size=human.shape),
  }
  return human, metrics


def drawn_segments(segments, resamples, seed):
  for counts in bootstrap.segment_draws(segments, resamples, seed):
    for row in counts:
      yield np.repeat(np.arange(segments), row.astype(int))


def test_draws_take_as_many_segments_as_there_are(monkeypatch):
  monkeypatch.setattr(bootstrap, 'CHUNK_NUMBERS', 100)
  pieces = list(bootstrap.segment_draws(30, 11, seed=1))
  assert len(pieces) > 1
  draws = np.concatenate(pieces)
  assert draws.shape == (11, 30)
  np.testing.assert_array_equal(draws.sum(axis=1), 30)
  assert len(np.unique(draws, axis=0)) == 11


def test_draws_refuse_what_cannot_be_resampled():
  with pytest.raises(InputError):
    next(bootstrap.segment_draws(1, 10, 0))
  with pytest.raises(InputError):
    next(bootstrap.segment_draws(5, 0, 0))


@pytest.mark.parametrize('ties', correlation.TIE_RULES)
def test_bootstrap_of_darr_is_the_tau_of_the_drawn_pairs(ties):
  human, metrics = example()
  metrics = {name: np.round(m) for name, m in metrics.items()}  # ties
  pairs = darr.pairs_from_ratings(human, 0.8)
  result = pair_bootstrap.bootstrap_darr(
    pairs, metrics, resamples=20, seed=7, ties=ties
  )
  present = np.unique(pairs.segments)
  for b, taken in enumerate(drawn_segments(len(present), 20, 7)):
    rows = np.concatenate(
      [np.flatnonzero(pairs.segments == present[n]) for n in taken]
    )
    for m, scores in enumerate(metrics.values()):
      expected = correlation.darr_tau(
        scores[pairs.better[rows], pairs.segments[rows]],
        scores[pairs.worse[rows], pairs.segments[rows]],
        ties,
      )
      assert result.draws[b, m] == pytest.approx(expected, abs=1e-12)
  for m, scores in enumerate(metrics.values()):
    assert result.values[m] == pytest.approx(
      correlation.darr_tau(
        scores[pairs.better, pairs.segments],
        scores[pairs.worse, pairs.segments],
        ties,
      )
    )


def test_bootstrap_over_pairs_is_narrower_than_over_segments():
  human, metrics = example(systems=12)
  human = human + 2 * np.random.default_rng(5).normal(size=(1, 40))
  pairs = darr.pairs_from_ratings(human, 0.5)
  widths = []
  for unit in ('pair', 'segment'):
    result = pair_bootstrap.bootstrap_darr(pairs, metrics, unit=unit)
    low, high = result.interval('weak')
    widths.append(high - low)
  assert widths[0] < widths[1]


def test_bootstrap_of_pooled_pearson_is_that_of_the_drawn_segments():
  human, metrics = example()
  human[0, 3] = human[4, 9] = np.nan
  human[:, 11] = np.nan
  metrics['good'] = metrics['good'] + 1e6  # a large offset loses no digits
  result = bootstrap.bootstrap_pearson(human, metrics, resamples=15, seed=3)
  keep = ~np.isnan(human).all(axis=0)
  chosen = human[:, keep]
  for b, taken in enumerate(drawn_segments(keep.sum(), 15, 3)):
    y = chosen[:, taken]
    rated = ~np.isnan(y)
    for m, scores in enumerate(metrics.values()):
      x = scores[:, keep][:, taken]
      assert result.draws[b, m] == pytest.approx(
        np.corrcoef(x[rated], y[rated])[0, 1], abs=1e-7
      )


@pytest.mark.parametrize('statistic', ['pearson', 'kendall', 'accuracy'])
def test_bootstrap_of_systems_correlates_the_drawn_means(statistic):
  human, metrics = example()
  human[2, :30] = np.nan
  result = bootstrap.bootstrap_systems(
    human, metrics, statistic, resamples=9, seed=2
  )
  function = correlation.STATISTICS[statistic]
  for b, taken in enumerate(drawn_segments(40, 9, 2)):
    y = np.nanmean(human[:, taken], axis=1)
    for m, scores in enumerate(metrics.values()):
      expected = function(y, scores[:, taken].mean(axis=1))
      assert result.draws[b, m] == pytest.approx(expected)


def test_bootstrap_of_items_and_of_any_function_agree():
  human, metrics = example()
  human[:, 4] = 0.0
  next(iter(metrics.values()))[:, 2] = 1.0
  for rule in correlation.CONSTANT_RULES:
    options = {'resamples': 6, 'seed': 5}
    by_item = bootstrap.bootstrap_items(
      human, metrics, 'kendall', constant=rule, **options
    )
    by_hand = bootstrap.bootstrap_any(
      human,
      metrics,
      lambda h, m, rule=rule: (
        correlation.grouped(h, m, 'kendall', 'item', rule).value
      ),
      **options,
    )
    np.testing.assert_allclose(by_item.draws, by_hand.draws, atol=1e-12)
    np.testing.assert_allclose(by_item.values, by_hand.values)


def test_comparison_reads_difference_interval_and_p_value_off_the_draws():
  draws = np.array([[0.5, 0.1], [0.3, 0.4], [0.6, 0.2], [0.2, 0.2]])
  replicates = bootstrap.Replicates(('a', 'b'), np.array([0.4, 0.2]), draws, 0)
  result = replicates.compare('a', 'b')
  assert result.difference == pytest.approx(0.2)
  # a is not better in two of four draws
  assert result.p_value == pytest.approx((1 + 2) / (1 + 4))
  assert result.low <= 0 <= result.high
  assert replicates.compare('b', 'a').difference == pytest.approx(-0.2)


def test_clear_and_absent_differences_are_told_apart():
  human, metrics = example(segments=200)
  metrics['twin'] = metrics['good'] + 1e-3 * np.random.default_rng(1).normal(
    size=human.shape
  )
  result = bootstrap.bootstrap_pearson(human, metrics)
  assert result.compare('good', 'noise').p_value < 0.01
  assert result.compare('noise', 'good').p_value > 0.99
  assert 0.02 < result.compare('good', 'twin').p_value < 0.98
  low, high = result.interval('good')
  assert low < result.values[0] < high


def test_interval_has_the_width_that_theory_gives():
  # Fisher: atanh(r) has standard error 1 / sqrt(n - 3).
  rng = np.random.default_rng(8)
  human = rng.normal(size=(1, 2000))
  metric = 0.6 * human + 0.8 * rng.normal(size=human.shape)
  result = bootstrap.bootstrap_pearson(human, {'m': metric}, resamples=2000)
  low, high = np.arctanh(result.interval('m'))
  assert high - low == pytest.approx(2 * 1.96 / np.sqrt(1997), rel=0.08)


def test_the_seed_decides_the_draws():
  human, metrics = example()
  first, again, other = (
    bootstrap.bootstrap_pearson(human, metrics, resamples=5, seed=seed)
    for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first.draws, again.draws)
  assert (first.draws != other.draws).any()


def test_average_is_taken_draw_by_draw():
  human, metrics = example()
  parts = [
    bootstrap.bootstrap_pearson(human, metrics, resamples=5, seed=seed)
    for seed in (1, 2)
  ]
  mean = bootstrap.average(parts)
  np.testing.assert_allclose(mean.draws, (parts[0].draws + parts[1].draws) / 2)
  with pytest.raises(InputError):
    bootstrap.average(
      [
        parts[0],
        bootstrap.Replicates(('x',), np.ones(1), np.ones((5, 1)), 0),
      ]
    )
  with pytest.raises(InputError):
    bootstrap.average([])


def test_missing_scores_and_no_pairs_are_errors():
  human, metrics = example()
  metrics['good'][1, 1] = np.nan
  with pytest.raises(InputError):
    bootstrap.bootstrap_pearson(human, metrics)
  with pytest.raises(InputError):
    pair_bootstrap.bootstrap_darr(darr.pairs_from_ratings(human, 1e9), metrics)
  with pytest.raises(InputError):
    pair_bootstrap.bootstrap_darr(darr.pairs_from_ratings(human, 0.1), metrics)


def swapped_loop(human, a, b, unit, resamples, seed, function):
  # The definition: swap, correlate again, count.
  a, b = correlation.standardise(a), correlation.standardise(b)
  seen = function(human, a) - function(human, b)
  count = 0
  if unit == 'system-scores':
    a, b = (
      correlation.standardise(m.mean(axis=1, keepdims=True)) for m in (a, b)
    )
    seen = function(human, a) - function(human, b)
    unit = 'systems'
  drawn = permutation.Swaps((len(human), a.shape[1]), unit, resamples, seed)
  for bits in drawn:
    for bit in bits.astype(bool):
      first, second = np.where(bit, a, b), np.where(bit, b, a)
      difference = function(human, first) - function(human, second)
      count += difference >= seen - 1e-12
  return count / drawn.count if drawn.exact else (1 + count) / (1 + resamples)


@pytest.mark.parametrize('unit', permutation.UNITS)
@pytest.mark.parametrize('statistic', ['pearson', 'kendall'])
def test_permutation_of_systems_against_a_loop(unit, statistic):
  human, metrics = example()
  human[1, 5] = np.nan
  result = permutation.permute_systems(
    human, metrics, statistic, unit=unit, resamples=60, seed=4
  )
  function = correlation.STATISTICS[statistic]

  def level(h, m):
    return function(np.nanmean(h, axis=1), m.mean(axis=1))

  for one, other in itertools.permutations(metrics, 2):
    i, j = list(metrics).index(one), list(metrics).index(other)
    if i > j:  # the swap of the pair (j, i), read the other way round
      continue
    expected = swapped_loop(
      human, metrics[one], metrics[other], unit, 60, 4, level
    )
    assert result.p_value(one, other) == pytest.approx(expected)
  assert result.values[0] == pytest.approx(level(human, metrics['good']))


@pytest.mark.parametrize('unit', permutation.UNITS[:3])
def test_permutation_of_pooled_pearson_against_a_loop(unit):
  human, metrics = example()
  human[1, 5] = human[3, 0] = np.nan
  rated = ~np.isnan(human)
  metrics = {n: np.where(rated, m, np.nan) for n, m in metrics.items()}
  result = permutation.permute_pearson(
    human, metrics, unit=unit, resamples=60, seed=4
  )

  def level(h, m):
    return scipy.stats.pearsonr(h[rated], m[rated]).statistic

  for one, other in itertools.combinations(metrics, 2):
    expected = swapped_loop(
      human, metrics[one], metrics[other], unit, 60, 4, level
    )
    assert result.p_value(one, other) == pytest.approx(expected)


def test_permutation_tells_clear_and_absent_differences_apart():
  human, metrics = example(segments=100)
  metrics['twin'] = metrics['good'] + 1e-3 * np.random.default_rng(1).normal(
    size=human.shape
  )
  result = permutation.permute_pearson(human, metrics)
  assert result.p_value('good', 'noise') < 0.01
  assert result.p_value('noise', 'good') > 0.99
  assert result.p_value('good', 'twin') > 0.02


def test_permutation_is_calibrated_under_the_null():
  # Two metrics that differ by independent noise only: p is uniform.
  rng = np.random.default_rng(0)
  p_values = []
  for trial in range(60):
    human = rng.normal(size=(4, 30))
    metrics = {k: human + rng.normal(size=human.shape) for k in 'ab'}
    result = permutation.permute_pearson(
      human, metrics, resamples=99, seed=trial
    )
    p_values.append(result.p_value('a', 'b'))
  assert scipy.stats.kstest(p_values, 'uniform').pvalue > 0.01


def test_permutation_needs_two_complete_metrics():
  human, metrics = example()
  with pytest.raises(InputError):
    permutation.permute_pearson(human, {'good': metrics['good']})
  metrics['good'][0, 0] = np.nan
  with pytest.raises(InputError):
    permutation.permute_systems(human, metrics)
  with pytest.raises(InputError):
    permutation.Swaps((2, 2), 'cells', 1, 0)


@pytest.mark.parametrize('statistic', ['pearson', 'kendall', 'accuracy'])
def test_few_systems_are_swapped_in_all_ways(statistic):
  # mt-metrics-eval's test of systems, with every swap instead of random ones.
  rng = np.random.default_rng(2)
  human = rng.normal(size=(7, 1))
  a, b = human + 0.4 * rng.normal(size=(2, 7, 1))
  function = correlation.STATISTICS[statistic]
  x, y = (((m - m.mean()) / m.std())[:, 0] for m in (a, b))
  gold = human[:, 0]
  seen = function(gold, x) - function(gold, y)
  differences = np.array(
    [
      function(gold, np.where(bits, y, x))
      - function(gold, np.where(bits, x, y))
      for bits in itertools.product((False, True), repeat=7)
    ]
  )
  for unit in ('system-scores', 'systems', 'both'):
    result = permutation.permute_systems(
      human, {'a': a, 'b': b}, statistic, unit=unit, resamples=50
    )
    assert result.exact and result.resamples == 128
    for pair, expected in (
      (('a', 'b'), differences >= seen - 1e-12),
      (('b', 'a'), differences <= seen + 1e-12),
    ):
      assert result.p_value(*pair) == pytest.approx(expected.mean(), abs=1e-12)
  # Segment scores that have these means are another test for the other units.
  segments = rng.normal(size=(7, 30))
  segments -= segments.mean(axis=1, keepdims=True)
  result = permutation.permute_systems(
    human, {'a': a + segments, 'b': b + 9 * segments}, statistic,
    unit='system-scores',
  )  # fmt: skip
  assert result.p_value('a', 'b') == pytest.approx(
    (differences >= seen - 1e-12).mean()
  )
  assert not permutation.Swaps((7, 30), 'both', 1000, 0).exact
