"""Regressors in the training loop, and their evaluation there."""

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder
import tiny_regressor

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import native, regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.models import regression
from t5score_jax.training import (
  optimizers,
  partitioning,
)
from t5score_jax.training import state as states

# One layer: the compiler's time is the test's.


@functools.lru_cache
def _program(kind, model, config):
  """Compiled once for all tests: compiling is what takes time here."""
  network = model(config)
  return {
    'predict': lambda: jax.jit(network.predict),
    'loss': lambda: jax.jit(network.loss_fn),
    'gradient': lambda: jax.jit(
      jax.grad(lambda p, b, rng: network.loss_fn(p, b, rng)[0])
    ),
  }[kind]()


def _predict(model, params, batch, rng=None):
  program = _program('predict', type(model), model.config)
  return np.asarray(program(params, batch, rng))


def _loss(model, params, batch):
  return _program('loss', type(model), model.config)(params, batch, None)


def _gradient(model, params, batch):
  program = _program('gradient', type(model), model.config)
  return jax.device_get(program(params, batch, None))


@pytest.mark.parametrize(
  'changes',
  [
    {},
    pytest.param({'reference': False}, marks=pytest.mark.slow),
    {'layer_transformation': 'sparsemax', 'layer_norm': True, 'pooling': 'cls'},
    pytest.param({'layer': 1, 'pooling': 'max'}, marks=pytest.mark.slow),
  ],
)
def test_head_on_vectors_is_the_estimator_on_tokens(changes):
  config = dataclasses.replace(tiny_regressor.CONFIG, **changes)
  params, batch = tiny_regressor.params(config), tiny_regressor.tokens()
  whole = regression.RegressorModel(config)
  head = regression.HeadModel(config)
  vectors = tiny_regressor.vectors(params, config, batch)
  expected = _predict(whole, params, batch)
  assert np.ptp(expected) > 0.1
  found = _predict(head, tiny_regressor.head_params(params), vectors)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  if changes:
    return
  # As well as what is learned from them.
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    _gradient(head, tiny_regressor.head_params(params), vectors),
    tiny_regressor.head_params(_gradient(whole, params, batch)),
  )


def test_a_head_begins_as_the_estimator_does():
  key = jax.random.key(3)
  whole = jax.jit(regression.RegressorModel(tiny_regressor.CONFIG).init)(key)
  head = regression.HeadModel(tiny_regressor.CONFIG)
  begun = jax.jit(head.init)(key)
  jax.tree.map(
    np.testing.assert_array_equal, begun, tiny_regressor.head_params(whole)
  )
  shapes = jax.tree.structure(begun)
  axes = jax.tree.structure(
    head.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)
  )
  assert shapes == axes


def test_loss_is_the_square_error_of_what_was_rated():
  params, batch = (
    tiny_regressor.params(tiny_regressor.CONFIG),
    tiny_regressor.tokens(),
  )
  model = regression.RegressorModel(tiny_regressor.CONFIG)
  predicted = _predict(model, params, batch).astype(np.float64)
  error = predicted - batch['ratings']
  loss, aux = _loss(model, params, batch)
  assert float(aux['weight']) == 16
  np.testing.assert_allclose(loss, np.nansum(error**2), rtol=1e-5)
  total, weight = aux['metrics']['absolute_error']
  np.testing.assert_allclose(total, np.nansum(np.abs(error)), rtol=1e-5)
  assert float(weight) == 16


