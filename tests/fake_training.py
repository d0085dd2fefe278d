"""A model and data small enough to train in a test; no T5 in sight.

That the trunk trains these shows that it does not know what it trains.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.training import optimizers


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
