"""The cosine of sentence vectors beside NumPy."""

import numpy as np
import pytest
import tiny_encoder

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.errors import OptionError
from t5score_jax.metrics import registry

SOURCES = ['the green bird sat.', 'unaffordable hills', '']
HYPOTHESES = ['a bird ran over the hill!', 'unaffordable hills', 'a dog']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('cosine') / 'tiny')


def _cosine(bundle, first, second, layer):
  units = []
  for text in (first, second):
    (encoded,) = bundle.tokenizer.encode_batch([text], 24)
    states = tiny_encoder.numpy_states(
      bundle.params, bundle.config, encoded.ids
    )
    mean = states[layer].mean(0)
    units.append(mean / np.linalg.norm(mean))
  return units[0] @ units[1]


def test_scores_are_cosines_of_means(folder):
  bundle = encoders.load_encoder(folder)
  for options, layer in (({}, 3), ({'layer': 1}, 1)):
    metric = registry.load(folder, metric='cosine', **options)
    scores = metric.score(HYPOTHESES, sources=SOURCES)
    expected = [
      _cosine(bundle, *pair, layer)
      for pair in zip(HYPOTHESES, SOURCES, strict=True)
    ]
    np.testing.assert_allclose(scores.values, expected, atol=1e-5)
    assert scores.values[1] == pytest.approx(1, abs=1e-6)
    assert f'layer:{layer}|pooling:mean' in scores.signature
    assert 'conditioning:source' in scores.signature


def test_the_best_reference_counts(folder):
  bundle = encoders.load_encoder(folder)
  metric = registry.load(folder, metric='cosine', conditioning='reference')
  references = [SOURCES, SOURCES[::-1]]
  scores = metric.score(HYPOTHESES, list(zip(*references, strict=True)))
  each = [
    [_cosine(bundle, *p, 3) for p in zip(HYPOTHESES, side, strict=True)]
    for side in references
  ]
  np.testing.assert_allclose(scores.values, np.max(each, 0), atol=1e-5)
  assert 'nrefs:2|refs:max' in scores.signature
  mean = registry.load(
    *(folder,), metric='cosine', conditioning='reference', reference_rule='mean'
  ).score(HYPOTHESES, list(zip(*references, strict=True)))
  np.testing.assert_allclose(mean.values, np.mean(each, 0), atol=1e-5)
  assert not len(metric.score([], []).values)


def test_wrong_options(folder):
  for options, named in (
    ({'layer': 4}, 'layer 4'),
    ({'conditioning': 'both'}, 'conditioning'),
  ):
    with pytest.raises(OptionError, match=named):
      registry.load(folder, metric='cosine', **options)
  with pytest.raises(OptionError, match='e5-small'):
    registry.load_metric('cosine')
