import itertools

import numpy as np
import pytest

from t5score_jax.inputs import bucketing, datasets, prefetch


def _buckets(folder, sizes=((40, 4), (20, 8), (10, 16))):
  for index, (examples, length) in enumerate(sizes):
    path = folder / f'train_{length}'
    path.mkdir(parents=True, exist_ok=True)
    rows = 1000 * index + np.arange(examples)
    np.save(path / 'x.npy', np.repeat(rows[:, None], length, axis=1))
    np.save(path / 'weights.npy', np.ones(examples))
  return folder


def _take(dataset, count, start=0):
  return list(itertools.islice(dataset.batches(start), count))


def test_batches_come_whole_from_one_bucket_of_equal_tokens(tmp_path):
  dataset = bucketing.from_folder(_buckets(tmp_path), 32)
  shapes = {batch['x'].shape for batch in _take(dataset, 60)}
  assert shapes == {(8, 4), (4, 8), (2, 16)}
  # 5 batches an epoch in each bucket: drawn alike.
  np.testing.assert_allclose(dataset.rates, [1 / 3] * 3)


def test_rows_are_a_multiple_that_devices_divide(tmp_path):
  dataset = bucketing.from_folder(_buckets(tmp_path), 104, row_multiple=4)
  shapes = {batch['x'].shape for batch in _take(dataset, 60)}
  assert shapes == {(24, 4), (12, 8), (4, 16)}
  with pytest.raises(
    datasets.DatasetError, match='7 have 112 tokens, more than'
  ):
    bucketing.from_folder(tmp_path, 104, row_multiple=7)


def test_weights_change_how_often_a_bucket_is_drawn(tmp_path):
  dataset = bucketing.from_folder(
    _buckets(tmp_path), 32, weights={'train_1*': 4.0, '*_16': 0.5}
  )
  # Sorted by name: train_16, train_4, train_8.
  np.testing.assert_allclose(dataset.rates, [0.5, 0.25, 0.25])
  lengths = [batch['x'].shape[1] for batch in _take(dataset, 400)]
  # Binomial: 200 of 400, standard deviation 10.
  assert abs(lengths.count(16) - 200) < 45


def test_every_bucket_goes_through_its_epochs(tmp_path):
  dataset = bucketing.from_folder(_buckets(tmp_path), 32)
  rows = {}
  for batch in _take(dataset, 200):
    rows.setdefault(batch['x'].shape[1], []).extend(batch['x'][:, 0])
  for length, found in rows.items():
    size = {4: 40, 8: 20, 16: 10}[length]
    epochs = len(found) // size
    assert epochs > 5
    for epoch in range(epochs):
      assert len(set(found[epoch * size : (epoch + 1) * size])) == size


@pytest.mark.parametrize('run_length', [1, 4])
@pytest.mark.parametrize('start', [0, 1, 7, 30])
def test_goes_on_where_it_was(tmp_path, run_length, start):
  options = {'seed': 2, 'run_length': run_length}
  dataset = bucketing.from_folder(_buckets(tmp_path), 32, **options)
  unbroken = _take(dataset, 40)
  again = bucketing.from_folder(tmp_path, 32, **options)
  for old, new in zip(
    unbroken[start:], _take(again, 40 - start, start), strict=True
  ):
    np.testing.assert_array_equal(old['x'], new['x'])


def test_runs_of_one_shape_can_be_stacked(tmp_path):
  dataset = bucketing.from_folder(_buckets(tmp_path), 32, run_length=4)
  stacked = prefetch.calls(dataset.batches(0), 0, 40, 4, intervals=[20])
  assert {len(batch['x']) for batch in stacked} == {4}


def test_errors(tmp_path):
  folder = _buckets(tmp_path / 'a')
  with pytest.raises(datasets.DatasetError, match='valid_'):
    bucketing.from_folder(folder, 32, pattern='valid_*')
  with pytest.raises(datasets.DatasetError, match='16 tokens, more than'):
    bucketing.from_folder(folder, 15)
  with pytest.raises(datasets.DatasetError, match='tarin'):
    bucketing.from_folder(folder, 32, weights={'tarin_*': 2.0})
  one = datasets.ArrayDataset(folder / 'train_4', 2)
  with pytest.raises(datasets.DatasetError, match='as many rates'):
    bucketing.BucketedDataset([one], [1, 2])
  with pytest.raises(datasets.DatasetError, match='not all 0'):
    bucketing.BucketedDataset([one], [0])
  with pytest.raises(datasets.DatasetError, match='run_length = 0'):
    bucketing.BucketedDataset([one], run_length=0)
  mixture = datasets.MixtureDataset([one], [1], 2)
  with pytest.raises(datasets.DatasetError, match='MixtureDataset'):
    bucketing.BucketedDataset([mixture])


def _ragged(folder, lengths, width=64):
  """Arrays of N examples, example n full of n + 1."""
  folder.mkdir()
  tokens = np.zeros((len(lengths), width), np.int16)
  for n, length in enumerate(lengths):
    tokens[n, :length] = n + 1
  np.save(folder / 'tokens.npy', tokens)
  np.save(folder / 'token_types.npy', (tokens > 0).astype(np.int8))
  np.save(folder / 'ratings.npy', np.arange(len(lengths), dtype=np.float32))
  return folder


