"""`t5score demo` on a small random model."""

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.checkpoints import loading
from t5score_jax.commands import demo
from t5score_jax.metrics import registry, t5score


def test_sentences():
  items = demo.read_items()
  assert 10 <= len(items) <= 15
  for item in items:
    assert len({item.reference, item.better, item.worse}) == 3
  assert 3 <= sum(item.hard for item in items) < len(items) / 2
  # Hard means that characters do not tell.
  values = demo.score_items(registry.load_metric('chrf'), items)
  hard = np.array([item.hard for item in items])
  assert (values[hard, 1] > values[hard, 0]).all()


def test_it_runs(random_bundle, capsys):
  assert cli.main(['demo', '-m', str(random_bundle)]) == 0
  shown = capsys.readouterr().out
  assert 'random prefers the good translation in' in shown
  assert 'chrF prefers the good translation in' in shown
  assert 't5score score -r references.txt' in shown
  for item in demo.read_items():
    assert f'{item.reference[:30]}' in shown


def test_scores_are_those_of_score(random_bundle):
  items = demo.read_items()[:3]
  metric = t5score.Metric(str(random_bundle))
  values = demo.score_items(metric, items)
  for item, row in zip(items, values, strict=True):
    alone = metric.score([item.better, item.worse], [item.reference] * 2)
    np.testing.assert_allclose(row, alone.values, atol=1e-5)


def test_verdict_counts_ties_as_misses():
  items = [
    demo.Item('r', 'b', 'w', 'x', hard=False),
    demo.Item('r', 'b', 'w', 'y', hard=False),
    demo.Item('r', 'b', 'w', 'z', hard=True),
  ]
  values = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
  assert demo.verdict('m', values, items) == (
    'm prefers the good translation in 1 of 2 ordinary and 0 of 1 hard pairs;'
    ' not in 2 (y), 3 (z).'
  )
  assert demo.verdict('m', values[[0, 0, 0]], items) == (
    'm prefers the good translation in 2 of 2 ordinary and 1 of 1 hard pairs.'
  )


def test_a_missing_model_is_one_line(capsys):
  assert cli.main(['demo', '-m', 'absent']) == 1
  err = capsys.readouterr().err
  assert err.startswith("t5score demo: no model 'absent'")
  assert err.count('\n') == 1


def test_the_embedded_model_ranks_good_over_bad(capsys):
  if 't5score-tiny' not in loading.embedded_models():
    pytest.skip('t5score-tiny is not there yet')
  items = demo.read_items()
  values = demo.score_items(t5score.Metric(), items)
  ordinary = np.array([not item.hard for item in items])
  right = values[:, 0] > values[:, 1]
  assert right[ordinary].mean() >= 0.75
  assert cli.main(['demo']) == 0


def test_it_names_the_program_that_there_is(tmp_path, monkeypatch):
  monkeypatch.setattr(demo.shutil, 'which', lambda name: '/usr/bin/t5score')
  assert demo._program() == 't5score'
  monkeypatch.setattr(demo.shutil, 'which', lambda name: None)
  monkeypatch.chdir(tmp_path)
  binaries = tmp_path / '.venv' / 'bin'
  binaries.mkdir(parents=True)
  monkeypatch.setattr(demo.sys, 'executable', str(binaries / 'python'))
  assert demo._program() == f'{binaries}/python -m t5score_jax'
  (binaries / 't5score').touch()
  assert demo._program() == '.venv/bin/t5score'
  (tmp_path / 'elsewhere').mkdir()
  monkeypatch.chdir(tmp_path / 'elsewhere')
  assert demo._program() == f'{binaries}/t5score'


def test_width_where_the_output_is_no_terminal(capsys, monkeypatch):
  items = demo.read_items()
  scores = {'chrF': demo.score_items(registry.load_metric('chrf'), items)}
  for columns, width in (('50', 50), ('', 100)):
    monkeypatch.setenv('COLUMNS', columns)
    demo._print(items, scores)
    table = capsys.readouterr().out.partition('Higher is better')[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= width
    assert max(map(len, table.splitlines())) > width - 10
