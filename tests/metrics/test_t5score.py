"""Directions and references of T5Score, recomputed from single tokens."""

import dataclasses

import numpy as np
import numpy_t5
import pytest

import t5score_jax
from t5score_jax.checkpoints import kinds, loading
from t5score_jax.checkpoints.bundle import save_bundle
from t5score_jax.data.records import Segment
from t5score_jax.metrics import t5score
from tests.conftest import make_bundle

SOURCES = ['her bicycle', 'some bread', 'le chat']
REFERENCES = ['the cat sees the moon.', 'a dog follows music.', 'this town']
HYPOTHESES = ['a cat sees music.', '', 'the old ship paints a red kite.']


@pytest.fixture(scope='module')
def loaded(random_bundle):
  """Metrics by their options, each made once."""
  made = {}

  def load(**options):
    key = tuple(sorted(options.items()))
    if key not in made:
      made[key] = t5score.Metric(str(random_bundle), **options)
    return made[key]

  return load


@pytest.fixture(scope='module')
def mean(random_model):
  """The mean log-probability a token of target given input, by NumPy."""
  return lambda given, target: numpy_t5.token_log_probs(
    random_model, (given, target)
  ).mean()


def _expected(mean, direction, s, r, h):
  parts = {
    'precision': [mean(r, h)],
    'recall': [mean(h, r)],
    'f': [mean(r, h), mean(h, r)],
    'source': [mean(s, h), mean(h, s)],
    'ref_src': [mean(r, h), mean(h, r), mean(s, h), mean(h, s)],
  }
  return np.mean(parts[direction])


@pytest.mark.parametrize('direction', t5score.DIRECTIONS)
def test_directions(loaded, mean, direction):
  scores = loaded(direction=direction).score(HYPOTHESES, REFERENCES, SOURCES)
  wanted = [
    _expected(mean, direction, *texts)
    for texts in zip(SOURCES, REFERENCES, HYPOTHESES, strict=True)
  ]
  np.testing.assert_allclose(scores.values, wanted, rtol=0, atol=1e-5)
  assert scores.values.dtype == np.float32


def test_source_based_directions(loaded, mean):
  metric = loaded(direction='recall', source_based=True)
  scores = metric.score(HYPOTHESES, sources=SOURCES)
  wanted = [mean(h, s) for h, s in zip(HYPOTHESES, SOURCES, strict=True)]
  np.testing.assert_allclose(scores.values, wanted, rtol=0, atol=1e-5)
  assert 'direction:recall|conditioning:source' in scores.signature


def test_components_average_to_the_score(loaded):
  scores = loaded(direction='ref_src').score(HYPOTHESES, REFERENCES, SOURCES)
  assert list(scores.components) == [
    'precision',
    'recall',
    'source_precision',
    'source_recall',
  ]
  np.testing.assert_allclose(
    np.mean(list(scores.components.values()), axis=0), scores.values, atol=1e-6
  )
  # One part is the score itself, and is not repeated.
  assert not loaded(direction='recall').score(['a'], ['b']).components


def test_f_from_tokens(loaded):
  metric = loaded(token_log_probs=True)
  scores = metric.score(HYPOTHESES, REFERENCES)
  tokens = scores.token_log_probs
  assert list(tokens) == ['precision', 'recall']
  for n in range(3):
    precision = tokens['precision'][n].mean(dtype=np.float64)
    recall = tokens['recall'][n].mean(dtype=np.float64)
    assert scores.components['precision'][n] == pytest.approx(
      precision, abs=1e-5
    )
    assert scores.components['recall'][n] == pytest.approx(recall, abs=1e-5)
    assert scores.values[n] == pytest.approx((precision + recall) / 2, abs=1e-5)
  # An empty hypothesis is </s> alone.
  assert len(tokens['precision'][1]) == 1


@pytest.mark.parametrize('rule', ['max', 'mean'])
def test_several_references(loaded, mean, rule):
  references = [REFERENCES, ['music'], ['this town', 'a dog']]
  scores = loaded(reference_rule=rule).score(HYPOTHESES, references)
  choose = {'max': np.max, 'mean': np.mean}[rule]
  wanted = [
    choose([_expected(mean, 'f', '', r, h) for r in texts])
    for h, texts in zip(HYPOTHESES, references, strict=True)
  ]
  np.testing.assert_allclose(scores.values, wanted, rtol=0, atol=1e-5)
  assert f'nrefs:var|refs:{rule}' in scores.signature


def test_tokens_are_those_of_the_best_reference(loaded):
  metric = loaded(token_log_probs=True)
  both = metric.score(['a cat'], [['her bicycle', 'the cat']])
  each = [metric.score(['a cat'], [r]) for r in ('her bicycle', 'the cat')]
  best = max(each, key=lambda scores: scores.values[0])
  for side in ('precision', 'recall'):
    np.testing.assert_allclose(
      both.token_log_probs[side][0], best.token_log_probs[side][0], atol=1e-5
    )


def test_tokens_of_a_mean_do_not_exist(random_bundle):
  metric = t5score.Metric(
    str(random_bundle), token_log_probs=True, reference_rule='mean'
  )
  with pytest.raises(ValueError, match="use reference_rule 'max'"):
    metric.score(['a'], [['b', 'c']])


