"""Shards of word vectors, read as a sequence of sentences."""

import numpy as np
import pytest

from t5score_jax.crosslingual import corpus


def test_words_of_sentences_in_shards(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'SHARD', 2)
  sizes = [2, 0, 3]
  vectors = np.random.default_rng(0).normal(size=(5, 4))
  for number, (start, stop, rows) in enumerate(((0, 2, 2), (2, 5, 3))):
    np.save(
      tmp_path / f'x-counts-{number:05d}.npy',
      sizes[2 * number : 2 * number + 2],
    )
    part = vectors[start:stop].astype(np.float16)
    assert len(part) == rows
    np.save(tmp_path / f'x-words-{number:05d}.npy', part)
  # Nothing is left to encode.
  found = corpus.WordVectors(tmp_path, 'x', ['', '', ''], None)
  assert [len(words) for words in found] == sizes
  expected = vectors[2:] / np.linalg.norm(vectors[2:], axis=1, keepdims=True)
  np.testing.assert_allclose(found[2], expected, atol=2e-3)
  assert [len(words) for words in found[1:]] == [0, 3]
  for index in (3, -1):
    with pytest.raises(IndexError):
      found[index]
