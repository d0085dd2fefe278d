"""Reports and pictures of `t5score correlate`, and what it says of tests."""

import json
import warnings

import numpy as np
import pytest

from t5score_jax.errors import InputError
from t5score_jax.evaluation import agreement, clusters, darr, outliers
from t5score_jax.evaluation import scores as score_files
from t5score_jax.evaluation.config import TESTS, AgreementConfig
from t5score_jax.evaluation.reports import plot_labels, plots, tables, wmt20
from tests.commands.test_correlate import run
from tests.evaluation.test_agreement import grid

PNG = b'\x89PNG'


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
  assert '$^\\ddagger$' in tables.render(report, 'latex')
  found = tables.as_json(report)
  assert found['results'][0]['mark'] == '‡' and found['results'][0]['rank'] == 1
  assert found['p_values']['Avg']['good']['poor'] < 0.05
  # By permutation averages have no test, which is said.
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
    found = ask([one], statistic='calibrated-accuracy', group='item')
    assert found.cells['good', 'zh-en'].value == 0.0
    single = grid(segments=1)
    for options in ({}, {'level': 'system'}, {'group': 'item'}):
      assert np.isfinite(ask([single], **options).cells['good', 'zh-en'].value)
  with pytest.raises(InputError):
    ask([one], level='system', statistic='soft-accuracy')
  with pytest.raises(InputError):
    ask([single], resamples=5)


# A small WMT20: two language pairs, three machine systems and a human one.


@pytest.fixture
def wmt(tmp_path):
  rng = np.random.default_rng(0)
  folder = tmp_path / 'data'
  for name in ('human', 'scores'):
    (folder / 'wmt20_metrics' / name).mkdir(parents=True)
  pairs, scored = [], {'chrF': [], 'BLEURT': []}
  systems = ('A.1', 'B.2', 'C.3', 'Human-A.0')
  for pair in (*wmt20._into(), *wmt20._out_of()):
    lines = ['RAW.SCR Z.SCR N SYS N.ALL ']
    lines += [f'{70 + k} {k / 2} 10 {s} 12 ' for k, s in enumerate(systems)]
    (folder / f'wmt20_metrics/human/ad-sys-scores-{pair}.csv').write_text(
      '\n'.join(lines) + '\n'
    )
    for n in range(1, 21):
      pairs.append(f'{pair}\td::{n}\tB.2\tA.1')
      pairs.append(f'{pair}\td::{n}\tC.3\tA.1')
      for k, system in enumerate(systems):
        for metric, noise in (('chrF', 2.0), ('BLEURT', 0.1)):
          scored[metric].append((pair, system, n, k + noise * rng.normal()))
  (folder / 'wmt20_darr.tsv').write_text(
    'lp\tsid\tbetter\tworse\n' + '\n'.join(pairs) + '\n'
  )
  for metric, rows in scored.items():
    means = {}
    for pair, system, _, value in rows:
      means.setdefault((pair, system), []).append(value)
    for level, lines in {
      'seg': [
        f'{p} newstest2020 newstest2020 {s} d {n} {v}' for p, s, n, v in rows
      ],
      'sys': [
        f'{p} newstest2020 newstest2020 {s} {np.mean(v)}'
        for (p, s), v in means.items()
      ],
    }.items():
      path = folder / f'wmt20_metrics/scores/{metric}.{level}.score'
      path.write_text(''.join(f'{metric} {line}\n' for line in lines))
  with open(tmp_path / 'ours.jsonl', 'w') as out:
    for pair, system, n, value in scored['chrF']:
      if pair == 'cs-en':
        row = {
          'language_pair': pair,
          'system': system,
          'segment': f'd::{n}',
          'score': -value,
        }
        out.write(json.dumps(row) + '\n')
  return folder, tmp_path / 'ours.jsonl'


def test_wmt20_report_has_the_papers_tables(wmt, capsys):
  folder, ours = wmt
  arguments = ['--report', 'wmt20', '--data', folder, f'ours={ours}']
  arguments += ['--metrics', 'chrF,BLEURT,ours', '--bootstrap', 100]
  assert run(*arguments, '--format', 'json') == 0
  found = json.loads(capsys.readouterr().out)
  assert found['unsupervised'] == ['chrF'] and found['seed'] == 12345
  by_title = {t['title']: t['results'] for t in found['tables']}
  tau = {
    (r['metric'], r['column']): r
    for r in by_title['Segment-level Kendall tau on DARR, to English']
  }
  # Scores with the sign turned agree where the others do not.
  assert tau['ours', 'cs-en']['value'] == -tau['chrF', 'cs-en']['value']
  assert tau['BLEURT', 'cs-en']['mark'] == '‡'
  assert tau['chrF', 'cs-en']['mark'] == '†'
  assert ('ours', 'Avg-en') not in tau and ('chrF', 'Avg') in tau
  members = [tau['chrF', f'{x}-en']['value'] for x in wmt20.INTO]
  assert tau['chrF', 'Avg-en']['value'] == pytest.approx(np.mean(members))
  assert len(by_title) == 6
  assert run(*arguments) == 0
  text = capsys.readouterr().out
  assert 'Times 100.' in text and 'no table of MQM' in text
  assert run(*arguments, '--format', 'latex') == 0
  text = capsys.readouterr().out
  assert '\\textbf{' in text and '\\underline{' in text
  assert '$^\\ddagger$' in text
  assert run(*arguments, '--format', 'markdown') == 0
  assert '**' in capsys.readouterr().out


