import fake_training
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5score_jax.training import optimizers


def _params():
  generator = np.random.default_rng(0)
  return {
    'token_embedder': {'embedding': generator.normal(size=(6, 4))},
    'mlp': {'wo': {'kernel': generator.normal(size=(4, 3))}},
    'norm': {'scale': np.ones(4)},
  }


def _run(optimizer, params, gradients):
  """Applies the optimizer to a list of gradients."""
  params = jax.tree.map(jnp.float32, params)
  state = optimizer.transformation.init(params)
  for gradient in gradients:
    gradient = jax.tree.map(jnp.float32, gradient)
    updates, state = optimizer.transformation.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  return params


def _gradients(steps=3):
  generator = np.random.default_rng(1)
  return [
    jax.tree.map(lambda x: generator.normal(size=x.shape), _params())
    for _ in range(steps)
  ]


def test_adamw_equals_numpy():
  b1, b2, eps, decay = 0.8, 0.9, 1e-6, 0.1
  schedule = optimizers.linear(0.02, total_steps=4, warmup_steps=2)
  optimizer = optimizers.adamw(
    schedule,
    b1=b1,
    b2=b2,
    eps=eps,
    weight_decay=decay,
    multipliers={'^token_embedder/': 4.0, 'wo/kernel$': 0.0},
  )
  gradients = _gradients()
  found = _run(optimizer, _params(), gradients)

  rates = [0.01, 0.02, 0.02]
  decays = {'token_embedder': decay, 'norm': 0.0}
  for name, leaf, factor in (
    ('token_embedder', 'embedding', 4.0),
    ('norm', 'scale', 1.0),
  ):
    w = _params()[name][leaf]
    mean, square = np.zeros_like(w), np.zeros_like(w)
    for step, rate in enumerate(rates):
      g = gradients[step][name][leaf]
      mean = b1 * mean + (1 - b1) * g
      square = b2 * square + (1 - b2) * g**2
      m = mean / (1 - b1 ** (step + 1))
      v = square / (1 - b2 ** (step + 1))
      w = w - factor * rate * (m / (np.sqrt(v) + eps) + decays[name] * w)
    np.testing.assert_allclose(found[name][leaf], w, rtol=2e-5, atol=1e-6)
  # A factor of 0 freezes, weight decay included.
  np.testing.assert_array_equal(
    found['mlp']['wo']['kernel'], np.float32(_params()['mlp']['wo']['kernel'])
  )


def _rms(x):
  return np.sqrt(np.mean(x**2))


@pytest.mark.parametrize('scaled', [True, False])
@pytest.mark.parametrize('factored', [True, False])
def test_adafactor_equals_numpy(factored, scaled):
  # Shazeer and Stern 2018, algorithms 4 and 5.
  rate, decay, threshold = 0.05, 0.03, 1.0
  optimizer = optimizers.adafactor(
    optimizers.constant(rate),
    clipping_threshold=threshold,
    multiply_by_parameter_scale=scaled,
    weight_decay=decay,
    min_dim_size_to_factor=2 if factored else 128,
  )
  gradients = _gradients()
  found = _run(optimizer, _params(), gradients)['mlp']['wo']['kernel']

  w = _params()['mlp']['wo']['kernel']
  rows, columns, full = np.zeros(4), np.zeros(3), np.zeros((4, 3))
  for step in range(3):
    g = gradients[step]['mlp']['wo']['kernel']
    keep = 1 - (step + 1.0) ** -0.8
    square = g**2 + 1e-30
    rows = keep * rows + (1 - keep) * square.mean(axis=1)
    columns = keep * columns + (1 - keep) * square.mean(axis=0)
    full = keep * full + (1 - keep) * square
    moment = np.outer(rows, columns) / rows.mean() if factored else full
    update = g / np.sqrt(moment)
    update = update / max(1.0, _rms(update) / threshold)
    scale = max(1e-3, _rms(w)) if scaled else 1.0
    w = w - rate * (scale * update + decay * w)
  np.testing.assert_allclose(found, w, rtol=2e-5)


def test_schedules():
  linear = optimizers.linear(2.0, total_steps=10, warmup_steps=4)
  rates = [float(linear(step)) for step in (0, 1, 3, 4, 7, 10, 20)]
  np.testing.assert_allclose(rates, [0.5, 1, 2, 2, 1, 0, 0], atol=1e-6)
  floor = optimizers.linear(2.0, 10, final_fraction=0.25)
  np.testing.assert_allclose(
    [float(floor(step)) for step in (0, 5, 10)], [2, 1.25, 0.5]
  )
  root = optimizers.inverse_sqrt(1.0, warmup_steps=100)
  np.testing.assert_allclose(
    [float(root(step)) for step in (0, 100, 400)], [0.1, 0.1, 0.05]
  )
  flat = optimizers.constant(3.0, warmup_steps=3)
  np.testing.assert_allclose(
    [float(flat(step)) for step in (0, 1, 2, 9)], [1, 2, 3, 3]
  )


def test_multipliers_say_what_matches_nothing():
  with pytest.raises(ValueError, match='decoder'):
    fake_training.adamw(multipliers={'decoder': 0.5}).transformation.init(
      _params()
    )


def test_multipliers_first_match_wins():
  factors = optimizers.learning_rate_multipliers(
    _params(), {'embedding$': 2.0, 'norm|mlp': 0.5}
  )
  assert jax.tree.leaves(factors) == [0.5, 0.5, 2.0]
