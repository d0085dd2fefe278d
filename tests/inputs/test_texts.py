"""Batches of instances that name their texts by number."""

import itertools

import numpy as np
import pytest

from t5score_jax.inputs import datasets, shares, texts

RATINGS = np.array([[1, 2], [3, np.nan], [np.nan, np.nan], [5, 6], [7, 8]])
ROWS = {
  'hypothesis': [0, 1, 1, 3, 0],
  'source': [2, 2, 2, 2, 2],
  'reference': [3, 3, 0, 1, 1],
}
LENGTHS = [2, 1, 5, 3]


def _folders(tmp_path, **changes):
  rows = {**ROWS, 'ratings': RATINGS, **changes}
  for folder in ('rows', 'texts'):
    (tmp_path / folder).mkdir()
  for name, values in rows.items():
    if values is not None:
      np.save(tmp_path / 'rows' / f'{name}.npy', np.array(values))
  # Padded with 1, as XLM-R pads, and a text may end in what is padding to
  # others.
  tokens = np.full((4, 6), 1)
  for n, length in enumerate(LENGTHS):
    tokens[n, :length] = 10 * n + np.arange(length)
  np.save(tmp_path / 'texts' / 'tokens.npy', tokens)
  np.save(tmp_path / 'texts' / 'lengths.npy', np.array(LENGTHS))
  vectors = np.arange(4 * 3 * 2).reshape(4, 3, 2) / 7
  np.save(tmp_path / 'texts' / 'vectors.npy', vectors)
  return (tmp_path / 'rows', tmp_path / 'texts'), tokens, vectors


def test_tokens_are_as_long_as_the_longest_in_their_role(tmp_path):
  folders, tokens, _ = _folders(tmp_path)
  dataset = texts.TextsDataset(*folders, 2, shuffle=False)
  assert dataset.num_examples == 5
  batches = list(dataset.epoch())
  assert [len(b['ratings']) for b in batches] == [2, 2, 1]
  whole = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
  assert set(whole) == {
    'ratings',
    'hypothesis_tokens',
    'source_tokens',
    'reference_tokens',
  }
  np.testing.assert_array_equal(whole['ratings'], RATINGS)
  for role, longest in (('hypothesis', 3), ('source', 5), ('reference', 3)):
    found = whole[f'{role}_tokens']
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, tokens[ROWS[role], :longest])


def test_vectors(tmp_path):
  folders, _, vectors = _folders(tmp_path, reference=None)
  dataset = texts.TextsDataset(*folders, 5, 'vectors', shuffle=False)
  (batch,) = dataset.epoch()
  assert set(batch) == {'ratings', 'hypothesis_vectors', 'source_vectors'}
  found = batch['hypothesis_vectors']
  assert found.dtype == np.float32
  np.testing.assert_array_equal(
    found, vectors[ROWS['hypothesis']].astype(np.float32)
  )


def test_shuffled_batches_go_on_and_are_divided(tmp_path):
  folders, tokens, _ = _folders(tmp_path)
  dataset = texts.TextsDataset(*folders, 2, seed=3)
  first = list(itertools.islice(dataset.batches(), 5))
  # Two epochs: every instance twice, with its own texts.
  key = np.concatenate([b['ratings'][:, 0] for b in first])
  assert np.isnan(key).sum() == 2 and sorted(key[~np.isnan(key)]) == [
    *[1, 1, 3, 3, 5, 5, 7, 7]
  ]
  for batch in first:
    for row, rating in enumerate(batch['ratings'][:, 0]):
      if np.isnan(rating):
        continue
      n = list(RATINGS[:, 0]).index(rating)
      np.testing.assert_array_equal(
        batch['reference_tokens'][row], tokens[ROWS['reference'][n], :3]
      )
  later = next(dataset.batches(3))
  np.testing.assert_array_equal(later['ratings'], first[3]['ratings'])
  halves = [
    next(dataset.batches(1, shares.Share((index,), 2, index, 2)))
    for index in range(2)
  ]
  for name, value in first[1].items():
    joined = np.concatenate([half[name] for half in halves])
    np.testing.assert_array_equal(joined, value)
  other = texts.TextsDataset(*folders, 5, seed=4)
  same = texts.TextsDataset(*folders, 5, seed=3)
  one, two = next(other.batches()), next(same.batches())
  assert not np.array_equal(one['ratings'], two['ratings'], equal_nan=True)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'source': None}, 'source.npy'),
    ({'ratings': None}, 'ratings.npy'),
    ({'source': [0, 1, 2, 3, 4]}, 'source.npy .* 0 to 4.*has 4'),
    ({'reference': [0, 1, -1, 3, 3]}, 'reference.npy .* -1 to'),
    ({'hypothesis': [0]}, 'same number of examples'),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
  folders, *_ = _folders(tmp_path, **changes)
  with pytest.raises(datasets.DatasetError, match=message):
    texts.TextsDataset(*folders, 2)


def test_missing_texts_and_unknown_forms(tmp_path):
  folders, *_ = _folders(tmp_path)
  (folders[1] / 'vectors.npy').unlink()
  with pytest.raises(datasets.DatasetError, match='vectors.npy'):
    texts.TextsDataset(*folders, 2, 'vectors')
  with pytest.raises(datasets.DatasetError, match='words.*tokens'):
    texts.TextsDataset(*folders, 2, 'words')


def test_epochs_in_steps(tmp_path):
  (rows, _), *_ = _folders(tmp_path)
  assert texts.steps(rows, 2) == 3
  assert texts.steps(rows, 5) == 1 and texts.steps(rows, 40) == 1
  assert texts.steps(rows, 2, 2) == 5 and texts.steps(rows, 2, 0) == 0
  # 5 * .2 / 1 is 1, whatever floats make of it.
  assert texts.steps(rows, 1, 0.2) == 1
  with pytest.raises(datasets.DatasetError, match='epochs = -1'):
    texts.steps(rows, 2, -1)
  with pytest.raises(datasets.DatasetError, match='ratings.npy'):
    texts.steps(rows / 'no', 2)
