"""`mean_weights.py`: the mean of two cross-encoders, and its errors."""

import dataclasses
import pathlib
import runpy

import jax
import numpy as np
import pytest

from t5score_jax.checkpoints import cross_encoders
from t5score_jax.metrics import frugalscore

_SCRIPT = (
  pathlib.Path(__file__).parents[2] / 'scripts/reproduce/mean_weights.py'
)


@pytest.fixture(scope='module')
def main():
  return runpy.run_path(str(_SCRIPT))['main']


def test_weights_are_averaged(main, tmp_path):
  first = frugalscore.load('frugalscore-tiny')
  params = jax.tree.map(lambda x: np.asarray(x) + 1.0, first.params)
  cross_encoders.save(
    dataclasses.replace(first, params=params), tmp_path / 'second'
  )
  out = tmp_path / 'out'
  given = ['frugalscore-tiny', str(tmp_path / 'second'), '-o', str(out)]
  assert main([*given, '--share', '0.25']) == 0
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(y, np.asarray(x) + 0.25, atol=1e-5),
    first.params,
    frugalscore.load(out).params,
  )
  assert main(given) == 1


def test_other_shapes_are_refused(main, tmp_path, capsys):
  out = tmp_path / 'out'
  assert main(['frugalscore-tiny', 'minilm-da', '-o', str(out)]) == 1
  assert 'different shapes' in capsys.readouterr().err
  assert not out.exists()
