import hashlib
import json
import os
import shutil
import stat
import struct

import jax
import numpy as np
import pytest

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data.vocab import ByteVocabulary
from tests.conftest import make_bundle


@pytest.fixture
def copied(random_bundle, tmp_path):
  """A bundle of the test's own, to be damaged."""
  return shutil.copytree(random_bundle, tmp_path / 'copy')


def _edit(folder, **changes):
  path = folder / 'config.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_float32_comes_back_exactly(random_model, random_bundle):
  loaded = bundles.load_bundle(random_bundle)
  assert loaded.config == random_model.config
  assert loaded.vocabulary == random_model.vocabulary
  assert loaded.settings == {'name': 'random', 'max_length': 64}
  assert jax.tree.structure(loaded.params) == jax.tree.structure(
    dict(random_model.params)
  )
  for a, b in zip(
    jax.tree.leaves(loaded.params),
    jax.tree.leaves(random_model.params),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def test_bfloat16_rounds_and_halves_the_file(
  random_model, random_bundle, tmp_path
):
  bundles.save_bundle(tmp_path / 'b', random_model, dtype='bfloat16')
  loaded = bundles.load_bundle(tmp_path / 'b')
  for a, b in zip(
    jax.tree.leaves(loaded.params),
    jax.tree.leaves(random_model.params),
    strict=True,
  ):
    assert a.dtype == np.float32
    # bfloat16 keeps 8 bits: relative error at most 2**-9 by rounding.
    np.testing.assert_allclose(a, b, rtol=2**-8)
    assert not np.array_equal(a, b)
  size = (tmp_path / 'b' / 'model.safetensors').stat().st_size
  assert size < 0.6 * (random_bundle / 'model.safetensors').stat().st_size


def test_bytes_need_no_vocabulary_file(bytes_bundle):
  assert not (bytes_bundle / 'vocabulary.model').exists()
  assert bundles.load_bundle(bytes_bundle).vocabulary == ByteVocabulary(125)


@pytest.mark.parametrize('umask', [0o022, 0o027])
def test_files_have_the_permissions_of_umask(random_model, tmp_path, umask):
  folder = tmp_path / 'b'
  before = os.umask(umask)
  try:
    bundles.save_bundle(folder, random_model)
  finally:
    os.umask(before)
  assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
  modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
  assert modes == dict.fromkeys(
    ('config.json', 'model.safetensors', 'vocabulary.model'), 0o666 & ~umask
  )


def test_hash_is_of_the_stored_weights(random_model, tmp_path):
  bundles.save_bundle(tmp_path / 'b', random_model, dtype='bfloat16')
  stored = bundles.load_bundle(tmp_path / 'b').params
  in_bfloat16 = jax.tree.map(lambda x: jax.numpy.bfloat16(x), stored)
  assert bundles.checkpoint_hash(stored) == bundles.checkpoint_hash(in_bfloat16)
  assert bundles.checkpoint_hash(stored) != bundles.checkpoint_hash(
    random_model.params
  )


def test_hash_sees_values_names_and_shapes():
  params = {'b': {'c': np.arange(4.0)}, 'a': np.ones((1, 2))}
  # The recipe is fixed, so that signatures of two releases can be compared.
  content = b'a (1, 2)\n' + struct.pack('<2f', 1, 1)
  content += b'b/c (4,)\n' + struct.pack('<4f', 0, 1, 2, 3)
  digest = hashlib.sha256(content).hexdigest()
  assert bundles.checkpoint_hash(params) == digest[:12]
  seen = {
    bundles.checkpoint_hash(p)
    for p in (
      params,
      {'b': {'c': np.arange(4.0)}, 'a': np.ones((2, 1))},
      {'b': {'d': np.arange(4.0)}, 'a': np.ones((1, 2))},
      {'b': {'c': np.arange(4.0) + 1e-6}, 'a': np.ones((1, 2))},
    )
  }
  assert len(seen) == 4


@pytest.mark.parametrize('key', ['model_type', 'kind'])
def test_other_folders_are_no_bundles(copied, key):
  assert bundles.is_bundle(copied)
  _edit(copied, **{key: 'other'})
  assert not bundles.is_bundle(copied)


def test_saving_replaces_a_bundle_whole(random_model, tmp_path):
  folder = tmp_path / 'b'
  bundles.save_bundle(folder, random_model)
  bundles.save_bundle(folder, make_bundle(ByteVocabulary(), name='other'))
  assert bundles.load_bundle(folder).settings['name'] == 'other'
  assert not (folder / 'vocabulary.model').exists()
  assert [p.name for p in tmp_path.iterdir()] == ['b']


def test_saving_fails_without_a_trace(random_model, tmp_path, monkeypatch):
  folder = tmp_path / 'b'
  bundles.save_bundle(folder, random_model, dtype='float32')
  before = (folder / 'model.safetensors').read_bytes()

  def full(*args, **kwargs):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(bundles.safetensors_files, 'write_file', full)
  with pytest.raises(OSError, match='No space'):
    bundles.save_bundle(folder, random_model)
  with pytest.raises(OSError, match='No space'):
    bundles.save_bundle(tmp_path / 'new', random_model)
  assert (folder / 'model.safetensors').read_bytes() == before
  assert [p.name for p in tmp_path.iterdir()] == ['b']


def test_saving_leaves_other_folders_alone(random_model, tmp_path):
  (tmp_path / 'precious.txt').write_text('x')
  with pytest.raises(CheckpointError, match='not a bundle; it is left'):
    bundles.save_bundle(tmp_path, random_model)
  assert [p.name for p in tmp_path.iterdir()] == ['precious.txt']


def test_saving_refuses_nan(random_model, tmp_path):
  params = jax.tree.map(np.copy, random_model.params)
  params['token_embedder']['embedding'][3, 3] = np.nan
  broken = bundles.Bundle(random_model.config, params, random_model.vocabulary)
  with pytest.raises(
    ValueError, match='token_embedder/embedding is not finite'
  ):
    bundles.save_bundle(tmp_path / 'b', broken)
  assert not list(tmp_path.iterdir())


def test_unknown_dtype(random_model, tmp_path):
  with pytest.raises(ValueError, match="'int8': use one of"):
    bundles.save_bundle(tmp_path / 'b', random_model, dtype='int8')


def _shorten(path, keep):
  path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda f: shutil.rmtree(f), 'copy: no such folder'),
    (lambda f: (f / 'config.json').unlink(), 'config.json: no such file'),
    (lambda f: _shorten(f / 'config.json', 40), 'config.json: not JSON'),
    (lambda f: (f / 'config.json').write_text('[]'), 'a JSON object'),
    (lambda f: _edit(f, format=2), '"format" is 2, not 1'),
    (lambda f: _edit(f, model=None), 'field "model" must be of type dict'),
    (lambda f: _edit(f, vocabulary='v.model'), 'field "vocabulary" is'),
    (
      lambda f: (f / 'vocabulary.model').unlink(),
      'vocabulary.model: no such file',
    ),
    (
      lambda f: _shorten(f / 'vocabulary.model', 100),
      'vocabulary.model: .*not a SentencePiece model',
    ),
    (
      lambda f: (f / 'model.safetensors').unlink(),
      'model.safetensors: no such file',
    ),
    (
      lambda f: _shorten(f / 'model.safetensors', 5000),
      'model.safetensors: not a whole safetensors file',
    ),
    (
      lambda f: (f / 'model.safetensors').write_bytes(b''),
      'model.safetensors: not a whole safetensors file',
    ),
  ],
)
def test_damage_is_named(copied, damage, message):
  damage(copied)
  with pytest.raises(CheckpointError, match=message):
    bundles.load_bundle(copied)


@pytest.mark.parametrize(
  ('field', 'value', 'message'),
  [
    ('emb_dim', 24, r'other shape .* \[16, .*\], expected \[24, '),
    ('num_encoder_layers', 2, r'config.json:\n  missing +encoder/layers_1/'),
    ('num_decoder_layers', 0, '  unexpected  decoder/layers_0/.* \\['),
    ('vocab_size', 8, 'the vocabulary has 48 ids, the network only 8'),
    ('depth', 3, "unknown key 'depth'"),
    ('remat', 'all', '"model": remat=\'all\''),
  ],
)
def test_a_config_of_another_model_is_named(copied, field, value, message):
  model = json.loads((copied / 'config.json').read_text())['model']
  _edit(copied, model={**model, field: value})
  with pytest.raises(CheckpointError, match=message):
    bundles.load_bundle(copied)