def test_wmt20_report_says_what_is_missing(wmt, capsys):
  folder, ours = wmt
  lines = ours.read_text().splitlines()
  ours.write_text('\n'.join(x for x in lines if '"A.1"' not in x) + '\n')
  arguments = ['--report', 'wmt20', '--data', folder, f'ours={ours}']
  arguments += ['--metrics', 'chrF,ours', '--bootstrap', 0]
  assert run(*arguments) == 0
  text = capsys.readouterr().out
  assert 'cs-en: ours has no score of A.1: not measured' in text
  assert run(*arguments, '--intersect') == 0
  text = capsys.readouterr().out
  assert 'cs-en: ours has no score of A.1: measured without them' in text
  data = ['--data', folder]
  for arguments, code, said in [
    ([], 2, 'needs --data'),
    (['--data', folder.parent], 1, 'no wmt20_darr.tsv'),
    ([*data, ours], 2, 'takes NAME=FILE'),
    ([*data, '--metrics', 'X'], 1, "no scores of 'X'"),
    (['--plot', 'x.png'], 2, 'not for --report'),
    ([*data, '--unsupervised', 'chrf'], 2, "did you mean 'chrF'"),
    ([*data, f'o={ours}', f'o={ours}'], 1, 'a second score of o'),
  ]:
    assert run('--report', 'wmt20', *arguments) == code
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out


def test_agreement_known_only_by_pair_is_read(wmt):
  folder, _ = wmt
  pairs = darr.read_pairs(folder / 'wmt20_darr.tsv')
  lines = ['lp\tsid\tbetter\tworse\tprism']
  for k, row in enumerate(
    zip(
      pairs.language_pair, pairs.segment, pairs.better, pairs.worse, strict=True
    )
  ):
    if row[0] != 'zh-en':
      lines.append('\t'.join([*row, '' if k == 3 else str(k % 2)]))
  path = folder / 'wmt20_metrics/darr_agreement.tsv'
  path.write_text('\n'.join(lines) + '\n')
  agreed = wmt20.Data(folder, {}).agreement('prism')
  ours = pairs.language_pair != 'zh-en'
  assert np.isnan(agreed[~ours]).all() and np.isnan(agreed[3])
  assert agreed[:3].tolist() == [-1, 1, -1]
  path.write_text('\n'.join([*lines, 'zh-en\tx\ty\tz\t1']) + '\n')
  with pytest.raises(score_files.files.RecordError):
    wmt20.Data(folder, {}).agreement('prism')


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
  assert run(*arguments, '--report', 'categories', '--format', 'json') == 0
  found = json.loads(capsys.readouterr().out)
  (row,) = found['results']
  assert row['metric'] == 'm' and row['accuracy'] == pytest.approx(0)
  assert 0 < row['overall'] < row['fluency']
  assert 'style' not in row and any(
    'no error of style' in n for n in found['notes']
  )
  # A category is a gold score like any other.
  assert run(*arguments, '--human', 'mqm-accuracy', '--format', 'json') == 0
  found = json.loads(capsys.readouterr().out)
  assert found['results'][0]['value'] == pytest.approx(1.0)


def test_pictures_are_drawn(tmp_path):
  grids = [grid(), grid('en-cs')]
  report = ask(grids, resamples=30)
  path = tmp_path / 'bars.png'
  plots.save(plots.bars(report, 'Agreement', 'Pearson'), path)
  assert path.read_bytes().startswith(PNG)
  figure = plots.bars(report, 'Agreement', 'Pearson')
  drawn = [ax for ax in figure.axes if ax.get_visible()]
  assert [ax.get_title(loc='left') for ax in drawn] == list(report.columns)
  widths = [bar.get_width() for bar in drawn[0].patches]
  assert widths == sorted(
    report.cells[m, 'zh-en'].value for m in report.metrics
  )
  curve = agreement.measure_top(
    grids, AgreementConfig(level='system', resamples=20), [2, 3, 4]
  )
  figure = plots.curves(curve, 'Best', 'Pearson')
  (ax,) = figure.axes
  assert [line.get_ydata().tolist() for line in ax.lines] == [
    curve.values(m).tolist() for m in curve.metrics
  ]
  panel = plots.Panel(
    'chrF', np.arange(5.0), 2 * np.arange(5.0), tuple('ABCDE'), 'r 1'
  )
  figure = plots.scatter([panel], 'human', 'Scatter')
  (ax,) = figure.axes
  (line,) = ax.lines
  assert line.get_ydata() == pytest.approx([0, 8])
  assert {t.get_text() for t in ax.texts} >= set('ABCDE')
  for name in ('a.svg', 'b.svg'):
    plots.save(plots.scatter([panel], 'human', 'Scatter'), tmp_path / name)
  first, second = ((tmp_path / n).read_bytes() for n in ('a.svg', 'b.svg'))
  assert first == second and b'<svg' in first
  with pytest.raises(InputError):
    plots.scatter([panel] * 13, 'human', 'Scatter')


