"""torch's files: what lies in them is read, what they ask for is not done."""

import json
import os
import pickle
import resource
import zipfile

import ml_dtypes
import numpy as np
import pytest
import torch_zip
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.checkpoints.formats.torch import reader
from t5score_jax.checkpoints.weights import CheckpointError

_FORMS = (torch_zip.zipped, torch_zip.sequence)


def _write(folder, content: bytes):
  path = folder / 'pytorch_model.bin'
  path.write_bytes(content)
  return path


@pytest.mark.parametrize('form', _FORMS)
@pytest.mark.parametrize('dtype', torch_zip.STORAGES)
def test_reads_arrays_of_all_dtypes(tmp_path, form, dtype):
  arrays = {
    'a.weight': np.arange(6).reshape(2, 3).astype(dtype),
    'b': np.array([-3, 5]).astype(dtype),
    'number': np.array(7).astype(dtype),
    'nothing': np.zeros((0, 4), dtype),
  }
  found = reader.open_file(_write(tmp_path, torch_zip.plain(arrays, form)))
  assert list(found) == list(arrays)
  for name, array in arrays.items():
    assert found[name].dtype == dtype
    assert found[name].shape == array.shape
    np.testing.assert_array_equal(found[name].read(), array)


@pytest.mark.parametrize('form', _FORMS)
def test_reads_views_and_parts_of_views(tmp_path, form):
  storage = np.arange(100, 124, dtype=np.float32)
  views = {
    'turned': torch_zip.tensor('0', storage, 4, (3, 5), (1, 3)),
    'part': torch_zip.tensor('0', storage, 20, (2, 2), (2, 1)),
    'repeated': torch_zip.tensor('0', storage, 7, (4, 2), (0, 1)),
  }
  content = form(torch_zip.dictionary(views), {'0': storage})
  found = reader.open_file(_write(tmp_path, content))
  turned = storage[4:19].reshape(5, 3).T
  np.testing.assert_array_equal(found['turned'].read(), turned)
  np.testing.assert_array_equal(
    found['turned'].read((slice(1, 3), slice(2, 4))), turned[1:3, 2:4]
  )
  np.testing.assert_array_equal(found['part'].read(), [[120, 121], [122, 123]])
  np.testing.assert_array_equal(found['repeated'].read(), [[107, 108]] * 4)
  for array in found.values():
    parts = [array.read(index).size for index in array.blocks(8)]
    assert sum(parts) == array.size


def test_tied_names_are_one_object(tmp_path):
  storage = np.ones((2, 3), np.float32)
  items = {n: torch_zip.tensor('0', storage) for n in ('a', 'b')}
  items['c'] = torch_zip.tensor('0', storage, 0, (3, 2))
  content = torch_zip.zipped(torch_zip.dictionary(items), {'0': storage})
  found = reader.open_file(_write(tmp_path, content))
  assert found['a'] is found['b']
  assert found['a'] is not found['c']


def test_parameters_and_metadata_are_read_over(tmp_path):
  storage = np.ones(2, np.float32)
  parameter = (
    torch_zip.name('torch._utils', '_rebuild_parameter')
    + b'('
    + torch_zip.tensor('0', storage)
    + torch_zip.atom(True)
    + torch_zip.EMPTY
    + b'tR'
  )
  # state_dict() puts an attribute _metadata on its dictionary.
  state = torch_zip.atom({'_metadata': {'': {'version': 1}}}) + b'b'
  content = torch_zip.zipped(
    torch_zip.dictionary({'a': parameter}, state), {'0': storage}
  )
  found = reader.open_file(_write(tmp_path, content))
  np.testing.assert_array_equal(found['a'].read(), storage)


def test_opening_reads_no_array(tmp_path, monkeypatch):
  path = _write(tmp_path, torch_zip.plain({'a': np.ones(9, np.float32)}))
  found = reader.open_file(path)
  monkeypatch.setattr(reader.np, 'memmap', None)
  with pytest.raises(TypeError):
    found['a'].read()


