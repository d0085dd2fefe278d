"""Distances and margins beside the published program of UScore.

github.com/potamides/unsupervised-metrics is no package: the variable
T5SCORE_UNSUPERVISED_METRICS names a checkout (0d105ac), and
T5SCORE_UNSUPERVISED_METRICS_PYTHON an interpreter with torch, pyemd and
faiss-cpu.
"""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from t5score_jax.crosslingual import mining, neighbours, transport

FOLDER = os.environ.get('T5SCORE_UNSUPERVISED_METRICS')
PYTHON = os.environ.get('T5SCORE_UNSUPERVISED_METRICS_PYTHON')
PEER = (
  pathlib.Path(__file__).parents[2] / 'benchmarks' / 'unsupervised_metrics.py'
)

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(
    not (FOLDER and PYTHON),
    reason='T5SCORE_UNSUPERVISED_METRICS and T5SCORE_UNSUPERVISED_METRICS_'
    'PYTHON name no checkout and interpreter',
  ),
]


def _unit(generator, *shape):
  vectors = generator.normal(size=shape)
  unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
  return unit.astype(np.float32)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  generator = np.random.default_rng(0)
  sizes = generator.integers(2, 12, (2, 40))
  words = [[_unit(generator, n, 16) for n in side] for side in sizes]
  # Twins with noise, so that margins are large for one neighbour of each.
  x = _unit(generator, 60, 16)
  y = x + 0.2 * _unit(generator, 60, 16)
  y /= np.linalg.norm(y, axis=1, keepdims=True)
  folder = tmp_path_factory.mktemp('peer')
  job, result = folder / 'job.npz', folder / 'result.npz'
  np.savez(
    job,
    words_x=np.concatenate(words[0]),
    words_y=np.concatenate(words[1]),
    sizes_x=sizes[0],
    sizes_y=sizes[1],
    x=x,
    y=y,
    k=5,
  )
  subprocess.run([PYTHON, PEER, FOLDER, job, result], check=True)
  with np.load(result) as published:
    return words, (x, y), dict(published)


def test_distances_are_those_of_the_program(data):
  words, _, published = data
  np.testing.assert_allclose(
    transport.distances(*words), published['distances'], atol=1e-6
  )


def test_its_margins_mix_cosines_and_squared_distances(data):
  _, (x, y), published = data
  forward, rows = neighbours.nearest(x, y, 5)
  backward, _ = neighbours.nearest(y, x, 5)
  around_source = forward.mean(1)[:, None]
  mixed = mining.ratio_margin(
    forward, around_source, (2 - 2 * backward).mean(1)[rows]
  )
  np.testing.assert_allclose(mixed.max(1), published['margins'], rtol=1e-4)
  # Equation 5 has cosines in both directions, and is another number.
  equation = mining.ratio_margin(forward, around_source, backward.mean(1)[rows])
  assert np.abs(equation.max(1) - published['margins']).min() > 0.01
