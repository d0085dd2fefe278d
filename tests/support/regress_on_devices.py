"""Trains a tiny estimator and its head: FILE PARTITIONS.

A program of its own, because the number of host devices is fixed when JAX
starts. Dropout and microbatches are on, some parameters are frozen. FILE gets
the parameters and the evaluation.
"""

import sys

import jax
import numpy as np
import tiny_regressor

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.models import regression
from t5score_jax.training import optimizers, partitioning, regression_evaluators
from t5score_jax.training import state as states


class _Held:
  batch_size = 8

  def __init__(self, batch):
    self._batch = batch

  def epoch(self):
    yield {k: np.asarray(v)[:6] for k, v in self._batch.items()}


def train(model, params, batches, partitioner, frozen):
  # A large epsilon: where gradients are all but zero, Adam makes much of the
  # order in which they were summed.
  optimizer = optimizers.adamw(
    optimizers.constant(1e-2), eps=1e-3, frozen=frozen
  )
  plan = states.plan(model, optimizer, partitioner)
  placed = jax.device_put(params, plan.shardings.params)
  state = plan.create(placed)
  step = states.make_step(
    model, optimizer, partitioner, plan, seed=0, microbatches=2
  )
  for batch in batches:
    stacked = {k: np.asarray(v)[None] for k, v in batch.items()}
    state, _ = step(state, partitioner.put_batch(stacked, leading=1))
  evaluator = regression_evaluators.PearsonEvaluator(model, _Held(batches[0]))
  numbers = evaluator.evaluate(state.params)
  found = dict(bundles.flatten_names(jax.device_get(state.params)))
  return {**found, **{f'numbers/{k}': v for k, v in numbers.items()}}


def main(file, partitions):
  partitioner = partitioning.Partitioner(num_partitions=partitions)
  config = tiny_regressor.CONFIG
  params = tiny_regressor.params(config)
  batches = [tiny_regressor.tokens(8, seed=n) for n in range(3)]
  vectors = [tiny_regressor.vectors(params, config, b) for b in batches]
  whole = train(
    regression.RegressorModel(config),
    params,
    batches,
    partitioner,
    {'^encoder/embeddings/': optimizers.ALWAYS, '^encoder/': 1},
  )
  head = train(
    regression.HeadModel(config),
    tiny_regressor.head_params(params),
    vectors,
    partitioner,
    {},
  )
  np.savez(
    file,
    devices=jax.device_count(),
    **{f'whole/{k}': v for k, v in whole.items()},
    **{f'head/{k}': v for k, v in head.items()},
  )


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]))
