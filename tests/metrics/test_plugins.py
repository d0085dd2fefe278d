"""Metrics of other distributions, and what the package shows of itself."""

import json
import pickle

import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.metrics import base, registry

LENGTH = '''"""A metric in another distribution."""

import undeclared_dependency

from t5score_jax.metrics import base

UNITS = ('characters', 'words')


class Length(base.Metric):
  """The hypothesis' length."""

  name = 'length'
  VARIANTS = {'words': {'unit': 'words'}}
  FLAGS = {'unit': {'flags': ('--unit',), 'choices': UNITS, 'help': 'unit'}}

  def __init__(self, unit: str = 'characters'):
    self.unit = unit

  def signature(self):
    return base.format_signature({'metric': 'length', 'unit': self.unit})

  def score_segments(self, segments):
    texts = [s.hypothesis for s in segments]
    if self.unit == 'words':
      texts = [text.split() for text in texts]
    return base.Scores([float(len(text)) for text in texts], self.signature())
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """Installs a distribution whose module cannot be imported at first."""
  package = tmp_path / 'site'
  info = package / 'length_metric-1.0.dist-info'
  info.mkdir(parents=True)
  (info / 'METADATA').write_text('Name: length-metric\nVersion: 1.0\n')
  (info / 'entry_points.txt').write_text(
    '[t5score_jax.metrics]\ntext-length = length_metric:Length\n'
    'broken = length_metric:Absent\n'
  )
  (package / 'length_metric.py').write_text(LENGTH)
  monkeypatch.syspath_prepend(str(package))
  return package


def test_another_distribution_adds_a_metric(
  installed, tmp_path, monkeypatch, capsys
):
  # Its name, flags and help are read without importing it.
  assert 'text-length' in registry.available_metrics(without_model=True)
  with pytest.raises(SystemExit):
    cli.main(['score', '--help'])
  assert '--unit {characters,words}' in capsys.readouterr().out
  with pytest.raises(registry.ChoiceError, match='undeclared_dependency'):
    registry.load_metric('text-length')

  (installed / 'undeclared_dependency.py').write_text('')
  for name in ('text-length', 'Text_Length-words'):
    scores = registry.load_metric(name)(['a bc', ''])
    assert list(scores) == [2.0 if 'words' in name else 4.0, 0.0]
  with pytest.raises(registry.ChoiceError, match='Absent'):
    t5score_jax.load('broken')
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'h').write_text('a bc\n')
  command = 'score -m text-length --unit words -t h'.split()
  assert cli.main(command) == 0
  shown = capsys.readouterr()
  assert json.loads(shown.out)['score'] == 2
  assert 'unit:words' in shown.err
  assert cli.main('score -m chrf --unit words -t h -r h'.split()) == 2
  assert '--unit' in capsys.readouterr().err


def test_public_names():
  public = ['Metric', 'Scores', '__version__', 'errors', 'load']
  assert dir(t5score_jax) == sorted(t5score_jax.__all__) == public
  assert t5score_jax.Metric is base.Metric
  assert t5score_jax.Scores is base.Scores
  with pytest.raises(AttributeError, match='absent'):
    _ = t5score_jax.absent


def test_scores_iterate_and_print():
  scores = t5score_jax.Scores([0.5, 1.0], 'metric:x')
  assert list(scores) == [0.5, 1.0]
  assert all(type(value) is float for value in scores)
  assert scores.mean == 0.75
  assert repr(scores) == "Scores(n=2, mean=0.7500, signature='metric:x')"
  empty = t5score_jax.Scores([], 'x')
  assert repr(empty) == "Scores(n=0, signature='x')"
  with pytest.raises(ValueError, match='mean'):
    _ = empty.mean


def test_a_pickled_metric_is_loaded_again(random_bundle):
  calls = []
  for metric in (
    t5score_jax.load('chrf++', lowercase=True),
    t5score_jax.load(
      random_bundle, direction='recall', progress=lambda *c: calls.append(c)
    ),
  ):
    again = pickle.loads(pickle.dumps(metric))
    assert type(again) is type(metric) and again.progress is None
    scores = again(['a cat'], ['A Cat'])
    assert scores.signature == metric(['a cat'], ['A Cat']).signature
    assert list(scores) == list(metric(['a cat'], ['A Cat']))
  assert calls[-1] == (1, 1)


def test_progress_of_one_call(random_bundle):
  metric = t5score_jax.load(random_bundle)
  calls = []
  metric(['a', 'b'], ['c', 'd'], progress=lambda *call: calls.append(call))
  assert calls[-1] == (4, 4) and metric.progress is None
  count = len(calls)
  metric(['a'], ['b'])
  assert len(calls) == count