def test_one_folder_is_cut_into_buckets_of_length(tmp_path):
  lengths = [3, 24, 25, 40, 64, 7, 33, 1]
  folder = _ragged(tmp_path / 'ragged', lengths)
  buckets = bucketing.held_out(folder, 256, lengths=(24, 32, 48))
  shapes = [next(b.epoch())['tokens'].shape for b in buckets]
  assert shapes == [(4, 24), (1, 32), (2, 48), (1, 64)]
  assert [b.batch_size for b in buckets] == [10, 8, 5, 4]
  seen = []
  for bucket in buckets:
    for batch in bucket.epoch():
      for tokens, types, rating in zip(
        batch['tokens'], batch['token_types'], batch['ratings'], strict=True
      ):
        length = lengths[int(rating)]
        assert np.all(tokens[:length] == rating + 1)
        assert not tokens[length:].any() and types.sum() == length
        seen.append(int(rating))
  assert sorted(seen) == list(range(8))


def test_training_draws_whole_batches_of_one_length(tmp_path):
  folder = _ragged(tmp_path / 'ragged', [5] * 40 + [50] * 12)
  dataset = bucketing.by_length(folder, 128, lengths=(16,), seed=3)
  batches = list(itertools.islice(dataset.batches(), 60))
  assert {b['tokens'].shape for b in batches} == {(8, 16), (2, 64)}
  # As many batches of each as it has: 5 of one epoch against 6.
  short = np.mean([b['tokens'].shape == (8, 16) for b in batches])
  assert 0.25 < short < 0.65
  again = itertools.islice(dataset.batches(start_step=20), 40)
  for a, b in zip(batches[20:], again, strict=True):
    np.testing.assert_array_equal(a['ratings'], b['ratings'])
  with pytest.raises(datasets.DatasetError, match='more than batch_tokens=60'):
    bucketing.by_length(folder, 60, lengths=(16,))
  with pytest.raises(datasets.DatasetError, match='no such array'):
    bucketing.by_length(tmp_path, 60)


def test_padding_is_the_id_that_the_arrays_name(tmp_path):
  tokens = np.array([[0, 7, 2, 1, 1, 1], [0, 1, 7, 0, 7, 2]])
  np.save(tmp_path / 'tokens.npy', tokens)
  (tmp_path / datasets.INFO_FILE).write_text('{"pad_id": 1}')
  found = bucketing.held_out(tmp_path, 12, lengths=(3, 6))
  rows = [batch['tokens'] for bucket in found for batch in bucket.epoch()]
  np.testing.assert_array_equal(rows[0], tokens[:1, :3])
  np.testing.assert_array_equal(rows[1], tokens[1:])


def _instances(tmp_path, lengths, pairs):
  """Texts of these lengths, padded with 1, and (hypothesis, source) of them."""
  rows, texts = tmp_path / 'rows', tmp_path / 'texts'
  rows.mkdir()
  texts.mkdir()
  tokens = np.full((len(lengths), max(lengths)), 1)
  for n, length in enumerate(lengths):
    tokens[n, :length] = 10 + n
  np.save(texts / 'tokens.npy', tokens)
  np.save(texts / 'lengths.npy', np.array(lengths, np.int32))
  for role, numbers in zip(
    ('hypothesis', 'source'), zip(*pairs, strict=True), strict=True
  ):
    np.save(rows / f'{role}.npy', np.array(numbers))
  np.save(rows / 'ratings.npy', np.arange(len(pairs), dtype='f4')[:, None])
  return rows, texts


def test_instances_are_padded_to_their_longest_text(tmp_path):
  lengths = [3, 8, 5, 12, 4]
  pairs = [(0, 1), (0, 2), (4, 0), (3, 0), (0, 3), (2, 2)]
  folders = _instances(tmp_path, lengths, pairs)
  buckets = bucketing.texts_held_out(*folders, 24, lengths=(4, 8))
  seen = {}
  for bucket in buckets:
    for batch in bucket.epoch():
      width = batch['source_tokens'].shape[1]
      assert batch['hypothesis_tokens'].shape[1] == width
      for hypothesis, source, (rating,) in zip(
        batch['hypothesis_tokens'],
        batch['source_tokens'],
        batch['ratings'],
        strict=True,
      ):
        seen[int(rating)] = width
        for tokens, text in zip(
          (hypothesis, source), pairs[int(rating)], strict=True
        ):
          assert np.sum(tokens == 10 + text) == lengths[text]
          assert np.sum(tokens == 1) == width - lengths[text]
  assert seen == {0: 8, 1: 8, 2: 4, 3: 12, 4: 12, 5: 8}
  assert [b.batch_size for b in buckets] == [6, 3, 2]


def test_steps_of_an_epoch_are_its_batches(tmp_path):
  folders = _instances(tmp_path, [3, 9], [(0, 0)] * 12 + [(0, 1)] * 8)
  # 6 rows of 4 tokens and 2 of 9: two batches and four.
  assert bucketing.texts_steps(*folders, 24, lengths=(4,)) == 6
  assert bucketing.texts_steps(*folders, 24, 0.5, lengths=(4,)) == 3
  assert bucketing.texts_steps(*folders, 24, 0, lengths=(4,)) == 0
  dataset = bucketing.texts_by_length(*folders, 24, lengths=(4,), seed=1)
  batches = list(itertools.islice(dataset.batches(), 60))
  shapes = [batch['hypothesis_tokens'].shape for batch in batches]
  assert set(shapes) == {(6, 4), (2, 9)}
  # Both at the pace of their epochs: a third and two thirds.
  assert 8 < shapes.count((6, 4)) < 32
  rows = [b['ratings'][:, 0] for b in batches if len(b['ratings']) == 6]
  assert set(np.concatenate(rows[:2])) == set(range(12))
  assert len(list(dataset.token_arrays())) == 2
  with pytest.raises(datasets.DatasetError, match='more than batch_tokens=8'):
    bucketing.texts_by_length(*folders, 8, lengths=(4,))
