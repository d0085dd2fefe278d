"""UniTE's network in training: predictions and losses beside NumPy's."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_encoder
import tiny_unified

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.errors import OptionError
from t5score_jax.models import losses, regression

TEXTS = [
  ('the cat sat .', 'a mat', 'a cat'),
  ('a dog', 'the dog ran on', ''),
  ('green bird ' * 8, 'dog ' * 30, 'the hill'),
]
RATINGS = np.array([[0.5], [np.nan], [-1.0]], np.float32)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  config = dataclasses.replace(tiny_encoder.CONFIG, num_layers=1)
  folder = tiny_encoder.make(tmp_path_factory.mktemp('encoder'), config)
  encoder = encoders.load_encoder(folder)
  return tiny_unified.make(encoder, xcomet=True, word_layer=1)


def _batch(model):
  batch = {'ratings': RATINGS}
  for role, texts in zip(
    ('hypothesis', 'source', 'reference'), zip(*TEXTS, strict=True), strict=True
  ):
    rows = [e.ids for e in model.tokenizer.encode_batch(texts, 18)]
    width = max(map(len, rows)) + 1
    batch[f'{role}_tokens'] = np.array(
      [row + [0] * (width - len(row)) for row in rows]
    )
  return batch


def _readings(model):
  return [
    [
      tiny_unified.numpy_reading(model, texts)
      for texts in ((h, s), (h, r), (h, s, r))
    ]
    for h, s, r in TEXTS
  ]


def test_predictions_are_those_of_scoring(model):
  network = regression.UnifiedModel(model.config, max_length=20)
  batch = _batch(model)
  found = jax.jit(network.predict)(model.params, batch)
  want = [[np.mean([s for s, _ in row])] for row in _readings(model)]
  np.testing.assert_allclose(found, want, atol=1e-5)
  # Texts that rows share are given once.
  shared = {**batch, 'source_tokens': batch['source_tokens'][[2, 0, 1]]}
  shared['source_rows'] = np.array([1, 2, 0])
  again = jax.jit(network.predict)(model.params, shared)
  np.testing.assert_allclose(again, found, atol=1e-6)


def test_the_loss_is_that_of_each_reading_and_its_tags(model):
  weights = (0.1, 0.4, 0.5, 0.6)
  network = regression.UnifiedModel(model.config, 20, 0.3, weights)
  batch = _batch(model)
  tags = np.full(batch['hypothesis_tokens'].shape, -1)
  tags[0, :6], tags[1, :4] = [0, 1, 3, 0, 0, 0], 0
  batch['hypothesis_tags'] = tags
  loss, found = jax.jit(network.loss_fn)(model.params, batch, None)
  want = tag_loss = 0.0
  for n, row in enumerate(_readings(model)):
    for score, probabilities in row:
      # A text without a rating is left out, one without tags has none.
      if np.isnan(RATINGS[n, 0]):
        continue
      want += 0.7 * (score - RATINGS[n, 0]) ** 2
      if n == 0:
        scale = np.array(weights)[tags[0, :6]]
        right = probabilities[np.arange(6), tags[0, :6]]
        part = -(scale * np.log(right)).sum() / scale.sum()
        want, tag_loss = want + 0.3 * part, tag_loss + part / 3
  assert float(loss) == pytest.approx(want, rel=1e-5)
  assert float(found['weight']) == 2
  assert float(found['metrics']['tag_loss'][0]) == pytest.approx(
    tag_loss, rel=1e-5
  )
  # Without tags, ratings have all the weight.
  del batch['hypothesis_tags']
  loss, found = jax.jit(network.loss_fn)(model.params, batch, None)
  plain = [
    (score - RATINGS[n, 0]) ** 2
    for n, row in enumerate(_readings(model))
    for score, _ in row
  ]
  assert float(loss) == pytest.approx(np.nansum(plain), rel=1e-5)
  assert list(found['metrics']) == ['absolute_error']


def test_tags_of_nothing_cost_nothing():
  logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
  tags = np.array([[-1, -1, -1], [2, -1, 0]])
  of = jax.jit(jax.value_and_grad(lambda x: losses.tagging(x, tags).sum()))
  loss, gradient = of(logits)
  assert np.isfinite(gradient).all() and not np.asarray(gradient[0]).any()
  x = np.exp(logits[1])
  x = x / x.sum(1, keepdims=True)
  assert float(loss) == pytest.approx(-np.log([x[0, 2], x[2, 0]]).mean(), 1e-5)


def test_wrong_weights_are_refused(model):
  with pytest.raises(OptionError, match='tag_share'):
    regression.UnifiedModel(model.config, tag_share=1.5)
  with pytest.raises(OptionError, match='4 tags'):
    regression.UnifiedModel(model.config, tag_weights=(1.0, 2.0))