def test_empty_texts_are_finite(loaded):
  scores = loaded(direction='ref_src').score(['', 'a'], ['', ''], ['', ''])
  assert np.isfinite(scores.values).all()
  assert len(loaded().score([], [])) == 0


def test_truncation_is_counted(loaded):
  long = 'the cat sees the moon. ' * 30
  assert loaded().score([long, 'a'], ['b', long]).truncated == 1
  assert loaded().score(['a'], ['b']).truncated == 0


def test_missing_texts_are_named(loaded):
  segments = [Segment('a', references=('b',)), Segment('c', system='X')]
  with pytest.raises(ValueError, match=r"segment number 2 \(system 'X'\)"):
    loaded().score_segments(segments)
  with pytest.raises(ValueError, match='T5Score needs sources'):
    loaded(direction='source').score_segments(segments)


def test_chinese_spaces(loaded):
  metric = loaded(remove_chinese_spaces=True)
  kept = loaded()
  spaced, joined = '我 爱 music 你 。', '我爱 music 你。'
  assert metric.score([spaced], ['a']).values == pytest.approx(
    kept.score([joined], ['a']).values, abs=1e-6
  )
  # References stay as they are.
  assert metric.score(['a'], [spaced]).values == pytest.approx(
    kept.score(['a'], [spaced]).values, abs=1e-6
  )


def test_settings_of_the_model(random_model, tmp_path):
  bundle = make_bundle(
    random_model.vocabulary,
    name='mine|odd name',
    direction='precision',
    lowercase=True,
    max_length=16,
  )
  save_bundle(tmp_path / 'm', bundle)
  metric = t5score_jax.load(str(tmp_path / 'm'))
  assert metric.signature().startswith('metric:T5Score|model:mine_odd_name|')
  assert '|direction:precision|conditioning:reference|' in metric.signature()
  assert '|length:16|case:lc|' in metric.signature()
  upper = metric.score(['THE CAT'], ['A DOG']).values
  np.testing.assert_array_equal(
    upper, metric.score(['the cat'], ['a dog']).values
  )


def test_signature_tells_models_apart(loaded, random_model, tmp_path):
  other = make_bundle(random_model.vocabulary, max_length=64)
  other.params['decoder']['decoder_norm']['scale'][0] += 1
  save_bundle(tmp_path / 'other', other, dtype='float32')
  mine, theirs = loaded().signature(), t5score_jax.load(str(tmp_path / 'other'))
  assert mine != theirs.signature()
  assert mine.split('|')[3] == theirs.signature().split('|')[3]


@pytest.mark.parametrize(
  ('change', 'field'),
  [
    ({'mlp_activations': ('relu', 'linear')}, 'network'),
    ({'relative_attention_max_distance': 20}, 'network'),
    # These change no score, in float32 and with the same weights.
    ({'dropout_rate': 0.3, 'remat': 'full'}, None),
  ],
)
def test_signature_tells_settings_apart(
  loaded, random_model, tmp_path, change, field
):
  other = make_bundle(random_model.vocabulary, max_length=64)
  other = dataclasses.replace(
    other, config=dataclasses.replace(other.config, **change)
  )
  save_bundle(tmp_path / 'other', other, dtype='float32')
  mine, theirs = (
    dict(part.split(':', 1) for part in signature.split('|'))
    for signature in (
      loaded().signature(),
      t5score_jax.load(str(tmp_path / 'other')).signature(),
    )
  )
  differing = {name for name in mine if mine[name] != theirs[name]}
  assert differing - {'model'} == ({field} if field else set())


def test_a_folder_without_a_model(tmp_path):
  with pytest.raises(ValueError, match=str(tmp_path)):
    t5score_jax.load(str(tmp_path))


def test_an_unknown_model():
  with pytest.raises(FileNotFoundError, match="no model 'absent'"):
    t5score_jax.load('absent')


def test_without_embedded_models(monkeypatch, tmp_path):
  monkeypatch.setattr(kinds, 'PRETRAINED', tmp_path / 'nothing')
  assert loading.embedded_models() == []
  with pytest.raises(FileNotFoundError, match='install the package again'):
    t5score_jax.load()


def test_embedded_models_by_name(monkeypatch, random_bundle, tmp_path):
  monkeypatch.setattr(kinds, 'PRETRAINED', random_bundle.parent)
  assert 'random' in loading.embedded_models()
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'random').mkdir()  # the name goes before the path
  assert t5score_jax.load('random').score(['a'], ['b']).values < 0
  with pytest.raises(FileNotFoundError, match="did you mean 'random'"):
    t5score_jax.load('randon')


@pytest.mark.parametrize(
  ('options', 'error', 'message'),
  [
    ({'direction': 'g'}, ValueError, "direction 'g': use one of f, precision"),
    ({'reference_rule': 'min'}, ValueError, "'min': use one of max, mean"),
    ({'dtype': 'int8'}, ValueError, "dtype 'int8'"),
    ({'directoin': 'f'}, TypeError, "Did you mean 'direction'"),
    ({'direction': 'ref_src', 'source_based': True}, ValueError, 'leave one'),
  ],
)
def test_bad_options(random_bundle, options, error, message):
  with pytest.raises(error, match=message):
    t5score_jax.load(str(random_bundle), **options)
