"""Calibration: fits, leaves ranks alone, is signed, stored and checked."""

import json
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from t5score_jax import cli
from t5score_jax.checkpoints import kinds
from t5score_jax.fitting import calibration as calibrations
from t5score_jax.metrics import base

SIGNATURE = base.format_signature({'metric': 'toy', 'nrefs': 1, 'case': 'lc'})


def noisy(count=400, seed=0):
  rng = np.random.default_rng(seed)
  scores = rng.normal(-2.0, 0.7, count).astype(np.float32)
  ratings = np.tanh(scores + 2.0) + rng.normal(0, 0.3, count)
  return scores, ratings


def test_affine_is_the_regression_line():
  scores, ratings = noisy()
  fitted = calibrations.fit(scores, ratings, 'affine')
  line = stats.linregress(scores.astype(float), ratings)
  for x in (-9.0, -2.0, 0.0, 5.0):
    np.testing.assert_allclose(fitted(x), line.intercept + line.slope * x)


def test_isotonic_by_hand():
  """Two blocks, {0, 1} and {2, 3}, and 1% of the line."""
  x = np.repeat([0.0, 1.0, 2.0, 3.0], 5)
  y = np.repeat([1.0, 0.0, 3.0, 2.0], 5)
  fitted = calibrations.fit(x, y)
  slope, intercept = 0.6, 0.6  # least squares of these four points
  np.testing.assert_allclose(fitted.scores, [0.5, 2.5])
  np.testing.assert_allclose(
    fitted.ratings,
    [
      0.99 * 0.5 + 0.01 * (0.6 + 0.6 * 0.5),
      0.99 * 2.5 + 0.01 * (0.6 + 0.6 * 2.5),
    ],
  )
  middle = (fitted.ratings[0] + fitted.ratings[1]) / 2
  np.testing.assert_allclose(fitted(1.5), middle)
  np.testing.assert_allclose(fitted(3.5), fitted.ratings[1] + slope)
  np.testing.assert_allclose(fitted(-0.5), fitted.ratings[0] - intercept)


@pytest.mark.parametrize('method', calibrations.METHODS)
@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
  new=hnp.arrays(
    np.float32,
    st.integers(2, 60),
    elements=st.floats(-64.0, 8.0, width=32).map(lambda x: x - x % 2**-12),
  ),
  seed=st.integers(0, 5),
)
def test_ranks_stay(method, new, seed):
  fitted = calibrations.fit(*noisy(seed=seed), method)
  np.testing.assert_array_equal(
    stats.rankdata(new, 'dense'), stats.rankdata(fitted(new), 'dense')
  )


def test_neighbouring_floats_do_not_fuse():
  """Where isotonic regression is flat the calibration still rises."""
  rng = np.random.default_rng(1)
  scores = np.linspace(-3, -1, 500)
  ratings = (scores > -2) + rng.normal(0, 1e-3, 500)
  fitted = calibrations.fit(scores, ratings)
  x = np.float32(-2.5)
  assert fitted(np.nextafter(x, np.float32(0))) > fitted(x)


def test_calibrated_scores_are_nearer():
  scores, ratings = noisy(2000)
  groups = np.repeat(np.arange(500), 4)
  rmse = calibrations.cross_validate(scores, ratings, groups)['rmse']
  assert rmse['isotonic'] < rmse['affine'] < rmse['constant']
  # The noise has a standard deviation of .3.
  np.testing.assert_allclose(rmse['isotonic'], 0.3, atol=0.02)


def test_cross_validation_keeps_groups_together():
  """Equal ratings within a group, noise between: nothing can be learned."""
  rng = np.random.default_rng(0)
  groups = np.repeat(np.arange(60), 10)
  scores = groups + rng.normal(0, 1e-3, 600)
  ratings = np.repeat(rng.normal(0, 1, 60) + 0.02 * np.arange(60), 10)
  rmse = calibrations.cross_validate(scores, ratings, groups)['rmse']
  leaky = calibrations.cross_validate(scores, ratings, range(600))['rmse']
  assert rmse['isotonic'] > leaky['isotonic']


@pytest.mark.parametrize(
  ('scores', 'ratings', 'words'),
  [
    (np.arange(20.0), -np.arange(20.0), 'does not rise'),
    (np.zeros(20), np.arange(20.0), 'distinct'),
    (np.arange(3.0), np.arange(3.0), 'at least 10'),
    (np.full(20, np.nan), np.arange(20.0), 'finite'),
  ],
)
def test_what_cannot_be_fitted(scores, ratings, words):
  with pytest.raises(calibrations.CalibrationError, match=words):
    calibrations.fit(scores, ratings)


