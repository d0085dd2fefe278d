import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.errors import InputError
from t5score_jax.inputs import datasets, prefetch, shares


def _folder(path, examples=10, **more):
  path.mkdir(parents=True, exist_ok=True)
  np.save(path / 'ids.npy', np.arange(examples, dtype=np.uint16))
  for key, value in more.items():
    np.save(path / f'{key}.npy', value)
  return path


def _take(dataset, count, start=0):
  return list(itertools.islice(dataset.batches(start), count))


def _ids(batches):
  return np.concatenate([batch['ids'] for batch in batches])


def test_every_epoch_has_every_example_in_an_order_of_its_own(tmp_path):
  dataset = datasets.ArrayDataset(_folder(tmp_path / 'a'), 4, seed=3)
  # Five batches of four are two epochs of ten; one batch spans both.
  ids = _ids(_take(dataset, 5))
  first, second = ids[:10], ids[10:]
  assert sorted(first) == sorted(second) == list(range(10))
  assert list(first) != list(second) and list(first) != list(range(10))
  assert ids.dtype == np.int32
  again = datasets.ArrayDataset(tmp_path / 'a', 4, seed=3)
  np.testing.assert_array_equal(_ids(_take(again, 5)), ids)
  other = datasets.ArrayDataset(tmp_path / 'a', 4, seed=4)
  assert list(_ids(_take(other, 5))) != list(ids)


@settings(max_examples=30, deadline=None)
@given(
  examples=st.integers(1, 30),
  batch_size=st.integers(1, 12),
  start=st.integers(0, 20),
)
def test_arrays_go_on_where_they_were(
  tmp_path_factory, examples, batch_size, start
):
  folder = _folder(tmp_path_factory.mktemp('arrays') / 'a', examples)
  dataset = datasets.ArrayDataset(folder, batch_size, seed=1)
  unbroken = _take(dataset, start + 5)
  np.testing.assert_array_equal(
    _ids(_take(dataset, 5, start)), _ids(unbroken[start:])
  )


def test_stored_order_and_the_last_short_batch(tmp_path):
  dataset = datasets.ArrayDataset(_folder(tmp_path / 'a'), 4, shuffle=False)
  assert [list(batch['ids']) for batch in dataset.epoch()] == [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
    [8, 9],
  ]
  assert list(_ids(_take(dataset, 3))) == [*range(10), 0, 1]


def test_npz_and_types(tmp_path):
  np.savez(
    tmp_path / 'a.npz',
    ids=np.arange(3, dtype=np.int8),
    ratings=np.float16([0.5, 1.5, -2]),
    flags=np.array([True, False, True]),
  )
  [batch] = datasets.ArrayDataset(tmp_path / 'a.npz', 3, shuffle=False).epoch()
  assert {key: str(value.dtype) for key, value in batch.items()} == {
    'flags': 'int32',
    'ids': 'int32',
    'ratings': 'float32',
  }
  np.testing.assert_array_equal(batch['ratings'], [0.5, 1.5, -2])


def test_decoder_inputs_and_weights_follow_from_targets(tmp_path):
  targets = np.array([[7, 8, 1], [9, 1, 0]])
  folder = _folder(tmp_path / 'a', 2, decoder_target_tokens=targets)
  [batch] = datasets.ArrayDataset(folder, 2, shuffle=False).epoch()
  np.testing.assert_array_equal(
    batch['decoder_input_tokens'], [[0, 7, 8], [0, 9, 1]]
  )
  np.testing.assert_array_equal(
    batch['decoder_loss_weights'], [[1, 1, 1], [1, 1, 0]]
  )


def test_missing_or_uneven_arrays(tmp_path):
  with pytest.raises(datasets.DatasetError, match='cache_batches'):
    datasets.ArrayDataset(tmp_path / 'nothing', 2)
  (tmp_path / 'empty').mkdir()
  with pytest.raises(datasets.DatasetError, match='no .npy'):
    datasets.ArrayDataset(tmp_path / 'empty', 2)
  folder = _folder(tmp_path / 'a', 10, x=np.zeros((9, 2)))
  with pytest.raises(datasets.DatasetError, match="'ids': 10, 'x': 9"):
    datasets.ArrayDataset(folder, 2)


