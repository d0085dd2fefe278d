"""Ranking, ensemble and overrating against plain recomputation and oracles."""

import warnings

import board_data
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip('sklearn')
pytest.importorskip('pandas')

from t5score_jax.leaderboard import (  # noqa: E402
  analysis,
  changes,
  ensemble,
  layouts,
  overrating,
  ranking,
  renewal,
)
from t5score_jax.leaderboard.entries import BoardError, Generator  # noqa: E402
from t5score_jax.leaderboard.ranking import Rule  # noqa: E402
from t5score_jax.leaderboard.store import Store  # noqa: E402


def _scores(seed=0, metrics=6, generators=5, examples=60, missing=0.2):
  rng = np.random.default_rng(seed)
  quality = rng.normal(size=(generators, examples))
  noise = rng.normal(size=(metrics, generators, examples))
  level = np.linspace(0.5, 3, metrics)[:, None, None]
  scores = (quality + level * noise) * rng.uniform(0.1, 50, (metrics, 1, 1))
  scores += rng.normal(size=(metrics, 1, 1)) * 100
  ratings = quality + rng.normal(size=quality.shape)
  ratings[rng.random(ratings.shape) < missing] = np.nan
  ratings[-1] = np.nan
  return scores, ratings


@pytest.mark.parametrize('statistic', ranking.STATISTICS)
@pytest.mark.parametrize('level', ranking.LEVELS)
def test_correlations_are_scipys(statistic, level):
  scores, ratings = _scores()
  used = ~np.isnan(ratings)
  x, y = scores[0][used], ratings[used]
  if level == 'system':
    rows = used.any(axis=1)
    x = [s[u].mean() for s, u in zip(scores[0][rows], used[rows], strict=True)]
    y = [r[u].mean() for r, u in zip(ratings[rows], used[rows], strict=True)]
  oracle = {
    'pearson': scipy.stats.pearsonr,
    'spearman': scipy.stats.spearmanr,
    'kendall': scipy.stats.kendalltau,
  }[statistic]
  found = ranking.correlation(scores[0], ratings, Rule(statistic, level))
  assert found == pytest.approx(oracle(x, y).statistic, abs=1e-12)


def test_no_variation_has_no_correlation():
  scores, ratings = _scores()
  assert ranking.correlation(np.ones_like(ratings), ratings) is None
  assert ranking.correlation(scores[0], ratings * np.nan) is None
  with pytest.raises(ValueError, match='covariance'):
    Rule('covariance')


@pytest.mark.parametrize('level', ranking.LEVELS)
def test_intervals_are_those_of_resampled_boards(level):
  """Each draw's correlation is that of the board made of the drawn examples."""
  scores, ratings = _scores(missing=0.1)
  rule = Rule(level=level)
  draws = ranking.draw_examples(60, 30, 7)
  found = ranking.resample_correlation(scores[0], ratings, draws, level)
  for value, draw in zip(found, draws, strict=True):
    at = np.repeat(np.arange(60), draw.astype(int))
    wanted = ranking.correlation(scores[0][:, at], ratings[:, at], rule)
    assert value == pytest.approx(wanted, abs=1e-10)


def test_intervals_hold_the_values_and_ranks():
  scores, ratings = _scores(examples=300)
  columns = {f'm{n}': s for n, s in enumerate(scores)}
  found = ranking.metric_intervals(columns, ratings)
  for name, interval in found.items():
    value = ranking.correlation(columns[name], ratings)
    assert interval['low'] < value < interval['high']
    assert 1 <= interval['rank_low'] <= interval['rank_high'] <= 6
  assert found['m0']['rank_low'] == 1
  either = ranking.metric_intervals(
    {n: -c for n, c in columns.items()}, ratings, Rule(direction='either')
  )
  assert either['m0']['rank_low'] == 1
  names = ['a', 'b', 'c', 'd', 'e']
  shifted = scores[0] + 1000 * np.arange(5)[:, None]
  shifted[2, 0] = np.nan
  placed = ranking.generator_intervals(names, shifted)
  assert 'c' not in placed and placed['e']['rank_high'] == 1