def test_numbers_stand_at_the_bars_ends():
  rng = np.random.default_rng(0)
  human = rng.normal(size=(3, 40))
  metrics = {'good': human + 0.3 * rng.normal(size=human.shape)}
  metrics['bad'] = -metrics['good']
  g = score_files.ScoreGrid(
    'zh-en', tuple('ABC'), tuple(map(str, range(40))), human, metrics
  )
  for resamples in (0, 30):
    report = ask([g], resamples=resamples)
    (ax,) = plots.bars(report, 'Agreement').axes
    sides = {
      text.get_text()[0]: (text.xy[0], text.get_horizontalalignment())
      for text in ax.texts
    }
    low, high = ax.get_xlim()
    bad, good = (report.cells[m, 'zh-en'] for m in ('bad', 'good'))
    end, side = sides['-']
    assert side == 'right' and low < end <= bad.value
    end, side = sides['.']
    assert side == 'left' and good.value <= end < high
    # Room for a number on either side.
    assert low < bad.value - 0.2 and high > good.value + 0.2


def test_names_in_a_scatter_plot_keep_apart():
  rng = np.random.default_rng(0)
  panel = plots.Panel(
    'x',
    rng.normal(size=8),
    rng.normal(size=8),
    tuple(f'System-{k}' for k in range(8)),
  )
  (ax,) = plots.scatter([panel], 'human', 'Scatter').axes
  boxes = []
  for text in ax.texts:
    if text.get_text().startswith('System'):
      x, y = text.get_position()
      boxes.append((x, y - 0.017, x + 0.0165 * 8, y + 0.017))
  shared = [
    plot_labels.overlap(a, b) for k, a in enumerate(boxes) for b in boxes[:k]
  ]
  assert len(boxes) == 8 and sum(shared) < 1e-3


def test_pictures_from_the_command_line(tmp_path, capsys):
  path = tmp_path / 'all.tsv'
  rng = np.random.default_rng(0)
  lines = ['lp\tsystem\tsegment\thuman\tm']
  for k, system in enumerate('ABCD'):
    for n in range(12):
      h = k + rng.normal()
      lines.append(f'zh-en\t{system}\t{n}\t{h}\t{h + rng.normal()}')
  path.write_text('\n'.join(lines) + '\n')
  arguments = [path, '--human', 'human', '--metrics', 'm', '-o', tmp_path / 't']
  for extra in (
    [],
    ['--level', 'system'],
    ['--plot-kind', 'bars', '--bootstrap', 20],
    ['--level', 'system', '--top-k', '2,3,4'],
  ):
    picture = tmp_path / 'picture.png'
    picture.unlink(missing_ok=True)
    assert run(*arguments, *extra, '--plot', picture) == 0
    assert picture.read_bytes().startswith(PNG)
  for extra, said in [
    (['--plot', tmp_path / 'x.pdf'], 'PNG or SVG'),
    (['--plot', tmp_path / 'x.png', '--plot-kind', 'curves'], 'need several'),
    (
      ['--plot', tmp_path / 'x.png', '--plot-kind', 'bars', '--top-k', '2,3'],
      'drawn as curves',
    ),
    (['--top-k', '2,x'], "numbers, not 'x'"),
    (['--data', tmp_path], '--data is for'),
  ]:
    if '--top-k' in extra:
      extra = [*extra, '--level', 'system']
    assert run(*arguments, *extra) == 2
    assert said in capsys.readouterr().err


def test_without_matplotlib_one_line_says_so(tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'matplotlib', None)
  path = tmp_path / 'a.tsv'
  path.write_text('system\tsegment\th\tm\nA\t1\t1\t2\nA\t2\t2\t3\n')
  code = run(
    path, '--human', 'h', '--metrics', 'm', '--plot', tmp_path / 'x.png'
  )
  assert code == 1
  said = capsys.readouterr().err
  assert "pip install 't5score-jax[plot]'" in said and said.count('\n') == 1


def test_a_language_pair_is_chosen(tmp_path, capsys):
  path = tmp_path / 'a.tsv'
  lines = ['lp\tsystem\tsegment\th\tm']
  lines += [
    f'{p}\tA\t{n}\t{n}\t{n * n}' for p in ('a-b', 'c-d') for n in (1, 2, 3)
  ]
  path.write_text('\n'.join(lines) + '\n')
  arguments = [path, '--human', 'h', '--metrics', 'm', '--format', 'json']
  assert run(*arguments, '--language-pair', 'c-d') == 0
  found = json.loads(capsys.readouterr().out)
  assert [r['language_pair'] for r in found['results']] == ['c-d']
  assert clusters.LEVEL == 0.05
