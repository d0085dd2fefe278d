"""The backends against brute force, and the base in several blocks."""

import subprocess
import sys

import devices
import numpy as np
import pytest

from t5score_jax.crosslingual import neighbours


@pytest.fixture(params=['faiss', 'jax', 'approximate'])
def backend(request):
  if request.param == 'faiss':
    pytest.importorskip('faiss')
  return request.param


def _unit(*shape, seed):
  vectors = np.random.default_rng(seed).normal(size=shape)
  return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype('f')


@pytest.mark.parametrize('block', [2**17, 7])
def test_neighbours_are_those_of_brute_force(backend, block, monkeypatch):
  monkeypatch.setattr(neighbours, '_BLOCK', block)
  queries, base = _unit(5, 8, seed=0), _unit(30, 8, seed=1)
  products = queries @ base.T
  expected = np.argsort(-products, 1)[:, :4]
  values, rows = neighbours.nearest(queries, base, 4, backend)
  np.testing.assert_array_equal(rows, expected)
  np.testing.assert_allclose(
    values, np.take_along_axis(products, expected, 1), atol=1e-6
  )


def test_fewer_than_asked_for(backend):
  queries, base = _unit(5, 8, seed=0), _unit(2, 8, seed=1)
  values, rows = neighbours.nearest(queries, base, 4, backend)
  assert values.shape == rows.shape == (5, 2)
  assert neighbours.nearest(queries, base[:0], 4, backend)[0].shape == (5, 0)
  assert len(neighbours.nearest(queries[:0], base, 4, backend)[1]) == 0


def test_options():
  vectors = _unit(2, 8, seed=0)
  with pytest.raises(ValueError, match='annoy'):
    neighbours.nearest(vectors, vectors, 1, 'annoy')
  with pytest.raises(ValueError, match='k 0'):
    neighbours.nearest(vectors, vectors, 0)


@pytest.mark.slow
def test_four_devices_find_what_one_does():
  """The base is sharded; its size is no multiple of the devices."""
  program = """
import jax, numpy as np
from t5score_jax.crosslingual import neighbours
assert len(jax.local_devices()) == 4
vectors = np.random.default_rng(0).normal(size=(41, 8)).astype('f')
products = vectors[:10] @ vectors[10:].T
for k in (5, 20):  # More than a device has, too.
  values, rows = neighbours.nearest(vectors[:10], vectors[10:], k, 'jax')
  assert (rows == np.argsort(-products, 1)[:, :k]).all()
  expected = np.take_along_axis(products, rows, 1)
  np.testing.assert_allclose(values, expected, atol=1e-5)
# Devices exchange no products.
mesh = jax.sharding.Mesh(np.array(jax.devices()), ('rows',))
sharding = jax.sharding.NamedSharding(
  mesh, jax.sharding.PartitionSpec('rows')
)
base = jax.ShapeDtypeStruct((64, 8), np.float32, sharding=sharding)
for approximate in (False, True):
  program = neighbours._top.lower(
    vectors[:8], base, 64, mesh=mesh, k=4, approximate=approximate
  ).compile().as_text()
  assert 'all-gather' not in program and 'all-to-all' not in program
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    env=devices.environment(4),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2000:]