def test_what_was_not_rated_teaches_nothing():
  params, batch = (
    tiny_regressor.params(tiny_regressor.CONFIG),
    tiny_regressor.tokens(),
  )
  model = regression.RegressorModel(tiny_regressor.CONFIG)
  batch['ratings'][4:] = np.nan
  others = {k: v.copy() for k, v in batch.items()}
  for role in tiny_regressor.ROLES:
    others[f'{role}_tokens'][4:] = others[f'{role}_tokens'][:2][::-1]
  found = _gradient(model, params, batch)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
    found,
    _gradient(model, params, others),
  )
  loss, aux = _loss(model, params, batch)
  predicted = _predict(model, params, batch)[:4]
  error = predicted - batch['ratings'][:4]
  np.testing.assert_allclose(loss, np.nansum(error**2), rtol=1e-5)
  assert float(aux['weight']) == 10
  # A dimension that nobody rated leaves its output's weights alone; the
  # gradient of what is below is that of the others alone, and adds up.
  one, two, both = (
    {**batch, 'ratings': batch['ratings'].copy()} for _ in '123'
  )
  one['ratings'][:, [0, 1]] = np.nan
  two['ratings'][:, [1, 2]] = np.nan
  both['ratings'][:, 1] = np.nan
  one, two, both = (_gradient(model, params, b) for b in (one, two, both))
  last = both['estimator']['layers_2']
  assert not np.any(last['kernel'][:, 1]) and not last['bias'][1]
  assert np.all(last['bias'][[0, 2]] != 0)
  jax.tree.map(
    lambda a, b, c: np.testing.assert_allclose(a + b, c, rtol=1e-3, atol=1e-5),
    one,
    two,
    both,
  )


def test_dropout_needs_a_key_and_depends_on_it():
  config = dataclasses.replace(
    tiny_regressor.CONFIG,
    dropout_rate=0.5,
    encoder=dataclasses.replace(tiny_regressor.ENCODER, dropout_rate=0.3),
  )
  params, batch = (
    tiny_regressor.params(tiny_regressor.CONFIG),
    tiny_regressor.tokens(),
  )
  model = regression.RegressorModel(config)
  still = _predict(model, params, batch)
  plain = _predict(
    regression.RegressorModel(tiny_regressor.CONFIG), params, batch
  )
  np.testing.assert_array_equal(still, plain)
  one, again, two = (
    _predict(model, params, batch, jax.random.key(n)) for n in (0, 0, 1)
  )
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - still).max() > 1e-3 < np.abs(one - two).max()


def test_a_cross_encoder_takes_ratings_with_and_without_an_axis():
  model = regression.CrossEncoderModel(tiny_regressor.ENCODER)
  params = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  tokens = tiny_regressor.tokens()['source_tokens']
  batch = {
    'tokens': tokens,
    'token_types': np.zeros_like(tokens),
    'ratings': np.arange(6, dtype=np.float32),
  }
  predicted = _predict(model, params, batch)
  assert predicted.shape == (6, 1)
  flat, aux = _loss(model, params, batch)
  error = predicted[:, 0] - np.arange(6)
  np.testing.assert_allclose(flat, np.sum(error**2), rtol=1e-5)
  assert float(aux['weight']) == 6
  column = {**batch, 'ratings': batch['ratings'][:, None]}
  assert float(_loss(model, params, column)[0]) == float(flat)
  axes = jax.tree.structure(
    model.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)
  )
  assert axes == jax.tree.structure(params)


def _train(optimizer, params, steps, model=None, vectors=False):
  """Yields the state after each step."""
  model = model or regression.RegressorModel(tiny_regressor.CONFIG)
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner)
  state = plan.create(jax.tree.map(jnp.array, params))
  step = states.make_step(model, optimizer, partitioner, plan, seed=0)
  for n in range(steps):
    batch = tiny_regressor.tokens(seed=n)
    if vectors:
      batch = tiny_regressor.vectors(
        tiny_regressor.params(tiny_regressor.CONFIG),
        tiny_regressor.CONFIG,
        batch,
      )
    stacked = {k: v[None] for k, v in batch.items()}
    state, _ = step(state, partitioner.put_batch(stacked, leading=1))
    yield jax.device_get(state)


def _changed(before, after, start):
  return [
    name
    for (name, a), (_, b) in zip(
      bundles.flatten_names(before), bundles.flatten_names(after), strict=True
    )
    if name.startswith(start) and not np.array_equal(a, b)
  ]