def test_outliers_are_left_out():
  ratings = np.random.default_rng(0).normal(size=(8, 50))
  ratings[3] -= 20
  kept = ranking.without_outliers(ratings)
  assert np.isnan(kept[3]).all()
  np.testing.assert_array_equal(np.delete(kept, 3, 0), np.delete(ratings, 3, 0))


@given(
  st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=12
  )
)
def test_pareto_front(points):
  value, cost = np.array(points, float).T
  found = ranking.pareto(value, cost)
  for i in range(len(points)):
    beaten = any(
      value[j] >= value[i]
      and cost[j] <= cost[i]
      and (value[j], cost[j]) != (value[i], cost[i])
      for j in range(len(points))
    )
    assert found[i] == (not beaten)
  unknown = ranking.pareto(np.append(value, np.nan), np.append(cost, 0))
  assert not unknown[-1]


# The ensemble.


def _standardised(scores, ratings):
  used = ~np.isnan(ratings)
  x = scores[:, used].T
  groups = np.nonzero(used)[0]
  return (x - x.mean(0)) / x.std(0), ratings[used], groups


def test_ensemble_is_scikit_learns_lasso():
  """Weights at lambda and the held-out correlation, from all rows."""
  from sklearn import linear_model

  scores, ratings = _scores(generators=6, examples=200)
  names = [f'm{n}' for n in range(len(scores))]
  fit = ensemble.fit(ensemble.moments(scores, ratings), names)
  z, y, groups = _standardised(scores, ratings)
  lasso = linear_model.Lasso(fit.penalty, tol=1e-14, max_iter=10**6).fit(z, y)
  np.testing.assert_allclose(fit.standardised, lasso.coef_, atol=1e-8)
  assert len(fit.members()) == ensemble.MEMBERS
  # Just below this lambda a fourth metric has a weight.
  below = linear_model.Lasso(fit.penalty * 0.999, tol=1e-14, max_iter=10**6)
  assert (below.fit(z, y).coef_ != 0).sum() == ensemble.MEMBERS + 1
  held_out = np.empty_like(y)
  for g in np.unique(groups):
    rest = groups != g
    lasso.fit(z[rest], y[rest])
    held_out[~rest] = lasso.predict(z[~rest])
  assert fit.leave_one_out == pytest.approx(
    np.corrcoef(held_out, y)[0, 1], abs=1e-8
  )
  found = analysis.held_out_scores(fit, scores, ratings)
  np.testing.assert_allclose(found[~np.isnan(ratings)], held_out, atol=1e-7)


@pytest.mark.parametrize('scale', [1e-15, 1e12])
def test_scales_do_not_matter(scale):
  scores, ratings = _scores()
  names = list('abcdef')
  fit = ensemble.fit(ensemble.moments(scores, ratings), names)
  other = ensemble.fit(ensemble.moments(scores * scale, ratings / scale), names)
  assert other.members() == fit.members()
  assert other.leave_one_out == pytest.approx(fit.leave_one_out, abs=1e-9)
  assert ensemble.varies(scores[0] * scale)
  assert not ensemble.varies(np.full(9, 0.1) * scale)


def test_raw_weights_apply_to_raw_scores():
  scores, ratings = _scores()
  fit = ensemble.fit(ensemble.moments(scores, ratings), list('abcdef'))
  z, y, _ = _standardised(scores, ratings)
  raw = fit.intercept + fit.weights @ scores[:, ~np.isnan(ratings)]
  np.testing.assert_allclose(raw, y.mean() + z @ fit.standardised, atol=1e-9)


