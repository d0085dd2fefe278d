import fake_training
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import train_on_devices

from t5score_jax.training import optimizers, partitioning
from t5score_jax.training import state as states


def _batch(batch_size=8, seed=0):
  generator = np.random.default_rng(seed)
  return {
    'x': np.float32(generator.normal(size=(batch_size, 8))),
    'y': np.float32(generator.normal(size=(batch_size, 2))),
    'weights': np.float32(generator.integers(0, 3, batch_size)),
  }


def _stack(*batches):
  return {key: np.stack([b[key] for b in batches]) for key in batches[0]}


def _run(batches, *, model=None, optimizer=None, stacked=1, **options):
  """Trains; returns the state and the mean of each total of each call."""
  model = model or fake_training.LinearModel()
  optimizer = optimizer or fake_training.adamw(0.1)
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner, options.get('ema_decay'))
  state = plan.create(plan.init_params(jax.random.key(0)))
  step = states.make_step(
    model, optimizer, partitioner, plan, seed=3, **options
  )
  means = []
  for start in range(0, len(batches), stacked):
    group = _stack(*batches[start : start + stacked])
    state, totals = step(state, partitioner.put_batch(group, leading=1))
    means.append(
      {k: float(a) / (float(b) or np.nan) for k, (a, b) in totals.items()}
    )
  return state, means


def _close(one, other, rtol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6),
    one,
    other,
  )


def test_a_step_equals_gradient_descent_by_hand():
  model = fake_training.LinearModel()
  sgd = optimizers.Optimizer(optax.sgd(0.5), lambda step: 0.5 * (step + 1))
  batch = _batch()
  params = model.init(jax.random.key(0))

  def mean_loss(params):
    loss, aux = model.loss_fn(params, batch, None)
    return loss / aux['weight']

  value, gradients = jax.value_and_grad(mean_loss)(params)
  state, [means] = _run([batch], model=model, optimizer=sgd)
  _close(
    state.params, jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients)
  )
  assert int(state.step) == 1
  norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradients)))
  np.testing.assert_allclose(means['loss'], value, rtol=1e-6)
  np.testing.assert_allclose(means['gradient_norm'], norm, rtol=1e-5)
  assert means['learning_rate'] == 0.5
  assert means['weights'] == batch['weights'].sum()


def test_gradients_are_clipped_to_the_norm():
  def moved(clip_norm):
    sgd = optimizers.Optimizer(optax.sgd(1.0), lambda step: 1.0, clip_norm)
    start = fake_training.LinearModel().init(jax.random.key(0))
    state, [means] = _run([_batch()], optimizer=sgd)
    change = jax.tree.map(jnp.subtract, state.params, start)
    return float(optax.global_norm(change)), means['gradient_norm']

  free, norm = moved(None)
  np.testing.assert_allclose(free, norm, rtol=1e-5)
  clipped, reported = moved(norm / 10)
  np.testing.assert_allclose(clipped, norm / 10, rtol=1e-4)
  # What is reported is the norm before clipping.
  np.testing.assert_allclose(reported, norm, rtol=1e-5)
  _close(moved(norm * 2)[0], free)


@pytest.mark.parametrize(
  'microbatches', [pytest.param(2, marks=pytest.mark.slow), 4]
)
def test_microbatches_make_the_same_step(microbatches):
  batches = [_batch(seed=seed) for seed in range(4)]
  whole, means = _run(batches)
  parts, part_means = _run(batches, microbatches=microbatches)
  _close(whole.params, parts.params)
  for one, other in zip(means, part_means, strict=True):
    np.testing.assert_allclose(one['loss'], other['loss'], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['generative', 'pair', 'group'])
def test_microbatches_of_t5_models(kind):
  model = train_on_devices.make_model(kind, train_on_devices.config())
  arrays = train_on_devices.make_arrays(kind)
  batches = [
    {key: np.asarray(x[i : i + 8]) for key, x in arrays.items()}
    for i in (0, 8, 16, 24)
  ]
  batches = [
    {k: np.float32(x) if x.dtype.kind == 'f' else x for k, x in b.items()}
    for b in batches
  ]
  _, whole = _run(batches, model=model)
  _, parts = _run(batches, model=model, microbatches=4)
  losses = [means['loss'] for means in whole]
  np.testing.assert_allclose(
    [means['loss'] for means in parts], losses, rtol=1e-5
  )
  assert losses[0] > 0 and len(set(losses)) == 4


def test_several_steps_in_a_call_are_the_same_steps():
  model = fake_training.LinearModel(dropout_rate=0.5)
  batches = [_batch(seed=seed) for seed in range(6)]
  one, means = _run(batches, model=model)
  three, sums = _run(batches, model=model, stacked=3)
  _close(one.params, three.params)
  _close(one.opt_state, three.opt_state)
  weights = [b['weights'].sum() for b in batches]
  expected = np.average([m['loss'] for m in means[:3]], weights=weights[:3])
  np.testing.assert_allclose(sums[0]['loss'], expected, rtol=1e-5)


def test_dropout_depends_on_seed_and_step():
  batch = _batch()
  frozen = fake_training.adamw(0.0)
  model = fake_training.LinearModel(dropout_rate=0.5)
  _, means = _run([batch] * 3, model=model, optimizer=frozen)
  losses = [m['loss'] for m in means]
  assert len(set(losses)) == 3
  _, again = _run([batch] * 3, model=model, optimizer=frozen)
  assert [m['loss'] for m in again] == losses


def test_moving_average():
  batches = [_batch(seed=seed) for seed in range(3)]
  trail = [_run(batches[:n])[0].params for n in range(4)]
  state, _ = _run(batches, ema_decay=0.15)
  average = trail[0]
  for step, params in enumerate(trail[1:]):
    keep = min(0.15, (1 + step) / (10 + step))
    average = jax.tree.map(
      lambda e, p, keep=keep: keep * e + (1 - keep) * p, average, params
    )
  _close(state.ema, average)
  _close(state.params, trail[3])
  assert state.best_params is state.ema
  assert _run(batches)[0].ema is None


def test_a_batch_that_weighs_nothing_changes_nothing():
  batch = {**_batch(), 'weights': np.zeros(8, np.float32)}
  state, _ = _run([batch])
  start = fake_training.LinearModel().init(jax.random.key(0))
  _close(state.params, start, rtol=1e-6)


def test_multipliers_reach_the_step():
  frozen = fake_training.adamw(0.1, multipliers={'wo': 0.0, 'scale': 0.5})
  state, _ = _run([_batch()], optimizer=frozen)
  plain, _ = _run([_batch()])
  start = fake_training.LinearModel().init(jax.random.key(0))
  moved = jax.tree.map(jnp.subtract, state.params, start)
  expected = jax.tree.map(jnp.subtract, plain.params, start)
  np.testing.assert_allclose(moved['mlp']['wo']['kernel'], 0, atol=1e-6)
  _close(moved['norm']['scale'], 0.5 * expected['norm']['scale'])
  _close(moved['mlp']['wi'], expected['mlp']['wi'])