def _mixture(tmp_path, rates, batch_size=8, seed=0):
  parts = []
  for index, width in enumerate((3, 5)):
    folder = tmp_path / str(index)
    folder.mkdir(exist_ok=True)
    rows = 100 * index + np.arange(20)
    np.save(folder / 'x.npy', np.repeat(rows[:, None], width, axis=1))
    parts.append(datasets.ArrayDataset(folder, 1, seed=index))
  return datasets.MixtureDataset(parts, rates, batch_size, seed)


def test_mixture_draws_by_rate_and_pads(tmp_path):
  batches = _take(_mixture(tmp_path, [1, 3]), 100)
  x = np.concatenate([batch['x'] for batch in batches])
  assert x.shape == (800, 5)
  second = x[:, 0] >= 100
  # Binomial: 600 of 800, standard deviation 12.
  assert abs(second.sum() - 600) < 50
  assert (x[~second, 3:] == 0).all() and (x[second, 4] >= 100).all()
  # Each part is gone through evenly: no example is used much more than others.
  _, counts = np.unique(x[second, 0], return_counts=True)
  assert len(counts) == 20 and counts.max() - counts.min() <= 1


def test_mixture_goes_on_where_it_was(tmp_path):
  unbroken = _take(_mixture(tmp_path, [1, 3]), 9)
  resumed = _take(_mixture(tmp_path, [1, 3]), 4, start=5)
  for old, new in zip(unbroken[5:], resumed, strict=True):
    np.testing.assert_array_equal(old['x'], new['x'])


def test_mixture_errors(tmp_path):
  with pytest.raises(datasets.DatasetError, match='as many rates'):
    _mixture(tmp_path, [1])
  with pytest.raises(datasets.DatasetError, match='not all 0'):
    _mixture(tmp_path, [0, 0])
  a = datasets.ArrayDataset(_folder(tmp_path / 'a'), 1)
  b = datasets.ArrayDataset(_folder(tmp_path / 'b', y=np.zeros(10)), 1)
  with pytest.raises(datasets.DatasetError, match='same kind of batch'):
    datasets.MixtureDataset([a, b], [1, 1], 4)


def test_calls_stack_but_never_cross_an_interval():
  batches = ({'x': np.full(2, i)} for i in itertools.count(3))
  stacked = list(prefetch.calls(batches, 3, 14, 4, intervals=[10]))
  assert [len(batch['x']) for batch in stacked] == [4, 1, 1, 1, 4]
  np.testing.assert_array_equal(
    np.concatenate([batch['x'][:, 0] for batch in stacked]), range(3, 14)
  )


def test_calls_do_not_stack_batches_of_different_shapes():
  shapes = [2, 2, 3, 3, 2, 3]
  batches = ({'x': np.zeros(n)} for n in shapes)
  stacked = list(prefetch.calls(batches, 0, 6, 2, intervals=[]))
  assert [x['x'].shape for x in stacked] == [(2, 2), (2, 3), (1, 2), (1, 3)]


def test_calls_say_when_data_end():
  with pytest.raises(datasets.DatasetError, match='ended at step 2 of 5'):
    list(prefetch.calls(iter([{'x': np.zeros(1)}] * 2), 0, 5, 1, []))


def test_prefetch_keeps_order_and_raises_where_it_is_read():
  def broken():
    yield from ({'x': i} for i in range(5))
    raise ValueError('row 6 is damaged')

  ahead = prefetch.prefetch(broken(), lambda batch: batch['x'] * 10)
  assert [next(ahead) for _ in range(5)] == [0, 10, 20, 30, 40]
  with pytest.raises(ValueError, match='row 6'):
    next(ahead)


def test_prefetch_ends_its_thread_when_the_reader_stops():
  others = set(threading.enumerate())
  ahead = prefetch.prefetch(itertools.count(), lambda item: item, size=2)
  assert next(ahead) == 0
  [thread] = (
    t for t in set(threading.enumerate()) - others if t.name == 'prefetch'
  )
  ahead.close()
  assert not thread.is_alive()


