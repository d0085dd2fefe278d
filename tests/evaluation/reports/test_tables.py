"""Reports of `t5score correlate`, and what it says of tests."""

import json
import re
import warnings

import numpy as np
import pytest

from t5score_jax.errors import InputError
from t5score_jax.evaluation import agreement, clusters, outliers
from t5score_jax.evaluation.config import TESTS, AgreementConfig
from t5score_jax.evaluation.reports import (
  tables,
)
from tests.commands.test_correlate import run
from tests.evaluation.test_agreement import grid


def ask(grids, **options):
  return agreement.measure(grids, AgreementConfig(**options))


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'statistic': 'darr'},
    {'statistic': 'darr', 'ties': 'excluded'},
    {'statistic': 'kendall', 'group': 'item'},
    {'statistic': 'calibrated-accuracy', 'group': 'item'},
    {'level': 'system'},
    {'level': 'system', 'statistic': 'soft-accuracy'},
  ],
)
@pytest.mark.parametrize('test', TESTS)
def test_every_statistic_is_tested_both_ways(options, test):
  report = ask(
    [grid(segments=40)], test=test, resamples=40, permutations=60, **options
  )
  p = report.p_values['zh-en']
  assert p.shape == (2, 2) and (0 < p).all() and (p <= 1).all()
  good, poor = (report.cells[name, 'zh-en'] for name in ('good', 'poor'))
  if good.value > poor.value and p[0, 1] <= 0.05:
    assert (good.rank, poor.rank) == (1, 2)
  if options.get('level') != 'system':
    assert p[0, 1] < 0.05 < p[1, 0]
  for style in tables.FORMATS:
    assert 'seed' in tables.render(report, style)


def test_marks_stand_in_tables_and_json():
  report = ask(
    [grid(), grid('en-cs')],
    test='bootstrap',
    resamples=60,
    unsupervised=('poor',),
  )
  text = tables.render(report)
  for column in ('zh-en', 'en-cs', 'Avg'):
    assert report.cells['good', column].mark == '‡'
    assert report.cells['poor', column].mark == '†'
  assert '‡ (1)' in text and '† (2)' in text
  assert 'unsupervised metric (poor)' in text
  latex = tables.render(report, 'latex', notes=['100% of it'])
  assert '$^\\ddagger$' in latex
  # Outside of the tables there are comments alone.
  outside = re.sub(
    r'\\begin{tabular}.*?\\end{tabular}', '', latex, flags=re.DOTALL
  )
  lines = [line for line in outside.splitlines() if line]
  assert lines and all(line.startswith('% ') for line in lines)
  result = tables.as_json(report)
  assert (
    result['results'][0]['mark'] == '‡' and result['results'][0]['rank'] == 1
  )
  assert result['p_values']['Avg']['good']['poor'] < 0.05
  # By permutation averages have no test, and a note says so.
  report = ask([grid(), grid('en-cs')], test='permutation', permutations=40)
  assert report.cells['good', 'Avg'].rank is None
  assert any('averages are not tested' in note for note in report.notes)


def test_folds_have_a_mean_and_a_deviation():
  g = grid()
  rng = np.random.default_rng(0)
  for k in range(3):
    g.metrics[f'comes@{k}'] = g.human + 20 * rng.normal(size=g.human.shape)
  report = ask([g])
  each = [report.cells[f'comes@{k}', 'zh-en'].value for k in range(3)]
  cell = report.cells['comes (3 folds)', 'zh-en']
  assert cell.value == pytest.approx(np.mean(each))
  assert cell.spread == pytest.approx(np.std(each, ddof=1))
  assert f'{cell.value:.4f} ± {cell.spread:.4f}' in tables.render(report)
  assert tables.as_json(report)['results'][-1]['standard_deviation'] == (
    cell.spread
  )
  # One fold alone is a metric of that name.
  assert agreement.folds(['a@1', 'b', '@2', 'c@']) == {}


def test_outliers_by_robust_deviations_are_left_out_and_said():
  means = np.array([70.0, 71, 72, 69, 20])
  assert outliers.are_outliers(means).tolist() == [False] * 4 + [True]
  assert not outliers.are_outliers(means, 100).any()
  assert not outliers.are_outliers(np.array([1.0, 1, 1, 9])).any()
  g = grid(systems=('A', 'B', 'C', 'D', 'E'))
  g.human[4] -= 500
  report = ask([g], level='system', outliers=2.5)
  assert report.cells['good', 'zh-en'].count == 4
  assert 'left out as outliers: E' in report.notes[0]


