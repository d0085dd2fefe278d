"""The model that learns sentence vectors: NumPy, parts, padding, devices."""

import functools
import subprocess
import sys
from pathlib import Path

import contrast_on_devices
import devices
import jax
import numpy as np
import pytest
import tiny_encoder

from t5score_jax.errors import OptionError
from t5score_jax.models import contrastive
from t5score_jax.training import optimizers, partitioning
from t5score_jax.training import state as states

CONFIG = contrast_on_devices.CONFIG


@functools.lru_cache
def _loss_and_gradient(parts=1, rows=6, seed=None):
  one = partitioning.Partitioner(devices=jax.devices()[:1])
  return contrast_on_devices.loss_and_gradient(one, parts, rows, seed)


def _close(found, expected, rtol=1e-4, atol=1e-5):
  assert set(found) == set(expected) and len(expected) > 20
  for name in expected:
    np.testing.assert_allclose(
      found[name], expected[name], rtol=rtol, atol=atol, err_msg=name
    )


def test_loss_is_equation_4_on_means_of_states():
  params = contrast_on_devices.params()['encoder']
  batch = contrast_on_devices.batch(6)
  units = []
  for tokens in (batch['source_tokens'], batch['target_tokens']):
    vectors = [
      tiny_encoder.numpy_states(params, CONFIG, row[row != CONFIG.pad_id])[
        -1
      ].mean(0)
      for row in tokens
    ]
    units.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
  logits = units[0] @ units[1].T / 0.05
  kept = np.where(np.eye(6), -np.inf, logits)
  forward, backward = (np.log(np.exp(kept).sum(axis)) for axis in (1, 0))
  expected = np.mean(forward + backward - 2 * np.diag(logits))
  np.testing.assert_allclose(_loss_and_gradient()['loss'], expected, rtol=1e-4)


def test_parts_and_padding_change_nothing():
  expected = _loss_and_gradient()
  _close(_loss_and_gradient(parts=2, rows=8), expected)


def test_equal_texts_are_no_negatives():
  model = contrastive.ContrastiveModel(CONFIG)
  params = contrast_on_devices.params()
  batch = contrast_on_devices.batch(6)
  loss_fn = jax.jit(model.loss_fn)
  loss, aux = loss_fn(params, batch, None)
  # Every pair twice: the others are in the sum twice as well.
  twice = {key: np.concatenate([x, x]) for key, x in batch.items()}
  double, more = loss_fn(params, twice, None)
  assert float(more['weight']) == 12 == 2 * float(aux['weight'])
  np.testing.assert_allclose(
    double / 12, loss / 6 + 2 * np.log(2), rtol=1e-5, atol=1e-5
  )
  # A pair that is alone has nothing to be compared with.
  alone = {key: x[[0, 0]] for key, x in batch.items()}
  assert float(loss_fn(params, alone, None)[1]['weight']) == 0


def test_microbatches_are_refused():
  model = contrastive.ContrastiveModel(CONFIG)
  optimizer = optimizers.adamw(optimizers.constant(1e-3))
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner)
  with pytest.raises(OptionError, match='microbatches = 2'):
    states.make_step(model, optimizer, partitioner, plan, 0, microbatches=2)
  states.make_step(model, optimizer, partitioner, plan, 0)


def test_wrong_options():
  for options in ({'temperature': 0.0}, {'parts': 0}):
    with pytest.raises(OptionError):
      contrastive.ContrastiveModel(CONFIG, **options)
  model = contrastive.ContrastiveModel(CONFIG, parts=4)
  params = contrast_on_devices.params()
  with pytest.raises(OptionError, match='4 parts'):
    model.loss_fn(params, contrast_on_devices.batch(6), None)


@pytest.mark.slow
@pytest.mark.parametrize('partitions', [1, 2])
def test_negatives_are_those_of_all_devices(tmp_path, partitions):
  program = Path(contrast_on_devices.__file__)
  file = tmp_path / 'found.npz'
  subprocess.run(
    [sys.executable, str(program), str(file), str(partitions)],
    env=devices.environment(8),
    check=True,
    timeout=300,
  )
  with np.load(file) as stored:
    found = {k: stored[k] for k in stored.files}
  assert found.pop('devices') == 8
  # With dropout, on rows of padding as well, so that these are the same.
  expected = _loss_and_gradient(rows=8, seed=3)
  _close(found, expected, rtol=5e-4)
  assert abs(expected['loss'] - _loss_and_gradient()['loss']) > 1e-2
