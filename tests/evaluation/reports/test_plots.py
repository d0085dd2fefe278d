"""Pictures of `t5score correlate`."""

import numpy as np
import pytest

from t5score_jax.errors import InputError
from t5score_jax.evaluation import agreement
from t5score_jax.evaluation import scores as score_files
from t5score_jax.evaluation.config import AgreementConfig
from t5score_jax.evaluation.reports import (
  plot_labels,
  plots,
)
from tests.commands.test_correlate import run
from tests.evaluation.reports.test_tables import ask
from tests.evaluation.test_agreement import grid

PNG = b'\x89PNG'


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
  for kind, mark in (('svg', b'<svg'), ('pdf', b'%PDF'), ('png', PNG)):
    first, second = (tmp_path / f'{n}.{kind}' for n in 'ab')
    for path in (first, second):
      plots.save(plots.scatter([panel], 'human', 'Scatter'), path)
    assert first.read_bytes() == second.read_bytes()
    assert mark in first.read_bytes()
  with pytest.raises(InputError):
    plots.scatter([panel] * 13, 'human', 'Scatter')


def words_of(figure):
  import matplotlib.text

  texts = figure.findobj(matplotlib.text.Text)
  return ' '.join(t.get_text() for t in texts if t.get_visible())


def test_pictures_say_what_whiskers_and_counts_are():
  grids = [grid(), grid('en-cs')]
  report = ask(grids, resamples=30)
  words = words_of(plots.bars(report, 'Agreement', 'Pearson'))
  assert 'whiskers: 95% interval' in words and '30 resamples' in words
  assert 'n = 120 entries' in words and 'n = 2 language pairs' in words
  assert 'whiskers' not in words_of(plots.bars(ask(grids), 'Agreement'))
  curve = agreement.measure_top(
    grids, AgreementConfig(level='system', resamples=20), [2, 3, 4]
  )
  figure = plots.curves(curve, 'Best', 'Pearson')
  assert 'whiskers' in words_of(figure)
  # Each metric's whiskers stand beside those of the others.
  (ax,) = figure.axes
  places = [
    {segment[0, 0] for segment in lines.get_segments()}
    for lines in ax.collections
  ]
  assert [len(p) for p in places] == [3, 3] and not places[0] & places[1]


def test_discrete_scores_are_jittered_and_others_are_not():
  rng = np.random.default_rng(0)
  human = rng.integers(0, 7, 300).astype(float)
  metric = rng.normal(size=300)
  figure = plots.scatter([plots.Panel('x', human, metric)], 'human', 'S')
  (ax,) = figure.axes
  drawn = np.asarray(ax.collections[0].get_offsets())
  assert len(np.unique(drawn[:, 0])) == 300 and 'jittered' in words_of(figure)
  assert (np.round(drawn[:, 0]) == human).all()
  np.testing.assert_array_equal(drawn[:, 1], metric)
  slope, intercept = np.polyfit(human, metric, 1)
  assert ax.lines[0].get_ydata() == pytest.approx(
    [intercept, 6 * slope + intercept]
  )


def test_names_keep_off_the_fitted_line():
  x = np.linspace(0, 1, 9)
  panel = plots.Panel('x', x, 2 * x, tuple(f'System-{k}' for k in range(9)))
  (ax,) = plots.scatter([panel], 'human', 'Scatter').axes
  line = plot_labels.line_boxes(ax, [(0.0, 0.0), (1.0, 2.0)])
  for text in ax.texts:
    if text.get_text().startswith('System'):
      a, b = text.get_position()
      box = (a, b - 0.017, a + 0.0165 * 8, b + 0.017)
      assert sum(plot_labels.overlap(box, other) for other in line) < 1e-3


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
      text.get_text()[:1]: (text.xy[0], text.get_horizontalalignment())
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
    ['--plot-kind', 'bars', '--bootstrap', 100],
    ['--level', 'system', '--top-k', '2,3,4'],
  ):
    picture = tmp_path / 'picture.png'
    picture.unlink(missing_ok=True)
    assert run(*arguments, *extra, '--plot', picture) == 0
    assert picture.read_bytes().startswith(PNG)
  for extra, message in [
    (['--plot', tmp_path / 'x.gif'], 'x.gif: a picture is'),
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
    assert message in capsys.readouterr().err


def test_without_matplotlib_one_line_says_so(tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'matplotlib', None)
  path = tmp_path / 'a.tsv'
  path.write_text('system\tsegment\th\tm\nA\t1\t1\t2\nA\t2\t2\t3\n')
  code = run(
    path, '--human', 'h', '--metrics', 'm', '--plot', tmp_path / 'x.png'
  )
  assert code == 1
  message = capsys.readouterr().err
  assert (
    "pip install 't5score-jax[plot]'" in message and message.count('\n') == 1
  )
