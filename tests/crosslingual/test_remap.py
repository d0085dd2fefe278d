"""Maps against rotations, biases and closed forms."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from t5score_jax.crosslingual import remap


def _unit(vectors):
  return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture
def vectors():
  return _unit(np.random.default_rng(0).normal(size=(200, 8)))


def test_clp_finds_a_rotation(vectors):
  rotation = scipy.stats.ortho_group.rvs(8, random_state=1)
  found = remap.estimate(vectors @ rotation.T, vectors, 'clp')
  np.testing.assert_allclose(found.weights, rotation, atol=1e-5)
  np.testing.assert_allclose(found(vectors @ rotation.T), vectors, atol=1e-5)


def test_clp_is_orthogonal_procrustes(vectors):
  targets = _unit(vectors + np.random.default_rng(2).normal(size=(200, 8)))
  found = remap.estimate(vectors, targets, 'clp')
  expected, _ = scipy.linalg.orthogonal_procrustes(vectors, targets)
  np.testing.assert_allclose(found.weights, expected, atol=1e-5)


def test_umd_removes_the_language(vectors):
  language = np.zeros(8)
  language[3] = 1
  plain = vectors - np.outer(vectors @ language, language)
  sources = _unit(_unit(plain) + 0.5 * language)
  found = remap.estimate(sources, _unit(plain), 'umd')
  # Scaling to unit length tilts the difference a little.
  np.testing.assert_allclose(np.abs(found.weights), language, atol=0.02)
  np.testing.assert_allclose(found(sources), _unit(plain), atol=0.02)


def test_umd_is_the_first_singular_vector(vectors):
  targets = _unit(np.random.default_rng(3).normal(size=(200, 8)))
  found = remap.estimate(vectors, targets, 'umd')
  first = np.linalg.svd(vectors - targets)[2][0]
  np.testing.assert_allclose(abs(found.weights @ first), 1, atol=1e-6)
  expected = _unit(vectors - np.outer(vectors @ first, first))
  np.testing.assert_allclose(found(vectors), expected, atol=1e-5)


@pytest.mark.parametrize('method', remap.METHODS)
def test_a_file_gives_the_same_map(method, vectors, tmp_path):
  about = {'encoder': 'e', 'checkpoint': 'c', 'layer': 4, 'source': 'de'}
  made = remap.estimate(vectors, vectors[::-1], method, **about, rounds=3)
  remap.save(made, tmp_path / 'a.map')
  found = remap.load(tmp_path / 'a.map')
  np.testing.assert_array_equal(found(vectors), made(vectors))
  for field in dataclasses.fields(remap.Map):
    if field.name != 'weights':
      assert getattr(found, field.name) == getattr(made, field.name)
  assert (found.pairs, found.digest()) == (200, made.digest())


def test_errors(vectors, tmp_path):
  with pytest.raises(remap.RemapError):
    remap.estimate(vectors[:0], vectors[:0], 'umd')
  with pytest.raises(ValueError, match='procrustes'):
    remap.estimate(vectors, vectors, 'procrustes')
  with pytest.raises(FileNotFoundError, match=r'none\.map'):
    remap.load(tmp_path / 'none.map')
  made = remap.estimate(vectors, vectors, 'umd', checkpoint='abc', layer=4)
  remap.save(made, tmp_path / 'a.map')
  data = (tmp_path / 'a.map').read_bytes()
  for name, content in (('cut', data[:-4]), ('text', b'no map')):
    (tmp_path / f'{name}.map').write_bytes(content)
    with pytest.raises(remap.RemapError, match=rf'{name}\.map'):
      remap.load(tmp_path / f'{name}.map')
  remap.check(made, 'abc', 4, 'a.map')
  for checkpoint, layer in (('abd', 4), ('abc', 3)):
    with pytest.raises(remap.RemapError, match=r'a\.map'):
      remap.check(made, checkpoint, layer, 'a.map')
