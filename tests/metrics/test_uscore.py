"""UScore: equations 3 and 6 over metrics that are tested by themselves."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny_encoder
import tiny_gpt2

from t5score_jax import errors
from t5score_jax.checkpoints import kinds, uscore
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.crosslingual import remap
from t5score_jax.metrics import registry

SOURCES = ['the green bird sat.', 'unaffordable hills', '. ,', 'a mat']
HYPOTHESES = ['a bird ran over the hill!', 'the hill', 'a dog', 'a mat']
# The last source is its own translation: one pair of texts, with a map and
# without one.
TRANSLATIONS = ['a green bird sat', 'hill', '.', 'a mat']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('uscore') / 'metric'
  tiny_encoder.make(folder / 'words')
  tiny_encoder.make(folder / 'sentences', seed=1)
  tiny_gpt2.make(folder / 'lm')
  rows = zip(SOURCES, TRANSLATIONS, strict=True)
  (folder / 'pseudo.jsonl').write_text(
    ''.join(json.dumps({'source': s, 'translation': t}) + '\n' for s, t in rows)
  )
  pairs = np.random.default_rng(0).normal(size=(2, 50, 16))
  pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
  remap.save(remap.estimate(*pairs, 'clp', layer=3), folder / 'words.map')
  uscore.save(parts(), folder)
  return folder


def parts(**changes):
  return dataclasses.replace(
    uscore.Parts(
      uscore.WEIGHTS['paper'],
      encoder='words',
      layer=3,
      map='words.map',
      language_model='lm',
      pseudo_references='pseudo.jsonl',
      sentence_encoder='sentences',
      source='de',
      target='en',
    ),
    **changes,
  )


@pytest.fixture(scope='module')
def expected(folder):
  """Each component by its own metric."""
  words = folder / 'words'
  metrics = {
    'wmd': registry.load(words, metric='wmd', remap=folder / 'words.map'),
    'pseudo': registry.load(
      words,
      metric='wmd',
      conditioning='pseudo',
      pseudo_references=folder / 'pseudo.jsonl',
    ),
    'lm': registry.load(folder / 'lm'),
    'sentence': registry.load(folder / 'sentences', metric='cosine'),
  }
  return {
    name: metric.score(HYPOTHESES, sources=SOURCES).values.astype(float)
    for name, metric in metrics.items()
  }


@pytest.mark.parametrize(
  ('name', 'weights'),
  [
    (None, (0.5, 0.4, 0.1, 0.6)),
    pytest.param('uscore', (0.5, 0.4, 0.1, 0.6), marks=pytest.mark.slow),
    pytest.param('uscore+', (0.45, 0.45, 0.1, 0.5), marks=pytest.mark.slow),
    ('uscore++', (1 / 3, 1 / 3, 1 / 3, 0.5)),
  ],
)
def test_equations_3_and_6(folder, expected, name, weights):
  scores = registry.load(folder, metric=name).score(HYPOTHESES, sources=SOURCES)
  wmd, pseudo, lm, word = weights
  by_words = (
    wmd * expected['wmd'] + pseudo * expected['pseudo'] + lm * expected['lm']
  )
  total = word * by_words + (1 - word) * expected['sentence']
  np.testing.assert_allclose(scores.values, total, atol=1e-5)
  for part, values in {**expected, 'word': by_words}.items():
    np.testing.assert_allclose(scores.components[part], values, atol=1e-5)


def test_a_source_that_is_its_own_translation(expected):
  assert abs(expected['wmd'][-1] - expected['pseudo'][-1]) > 0.01
  assert expected['pseudo'][-1] == pytest.approx(1.0, abs=1e-6)


def test_the_signature_has_every_part(folder):
  metric = registry.load(folder)
  found = metric.signature()
  assert found.startswith('metric:UScore|wmd:0.5|pseudo:0.4|lm:0.1|word:0.6|')
  for text in (
    'words.remap:clp@',
    'words.pseudo:pseudo.jsonl@',
    'words.conditioning:wmd+pseudo',
    'lm.first:begin',
    'sentence.pooling:mean',
  ):
    assert f'|{text}' in found, text
  assert metric.num_parameters > 0


@pytest.mark.parametrize(
  ('changes', 'columns', 'weights'),
  [
    (
      {'language_model': '', 'sentence_encoder': ''},
      {'wmd', 'pseudo', 'word'},
      (5 / 9, 4 / 9, 0, 1),
    ),
    pytest.param(
      {'pseudo_references': ''},
      {'wmd', 'lm', 'word', 'sentence'},
      None,
      marks=pytest.mark.slow,
    ),
    (
      {'encoder': '', 'map': '', 'pseudo_references': '', 'language_model': ''},
      {'sentence'},
      None,
    ),
    ({'encoder': '', 'sentence_encoder': ''}, {'lm', 'word'}, (0, 0, 1, 1)),
  ],
)
def test_absent_parts_lose_their_weights(
  folder, expected, tmp_path, changes, columns, weights
):
  shutil.copytree(folder, tmp_path / 'm')
  uscore.save(parts(**changes), tmp_path / 'm')
  metric = registry.load(tmp_path / 'm')
  scores = metric.score(HYPOTHESES, sources=SOURCES)
  assert set(scores.components) == columns
  if weights:
    found = dataclasses.astuple(metric.weights)
    np.testing.assert_allclose(found, weights)
  if columns == {'sentence'}:
    np.testing.assert_allclose(scores.values, expected['sentence'], atol=1e-5)


def test_weights_and_translations_as_options(folder, expected, tmp_path):
  metric = registry.load(
    folder, wmd_weight=0.0, pseudo_weight=1.0, lm_weight=0, word_weight=1
  )
  scores = metric.score(HYPOTHESES, sources=SOURCES)
  np.testing.assert_allclose(scores.values, expected['pseudo'], atol=1e-5)
  assert set(scores.components) == {'pseudo', 'word'}
  other = tmp_path / 'other.tsv'
  rows = [f'{s}\t{h}' for s, h in zip(SOURCES, HYPOTHESES, strict=True)]
  other.write_text('source\ttranslation\n' + '\n'.join(rows) + '\n')
  changed = registry.load(folder, translations=other)
  scores = changed.score(HYPOTHESES, sources=SOURCES)
  np.testing.assert_allclose(scores.components['pseudo'], 1.0, atol=1e-5)
  assert len(changed.score([], sources=[])) == 0


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'wmd_weight': 0.7}, 'sum to 1.2'),
    ({'weights': 'best'}, 'paper'),
    ({'word_weight': 1.5}, 'word = 1.5'),
    ({'reference_rule': 'mean'}, 'references'),
    ({'translations': 'absent.tsv'}, 'absent.tsv'),
  ],
)
def test_wrong_options(folder, options, message):
  with pytest.raises((errors.T5ScoreError, FileNotFoundError), match=message):
    registry.load(folder, **options)


def test_a_weight_of_an_absent_part_is_refused(folder, tmp_path):
  shutil.copytree(folder, tmp_path / 'm')
  uscore.save(parts(language_model=''), tmp_path / 'm')
  with pytest.raises(errors.OptionError, match='lm_weight'):
    registry.load(
      tmp_path / 'm', wmd_weight=0.25, pseudo_weight=0.25, lm_weight=0.5
    )


@pytest.mark.parametrize(
  ('key', 'value'),
  [
    ('format', 2),
    ('encoder', 'absent'),
    ('weights', {'wmd': 1, 'pseudo': 1, 'lm': 0, 'word': 0}),
    ('layer', 'last'),
  ],
)
def test_damaged_folders(folder, tmp_path, key, value):
  shutil.copytree(folder, tmp_path / 'm')
  file = tmp_path / 'm' / uscore.CONFIG_FILE
  file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
  with pytest.raises(CheckpointError, match=str(tmp_path / 'm')):
    registry.load(tmp_path / 'm')


def test_folders_of_other_kinds(folder):
  assert kinds.of(folder) == kinds.USCORE
  with pytest.raises(errors.OptionError, match='uscore'):
    registry.load(folder, metric='wmd')
  with pytest.raises(errors.OptionError, match='uscore does not read'):
    registry.load(folder / 'words', metric='uscore')
