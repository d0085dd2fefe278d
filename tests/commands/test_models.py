"""`t5score models`: what is in the box, and what can be loaded."""

import json
import re

import pytest

from t5score_jax import cli
from t5score_jax.checkpoints import hub, kinds, packaged, peers, published
from t5score_jax.metrics import registry


def models(capsys, *arguments):
  assert cli.main(['models', '--table', 'json', *arguments]) == 0
  rows = json.loads(capsys.readouterr().out)
  return {row['name']: row for row in rows}


def test_the_box(capsys):
  listed = models(capsys, '--from', 'box')
  assert list(listed) == kinds.embedded()
  tiny = listed['t5score-tiny']
  assert tiny['parameters'] == 2_558_592 and 5 < tiny['megabytes'] < 6
  assert tiny['metrics'] == ['t5score'] and tiny['licence'] == 'Apache-2.0'
  assert [n for n, m in listed.items() if m['note'] == 'default'] == [
    registry.DEFAULT_MODEL
  ]
  frugal = listed['frugalscore-tiny']
  assert frugal['parameters'] == 1_462_273 and frugal['reads'] == 'reference'
  assert frugal['note'] == 'default of --metric frugalscore'
  # Whatever comes with the package has a card with a licence.
  assert all(model['licence'] for model in listed.values())


def test_everything(capsys, monkeypatch):
  monkeypatch.setattr(packaged, 'installed', lambda: ['minilm'])
  listed = models(capsys)
  places = [model['place'] for model in listed.values()]
  assert places == sorted(places, key=['box', 'packages', 'hub'].index)
  assert listed['minilm']['note'] == 'installed'
  assert listed['e5-small']['note'] == 'not installed'
  assert 'bertscore' in listed['minilm']['metrics']
  assert listed['Unbabel/XCOMET-XL']['note'].startswith('gated, tok')


@pytest.mark.parametrize('model', published.MODELS, ids=lambda m: m.name)
def test_published(model):
  assert hub.is_name(model.name) and model.millions > 0
  assert set(model.metrics) <= set(registry.available_metrics())
  # What the list says can be used is what an error advises.
  advice = peers.advice(model.name)
  assert 'not in this library' not in advice
  if advice:
    assert model.name in advice and '-m ' in advice


@pytest.mark.parametrize('style', ['text', 'markdown', 'latex'])
def test_formats(capsys, style):
  assert cli.main(['models', '--table', style]) == 0
  out = capsys.readouterr().out
  assert re.search(r't5score-tiny.*2\.56 M.*Apache-2\.0', out)
  assert re.search(r'XCOMET-XXL.*10\.7 G.*CC-BY-NC-SA', out)
  assert 'none stated' in out
