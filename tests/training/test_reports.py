import json
import struct

import pytest

from t5score_jax.training import reports


def _lines(folder):
  text = (folder / reports.METRICS_FILE).read_text()
  return [json.loads(line) for line in text.splitlines()]


def _report(folder, start, steps, train_steps=100):
  with reports.Reports(folder, start, train_steps, quiet=True) as report:
    for step in steps:
      report.train(step, {'loss': 1.0 / step, 'nll': 2.0 / step})
      if step % 20 == 0:
        report.evaluation(step, {'held_out/loss': step, 'wmt/tau': 0.1})
  return report


def _events(folder, kind):
  """{tag: [(step, value)]} as TensorBoard shows them."""
  accumulator = pytest.importorskip(
    'tensorboard.backend.event_processing.event_accumulator'
  ).EventAccumulator(str(folder / reports.EVENT_FOLDERS[kind]))
  accumulator.Reload()
  return {
    tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
    for tag in accumulator.Tags()['scalars']
  }


def test_files_of_a_run(tmp_path):
  _report(tmp_path, 0, [10, 20])
  first, second, evaluation = _lines(tmp_path)
  assert first.pop('steps_per_second') > 0
  assert first == {'step': 10, 'kind': 'train', 'loss': 0.1, 'nll': 0.2}
  assert second['step'] == 20
  assert evaluation == {
    'step': 20,
    'kind': 'evaluation',
    'held_out/loss': 20,
    'wmt/tau': 0.1,
  }
  train = _events(tmp_path, 'train')
  assert [step for step, _ in train['loss']] == [10, 20]
  assert train['nll'][0][1] == pytest.approx(0.2)
  assert _events(tmp_path, 'evaluation')['held_out/loss'] == [(20, 20.0)]


def test_a_restart_loses_and_repeats_nothing(tmp_path):
  # The first process got to step 40, its last checkpoint is of step 20.
  _report(tmp_path, 0, [10, 20, 30, 40])
  with (tmp_path / reports.METRICS_FILE).open('a') as stream:
    stream.write('{"step": 50, "ki')
  report = _report(tmp_path, 20, [30, 40, 50])
  assert [line['step'] for line in report.history] == [
    *(10, 20, 20, 30, 40, 40, 50)
  ]
  assert [(x['step'], x['kind']) for x in _lines(tmp_path)] == [
    (10, 'train'),
    (20, 'train'),
    (20, 'evaluation'),
    (30, 'train'),
    (40, 'train'),
    (40, 'evaluation'),
    (50, 'train'),
  ]
  steps = [step for step, _ in _events(tmp_path, 'train')['loss']]
  assert steps == [10, 20, 30, 40, 50]
  assert _events(tmp_path, 'evaluation')['wmt/tau'] == [
    (20, pytest.approx(0.1)),
    (40, pytest.approx(0.1)),
  ]


def test_numbers_that_are_not_finite_are_null(tmp_path):
  with reports.Reports(tmp_path, 0, 10, quiet=True) as report:
    report.train(1, {'loss': float('nan')})
    report.evaluation(1, {'a/x': float('inf')})
  text = (tmp_path / reports.METRICS_FILE).read_text()
  assert 'NaN' not in text and 'Infinity' not in text
  train, evaluation = _lines(tmp_path)
  assert train['loss'] is None and evaluation['a/x'] is None


def _size_of_png(path):
  data = path.read_bytes()
  assert data[:8] == b'\x89PNG\r\n\x1a\n'
  return struct.unpack('>II', data[16:24])


def test_curves_are_drawn_at_the_end(tmp_path, draw_curves, monkeypatch):
  monkeypatch.setattr(reports, 'draw_curves', draw_curves)
  _report(tmp_path, 0, [10, 20])
  width, height = _size_of_png(tmp_path / reports.CURVES_FILE)
  assert width > height > 300


def test_curves_of_a_run_without_reports(tmp_path):
  _report(tmp_path, 0, [])
  assert not (tmp_path / reports.CURVES_FILE).exists()


def test_panels_put_like_to_like():
  history = [
    {'step': 1, 'kind': 'train', 'loss': 3.0, 'nll': 3.0, 'rate': 0.1},
    {'step': 2, 'kind': 'train', 'loss': 2.0, 'nll': None, 'rate': 0.1},
    {'step': 2, 'kind': 'evaluation', 'a/loss': 4.0, 'b/loss': 5.0},
    {'step': 2, 'kind': 'evaluation', 'b/tau': 0.1, 'a/tokens': 7},
    {'step': 3, 'kind': 'evaluation', 'b/tau': float('nan'), 'a/nll': 2.5},
    {'step': 3, 'kind': 'evaluation', 'b/same': 0.1},
    {'step': 4, 'kind': 'evaluation', 'b/twin': 0.1},
  ]
  panels = reports._panels(history)
  assert panels == {
    'loss': {
      'training': [(1, 3.0), (2, 2.0)],
      'a': [(2, 4.0)],
      'b': [(2, 5.0)],
    },
    'tau': {'b': [(2, 0.1)]},
    'nll': {'training': [(1, 3.0)], 'a': [(3, 2.5)]},
    'same': {'b': [(3, 0.1)]},
    'twin': {'b': [(4, 0.1)]},
  }
  # A quantity under two names is drawn once.
  twice = [{'step': 1, 'kind': 'train', 'loss': 1.0, 'margin_loss': 1.0}]
  twice += [{'step': 1, 'kind': 'evaluation', 'h/loss': 2, 'h/margin_loss': 2}]
  assert list(reports._panels(twice)) == ['loss']


def test_no_progress_bar_where_nobody_watches(tmp_path, capfd):
  with reports.Reports(tmp_path, 0, 100) as report:
    report.note('a note')
    report.train(50, {'loss': 0.25})
    report.evaluation(50, {'wmt/tau': 0.125})
  shown = capfd.readouterr()
  assert shown.out == ''
  note, step, evaluation = shown.err.splitlines()
  assert note == 'a note'
  assert step.startswith('step 50/100  loss 0.2500')
  assert evaluation == 'step 50  wmt/tau 0.1250'
  assert '\x1b' not in shown.err


def test_a_progress_bar_on_a_terminal(tmp_path, monkeypatch, capfd):
  # Rich takes a stream for a terminal if this is set.
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setenv('TERM', 'xterm')
  with reports.Reports(tmp_path, 0, 100) as report:
    report.train(100, {'loss': 0.25})
  shown = capfd.readouterr().err
  assert '100/100' in shown and 'loss 0.2500' in shown


def test_quiet_writes_files_only(tmp_path, capfd):
  _report(tmp_path, 0, [10, 20])
  assert capfd.readouterr().err == ''
  assert len(_lines(tmp_path)) == 3
