"""`t5score retention`: the numbers against NumPy, the table, the command."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax import cli
from t5score_jax.commands import _metric_arguments
from t5score_jax.commands import retention as command
from t5score_jax.data import records
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.evaluation.reports import plot_labels, plots, retention
from t5score_jax.metrics import base, registry


def _measured(seed=0, size=300):
  rng = np.random.default_rng(seed)
  human = rng.normal(size=size)
  teacher = human + rng.normal(size=size)
  student = teacher + 0.7 * rng.normal(size=size)
  metrics = [
    retention.Measured('t', 'teacher', teacher, 20.0, 30.0, 1000, 'sig:t'),
    retention.Measured('s', 'student', 5 + 3 * student, 480.0, 4.0, 100),
    retention.Measured('c', 'beside', rng.normal(size=size), 3000.0, 0.1),
  ]
  groups = ['a-b'] * 100 + ['c-d'] * (size - 100)
  return metrics, human, groups


def _report(**options):
  metrics, human, groups = _measured()
  segments = [n // 2 for n in range(len(human))]
  return retention.measure(metrics, human, groups, segments, **options)


def test_numbers_are_numpys():
  metrics, human, groups = _measured()
  report = _report(resamples=0, speed_against='s')
  places = [np.flatnonzero(np.array(groups) == g) for g in ('a-b', 'c-d')]

  def pearson(x, y):
    return [np.corrcoef(x[p], y[p])[0, 1] for p in places]

  teacher = metrics[0].scores
  for row, metric in zip(report.rows, metrics, strict=True):
    with_people = pearson(human, metric.scores)
    assert list(row.human.values()) == pytest.approx(with_people)
    assert row.human_mean == pytest.approx(np.mean(with_people))
    assert row.kept == pytest.approx(
      np.mean(with_people) / np.mean(pearson(human, teacher))
    )
    assert list(row.teacher.values()) == pytest.approx(
      pearson(teacher, metric.scores)
    )
    assert row.interval is None
    assert row.faster == metric.pairs_per_second / 480.0
  assert [row.smaller for row in report.rows] == [1.0, 10.0, None]
  assert report.counts == {'a-b': 100, 'c-d': 200}


def test_the_interval_is_a_paired_bootstrap_over_segments():
  metrics, human, groups = _measured()
  report = _report(resamples=2000)
  assert report.rows[0].interval == (1.0, 1.0)
  rng = np.random.default_rng(7)
  draws = []
  for _ in range(1500):
    rated = np.zeros(2)
    for segments in (np.arange(50), np.arange(50, 150)):
      taken = rng.choice(segments, size=len(segments))
      rows = np.concatenate([2 * taken, 2 * taken + 1])
      rated += [
        np.corrcoef(human[rows], m.scores[rows])[0, 1] for m in metrics[:2]
      ]
    draws.append(rated[1] / rated[0])
  low, high = np.quantile(draws, [0.025, 0.975])
  assert report.rows[1].interval == pytest.approx((low, high), abs=0.015)
  assert low < report.rows[1].kept < high
  # The same seed, the same interval.
  assert _report(resamples=2000).rows[1].interval == report.rows[1].interval


@pytest.mark.parametrize(
  'change', [lambda m: m[1:], lambda m: [*m, m[0]], lambda m: [*m, m[1]]]
)
def test_wrong_metrics_are_refused(change):
  metrics, human, groups = _measured()
  with pytest.raises(InputError):
    retention.measure(change(metrics), human, groups, range(300))


def test_wrong_numbers_are_refused():
  metrics, human, groups = _measured()
  with pytest.raises(InputError):
    retention.measure(metrics, human[1:], groups, range(300))
  with pytest.raises(ValueError, match="no metric 'x'"):
    retention.measure(metrics, human, groups, range(300), speed_against='x')
  human[3] = np.nan
  with pytest.raises(ValueError, match='human ratings hold nan'):
    retention.measure(metrics, human, groups, range(300))


def test_formats_say_the_same():
  report = _report(resamples=100)
  whole = json.loads(retention.render(report, 'json', notes=['a note']))
  student = whole['metrics'][1]
  assert student['kept'] == report.rows[1].kept and whole['notes'] == ['a note']
  assert whole['metrics'][0]['signature'] == 'sig:t'
  for style in ('text', 'markdown', 'latex'):
    text = retention.render(report, style, digits=2)
    for cell in ('1,000', f'{student["human_mean"]:.2f}', '24.0', '480'):
      assert cell in text
    assert f'{100 * student["kept"]:.1f}' in text
    assert f'{student["teacher"]["c-d"]:.2f}' in text
  with pytest.raises(InputError):
    retention.render(report, 'html')


def test_a_teacher_that_agrees_with_nobody_has_nothing_to_keep():
  metrics, human, groups = _measured()
  metrics[0] = retention.Measured('t', 'teacher', -human, 1.0, 1.0)
  report = retention.measure(metrics, human, groups, range(300), resamples=9)
  assert np.isnan(report.rows[1].kept) and report.rows[1].interval is None
  assert 'nan' not in retention.render(report)
  assert (
    json.loads(retention.render(report, 'json'))['metrics'][1]['kept'] is None
  )
  with pytest.raises(InputError):
    plots.sizes(report)


@given(
  st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted),
  st.floats(0.01, 0.2),
)
def test_names_of_lines_are_spread(places, gap):
  places = np.array(places)
  moved = plot_labels.spread(places, gap)
  assert (np.diff(moved) >= gap - 1e-9).all()
  # As a whole they stay where they were; those that were apart do not move.
  np.testing.assert_allclose(moved.mean(), places.mean(), atol=1e-9)
  if (np.diff(places) >= gap).all():
    np.testing.assert_allclose(moved, places, atol=1e-9)


def test_names_in_the_picture_cover_nothing():
  pytest.importorskip('matplotlib')
  from matplotlib.text import Text

  rng = np.random.default_rng(0)
  human = rng.normal(size=300)
  noisy = [
    retention.Measured(
      name, role, human + noise * rng.normal(size=300), 1.0, 1.0, size, 's'
    )
    for name, role, noise, size in (
      ('teacher', 'teacher', 1.0, 10**8),
      ('near', 'beside', 1.02, 10**8),
      ('small', 'student', 1.1, 10**7),
      ('tiny', 'student', 1.5, 10**6),
    )
  ]
  words = human + 2 * rng.normal(size=300)
  noisy += [
    retention.Measured(name, 'beside', words, 1.0, 1.0, None, 's')
    for name in ('chrf', 'chrf++', 'bleu')
  ]
  figure = plots.sizes(
    retention.measure(noisy, human, ['a'] * 300, range(300), resamples=50)
  )
  figure.canvas.draw()
  (ax,) = figure.axes
  # Of the text alone, without what leads to it.
  drawn = {
    t.get_text(): Text.get_window_extent(t) for t in ax.texts if t.get_text()
  }
  assert set(drawn) == {m.name for m in noisy}
  for one, other in itertools.combinations(drawn, 2):
    assert not drawn[one].overlaps(drawn[other]), (one, other)
  # The teacher's line.
  height = ax.transData.transform((10**7, 100))[1]
  for name in ('teacher', 'near', 'small', 'tiny'):
    assert not drawn[name].y0 < height < drawn[name].y1, name


def test_picture_shows_sizes(tmp_path):
  pytest.importorskip('matplotlib')
  figure = plots.sizes(_report(resamples=50))
  (ax,) = figure.axes
  assert ax.get_xscale() == 'log'
  texts = {text.get_text() for text in ax.texts} - {''}
  assert texts == {'t', 's', 'c'}
  points = {c.get_label(): c for c in ax.containers}
  assert set(points) == {'teacher', 'student'}
  assert points['student'][0].get_xdata().tolist() == [100]
  plots.save(figure, tmp_path / 'x.svg')
  assert 'parameters' in (tmp_path / 'x.svg').read_text()


class _Length(base.Metric):
  """Counts calls; rates by length, with noise that an option sets."""

  name = 'length'
  calls = []

  def __init__(self, noise=0.0, parameters=None):
    self._noise = noise
    self.num_parameters = parameters

  def signature(self):
    return base.format_signature({'metric': 'length', 'noise': self._noise})

  def score_segments(self, segments):
    self.calls.append((self._noise, len(segments)))
    rng = np.random.default_rng(1)
    lengths = np.array([len(s.hypothesis) for s in segments], float)
    noise = self._noise * rng.normal(size=len(lengths))
    return base.Scores(lengths + noise, self.signature())


@pytest.fixture
def judged(tmp_path, monkeypatch):
  rng = np.random.default_rng(0)
  segments = []
  for n in range(60):
    length = int(rng.integers(1, 30))
    rating = {} if n % 10 == 0 else {'z': length + 6 * rng.normal()}
    segments.append(
      Segment(
        'x' * length,
        references=('r',),
        segment=str(n),
        language_pair='ab'[n % 2],
        ratings=rating,
      )
    )
  path = tmp_path / 'judged.jsonl'
  records.write_records(path, segments)
  true = _metric_arguments.load

  def load(name, options):
    return _Length(**options) if name == 'length' else true(name, options)

  true_check = _metric_arguments.check

  def check(name, options):
    if name != 'length':
      true_check(name, options)

  monkeypatch.setattr(_metric_arguments, 'load', load)
  monkeypatch.setattr(_metric_arguments, 'check', check)
  _Length.calls.clear()
  return path


def _run(judged, *arguments):
  return cli.main(
    ['retention', '--input', str(judged), '--human', 'z', *map(str, arguments)]
  )


@pytest.mark.filterwarnings('ignore:the second scores do not vary')
def test_one_command_one_table(judged, tmp_path, capsys):
  pytest.importorskip('matplotlib')
  assert not _run(
    judged, '--teacher', 'big=length:parameters=2000000',
    '--students', 'small=length:noise=4.0,parameters=100000',
    'tiny=length:noise=12.5,parameters=10000', '--beside', 'chrf',
    '--speed-against', 'chrf', '--repeats', 2, '--time-pairs', 20,
    '--table', 'json', '--bootstrap', 200, '--plot', tmp_path / 'x.png',
  )  # fmt: skip
  captured = capsys.readouterr()
  result = json.loads(captured.out)
  names = [m['metric'] for m in result['metrics']]
  assert names == ['big', 'small', 'tiny', 'chrf']
  assert result['language_pairs'] == {'a': 24, 'b': 30}
  assert '6 records without a rating' in result['notes']
  kept = [m['kept'] for m in result['metrics']]
  assert kept[0] == 1 and 1 > kept[1] > kept[2]
  assert [m['smaller'] for m in result['metrics']] == [1, 20, 200, None]
  assert result['metrics'][3]['faster'] == 1
  for metric in result['metrics'][1:3]:
    assert metric['interval'][0] < metric['kept'] < metric['interval'][1]
  # All once, a part to warm up, that part twice.
  assert _Length.calls[:4] == [(0.0, 54), (0.0, 20), (0.0, 20), (0.0, 20)]
  assert captured.err.count('s cold') == 4
  assert (tmp_path / 'x.png').read_bytes()[:4] == b'\x89PNG'


def test_all_records_as_one_and_a_file(judged, tmp_path, capsys):
  out = tmp_path / 'out.md'
  assert not _run(
    judged, '--teacher', 'length', '--by', 'none', '--bootstrap', 0,
    '--table', 'markdown', '-o', out, '--quiet',
  )  # fmt: skip
  captured = capsys.readouterr()
  assert captured.out == captured.err == ''
  text = out.read_text()
  assert text.startswith('| metric') and '95%' not in text
  # One table where there is one language pair.
  assert text.count('\n| ---') == 1
  assert _Length.calls == [(0.0, 54), (0.0, 54)]


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--teacher', ''], 2, '[NAME=]METRIC'),
    (['--teacher', 'length:'], 2, '[NAME=]METRIC'),
    (['--teacher', 'length:x'], 2, "'x' is not OPTION=VALUE"),
    (['--teacher', 'chrf:bta=1'], 2, "id you mean 'beta'"),
    (['--teacher', 'chrf', '--students', 'chrf'], 2, "are called 'chrf'"),
    (['--teacher', 'chrf', '--speed-against', 'x'], 2, 'there are chrf'),
    (['--teacher', 'chrf', '--plot', 'x.gif'], 2, 'x.gif: a picture is'),
    (['--teacher', 'chrf', '-o', 'none/x'], 1, 'no folder'),
    (['--teacher', 'nowhere/model'], 1, 'nowhere/model'),
  ],
)
def test_errors_say_what_to_do(judged, arguments, code, message, capsys):
  assert _run(judged, *arguments) == code
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1


@pytest.mark.parametrize(
  'arguments', [['--bootstrap', '-3'], ['--digits', '-1'], ['--seed', '-1']]
)
def test_numbers_out_of_range(judged, arguments, capsys):
  with pytest.raises(SystemExit) as done:
    _run(judged, '--teacher', 'length', *arguments)
  assert done.value.code == 2 and 'must be' in capsys.readouterr().err
  assert not _Length.calls


def test_what_cannot_be_done_is_found_before_scoring(judged, tmp_path, capsys):
  lines = judged.read_text().splitlines()
  rated = [line for line in lines if json.loads(line).get('z') is not None]
  one = tmp_path / 'one.jsonl'
  one.write_text(rated[0] + '\n')
  assert _run(one, '--teacher', 'length') == 1
  assert 'b: one rated segment only' in capsys.readouterr().err
  wrong = 'bertscore:model=nowhere/model'
  assert _run(judged, '--teacher', 'length', '--beside', wrong) == 1
  assert 'nowhere/model' in capsys.readouterr().err
  assert not _Length.calls
  # Without intervals one is enough.
  assert _run(one, '--teacher', 'length', '--bootstrap', '0') == 0


def test_the_table_stays_if_it_cannot_be_drawn(judged, tmp_path, capsys):
  pytest.importorskip('matplotlib')
  for output in ('-', tmp_path / 'table.txt'):
    code = _run(
      judged, '--teacher', 'chrf', '--students', 'words=bleu', '--quiet',
      '-o', output, '--plot', tmp_path / 'a.png', '--bootstrap', '0',
    )  # fmt: skip
    shown = capsys.readouterr()
    assert code == 1
    assert 'nothing to draw' in shown.err and shown.err.count('\n') == 1
    text = shown.out if output == '-' else output.read_text()
    assert text.startswith('metric') and '\nwords ' in text
    assert not (tmp_path / 'a.png').exists()


def test_an_output_that_is_an_input_is_refused(judged, tmp_path, capsys):
  before = judged.read_bytes()
  assert _run(judged, '--teacher', 'chrf', '-o', judged) == 2
  (tmp_path / 'link.svg').symlink_to(judged)
  assert _run(judged, '--teacher', 'chrf', '--plot', tmp_path / 'link.svg') == 2
  assert capsys.readouterr().err.count('is an input too') == 2
  assert judged.read_bytes() == before


@pytest.mark.filterwarnings('error')
def test_what_does_not_vary_is_noted(judged, capsys):
  rows = [json.loads(line) for line in judged.read_text().splitlines()]
  for row in rows:
    if row['language_pair'] == 'a' and row.get('z') is not None:
      row['z'] = 1
  judged.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  assert not _run(judged, '--teacher', 'length', '--bootstrap', 0, '--quiet')
  shown = capsys.readouterr()
  assert shown.err == ''
  assert shown.out.count('the same everywhere') == 1
  assert 'human ratings of a: the same everywhere, so that' in shown.out


def test_no_rating_is_an_error(judged, tmp_path, capsys):
  records.write_records(tmp_path / 'a.jsonl', [Segment('x', references=('y',))])
  code = cli.main(
    ['retention', '--input', str(tmp_path / 'a.jsonl'), '--human', 'z']
    + ['--teacher', 'length']
  )
  assert code == 1 and "no column 'z'" in capsys.readouterr().err


@pytest.mark.parametrize(
  ('text', 'name', 'metric', 'options'),
  [
    ('bleu', 'bleu', 'bleu', {}),
    ('runs/a=b', 'runs/a=b', 'runs/a=b', {}),
    ('x=runs/a:dtype=bfloat16', 'x', 'runs/a', {'dtype': 'bfloat16'}),
    ('b:layer=9,model=/a,b/c=d,idf=none', 'b', 'b',
     {'layer': 9, 'model': '/a,b/c=d', 'idf': 'none'}),
  ],
)  # fmt: skip
def test_metrics_of_the_command_line(text, name, metric, options):
  spec = command.parse_spec(text, 'student')
  assert (spec.name, spec.metric, spec.options) == (name, metric, options)


def test_metrics_say_how_large_they_are():
  assert registry.load_metric('chrf').num_parameters is None
  tree = {'a': {'b': np.zeros((2, 3))}, 'c': np.zeros(())}
  assert base.count_parameters(tree) == 7
