"""A miniature that compares words before it has learned anything."""

import dataclasses

import jax
import jax.numpy as jnp
import matching_init
import numpy as np
import pytest

from t5score_jax.nn import bert, cross_encoder

PIECES = 400
CONFIG = bert.BertConfig(
  vocab_size=PIECES,
  emb_dim=128,
  num_heads=2,
  mlp_dim=256,
  num_layers=2,
  max_positions=64,
)
CLS, SEP = 1, 2


def _words(size, seed=0):
  return np.random.default_rng(seed).normal(size=(PIECES, size))


def _params(config=CONFIG, seed=0):
  size = matching_init.word_dimensions(config)
  return matching_init.with_matching_heads(
    config, jax.random.key(seed), _words(size)
  )


def _pairs(first, second):
  """[n, a], [n, b] words -> tokens and types."""
  n = len(first)
  cls, sep = np.full((n, 1), CLS), np.full((n, 1), SEP)
  tokens = np.concatenate([cls, first, sep, second, sep], axis=1)
  types = np.zeros_like(tokens)
  types[:, first.shape[1] + 2 :] = 1
  return jnp.asarray(tokens), jnp.asarray(types)


# Compiled as a whole: one operation after the other takes a minute.
_predict = jax.jit(cross_encoder.predict, static_argnums=1)


def _score(params, first, second, config=CONFIG):
  return np.asarray(_predict(params, config, *_pairs(first, second)))


def _changed(rng, texts, share):
  """Texts of which a share of the words is another one, in another order."""
  other = rng.integers(3, PIECES, size=texts.shape)
  keep = rng.random(texts.shape) >= share
  return rng.permuted(np.where(keep, texts, other), axis=1)


@pytest.mark.parametrize('layers', [2, 3])
def test_score_falls_with_the_share_of_changed_words(layers):
  config = dataclasses.replace(CONFIG, num_layers=layers)
  rng = np.random.default_rng(1)
  texts = rng.integers(3, PIECES, size=(200, 12))
  shares = rng.random(200)[:, None]
  scores = _score(_params(config), texts, _changed(rng, texts, shares), config)
  found = np.corrcoef(scores, shares[:, 0])[0, 1]
  assert found < -0.8
  # Random weights without the circuit know nothing of it.
  plain = cross_encoder.init_params(config, jax.random.key(0))
  scores = _score(plain, texts, _changed(rng, texts, shares), config)
  assert abs(np.corrcoef(scores, shares[:, 0])[0, 1]) < 0.4


def test_similar_words_count_for_more_than_others():
  size = matching_init.word_dimensions(CONFIG)
  words = _words(size)
  # Piece 200 + n means nearly what piece n does.
  noise = 0.3 * np.random.default_rng(2).normal(size=(200, size))
  words[200:] = words[:200] + noise
  params = matching_init.with_matching_heads(CONFIG, jax.random.key(0), words)
  texts = np.random.default_rng(3).integers(3, 200, size=(50, 10))
  equal = _score(params, texts, texts)
  similar = _score(params, texts, texts + 200)
  other = _score(params, texts, np.roll(texts, 1, axis=0))
  assert np.all(equal > similar)
  assert np.mean(similar > other) > 0.95


def test_length_of_the_word_vectors_is_of_no_account():
  size = matching_init.word_dimensions(CONFIG)
  words = _words(size)
  rng = np.random.default_rng(4)
  texts = rng.integers(3, PIECES, size=(5, 8))
  scores = [
    _score(
      matching_init.with_matching_heads(CONFIG, jax.random.key(0), w),
      texts,
      texts[:, ::-1],
    )
    for w in (words, words * rng.uniform(0.1, 9, size=(PIECES, 1)))
  ]
  np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'num_layers': 1}, 'two layers'),
    ({'num_heads': 1}, 'two heads'),
    ({'pre_norm': True}, 'norms after'),
    ({'mlp_dim': 100}, 'feed-forward units'),
    ({'type_vocab_size': 1}, 'two segments'),
    ({'vocab_size': PIECES + 1}, 'word vectors of shape'),
  ],
)
def test_what_does_not_fit_is_refused(change, message):
  config = dataclasses.replace(CONFIG, **change)
  words = _words(matching_init.word_dimensions(CONFIG))
  with pytest.raises(ValueError, match=message):
    matching_init.with_matching_heads(config, jax.random.key(0), words)
