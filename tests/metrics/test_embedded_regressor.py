"""e5-da, the embedded regressor: found by name, sensible, as its card says."""

import numpy as np
import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base, registry

NAME = 'e5-da'
# Better first.
TRANSLATIONS = {
  'Der Ausschuss wird seinen Bericht nächste Woche veröffentlichen.': (
    'The committee will publish its report next week.',
    'Next week committee report of the he will published.',
    'She bought three kilos of apples at the market yesterday.',
  ),
  'The train to the airport leaves every twenty minutes.': (
    'Der Zug zum Flughafen fährt alle zwanzig Minuten.',
    'Zug der in Flughafen verlässt jede zwanzig Minute.',
    'Meine Großmutter backt sonntags gern Kuchen.',
  ),
}


@pytest.fixture(scope='module')
def metric():
  return t5score_jax.load(NAME)


def _segments(source, hypotheses):
  return [Segment(hypothesis=h, source=source) for h in hypotheses]


@pytest.mark.parametrize('source', TRANSLATIONS)
def test_orders_what_is_clearly_better_and_worse(metric, source):
  segments = _segments(source, TRANSLATIONS[source])
  scores = metric.score_segments(segments).values
  assert np.all(np.diff(scores) < 0), scores


def test_is_the_model_of_its_card(metric):
  folder = kinds.folder(NAME)
  model = regressors.load(folder)
  count = base.count_parameters(model.params)
  card = (folder / 'README.md').read_text('utf-8')
  assert f'{count:,} parameters' in card and 'License: MIT' in card
  assert model.settings['name'] == NAME
  assert sum(f.stat().st_size for f in folder.iterdir()) < 25_000_000


def test_any_name_of_it_means_it(metric):
  signature = metric.signature()
  assert f'model:{NAME}|' in signature and 'conditioning:source|' in signature
  for model in (NAME, kinds.folder(NAME)):
    assert registry.load_metric('comes', model=model).signature() == signature


def test_texts_of_any_script_have_pieces(metric):
  texts = ['Ünïcödé 東京 Москва नेपाल 🙂 \u0000', '', ' ', 'word ' * 600]
  scores = metric.score_segments(_segments('Ein Satz.', texts))
  assert np.all(np.isfinite(scores.values))
  assert scores.truncated == 1


def test_int8_is_exported_as_float32(tmp_path, metric):
  stored = safetensors_files.open_folder(kinds.folder(NAME))
  assert sum(a.dtype == np.int8 for a in stored.values()) == 42
  folder = tmp_path / 'exported'
  convert = ['convert', '--to', 'estimator', '--quiet', NAME, str(folder)]
  assert cli.main(convert) == 0
  exported = safetensors_files.open_folder(folder)
  assert {a.dtype for a in exported.values()} == {np.dtype(np.float32)}
  source, hypotheses = next(iter(TRANSLATIONS.items()))
  segments = _segments(source, hypotheses)
  theirs = t5score_jax.load(folder).score_segments(segments).values
  ours = metric.score_segments(segments).values
  np.testing.assert_array_equal(ours, theirs)
