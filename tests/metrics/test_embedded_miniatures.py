"""The embedded cross-encoders: found by name, sensible, as their cards say."""

import json

import numpy as np
import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import cross_encoders, kinds
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base, registry

# Name -> the most bytes of its folder.
LARGEST = {'frugalscore-tiny': 4_000_000, 'minilm-da': 25_000_000}
REFERENCE = 'The committee will publish its report on the accident next week.'
# Better first.
HYPOTHESES = (
  'The committee will publish its report on the accident next week.',
  'The commission is going to release its accident report next week.',
  'The report of committee over accident is going to be.',
  'She bought three kilos of apples at the market yesterday.',
)


@pytest.fixture(scope='module', params=LARGEST)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def metric(name):
  return t5score_jax.load(name)


def _segments(hypotheses, reference=REFERENCE):
  return [Segment(hypothesis=h, references=(reference,)) for h in hypotheses]


def test_orders_what_is_clearly_better_and_worse(metric):
  scores = metric.score_segments(_segments(HYPOTHESES)).values
  assert np.all(np.diff(scores) < 0), scores


def test_is_the_model_of_its_card(name, metric):
  folder = kinds.folder(name)
  model = cross_encoders.load(folder)
  count = base.count_parameters(model.params)
  card = (folder / 'README.md').read_text('utf-8')
  assert f'{count:,} parameters' in card and 'License: Apache-2.0' in card
  assert model.settings['name'] == name
  assert metric.num_parameters == count
  assert sum(f.stat().st_size for f in folder.iterdir()) < LARGEST[name]


def test_any_name_of_it_means_it(name, metric):
  signature = metric.signature()
  assert f'model:{name}|' in signature
  for model in (name, kinds.folder(name)):
    named = registry.load_metric('frugalscore', model=model)
    assert named.signature() == signature


def test_frugalscore_without_a_model_is_the_tiny_one():
  tiny = registry.load_metric('frugalscore')
  assert 'model:frugalscore-tiny|' in tiny.signature()
  # Less than a tenth of the encoder that it learned from.
  assert tiny.num_parameters * 10 < 22_565_376


def test_texts_of_any_script_have_pieces(metric):
  texts = ['Ünïcödé 東京 Москва 🙂 \u0000', '', ' ', 'word ' * 600]
  scores = metric.score_segments(_segments(texts))
  assert np.all(np.isfinite(scores.values))
  assert scores.truncated == 1


def test_config_is_hugging_faces(name):
  config = json.loads((kinds.folder(name) / 'config.json').read_text('utf-8'))
  assert config['architectures'] == ['BertForSequenceClassification']
  assert config['num_labels'] == 1


def test_int8_becomes_what_other_programs_read(tmp_path):
  stored = safetensors_files.open_folder(kinds.folder('minilm-da'))
  assert sum(a.dtype == np.int8 for a in stored.values()) == 41
  folder = tmp_path / 'exported'
  convert = ['convert', '--to', 'hf', '--quiet', 'minilm-da', str(folder)]
  assert cli.main(convert) == 0
  exported = safetensors_files.open_folder(folder)
  assert {a.dtype for a in exported.values()} == {np.dtype(np.float32)}
  segments = _segments(HYPOTHESES)
  ours, theirs = (
    t5score_jax.load(model).score_segments(segments).values
    for model in ('minilm-da', folder)
  )
  np.testing.assert_array_equal(ours, theirs)