def test_what_is_frozen_stays_to_the_bit():
  optimizer = optimizers.adamw(
    optimizers.constant(1e-2),
    weight_decay=0.1,
    multipliers=optimizers.layerwise_multipliers(1, 0.5, encoder=0.3),
    frozen={'^encoder/embeddings/': optimizers.ALWAYS, '^encoder/': 3},
  )
  params = tiny_regressor.params(tiny_regressor.CONFIG)
  *_, third, fourth = _train(optimizer, params, 4)
  assert _changed(params, third.params, 'encoder/') == []
  assert len(_changed(params, third.params, 'estimator/')) == 6
  assert len(_changed(params, third.params, 'mix/')) == 2
  moments = third.opt_state[0]
  for moment in (moments.mu, moments.nu):
    assert not any(np.any(x) for x in jax.tree.leaves(moment['encoder']))
    assert np.any(moment['estimator']['layers_0']['kernel'])
  assert _changed(params, fourth.params, 'encoder/embeddings/') == []
  assert len(_changed(params, fourth.params, 'encoder/layers_')) == 16
  second = fourth.opt_state[0].nu['encoder']
  assert not any(np.any(x) for x in jax.tree.leaves(second['embeddings']))
  assert np.any(second['layers_0']['wi']['kernel'])


def test_frozen_gradients_do_not_count_in_the_norm():
  """What is clipped is the gradient of what moves."""
  frozen = {'^encoder/': optimizers.ALWAYS}
  params = tiny_regressor.params(tiny_regressor.CONFIG)
  how = {'clip_norm': 1e-3, 'eps': 1e-3}
  schedule = optimizers.constant(1e-2)
  *_, whole = _train(
    optimizers.adamw(schedule, frozen=frozen, **how), params, 2
  )
  *_, head = _train(
    optimizers.adamw(schedule, **how),
    tiny_regressor.head_params(params),
    2,
    regression.HeadModel(tiny_regressor.CONFIG),
    vectors=True,
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    head.params,
    tiny_regressor.head_params(whole.params),
  )
  assert _changed(tiny_regressor.head_params(params), head.params, 'estimator/')


def test_layerwise_rates():
  factors = optimizers.layerwise_multipliers(3, 0.5, encoder=0.2)
  config = dataclasses.replace(
    tiny_regressor.CONFIG, encoder=tiny_encoder.CONFIG
  )
  model = regression.RegressorModel(config)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  found = dict(
    bundles.flatten_names(optimizers.learning_rate_multipliers(shapes, factors))
  )
  for name, factor in found.items():
    expected = 1.0
    if name.startswith('encoder/embeddings'):
      expected = 0.2 * 0.125
    elif name.startswith('encoder/layers_'):
      expected = 0.2 * 0.5 ** (2 - int(name[15]))
    assert factor == pytest.approx(expected), name
  assert optimizers.share(1e-5, 4e-5) == 0.25
  for decay in (0.0, 1.5):
    with pytest.raises(optimizers.OptimizerError, match='decay'):
      optimizers.layerwise_multipliers(3, decay)


# Where a run begins.


@pytest.fixture(scope='module')
def encoder_folder(tmp_path_factory):
  return tiny_encoder.make(
    tmp_path_factory.mktemp('encoder'), tiny_regressor.ENCODER
  )


def _shapes(model):
  partitioner = partitioning.Partitioner()
  optimizer = optimizers.adamw(optimizers.constant(1.0))
  return states.plan(model, optimizer, partitioner)


def _begin(paths, model, new='^(estimator|mix)/'):
  plan = _shapes(model)
  fresh = tiny_encoder.random_params(plan.shapes.params, seed=5)
  fresh = jax.tree.map(jnp.asarray, fresh)
  found = native.initial_params(paths, plan.shapes.params, fresh=fresh, new=new)
  return jax.device_get(found), jax.device_get(fresh)


def _save(folder, config, encoder_folder, seed=2):
  encoder = encoders.load_encoder(encoder_folder)
  regressors.save(
    regressors.Regressor(
      config, tiny_regressor.params(config, seed), encoder.tokenizer
    ),
    folder,
  )
  return dict(bundles.flatten_names(tiny_regressor.params(config, seed)))


