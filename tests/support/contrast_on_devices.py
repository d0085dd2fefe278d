"""The contrastive loss and its gradient on all host devices: FILE PARTITIONS.

A program of its own, because the number of host devices is fixed when JAX
starts. Six pairs, and rows of padding that fill eight devices.
"""

import dataclasses
import functools
import sys

import jax
import numpy as np
import tiny_regressor

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.models import contrastive
from t5score_jax.training import partitioning

CONFIG = dataclasses.replace(tiny_regressor.ENCODER, dropout_rate=0.2)


def batch(rows):
  """Six pairs of texts in so many rows."""
  made = tiny_regressor.tokens(6)
  return {
    f'{name}_tokens': np.pad(
      made[f'{role}_tokens'],
      ((0, rows - 6), (0, 0)),
      constant_values=CONFIG.pad_id,
    )
    for name, role in (('source', 'source'), ('target', 'hypothesis'))
  }


def params():
  """The parameters of the model."""
  whole = tiny_regressor.params(tiny_regressor.CONFIG)
  return {'encoder': whole['encoder']}


@functools.lru_cache
def _program(parts):
  model = contrastive.ContrastiveModel(CONFIG, parts=parts)

  def mean(params, batch, rng):
    loss, aux = model.loss_fn(params, batch, rng)
    return loss / aux['weight']

  return model, jax.jit(jax.value_and_grad(mean))


def loss_and_gradient(partitioner, parts, rows, seed=None):
  """The mean loss and the gradient of every parameter, by name."""
  model, program = _program(parts)
  shardings = partitioner.shardings(model.logical_axes(), params())
  rng = None if seed is None else jax.random.key(seed)
  with partitioner.context():
    found, gradient = program(
      jax.device_put(params(), shardings),
      partitioner.put_batch(batch(rows)),
      rng,
    )
  return {
    'loss': np.asarray(found),
    **dict(bundles.flatten_names(jax.device_get(gradient))),
  }


if __name__ == '__main__':
  np.savez(
    sys.argv[1],
    devices=jax.device_count(),
    **loss_and_gradient(
      partitioning.Partitioner(num_partitions=int(sys.argv[2])), 1, 8, seed=3
    ),
  )