@pytest.fixture(scope='module')
def made_up():
  pytest.importorskip('seqio')
  from t5score_jax.tasks import made_up

  return made_up


def _seqio(name='made_up', **options):
  lengths = {'inputs': 48, 'targets': 48}
  return datasets.SeqioDataset(name, lengths, 'encoder_decoder', 8, **options)


def test_seqio_goes_on_where_it_was(made_up):
  # Across the end of the first epoch: 90 examples are 11.25 batches.
  small = {'split': 'validation', 'seed': 5}
  unbroken = _take(_seqio(**small), 15)
  resumed = _take(_seqio(**small), 2, 13)
  for old, new in zip(unbroken[13:], resumed, strict=True):
    for key in old:
      np.testing.assert_array_equal(old[key], new[key])
  tokens = [batch['encoder_input_tokens'] for batch in unbroken]
  assert (
    tokens[0]
    != _take(_seqio(split='validation', seed=6), 1)[0]['encoder_input_tokens']
  ).any()


def test_seqio_epoch_has_every_example_once(made_up):
  dataset = _seqio(split='validation')
  rows = np.concatenate([b['encoder_input_tokens'] for b in dataset.epoch()])
  expected = {p['inputs'] for p in made_up.text_pairs('validation')}
  found = [bytes(int(i) - 3 for i in row if i > 2).decode() for row in rows]
  assert len(found) == 90 and set(found) == expected


def test_seqio_errors(made_up):
  with pytest.raises(datasets.DatasetError, match='registers it'):
    _seqio('no_such_task')
  with pytest.raises(datasets.DatasetError, match="no split 'test', only"):
    _seqio(split='test')
  with pytest.raises(InputError, match='use one of'):
    datasets.SeqioDataset('made_up', {}, 'triple', 8)


_HALVES = [shares.Share((index,), 2, index, 2) for index in range(2)]


def test_shares_of_seqio_are_rows_of_the_batches_of_one(made_up):
  dataset = _seqio(split='validation', seed=5)
  whole = _take(dataset, 3)
  halves = [
    list(itertools.islice(dataset.batches(0, half), 3)) for half in _HALVES
  ]
  for batch, *parts in zip(whole, *halves, strict=True):
    for key, value in batch.items():
      joined = np.concatenate([part[key] for part in parts])
      np.testing.assert_array_equal(joined, value)


@pytest.mark.slow
def test_a_cache_and_its_shards(made_up, tmp_path):
  from t5score_jax.tasks import caching

  with pytest.raises(datasets.DatasetError, match='no cache of made_up in'):
    _seqio(use_cached=True, cache_dirs=[str(tmp_path)])
  caching.cache_task('made_up', tmp_path, shards=4)
  options = {'use_cached': True, 'cache_dirs': [str(tmp_path)], 'seed': 3}
  whole = _seqio(shuffle=False, **options)
  assert {len(b['encoder_input_tokens']) for b in _take(whole, 3)} == {8}
  # Each reads files of its own: no text is read by both in the first epoch.
  parts = [
    {
      row.tobytes()
      for batch in itertools.islice(
        _seqio(keep_order=False, **options).batches(0, half), 70
      )
      for row in np.concatenate(
        [batch['encoder_input_tokens'], batch['decoder_target_tokens']], axis=1
      )
    }
    for half in _HALVES
  ]
  assert min(map(len, parts)) > 100 and not parts[0] & parts[1]


def test_shares_of_arrays(tmp_path):
  """Blocks of rows that need not lie together."""
  dataset = datasets.ArrayDataset(_folder(tmp_path / 'a'), 4, seed=3)
  [whole] = _take(dataset, 1)
  share = shares.Share((0, 3), 4, 0, 2)
  part = next(dataset.batches(0, share))
  for key, value in whole.items():
    np.testing.assert_array_equal(part[key], value[[0, 3]])
  assert share.batch_size(2) == 4
  with pytest.raises(shares.ShareError, match='use a multiple of 4'):
    share.rows(6)
