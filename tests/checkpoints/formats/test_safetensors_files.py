"""Safetensors files, against the safetensors library in both directions."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.checkpoints import weights
from t5score_jax.checkpoints.formats import safetensors_files as files
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray

_BIG = 1 << 40


def _arrays(seed=0):
  rng = np.random.default_rng(seed)
  return {
    'matrix': rng.standard_normal((7, 1500)).astype(np.float32),
    'cube': rng.standard_normal((3, 4, 5)).astype(ml_dtypes.bfloat16),
    'half': rng.standard_normal(9).astype(np.float16),
    'scalar': np.full((), 3.5, np.float32),
    'empty': np.zeros((0, 4), np.float32),
    'ids': np.arange(6, dtype=np.int64),
  }


def _lazy(arrays):
  return {name: LazyArray.of(array) for name, array in arrays.items()}


def _assert_equal(found, expected):
  assert set(found) == set(expected)
  for name, array in expected.items():
    assert found[name].dtype == array.dtype, name
    np.testing.assert_array_equal(found[name], array)


def test_the_library_reads_what_is_written(tmp_path):
  files.write_folder(
    tmp_path, _lazy(_arrays()), _BIG, metadata={'format': 'pt'}
  )
  path = tmp_path / 'model.safetensors'
  _assert_equal(safetensors.numpy.load_file(path), _arrays())
  with safetensors.safe_open(path, framework='np') as stored:
    assert stored.metadata() == {'format': 'pt'}


def test_what_the_library_writes_is_read(tmp_path):
  safetensors.numpy.save_file(_arrays(), tmp_path / 'model.safetensors')
  found = files.open_folder(tmp_path)
  _assert_equal({n: a.read() for n, a in found.items()}, _arrays())


def test_shards_have_the_size_asked_for_and_an_index(tmp_path):
  arrays = {f'a{i}': np.full((10, 10), i, np.float32) for i in range(7)}
  arrays['large'] = np.ones((30, 10), np.float32)
  names = files.write_folder(tmp_path, _lazy(arrays), 900, stem='m')
  assert names[0] == 'm-00001-of-00005.safetensors'
  assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
  index = json.loads((tmp_path / names[-1]).read_text())
  assert index['metadata'] == {'total_size': 4000}
  assert index['weight_map']['a2'] == 'm-00002-of-00005.safetensors'
  sizes = [len(safetensors.numpy.load_file(tmp_path / n)) for n in names[:-1]]
  assert sizes == [2, 2, 2, 1, 1]
  found = files.open_folder(tmp_path, 'm')
  _assert_equal({n: a.read() for n, a in found.items()}, arrays)


def _slices(shape):
  def one(size):
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(
      lambda ends: slice(min(ends), max(ends))
    )

  return st.tuples(*map(one, shape))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_part_is_the_slice_of_the_whole(tmp_path_factory, data):
  shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
  if data.draw(st.booleans()):
    shape = (*shape[:-1], 1200)  # long runs are read one by one
  array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
  folder = tmp_path_factory.mktemp('f')
  files.write_folder(folder, {'a': LazyArray.of(array)}, _BIG)
  lazy = files.open_folder(folder)['a']
  index = data.draw(_slices(shape))
  np.testing.assert_array_equal(lazy.read(index), array[index])
  np.testing.assert_array_equal(
    lazy.transposed().read(index[::-1]), array[index].T
  )


def test_a_transposed_array_is_written_a_block_at_a_time(tmp_path, monkeypatch):
  monkeypatch.setattr(files, 'BLOCK_BYTES', 1 << 12)
  array = np.arange(40 * 130, dtype=np.float32).reshape(40, 130)
  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  files.write_folder(tmp_path / 'a', {'x': LazyArray.of(array)}, _BIG)
  turned = files.open_folder(tmp_path / 'a')['x'].transposed()
  sizes = [np.prod([p.stop - p.start for p in i]) for i in turned.blocks(4096)]
  assert len(sizes) > 4 and max(sizes) * 4 <= 4096 and sum(sizes) == array.size
  files.write_folder(tmp_path / 'b', {'x': turned}, _BIG)
  found = safetensors.numpy.load_file(tmp_path / 'b/model.safetensors')
  np.testing.assert_array_equal(found['x'], array.T)


def test_columns_are_written_by_way_of_a_file(tmp_path, monkeypatch):
  monkeypatch.setattr(files, 'BLOCK_BYTES', 1 << 14)
  monkeypatch.setattr(files, '_SMALL_RUN', 64)
  monkeypatch.setattr(weights, 'RUN_BYTES', 256)
  array = np.arange(400 * 1300, dtype=np.float32).reshape(400, 1300)
  columns = LazyArray(array.shape, array.dtype, lambda i: array[i], (400, 1))
  written = []
  write = files._write
  monkeypatch.setattr(
    files, '_write', lambda d, b, o: (written.append(len(b)), write(d, b, o))
  )
  files.write_folder(tmp_path, {'x': columns}, _BIG)
  assert [p.name for p in tmp_path.iterdir()] == ['model.safetensors']
  found = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  np.testing.assert_array_equal(found['x'], array)
  # Ten columns at a time would be 52,000 writes of 40 bytes.
  assert len(written) < 10_000


def _cut(path):
  path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_cut, 'not a whole safetensors file .* bytes where'),
    (lambda p: p.write_bytes(b''), 'not a whole safetensors file'),
    (lambda p: p.write_bytes(b'\x00\x01' + b'x' * 90), 'not a whole'),
    (
      lambda p: p.write_bytes(b'\x08' + bytes(7) + b'{"a":1} '),
      'not a whole safetensors file .header',
    ),
    (lambda p: p.unlink(), 'no such file'),
  ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
  files.write_folder(tmp_path, _lazy(_arrays()), _BIG)
  damage(tmp_path / 'model.safetensors')
  with pytest.raises(CheckpointError, match=f'model.safetensors: .*{message}'):
    files.open_folder(tmp_path)


@pytest.mark.parametrize(
  'text',
  [
    '[]',
    '{"weight_map": {"a": "../other.safetensors"}}',
    '{"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}',
    '{"weight_map": 3}',
    '{',
  ],
)
def test_a_wrong_index_is_an_error(tmp_path, text):
  files.write_folder(tmp_path, {'a': LazyArray.of(np.ones(3, 'f4'))}, _BIG)
  (tmp_path / 'model.safetensors.index.json').write_text(text)
  with pytest.raises(CheckpointError, match='index.json'):
    files.open_folder(tmp_path)


def test_a_huge_header_is_not_parsed(tmp_path):
  path = tmp_path / 'model.safetensors'
  with open(path, 'wb') as out:
    out.write((200 << 20).to_bytes(8, 'little'))
    out.truncate(8 + (200 << 20))
  with pytest.raises(CheckpointError, match=r'header of 209,715,200 bytes'):
    files.open_file(path)
