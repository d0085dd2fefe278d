"""Weights stored as int8: error bound, reading in parts, folders, export."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import int8, kinds, regressors
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.nn import heads


def lazy(arrays):
  return {name: LazyArray.of(array) for name, array in arrays.items()}


def test_each_value_is_off_by_half_a_step_of_its_row():
  rng = np.random.default_rng(0)
  matrix = rng.normal(size=(9, 40)).astype('f4') * 10.0 ** rng.integers(
    -3, 3, (9, 1)
  )
  matrix[2] = 0
  matrix[3, 0] = 1e-42  # Denormal: its step is, too.
  matrix[3, 1:] = 0
  vector = rng.normal(size=7).astype('f4')
  stored = int8.quantize({'w.weight': matrix, 'w.bias': vector})
  assert stored['w.weight'].dtype == np.int8
  assert stored['w.weight.scale'].shape == (9,)
  found = int8.dequantized(lazy(stored), 'here')
  assert set(found) == {'w.weight', 'w.bias'}
  read = found['w.weight'].read()
  assert read.dtype == np.float32
  step = np.abs(matrix).max(axis=1, keepdims=True) / 127
  assert np.all(np.abs(read - matrix) <= step * (0.5 + 1e-5) + 1e-41)
  # The largest of a row is exact but for rounding.
  np.testing.assert_allclose(
    np.abs(read).max(axis=1)[4:], np.abs(matrix).max(axis=1)[4:], rtol=1e-6
  )
  part = (slice(4, 6), slice(3, 11))
  np.testing.assert_array_equal(found['w.weight'].read(part), read[part])
  np.testing.assert_array_equal(found['w.bias'].read(), vector)


def test_columns_may_be_the_channels():
  rng = np.random.default_rng(1)
  kernel = rng.normal(size=(5, 7)).astype('f4') * 10.0 ** np.arange(-3, 4)
  kernel = kernel.astype('f4')
  stored = int8.quantize({'a/kernel': kernel}, columns={'a/kernel'})
  assert stored['a/kernel.scale'].shape == (1, 7)
  found = int8.dequantized(lazy(stored), 'here')['a/kernel']
  step = np.abs(kernel).max(axis=0) / 127
  assert np.all(np.abs(found.read() - kernel) <= step * (0.5 + 1e-5))
  part = (slice(1, 4), slice(2, 6))
  np.testing.assert_array_equal(found.read(part), found.read()[part])


def test_weights_that_are_not_quantised_stay():
  plain = lazy({'a': np.ones((2, 2), 'f4'), 'a.scale': np.ones(2, 'f4')})
  with pytest.raises(CheckpointError, match=r'a\.scale.*float32'):
    int8.dequantized(plain, 'here')
  alone = lazy({'norm.scale': np.ones(2, 'f4'), 'ids': np.ones((2, 2), 'i1')})
  assert int8.dequantized(alone, 'here') == alone
  short = lazy({'a': np.ones((2, 3), 'i1'), 'a.scale': np.ones(3, 'f4')})
  with pytest.raises(CheckpointError, match='does not scale'):
    int8.dequantized(short, 'here')
  with pytest.raises(CheckpointError, match='w: a weight is not finite'):
    int8.quantize({'w': np.array([[1.0, np.nan]])})


def test_a_folder_is_written_read_and_exported(tmp_path, capsys):
  folder = tiny_encoder.make(tmp_path / 'encoder')
  small, back = tmp_path / 'small', tmp_path / 'back'
  convert = ['convert', '--to', 'hf', '--quiet']
  assert not cli.main([*convert, '--dtype', 'int8', str(folder), str(small)])
  stored = safetensors_files.open_folder(small)
  word = 'embeddings.word_embeddings.weight'
  assert stored[word].dtype == np.int8
  assert json.loads((small / 'config.json').read_text())['dtype'] == 'int8'
  assert kinds.of(small) == kinds.ENCODER
  wanted = encoders.load_encoder(folder).params['embeddings']['word']
  found = encoders.load_encoder(small).params['embeddings']['word']
  step = np.abs(wanted).max(axis=1, keepdims=True) / 127
  assert 0 < np.abs(found - wanted).max()
  assert np.all(np.abs(found - wanted) <= step * 0.501)
  # What is exported is what any program reads: float32, without scales.
  assert not cli.main([*convert, str(small), str(back)])
  exported = safetensors.numpy.load_file(back / 'model.safetensors')
  assert {array.dtype for array in exported.values()} == {np.dtype('f4')}
  assert not any(name.endswith(int8.SCALE) for name in exported)
  np.testing.assert_array_equal(exported[word], found)
  capsys.readouterr()
  estimator = ['convert', '--to', 'comet', '--dtype', 'int8', str(folder)]
  assert cli.main([*estimator, str(tmp_path / 'x')]) == 2
  assert '--dtype int8' in capsys.readouterr().err


def test_a_regressor_is_written_read_and_exported(tmp_path):
  bundle = encoders.load_encoder(tiny_encoder.make(tmp_path / 'encoder'))
  config = heads.RegressorConfig(
    bundle.config, reference=False, hidden_sizes=(6,)
  )
  params = heads.init_params(config, jax.random.key(0), bundle.params)
  model = regressors.Regressor(
    config, params, bundle.tokenizer, {'name': 'tiny'}
  )
  regressors.save(model, tmp_path / 'whole')
  convert = ['convert', '--to', 'estimator', '--quiet']
  small, back = tmp_path / 'small', tmp_path / 'back'
  given = [*convert, '--dtype', 'int8', str(tmp_path / 'whole'), str(small)]
  assert not cli.main(given)
  stored = safetensors_files.open_folder(small)
  assert stored['estimator/layers_0/kernel'].dtype == np.int8
  assert stored['estimator/layers_0/kernel.scale'].shape == (1, 6)
  words = 'encoder/embeddings/word'
  assert stored[f'{words}.scale'].shape == stored[words].shape[:1]
  sizes = [
    (folder / 'model.safetensors').stat().st_size
    for folder in (small, tmp_path / 'whole')
  ]
  assert sizes[0] < 0.6 * sizes[1]
  found, wanted = regressors.load(small), regressors.load(tmp_path / 'whole')
  for (name, a), (_, b) in zip(
    bundles.flatten_names(found.params),
    bundles.flatten_names(wanted.params),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=np.abs(b).max() / 250, err_msg=name)
  assert not cli.main([*convert, str(small), str(back)])
  exported = safetensors.numpy.load_file(back / 'model.safetensors')
  assert {array.dtype for array in exported.values()} == {np.dtype('f4')}
  np.testing.assert_array_equal(
    exported[words], found.params['encoder']['embeddings']['word']
  )


def test_not_for_t5(tmp_path, capsys):
  convert = ['convert', '--to', 'bundle', '--dtype', 'int8', 't5score-tiny']
  assert cli.main([*convert, str(tmp_path / 'x')]) == 2
  assert '--dtype int8' in capsys.readouterr().err
  assert not (tmp_path / 'x').exists()
