"""Pairs of sentences as batches of tokens."""

import itertools

import numpy as np
import pytest
import tiny_encoder

from t5score_jax.data import subwords
from t5score_jax.inputs import sentence_pairs, shares

PAIRS = [
  ('the cat', 'a dog sat'),
  ('the ' * 40, 'a hill'),
  ('small green birds', 'un'),
  ('a mat', 'the ' * 5),
  ('dog', 'cat'),
]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  folder = tiny_encoder.make(tmp_path_factory.mktemp('pairs') / 'tiny')
  return subwords.load_tokenizer(folder)


@pytest.fixture
def folder(tokenizer, tmp_path):
  assert sentence_pairs.write(tmp_path / 'a', PAIRS, tokenizer, 0, 40) == 1
  return tmp_path / 'a'


def _texts(batch):
  return [
    tuple(tuple(row[row != 0].tolist()) for row in rows)
    for rows in zip(batch['source_tokens'], batch['target_tokens'], strict=True)
  ]


def test_a_batch_is_as_long_as_its_longest_text(folder, tokenizer):
  dataset = sentence_pairs.PairDataset(folder, 2, pad_id=0)
  seen = []
  lengths = set()
  for batch in itertools.islice(dataset.batches(), 5):
    seen += _texts(batch)
    longest = max(len(ids) for pair in _texts(batch) for ids in pair)
    for key, tokens in batch.items():
      assert tokens.shape[0] == 2
      width = 40 if key == 'source_tokens' else 7
      assert tokens.shape[1] == min(width, 32 if longest <= 32 else 64)
    lengths.add(batch['source_tokens'].shape[1])
  assert lengths == {32, 40}
  # Two epochs, each with every pair once.
  expected = sorted(
    tuple(tuple(text.ids) for text in tokenizer.encode_batch(pair, 40))
    for pair in PAIRS
  )
  assert sorted(seen[:5]) == sorted(seen[5:]) == expected
  (third,) = itertools.islice(dataset.batches(2), 1)
  assert _texts(third) == seen[4:6]


def test_rows_of_padding_divide_a_batch(folder):
  whole = sentence_pairs.PairDataset(folder, 5, pad_id=0)
  dataset = sentence_pairs.PairDataset(folder, 5, pad_id=0, row_multiple=4)
  batch = next(dataset.batches())
  expected = _texts(next(whole.batches()))
  assert _texts(batch) == [*expected, *[((), ())] * 3]
  # Processes share it, cut alike.
  parts = [
    next(dataset.batches(share=shares.Share((n,), 2, n, 2))) for n in (0, 1)
  ]
  for key, tokens in batch.items():
    joined = np.concatenate([part[key] for part in parts])
    np.testing.assert_array_equal(joined, tokens)


def test_arrays_are_written_once(folder, tokenizer):
  file = folder / 'source_tokens.npy'
  before = file.stat().st_mtime_ns
  assert sentence_pairs.write(folder, PAIRS[:1], tokenizer, 0, 40) == 1
  assert file.stat().st_mtime_ns == before