def test_ablation_fits_the_rest():
  scores, ratings = _scores()
  names = list('abcdef')
  found = ensemble.moments(scores, ratings)
  fit = ensemble.fit(found, names)
  dropped = ensemble.ablation(found, fit)
  assert list(dropped) == fit.members()
  member = fit.members()[0]
  at = [n for n in range(6) if names[n] != member]
  again = ensemble.fit(
    ensemble.moments(scores[at], ratings), [names[n] for n in at]
  )
  assert dropped[member] == pytest.approx(again.leave_one_out, abs=1e-9)


def test_small_and_strange_boards():
  scores, ratings = _scores()
  two = ensemble.fit(ensemble.moments(scores[:2], ratings), ['a', 'b'])
  assert len(two.members()) == 2
  one_generator = ratings.copy()
  one_generator[1:] = np.nan
  alone = ensemble.fit(ensemble.moments(scores, one_generator), list('abcdef'))
  assert alone.leave_one_out is None
  twice = np.concatenate([scores, scores[:1]])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    both = ensemble.fit(ensemble.moments(twice, ratings), list('abcdefg'))
  assert len(both.members()) == 3
  with pytest.raises(ensemble.EnsembleError):
    ensemble.moments(scores, ratings * np.nan)
  with pytest.raises(ensemble.EnsembleError):
    ensemble.moments(np.ones_like(scores), ratings)


@settings(max_examples=50)
@given(
  weights=st.dictionaries(
    st.text(min_size=1, max_size=8).filter(
      lambda s: '|' not in s and s.isprintable() and s == s.strip()
    ),
    st.floats(-1e6, 1e6),
    min_size=1,
    max_size=3,
  ),
  intercept=st.floats(allow_nan=False, allow_infinity=False),
  penalty=st.one_of(st.none(), st.floats(0, 1e3)),
)
def test_signatures_read_back(weights, intercept, penalty):
  value = ensemble.Ensemble(
    'a+refs.b', 7, 'A+B:max', penalty, intercept, weights, {}, '0123abcd'
  )
  assert ensemble.parse_signature(value.signature()) == value


@pytest.mark.parametrize('text', ['', 'x', 'ensemble.a|b', 'a|b|c|d|e:f'])
def test_other_texts_are_no_signatures(text):
  with pytest.raises(ensemble.EnsembleError):
    ensemble.parse_signature(text)


def test_affine_functions_are_found():
  rng = np.random.default_rng(0)
  scores = rng.normal(size=(7, 300)) * 10
  column = 5 + scores[2] * 0.01 - 3 * scores[5]
  intercept, weights = layouts.affine(column, scores)
  assert intercept == pytest.approx(5)
  np.testing.assert_allclose(weights, [0, 0, 0.01, 0, 0, -3, 0], atol=1e-12)
  assert layouts.affine(column + rng.normal(size=300), scores) is None


# Overrating.


def _rated(seed, generators=6, examples=25, missing=0.3):
  rng = np.random.default_rng(seed)
  machine = np.arange(generators) > 1
  ratings = rng.normal(size=(generators, examples))
  scores = (
    0.5 * ratings
    + 0.4 * machine[:, None]
    + rng.normal(size=examples) * rng.uniform(0, 2)
    + rng.normal(size=ratings.shape)
  )
  ratings[rng.random(ratings.shape) < missing] = np.nan
  return scores, ratings, machine


@pytest.mark.parametrize('seed', range(6))
def test_overrating_is_the_mixed_model_of_statsmodels(seed):
  oracle = pytest.importorskip(
    'statsmodels.api', reason='needs statsmodels, the oracle'
  )
  scores, ratings, machine = _rated(seed, missing=0.3 * (seed % 2))
  fit = overrating.analyse(scores, ratings, machine)
  used = ~np.isnan(ratings)
  i, k = np.nonzero(used)
  y = scores[used]
  y = (y - y.mean()) / y.std(ddof=1)
  design = np.stack([np.ones(len(y)), machine[i], ratings[used]], axis=1)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    wanted = oracle.MixedLM(y, design.astype(float), groups=k).fit(
      reml=True, method=['bfgs', 'lbfgs', 'nm'], gtol=1e-10
    )
  assert fit.beta == pytest.approx(wanted.fe_params[1], abs=2e-4)
  assert fit.error == pytest.approx(wanted.bse_fe[1], abs=2e-4)
  assert fit.human == pytest.approx(wanted.fe_params[2], abs=2e-4)
  assert fit.half_width == pytest.approx(1.6448536 * fit.error)
  assert fit.rows == used.sum()