def test_file_keeps_the_function(tmp_path):
  fitted = calibrations.fit(*noisy(), target='z', signature=SIGNATURE)
  calibrations.write(tmp_path / calibrations.FILE, fitted)
  for path in (tmp_path, tmp_path / calibrations.FILE):
    again = calibrations.read(path)
    assert again.name == fitted.name
    x = np.linspace(-9, 9, 101)
    np.testing.assert_array_equal(again(x), fitted(x))


@pytest.mark.parametrize(
  'change',
  [
    {'scores': [1, 0]},
    {'ratings': [0.0]},
    {'format': 9},
    {'slopes': [0, 1]},
    {'extra': 1},
  ],
)
def test_damaged_file(tmp_path, change):
  path = tmp_path / 'c.json'
  calibrations.write(path, calibrations.fit(*noisy()))
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(calibrations.CalibrationError, match=r'c\.json: damaged'):
    calibrations.read(path)


def test_apply_signs_and_keeps_what_was():
  fitted = calibrations.fit(*noisy(), target='z', signature=SIGNATURE)
  raw = base.Scores([-1.0, -3.0], SIGNATURE, {'precision': [-1.0, -2.0]})
  scores = calibrations.apply(raw, fitted)
  np.testing.assert_allclose(scores.values, fitted([-1.0, -3.0]))
  np.testing.assert_array_equal(scores.components['uncalibrated'], raw.values)
  assert f'|calibration:{fitted.name}|version:' in scores.signature
  assert fitted.name.startswith('isotonic-z-')


def test_only_for_its_own_metric():
  fitted = calibrations.fit(*noisy(), signature=SIGNATURE)
  other = base.format_signature({'metric': 'toy', 'nrefs': 3, 'case': 'mixed'})
  with pytest.raises(calibrations.CalibrationError, match='case lc .*mixed'):
    calibrations.apply(base.Scores([0.0], other), fitted)
  same = base.format_signature({'metric': 'toy', 'nrefs': 3, 'case': 'lc'})
  calibrations.apply(base.Scores([0.0], same), fitted)


@pytest.fixture
def judged(tmp_path):
  """60 made-up segments whose ratings follow the number of equal words."""
  rng = np.random.default_rng(3)
  words = 'the small dog ran over green hills and saw nine birds'.split()
  lines = ['segment\treference\thypothesis\tda']
  for n in range(60):
    reference = list(rng.permutation(words))
    wrong = int(rng.integers(0, 9))
    hypothesis = reference[wrong:] + ['cloud'] * wrong
    rating = 100 - 10 * wrong + rng.normal(0, 3)
    lines.append(
      f'{n // 2}\t{" ".join(reference)}\t{" ".join(hypothesis)}\t{rating:.3f}'
    )
  lines.append('30\ta\tb\t')
  path = tmp_path / 'judged.tsv'
  path.write_text('\n'.join(lines) + '\n')
  return path


def scored(capsys, judged, *options):
  code = cli.main(
    ['score', '-m', 'chrf', '--input', str(judged), '--quiet', *options]
  )
  assert code == 0
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_two_verbs(tmp_path, capsys, judged):
  output = tmp_path / 'chrf.json'
  command = ['calibrate', '-m', 'chrf', '--input', str(judged)]
  assert cli.main([*command, '--human', 'da', '-o', str(output)]) == 0
  text = capsys.readouterr().out
  assert '60 rated segments (1 rows without a rating left out)' in text
  assert 'metric:chrf' in text.lower()
  plain = scored(capsys, judged)
  found = scored(capsys, judged, '--calibration', str(output))
  fitted = calibrations.read(output)
  for before, after in zip(plain, found, strict=True):
    np.testing.assert_allclose(after['score'], fitted(before['score']))
    assert after['uncalibrated'] == before['score']
  ratings = [
    float(x.split('\t')[3]) for x in judged.read_text().split('\n')[1:61]
  ]
  error = np.array([row['score'] for row in found[:60]]) - ratings
  assert np.sqrt(np.mean(error**2)) < 6


def test_the_ratings_are_not_overwritten(capsys, judged):
  before = judged.read_bytes()
  words = ['calibrate', '-m', 'chrf', '--human', 'da', '--input', str(judged)]
  assert cli.main([*words, '-o', str(judged)]) == 2
  assert 'is an input too' in capsys.readouterr().err
  assert judged.read_bytes() == before