def test_curves_over_the_best_systems():
  g = grid(systems='ABCDEF')
  curve = agreement.measure_top(
    [g], AgreementConfig(level='system', resamples=30), [4, 2, 6]
  )
  assert curve.top_k == (2, 4, 6) and curve.column == 'zh-en'
  for k, value in zip(curve.top_k, curve.values('poor'), strict=True):
    assert (
      value == ask([g], level='system', top_k=k).cells['poor', 'zh-en'].value
    )
  assert curve.intervals('good').shape == (2, 3)
  assert tables.render_curve(curve).splitlines()[2].split() == (
    ['metric', 'top', '2', 'top', '4', 'top', '6']
  )
  assert len(json.loads(tables.render_curve(curve, 'json'))['top_k']) == 3
  with pytest.raises(ValueError, match='top 7 of 6'):
    agreement.measure_top([g], AgreementConfig(level='system'), [2, 7])
  with pytest.raises(InputError):
    agreement.measure_top([g], AgreementConfig(level='system'), [2, 2])


def test_invalid_configurations_of_tests_raise():
  for options, named in [
    ({'statistic': 'soft-accuracy'}, 'soft-accuracy'),
    (
      {'statistic': 'calibrated-accuracy', 'level': 'system'},
      'calibrated-accuracy',
    ),
    ({'test': 'sign'}, "'sign'"),
    ({'test': 'bootstrap'}, 'bootstrap'),
    ({'permutations': 0}, 'permutations'),
    ({'swap': 'halves'}, "'halves'"),
    ({'unsupervised': ('a',)}, 'test'),
    ({'outliers': 0}, 'outliers'),
    ({'level': 'system', 'group': 'item'}, 'group'),
  ]:
    with pytest.raises(InputError, match=named):
      AgreementConfig(**options)


def test_one_system_and_one_segment_are_defined():
  one = grid(systems=('A',), segments=5)
  assert -1 <= ask([one]).cells['good', 'zh-en'].value <= 1
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    result = ask([one], statistic='calibrated-accuracy', group='item')
    assert result.cells['good', 'zh-en'].value == 0.0
    single = grid(segments=1)
    for options in ({}, {'level': 'system'}, {'group': 'item'}):
      assert np.isfinite(ask([single], **options).cells['good', 'zh-en'].value)
  with pytest.raises(InputError):
    ask([one], level='system', statistic='soft-accuracy')
  with pytest.raises(InputError):
    ask([single], resamples=5)


def test_categories_report(tmp_path, capsys):
  rng = np.random.default_rng(0)
  rows = ['system\tdoc\tdoc_id\trater\tcategory\tseverity']
  with open(tmp_path / 'm.jsonl', 'w') as out:
    for system in ('A', 'B'):
      for n in range(1, 31):
        bad = rng.random() < 0.5
        rows.append(
          f'{system}\td\t{n}\tr\t'
          + ('Accuracy/Omission\tMajor' if bad else 'No-error\tNo-error')
        )
        if rng.random() < 0.5:
          rows.append(f'{system}\td\t{n}\tr\tFluency/Grammar\tMinor')
        row = {'language_pair': '', 'system': system, 'segment': f'd::{n}'}
        out.write(json.dumps({**row, 'score': -5.0 * bad}) + '\n')
  (tmp_path / 'mqm.tsv').write_text('\n'.join(rows) + '\n')
  arguments = [tmp_path / 'mqm.tsv', f'm={tmp_path / "m.jsonl"}']
  assert run(*arguments, '--report', 'categories', '--table', 'json') == 0
  result = json.loads(capsys.readouterr().out)
  (row,) = result['results']
  assert row['metric'] == 'm' and row['accuracy'] == pytest.approx(0)
  assert 0 < row['overall'] < row['fluency']
  assert 'style' not in row and any(
    'no error of style' in n for n in result['notes']
  )
  # A category is a gold score like any other.
  assert run(*arguments, '--human', 'mqm-accuracy', '--table', 'json') == 0
  result = json.loads(capsys.readouterr().out)
  assert result['results'][0]['value'] == pytest.approx(1.0)


def test_a_language_pair_is_chosen(tmp_path, capsys):
  path = tmp_path / 'a.tsv'
  lines = ['lp\tsystem\tsegment\th\tm']
  lines += [
    f'{p}\tA\t{n}\t{n}\t{n * n}' for p in ('a-b', 'c-d') for n in (1, 2, 3)
  ]
  path.write_text('\n'.join(lines) + '\n')
  arguments = [path, '--human', 'h', '--metrics', 'm', '--table', 'json']
  assert run(*arguments, '--language-pair', 'c-d') == 0
  result = json.loads(capsys.readouterr().out)
  assert [r['language_pair'] for r in result['results']] == ['c-d']
  assert clusters.LEVEL == 0.05
