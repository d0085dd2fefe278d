"""The embedded miniature: found by name, sensible, and as its card says."""

import json
import pathlib

import numpy as np
import pytest

import t5score_jax
from t5score_jax.checkpoints import cross_encoders
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base, registry

FOLDER = pathlib.Path(t5score_jax.__file__).parent / 'pretrained'
FOLDER = FOLDER / 'frugalscore-tiny'
REFERENCE = 'The committee will publish its report on the accident next week.'
# Better first.
HYPOTHESES = (
  'The committee will publish its report on the accident next week.',
  'The commission is going to release its accident report next week.',
  'The report of committee over accident is going to be.',
  'She bought three kilos of apples at the market yesterday.',
)


@pytest.fixture(scope='module')
def metric():
  return registry.load_metric('frugalscore')


def _segments(hypotheses, reference=REFERENCE):
  return [Segment(hypothesis=h, references=(reference,)) for h in hypotheses]


def test_orders_what_is_clearly_better_and_worse(metric):
  scores = metric.score_segments(_segments(HYPOTHESES)).values
  assert np.all(np.diff(scores) < 0), scores


def test_is_the_model_of_its_card(metric):
  model = cross_encoders.load(FOLDER)
  count = base.count_parameters(model.params)
  card = (FOLDER / 'README.md').read_text('utf-8')
  assert f'{count:,} parameters' in card
  assert model.settings['teacher'].startswith('metric:BERTScore|')
  assert metric.num_parameters == count
  # Less than a tenth of the encoder that it learned from.
  assert count * 10 < 22_565_376
  assert sum(f.stat().st_size for f in FOLDER.iterdir()) < 4_000_000


def test_any_name_of_it_means_it(metric):
  signature = metric.signature()
  assert 'model:frugalscore-tiny|' in signature
  for named in ({'model': 'frugalscore-tiny'}, {'model': FOLDER}):
    assert registry.load_metric('frugalscore', **named).signature() == signature
  assert t5score_jax.load('frugalscore-tiny').signature() == signature


def test_texts_of_any_script_have_pieces(metric):
  texts = ['Ünïcödé 東京 Москва 🙂 \u0000', '', ' ', 'word ' * 400]
  scores = metric.score_segments(_segments(texts))
  assert np.all(np.isfinite(scores.values))
  assert scores.truncated == 1


def test_config_is_hugging_faces():
  config = json.loads((FOLDER / 'config.json').read_text('utf-8'))
  assert config['architectures'] == ['BertForSequenceClassification']
  assert config['num_labels'] == 1
