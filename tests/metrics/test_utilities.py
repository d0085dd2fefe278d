"""Utilities of all pairs of texts are the scores of single pairs."""

import collections

import numpy as np
import pytest
import tiny_encoder
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.errors import InputError, OptionError
from t5score_jax.inference import prediction
from t5score_jax.metrics import _utilities, registry
from tests.inference import test_embedding as estimators

TEXTS = (
  'the cat sat on the mat .',
  'a cat sat on a mat',
  '',
  'cat cat cat cat the the',
  ' \t ',
  'the end',
  '\u732b\u304c\u5ea7\u308b\u3002 "mat"',
  'The CAT sat, on the mat.',
)
GROUPS = [
  _utilities.Group(TEXTS, TEXTS, 'eine Katze'),
  _utilities.Group(TEXTS[:3], ('the mat', *TEXTS[2:4]), 'the end'),
  _utilities.Group(TEXTS[4:5], TEXTS[4:5], ''),
]


@pytest.fixture(scope='module')
def regressor(tmp_path_factory):
  """The folder of a COMES regressor with two outputs."""
  folder = tmp_path_factory.mktemp('models')
  tiny_encoder.make(folder / 'encoder')
  encoder = encoders.load_encoder(folder / 'encoder')
  model = estimators.make(encoder, outputs=('fluency', 'focus'))
  regressors.save(model, folder / 'estimator')
  return folder / 'estimator'


def check(metric):
  """All pairs, and pairs of some rows and columns, as pair by pair."""
  ours = metric.utilities(GROUPS)
  plain = _utilities.Utilities(metric, GROUPS)
  assert type(ours) is not type(plain)
  rng = np.random.default_rng(0)
  every = [
    [np.arange(len(g.candidates)) for g in GROUPS],
    [np.arange(len(g.references)) for g in GROUPS],
  ]
  some = [
    [rng.permutation(part)[: max(1, len(part) - 1)] for part in side]
    for side in every
  ]
  some[0][1] = some[1][1] = np.zeros(0, np.int64)
  for rows, columns in (every, some, (some[0], some[0])):
    for found, wanted in zip(
      ours.matrices(rows, columns), plain.matrices(rows, columns), strict=True
    ):
      assert found.shape == wanted.shape
      np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('chrf', {}),
    ('chrf++', {'lowercase': True}),
    ('chrf', {'whitespace': True, 'beta': 3}),
    ('chrf', {'eps_smoothing': True, 'word_order': 1, 'char_order': 3}),
    ('bleu', {}),
    ('bleu', {'tokenize': 'char', 'lowercase': True, 'max_ngram_order': 2}),
    ('bleu', {'smooth_method': 'floor', 'smooth_value': 0.1}),
  ],
)
def test_counted_metrics(name, options):
  check(registry.load_metric(name, **options))


def test_a_regressor(regressor, monkeypatch):
  # Several blocks of pairs, the last one not full.
  monkeypatch.setattr(prediction, '_ROWS', 16)
  check(registry.load_metric('comes', model=regressor, output='focus'))


def test_a_regressor_encodes_each_text_once(regressor, monkeypatch):
  metric = registry.load_metric('comes', model=regressor)
  encoded = []
  rows = metric._encoder.rows

  def counted(ids, **options):
    encoded.extend(map(tuple, ids))
    return rows(ids, **options)

  monkeypatch.setattr(metric._encoder, 'rows', counted)
  utilities = metric.utilities(GROUPS)
  for columns in ([0, 1], [2]):
    index = [np.array(columns), np.array(columns), np.zeros(1, np.int64)]
    utilities.matrices(index, index)
  texts = {t for g in GROUPS for t in (*g.candidates, *g.references, g.source)}
  assert len(encoded) == len(texts)


def test_averaged_references_of_chrf_are_mean_counts():
  metric = registry.load_metric('chrf')
  scorer = CHRF()
  group = GROUPS[1]
  weights = np.array([0.5, 0.2, 0.3])
  mean = [collections.Counter() for _ in range(6)]
  for text, weight in zip(group.references, weights, strict=True):
    for total, grams in zip(
      mean, extract_all_char_ngrams(text, 6, False), strict=True
    ):
      for gram, count in grams.items():
        total[gram] += weight * count
  wanted = []
  for text in group.candidates:
    stats = []
    for grams, total in zip(
      extract_all_char_ngrams(text, 6, False), mean, strict=True
    ):
      stats += scorer._get_match_statistics(grams, total)
    wanted.append(scorer._compute_f_score(stats))
  (found,) = metric.utilities([group]).aggregated([np.arange(3)], [weights])
  np.testing.assert_allclose(found, wanted, rtol=1e-9)
  assert max(wanted) > 20


def test_averaged_references_of_a_regressor_are_mean_vectors(regressor):
  metric = registry.load_metric('comes', model=regressor)
  weights = [np.full(8, 1 / 8), np.array([0.5, 0.2, 0.3]), np.ones(1)]
  rows = [np.arange(8)[::-1], np.arange(3), np.arange(1)]
  found = metric.utilities(GROUPS).aggregated(rows, weights)
  for group, weight, row, scores in zip(
    GROUPS, weights, rows, found, strict=True
  ):
    texts = [*group.candidates, group.source, *group.references]
    vectors = metric._encoder.vectors(texts).values
    count = len(group.candidates)
    mean = weight @ vectors[count + 1 :].astype(np.float64)
    vectors = np.concatenate([vectors[: count + 1], [mean]]).astype(np.float32)
    where = np.full(count, count)
    outputs = prediction.outputs(
      metric._regressor, vectors, row, where, where + 1
    )
    np.testing.assert_allclose(scores, outputs.mean(1), atol=1e-5)


def test_what_cannot_be_averaged_or_depends_on_others_is_refused(tmp_path):
  metric = registry.load_metric('bleu')
  with pytest.raises(OptionError, match='cannot average'):
    metric.utilities(GROUPS).aggregated([], [])
  tiny_encoder.make(tmp_path / 'encoder')
  metric = registry.load_metric('moverscore', model=tmp_path / 'encoder')
  with pytest.raises(OptionError, match='idf=none'):
    metric.utilities(GROUPS)


def test_missing_sources_are_refused(regressor):
  metric = registry.load_metric('comes', model=regressor)
  with pytest.raises(InputError, match="segment '5'"):
    metric.utilities([_utilities.Group(('a',), ('a',), None, '5')])