def test_overrating_needs_both_kinds():
  scores, ratings, machine = _rated(0)
  with pytest.raises(overrating.OverratingError, match='of humans'):
    overrating.analyse(scores, ratings, np.ones_like(machine))
  with pytest.raises(overrating.OverratingError, match='of machines'):
    overrating.analyse(scores, ratings, np.zeros_like(machine))
  with pytest.raises(overrating.OverratingError):
    overrating.analyse(np.ones_like(scores), ratings, machine)
  with pytest.raises(overrating.OverratingError):
    overrating.analyse(scores, np.ones_like(ratings), machine)


def test_significance_is_the_interval():
  for beta, half, wanted in ((0.3, 0.2, 1), (-0.3, 0.2, -1), (0.1, 0.2, 0)):
    assert overrating.Overrating(beta, 0, half, 0, 0, 9).significance == wanted


# The board as a whole.


def test_generators_without_scores_come_last(tmp_path):
  with Store(board_data.small_board(tmp_path)) as store:
    changes.add_generator(store, Generator('none'))
    value = analysis.analyse(store)
    assert value['generators'][-1]['name'] == 'none'
    assert value['generators'][-1]['rank'] is None
    with pytest.raises(BoardError, match='other'):
      analysis.analyse(store, analysis.Request(human='other'))
    with pytest.raises(BoardError, match="'A'"):
      analysis.analyse(store, analysis.Request(reference_set='A'))


def test_equal_values_share_a_rank(tmp_path):
  """Identical outputs and equivalent metrics; rounding breaks no tie."""
  value = 0.1 + 0.2
  assert ranking.ranks({'c': 0.3, 'b': None, 'a': value, 'd': 0.2}) == {
    'a': 1,
    'c': 1,
    'd': 3,
    'b': None,
  }
  systems, ids, columns = board_data.made_up()
  copies = [f'copy {n}' for n in range(21)]
  columns = {
    name: np.concatenate([scores, np.repeat(scores[1:2], 21, axis=0)])
    for name, scores in columns.items()
  }
  columns['scaled'] = columns['m0'] * 7 + 3
  table = board_data.write_table(
    tmp_path / 't.tsv', systems + copies, ids, columns
  )
  layouts.read_and_import(tmp_path / 'b.db', table, 'human')
  with Store(tmp_path / 'b.db') as store:
    value = analysis.analyse(store)
  ranks = {g['name']: g['rank'] for g in value['generators']}
  assert {ranks[n] for n in copies} == {ranks['system 1']}
  assert sorted(set(ranks.values())) == sorted(
    {1 + sum(r < rank for r in ranks.values()) for rank in ranks.values()}
  )
  metrics = {m['name']: m for m in value['metrics']}
  assert metrics['m0']['rank'] == metrics['scaled']['rank']
  for key in ('rank_low', 'rank_high'):
    assert metrics['m0']['interval'][key] == metrics['scaled']['interval'][key]
  entries = value['generators']
  assert '(shared by 22)' in renewal.placed(entries, 'copy 3')


def test_costs_make_fronts(tmp_path):
  with Store(board_data.small_board(tmp_path)) as store:
    ranked = [m['name'] for m in analysis.analyse(store)['metrics']]
    ranked.remove(analysis.ENSEMBLE)
    for name, seconds in zip(ranked, (10.0, 1.0, 5.0), strict=False):
      store.run('UPDATE metric SET seconds = ? WHERE name = ?', (seconds, name))
    value = analysis.analyse(store)
  front = {m['name'] for m in value['metrics'] if m['pareto_seconds']}
  assert front == set(ranked[:2])