def test_reads_shards(tmp_path):
  for number, array in ((1, np.zeros(2)), (2, np.ones(3))):
    (tmp_path / f'pytorch_model-{number}.bin').write_bytes(
      torch_zip.plain({f'w{number}': array.astype(np.float32)})
    )
  index = tmp_path / 'pytorch_model.bin.index.json'
  places = {'w1': 'pytorch_model-1.bin', 'w2': 'pytorch_model-2.bin'}
  index.write_text(json.dumps({'weight_map': places}))
  found = reader.open_folder(tmp_path)
  assert {name: array.shape for name, array in found.items()} == {
    'w1': (2,),
    'w2': (3,),
  }
  for wrong, message in (
    ({'w3': 'pytorch_model-2.bin'}, 'names w3, which'),
    ({'w1': '../pytorch_model-1.bin'}, 'is not in this folder'),
    ({'w1': 'pytorch_model-3.bin'}, 'no such file'),
  ):
    index.write_text(json.dumps({'weight_map': wrong}))
    with pytest.raises(CheckpointError, match=message):
      reader.open_folder(tmp_path)


class _Attack:
  """Makes a file when it is unpickled by a trusting reader."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (str(self.path),)


@pytest.mark.parametrize('form', _FORMS)
@pytest.mark.parametrize('protocol', [2, 4])
def test_programs_are_refused_and_not_run(tmp_path, form, protocol):
  proof = tmp_path / 'was-run'
  attack = pickle.dumps({'a': _Attack(proof)}, protocol)
  pickle.loads(attack)
  assert proof.is_dir()
  proof.rmdir()
  path = _write(tmp_path, form(attack, {}))
  with pytest.raises(CheckpointError) as error:
    reader.open_file(path)
  assert not proof.exists()
  assert 'posix.mkdir, which no weights need' in str(error.value)
  assert 'save the model as safetensors' in str(error.value)
  assert str(path) in str(error.value)


@pytest.mark.parametrize(
  ('module', 'attribute'),
  [
    ('builtins', 'eval'),
    ('builtins', 'getattr'),
    ('torch', 'load'),
    ('torch.storage', '_load_from_bytes'),
    ('torch._utils', '__builtins__'),
    ('collections', 'OrderedDict.fromkeys'),
    ('numpy', 'load'),
  ],
)
def test_other_names_are_refused(tmp_path, module, attribute):
  pickled = torch_zip.dictionary({'a': torch_zip.name(module, attribute)})
  path = _write(tmp_path, torch_zip.zipped(pickled, {}))
  with pytest.raises(CheckpointError, match=f'{module}.{attribute}'):
    reader.open_file(path)


@pytest.mark.parametrize(
  'target',
  [
    torch_zip.name('torch._utils', '_rebuild_tensor_v2'),
    torch_zip.name('torch._utils', '_rebuild_parameter'),
    torch_zip.name('torch', 'FloatStorage'),
    torch_zip.name('collections', 'OrderedDict'),
  ],
)
def test_nothing_can_be_set_on_what_is_permitted(tmp_path, target):
  state = torch_zip.atom({'__call__': 'mine', 'mine': 1})
  for build in (state, torch_zip.atom((None, {'mine': 1}))):
    pickled = torch_zip.dictionary({'a': target + build + b'b'})
    path = _write(tmp_path, torch_zip.zipped(pickled, {}))
    with pytest.raises(CheckpointError):
      reader.open_file(path)
  for thing in reader._ALLOWED.values():
    assert not hasattr(thing, 'mine')


def _described(**changes):
  """A file of one array whose description is wrong."""
  storage = np.ones(6, np.float32)
  made = {'start': 0, 'shape': (2, 3), 'strides': (3, 1), **changes}
  pickled = torch_zip.dictionary({'a': torch_zip.tensor('0', storage, **made)})
  return torch_zip.zipped(pickled, {'0': storage})


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (_described(start=1), 'beyond its storage'),
    (_described(shape=(2, 4)), 'beyond its storage'),
    (_described(strides=(9, 1)), 'beyond its storage'),
    (_described(start=-1), 'not described by numbers'),
    (
      torch_zip.zipped(
        torch_zip.dictionary(
          {'a': torch_zip.tensor('0', np.ones(2, np.float32))}
        ),
        {'0': np.ones(1, np.float32)},
      ),
      '4 bytes in archive/data/0, not 8',
    ),
    (
      torch_zip.zipped(
        torch_zip.dictionary(
          {'a': torch_zip.tensor('0', np.ones(2, np.float32))}
        ),
        {'0': np.ones(2, np.float32)},
        compression=zipfile.ZIP_DEFLATED,
      ),
      'is compressed',
    ),
    (torch_zip.zipped(b'\x80\x02].', {}), 'holds a list'),
    (
      torch_zip.zipped(torch_zip.dictionary({'step': b'K\x07'}), {}),
      "entry 'step' is a int",
    ),
    (
      torch_zip.zipped(torch_zip.dictionary({}), {}, byteorder=b'big'),
      'big-endian',
    ),
    (b'', 'not a file that torch wrote'),
    (b'PK\x03\x04 cut short', 'not a file that torch wrote'),
    (pickle.dumps({'a': 1}, 2), 'not a file that torch wrote'),
  ],
)
def test_damaged_files_are_named(tmp_path, content, message):
  path = _write(tmp_path, content)
  with pytest.raises(CheckpointError, match=message) as error:
    reader.open_file(path)
  assert str(path) in str(error.value)


_WHOLE = {
  form.__name__: torch_zip.plain({'a': np.arange(40, dtype=np.float32)}, form)
  for form in _FORMS
}


@pytest.mark.parametrize('form', _WHOLE)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_files_cut_short_are_refused(tmp_path_factory, form, data):
  whole = _WHOLE[form]
  length = data.draw(st.integers(0, len(whole) - 1))
  path = _write(tmp_path_factory.getbasetemp(), whole[:length])
  with pytest.raises(CheckpointError):
    reader.open_file(path)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_pickle_is_read_or_refused(tmp_path_factory, data):
  content = torch_zip.zipped(b'\x80\x02' + data + b'.', {})
  path = _write(tmp_path_factory.getbasetemp(), content)
  try:
    reader.open_file(path)
  except CheckpointError:
    pass


def test_bfloat16_is_exact(tmp_path):
  values = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
  path = _write(tmp_path, torch_zip.plain({'a': values}))
  found = reader.open_file(path)['a'].read()
  np.testing.assert_array_equal(found.view(np.uint16), values.view(np.uint16))


def test_nothing_is_inflated(tmp_path):
  """A few kilobytes that would become 64 MiB of text are refused unread."""
  path = tmp_path / 'model.ckpt'
  with zipfile.ZipFile(path, 'w') as archive:
    text = b'\x80\x02X' + (1 << 26).to_bytes(4, 'little') + b'a' * (1 << 26)
    archive.writestr(
      'archive/data.pkl', text + b'.', compress_type=zipfile.ZIP_DEFLATED
    )
  assert path.stat().st_size < 1 << 17
  for read in (reader.open_file, reader.open_checkpoint):
    with pytest.raises(CheckpointError, match=r'model.ckpt: .*data.pkl'):
      read(path)


@pytest.mark.parametrize('form', _FORMS)
@pytest.mark.parametrize(
  'put', [b'r' + (1 << 25).to_bytes(4, 'little'), b'p33554432\n']
)
def test_ten_bytes_take_no_gigabytes(tmp_path, form, put):
  """A number of a memoised object is no order for as much memory."""
  path = _write(tmp_path, form(b'\x80\x02}' + put + b'.', {}))
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  for read in (reader.open_file, reader.open_checkpoint):
    with pytest.raises(CheckpointError, match='numbers an object 33,554,432'):
      read(path)
  # In KiB; the table would take 512 MiB.
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert after - before < 1 << 17