@pytest.mark.parametrize(
  ('arguments', 'code', 'words'),
  [
    (['-m', 'chrf', '--human', 'da'], 2, 'give -o OUT'),
    (['-m', 'chrf', '--human', 'dz', '-o', 'x'], 1, "no column 'dz'"),
    (['-m', 'chrf', '--human', 'da', '-o', 'x', '--folds', '1'], 2, 'folds'),
    (['-m', 'chrf', '--human', 'da', '-o', 'no/x'], 1, 'no folder'),
  ],
)
def test_errors(tmp_path, capsys, monkeypatch, judged, arguments, code, words):
  monkeypatch.chdir(tmp_path)
  assert cli.main(['calibrate', '--input', str(judged), *arguments]) == code
  captured = capsys.readouterr()
  assert words in captured.err and captured.err.count('\n') == 1
  assert not (tmp_path / 'x').exists()


@pytest.mark.parametrize('model', [[], ['-m', 't5score-tiny'], ['-m', 'path']])
def test_an_embedded_model_is_never_written(capsys, judged, model):
  folder = kinds.folder('t5score-tiny')
  model = [str(folder) if word == 'path' else word for word in model]
  path = folder / calibrations.FILE
  before = path.read_bytes()
  words = ['calibrate', '--input', str(judged), '--human', 'da', '--quiet']
  try:
    for more in [], ['--overwrite'], ['-o', str(path)]:
      assert cli.main([*words, *model, *more]) == 2
      captured = capsys.readouterr()
      assert 'give -o OUT' in captured.err and captured.err.count('\n') == 1
      assert path.read_bytes() == before
  finally:
    # The package's own, should this fail.
    path.write_bytes(before)


def test_a_calibration_stays_unless_it_is_to_be_replaced(
  tmp_path, capsys, judged
):
  model = tmp_path / 'mine'
  shutil.copytree(kinds.folder('t5score-tiny'), model)
  path = model / calibrations.FILE
  before = path.read_bytes()
  words = ['calibrate', '-m', str(model), '--input', str(judged)]
  words += ['--human', 'da', '--quiet']
  assert cli.main(words) == 2
  captured = capsys.readouterr()
  assert f'{path} exists: give --overwrite' in captured.err
  assert path.read_bytes() == before
  assert cli.main([*words, '--overwrite']) == 0
  assert path.read_bytes() != before
  assert calibrations.read(path).target == 'da'
  path.unlink()
  assert cli.main(words) == 0 and path.exists()


@pytest.mark.parametrize('folds', [2, 3, 5, 7])
def test_the_least_number_of_segments(folds):
  least = calibrations.least_segments(folds)
  rising = np.arange(least, dtype=float)
  calibrations.cross_validate(rising, rising, range(least), folds)
  with pytest.raises(
    calibrations.CalibrationError,
    match=f'{least - 1} rated segments .* at least {least} and 2 .* {folds}',
  ):
    calibrations.cross_validate(rising[1:], rising[1:], range(least - 1), folds)


def test_a_fold_is_not_taken_for_the_file():
  # The segments of one id share a fold, without which few remain.
  rising = np.arange(14.0)
  groups = [0] * 8 + [1, 2, 3, 4, 5, 6]
  with pytest.raises(
    calibrations.CalibrationError,
    match=r'^14 rated segments in 5 folds; without fold \d: [56] rated',
  ):
    calibrations.cross_validate(rising, rising, groups, 5)


def test_calibration_of_another_metric_is_refused(tmp_path, capsys, judged):
  path = tmp_path / 'c.json'
  calibrations.write(path, calibrations.fit(*noisy(), signature=SIGNATURE))
  code = cli.main(
    ['score', '-m', 'chrf', '--input', str(judged), '--calibration', str(path)]
  )
  captured = capsys.readouterr()
  assert code == 1 and not captured.out
  assert 'fitted with another metric' in captured.err


def test_embedded_calibration(capsys, judged):
  """t5score-tiny's own: on the scale of z-scores, ranks as they were."""
  model = ['score', '--input', str(judged), '--quiet', '--bootstrap', '0']
  assert cli.main(model) == 0
  plain = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
  assert cli.main([*model, '--calibration', 'model']) == 0
  found = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
  before = [row['score'] for row in plain]
  after = [row['score'] for row in found]
  np.testing.assert_array_equal(stats.rankdata(before), stats.rankdata(after))
  assert [row['uncalibrated'] for row in found] == before
  assert -3 < min(after) < max(after) < 3

  code = cli.main([*model, '--calibration', 'model', '--direction', 'recall'])
  captured = capsys.readouterr()
  assert code == 1 and 'direction f before, recall now' in captured.err
