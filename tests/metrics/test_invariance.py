"""Scores of every metric with a model depend on the segment alone.

Not on batch size, padding, order, duplicates or other segments (1e-5), for
empty, short, long and odd texts. A new metric with a model needs an entry in
`OPTIONS`.
"""

import dataclasses
import random

import numpy as np
import pytest
import tiny_bart
import tiny_encoder
import tiny_gpt2
import tiny_unified

from t5score_jax.checkpoints import regressors, uscore
from t5score_jax.checkpoints.bundle import save_bundle
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data.records import Segment
from t5score_jax.data.vocab import ByteVocabulary, SentencePieceVocabulary
from t5score_jax.metrics import registry
from tests.checkpoints import test_cross_encoders as miniatures
from tests.conftest import make_bundle
from tests.inference import test_embedding as estimators

_LONG = 'a small dog ran over the green hill . ' * 67
TEXTS = [
  '',
  ' \t ',
  'cat',
  '.',
  _LONG,
  _LONG + 'the end',
  '\N{GRINNING FACE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} dog',
  '\N{ZERO WIDTH SPACE}',
  'line\nbreak\x00 and NUL',
  '\u732b\u304c\u5ea7\u308b\u3002',
  'e\u0301t\u00e9',
  'un' * 150,
  'the </s> [SEP] cat',
  'the cat sat on the mat .',
  'unaffordable birds !',
  '1 2 1 2',
]


def segments():
  """16 segments, each text on every side, some several times."""
  order = list(TEXTS)
  rng = random.Random(3)
  sides = []
  for _ in range(3):
    rng.shuffle(order)
    sides.append(list(order))
  made = [
    Segment(TEXTS[n], source=sides[0][n], references=(sides[1][n], sides[2][n]))
    for n in range(15)
  ]
  return [*made, made[4]]


@pytest.fixture(scope='module')
def models(tmp_path_factory, sentencepiece_model):
  folder = tmp_path_factory.mktemp('models')
  config = dataclasses.replace(
    tiny_encoder.CONFIG, max_positions=96, num_layers=2
  )
  tiny_encoder.make(folder / 'encoder', config)
  encoder = encoders.load_encoder(folder / 'encoder')
  regressors.save(estimators.make(encoder), folder / 'estimator')
  for name in ('unified', 'xcomet'):
    changes = {'xcomet': name == 'xcomet', 'layer_norm': name == 'unified'}
    joint = tiny_unified.make(encoder, **changes)
    regressors.save(joint, folder / name)
  miniatures.make(folder / 'pairs', max_positions=96, num_layers=2)
  tiny_gpt2.make(folder / 'gpt2', max_positions=96)
  tiny_bart.make(folder / 'bart', max_positions=98)
  vocabulary = SentencePieceVocabulary(sentencepiece_model)
  save_bundle(folder / 'bundle', make_bundle(vocabulary, max_length=256))
  save_bundle(folder / 'translator', make_bundle(vocabulary, max_length=16))
  first_step = make_bundle(ByteVocabulary(), max_length=256, output_id=40)
  first_step.params['decoder']['logits_dense']['kernel'] *= 9
  save_bundle(folder / 'first_step', first_step)
  parts = uscore.Parts(
    uscore.WEIGHTS['uniform'],
    encoder='../encoder',
    layer=2,
    language_model='../gpt2',
    pseudo_references='../translator',
    sentence_encoder='../encoder',
  )
  (folder / 'uscore').mkdir()
  uscore.save(parts, folder / 'uscore')
  return folder


#: Options of each metric: the model's folder, and variants to test.
OPTIONS = {
  't5score': [{'model': 'bundle', 'direction': 'ref_src'}],
  'bertscore': [{'model': 'encoder'}],
  'moverscore': [
    {'model': 'encoder', 'idf': 'none', 'ngram': 2, 'reference_rule': 'mean'}
  ],
  'comes': [{'model': 'estimator', 'windows': True, 'stride': 2}],
  'frugalscore': [{'model': 'pairs/m'}],
  'unified': [{'model': 'unified', 'max_length': 96}],
  'xcomet': [{'model': 'xcomet', 'max_length': 96}],
  'bartscore': [{'model': 'bart', 'direction': 'f'}],
  'metricx': [{'model': 'first_step', 'version': 24}],
  'unieval': [{'model': 'first_step', 'reference_rule': 'mean'}],
  'lm': [{'model': 'gpt2'}, {'model': 'bundle'}],
  'cosine': [{'model': 'encoder'}],
  'uscore': [{'model': 'uscore'}],
  'wmd': [
    {'model': 'encoder'},
    {
      'model': 'encoder',
      'conditioning': 'pseudo',
      'pseudo_references': 'translator',
    },
  ],
}


def test_every_metric_with_a_model_is_here():
  every = set(registry.available_metrics())
  assert every - set(registry.available_metrics(without_model=True)) == set(
    OPTIONS
  )


def _scored(metric, items, size):
  parts = [
    metric.score_segments(items[n : n + size])
    for n in range(0, len(items), size)
  ]
  return np.concatenate([part.values for part in parts])


# They score with what another metric or variant scores with.
SLOW = ('uscore', 'xcomet', 'unieval')


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    pytest.param(
      name, options, marks=pytest.mark.slow if n or name in SLOW else []
    )
    for name in OPTIONS
    for n, options in enumerate(OPTIONS[name])
  ],
)
def test_scores_depend_on_the_segment_alone(models, name, options):
  folders = {'model', 'pseudo_references'} & set(options)
  options = {**options, **{n: str(models / options[n]) for n in folders}}
  metric = registry.load_metric(name, **options)
  items = segments()
  whole = _scored(metric, items, 16)
  assert np.isfinite(whole).all() and whole[-1] == pytest.approx(
    whole[4], abs=1e-6
  )
  order = np.random.default_rng(0).permutation(len(items))
  mixed = [items[n] for n in order]
  for size in (3, 1):
    np.testing.assert_allclose(
      _scored(metric, mixed, size), whole[order], rtol=0, atol=1e-5
    )
  # Few tokens per batch: other shapes, and one row per batch of long texts.
  small = registry.load_metric(name, batch_tokens=96, **options)
  np.testing.assert_allclose(
    _scored(small, items, 16), whole, rtol=0, atol=1e-5
  )
