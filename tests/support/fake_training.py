"""A model and data small enough to train in a test; no T5 in sight.

The training loop trains these, so it does not depend on a metric. As a
program it trains in a process of its own, to be killed: FOLDER STEPS HIDDEN.
"""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.inputs import datasets, shares
from t5score_jax.training import loop, optimizers


@dataclasses.dataclass
class LinearModel:
  """Regression on 8 features through 16 hidden units."""

  dropout_rate: float = 0.0
  hidden: int = 16

  def init(self, rng):
    keys = jax.random.split(rng)
    shapes = {'wi': (8, self.hidden), 'wo': (self.hidden, 2)}
    return {
      'mlp': {
        name: {'kernel': jax.random.normal(key, shape) * 0.3}
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
      },
      'norm': {'scale': jnp.ones(2)},
    }

  def logical_axes(self):
    return {
      'mlp': {
        'wi': {'kernel': ('embed', 'mlp')},
        'wo': {'kernel': ('mlp', 'embed')},
      },
      'norm': {'scale': ('embed',)},
    }

  def loss_fn(self, params, batch, rng):
    hidden = jnp.tanh(batch['x'] @ params['mlp']['wi']['kernel'])
    if rng is not None and self.dropout_rate:
      keep = jax.random.bernoulli(rng, 1 - self.dropout_rate, hidden.shape)
      hidden = hidden * keep / (1 - self.dropout_rate)
    guess = hidden @ params['mlp']['wo']['kernel'] * params['norm']['scale']
    errors = ((guess - batch['y']) ** 2).sum(-1) * batch['weights']
    weight = batch['weights'].sum()
    return errors.sum(), {
      'weight': weight,
      'metrics': {'weights': (weight, jnp.ones(()))},
    }


def write_arrays(folder, examples=64, seed=0):
  """Writes an ArrayDataset's folder; returns it."""
  generator = np.random.default_rng(seed)
  x = generator.normal(size=(examples, 8)).astype(np.float32)
  y = np.tanh(x[:, :2] - x[:, 2:4])
  folder.mkdir(parents=True, exist_ok=True)
  np.save(folder / 'x.npy', x)
  np.save(folder / 'y.npy', y)
  np.save(folder / 'weights.npy', generator.integers(0, 3, examples))
  return folder


def adamw(learning_rate=0.01, **options):
  return optimizers.adamw(optimizers.constant(learning_rate), **options)


class InterruptedDataset(datasets.ArrayDataset):
  """Sends a signal to this process before its batch `at`, once."""

  def __init__(self, path, batch_size, at, number=signal.SIGTERM):
    super().__init__(path, batch_size)
    self.at = at
    self.number = number

  def batches(self, start_step=0, share=shares.WHOLE):
    whole = super().batches(start_step, share)
    for step, batch in enumerate(whole, start_step):
      if step == self.at:
        os.kill(os.getpid(), self.number)
      yield batch


class Fixed:
  """An evaluator whose numbers are given, one an evaluation."""

  name = 'fixed'

  def __init__(self, values):
    self._values = list(values)

  def evaluate(self, params):
    del params
    return {'value': self._values.pop(0)}


def train(folder, steps, **options):
  """Runs the training loop on `folder/run`; returns how it ended."""
  dataset = options.pop('dataset', None)
  if dataset is None:
    dataset = datasets.ArrayDataset(write_arrays(folder / 'arrays'), 8)
  defaults = {
    'model': LinearModel(dropout_rate=0.1),
    'model_dir': str(folder / 'run'),
    'optimizer': adamw(),
    'intervals': loop.Intervals(log_every=1, save_every=4),
    'quiet': True,
  }
  return loop.train(
    dataset=dataset, train_steps=steps, **{**defaults, **options}
  )


def losses(folder):
  """{step: loss} of `folder/run`; every step must be there once."""
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  found = [line for line in map(json.loads, lines) if line['kind'] == 'train']
  steps = [line['step'] for line in found]
  assert len(set(steps)) == len(steps), steps
  return {line['step']: line['loss'] for line in found}


if __name__ == '__main__':
  train(
    Path(sys.argv[1]),
    int(sys.argv[2]),
    model=LinearModel(dropout_rate=0.1, hidden=int(sys.argv[3])),
  )