def test_a_new_head_stands_on_the_encoders_weights(encoder_folder):
  found, fresh = _begin(
    encoder_folder, regression.RegressorModel(tiny_regressor.CONFIG)
  )
  encoder = encoders.load_encoder(encoder_folder)
  jax.tree.map(np.testing.assert_array_equal, found['encoder'], encoder.params)
  jax.tree.map(
    np.testing.assert_array_equal,
    tiny_regressor.head_params(found),
    tiny_regressor.head_params(fresh),
  )
  found, fresh = _begin(
    encoder_folder, regression.HeadModel(tiny_regressor.CONFIG)
  )
  jax.tree.map(np.testing.assert_array_equal, found, fresh)
  with pytest.raises(CheckpointError, match='estimator/layers_0'):
    _begin(
      encoder_folder, regression.RegressorModel(tiny_regressor.CONFIG), new=None
    )


@pytest.mark.parametrize(
  'model', [regression.RegressorModel, regression.HeadModel]
)
def test_a_single_output_is_widened(tmp_path, encoder_folder, model):
  config = dataclasses.replace(tiny_regressor.CONFIG, outputs=('score',))
  stored = _save(tmp_path / 'one', config, encoder_folder)
  found, _ = _begin(tmp_path / 'one', model(tiny_regressor.CONFIG))
  for name, value in bundles.flatten_names(found):
    expected = stored[name]
    if name.startswith('estimator/layers_2/'):
      expected = np.repeat(expected, 3, axis=-1)
    np.testing.assert_array_equal(value, expected, name)
  # All outputs begin as the one that was there.
  batch, whole = tiny_regressor.tokens(), regression.RegressorModel(config)
  one = _predict(whole, bundles.nest(stored), batch)
  if model is regression.RegressorModel:
    three = _predict(model(tiny_regressor.CONFIG), found, batch)
    np.testing.assert_allclose(three, np.repeat(one, 3, axis=1), atol=1e-6)


def test_a_head_and_an_encoder_complete_each_other(tmp_path, encoder_folder):
  stored = _save(tmp_path / 'estimator', tiny_regressor.CONFIG, encoder_folder)
  model = regression.RegressorModel(tiny_regressor.CONFIG)
  found, _ = _begin([tmp_path / 'estimator', encoder_folder], model, new=None)
  encoder = encoders.load_encoder(encoder_folder)
  jax.tree.map(np.testing.assert_array_equal, found['encoder'], encoder.params)
  for name, value in bundles.flatten_names(tiny_regressor.head_params(found)):
    np.testing.assert_array_equal(value, stored[name])


def test_several_outputs_are_not_widened(tmp_path, encoder_folder):
  config = dataclasses.replace(tiny_regressor.CONFIG, outputs=('a', 'b'))
  _save(tmp_path / 'two', config, encoder_folder)
  with pytest.raises(CheckpointError, match='estimator/layers_2'):
    _begin(tmp_path / 'two', regression.RegressorModel(tiny_regressor.CONFIG))


# How they are judged.


@pytest.mark.slow
@pytest.mark.parametrize('partitions', [1, 2])
def test_four_devices_learn_as_one(tmp_path, partitions):
  program = Path(__file__).parents[1] / 'support' / 'regress_on_devices.py'
  found = []
  for count, parts in ((1, 1), (4, partitions)):
    file = tmp_path / f'{count}.npz'
    subprocess.run(
      [sys.executable, str(program), str(file), str(parts)],
      env=devices.environment(count),
      check=True,
      timeout=300,
    )
    with np.load(file) as stored:
      assert stored['devices'] == count
      found.append({k: stored[k] for k in stored.files if k != 'devices'})
  one, four = found
  assert set(one) == set(four) and len(one) > 20
  for name in one:
    np.testing.assert_allclose(
      one[name], four[name], rtol=2e-4, atol=2e-6, err_msg=name
    )
