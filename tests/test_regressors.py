"""Regressors as the trunk trains them, and how they are judged meanwhile."""

import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder

from t5score_jax import regressors
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import encoders, estimators, native
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.nn import bert, heads
from t5score_jax.training import (
  optimizers,
  partitioning,
)
from t5score_jax.training import state as states

# One layer: the compiler's time is the test's.
ENCODER = dataclasses.replace(
  tiny_encoder.CONFIG, num_layers=1, dropout_rate=0.0
)
CONFIG = heads.EstimatorConfig(
  ENCODER, ('a', 'b', 'c'), hidden_sizes=(10, 6), dropout_rate=0.0
)
ROLES = ('hypothesis', 'source', 'reference')


@functools.lru_cache
def _params(config, seed=1):
  """Weights of which none is what it was initialised to, as zero or one."""
  rng = np.random.default_rng(seed)
  init = jax.jit(lambda key: heads.init_params(config, key))
  return jax.tree.map(
    lambda x: np.asarray(x) + 0.2 * rng.normal(size=x.shape).astype('f4'),
    init(jax.random.key(seed)),
  )


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


def _tokens(rows=6, seed=0, lengths=(9, 9, 9)):
  rng = np.random.default_rng(seed)
  batch = {}
  for role, length in zip(ROLES, lengths, strict=True):
    ends = rng.integers(2, length + 1, rows)[:, None]
    ids = rng.integers(5, ENCODER.vocab_size, (rows, length))
    batch[f'{role}_tokens'] = np.where(np.arange(length) < ends, ids, 0)
  ratings = rng.normal(size=(rows, 3))
  ratings[1, 0] = ratings[3, 2] = np.nan
  batch['ratings'] = ratings.astype(np.float32)
  return batch


@functools.lru_cache
def _layer_vectors(config):
  def of(encoder, tokens):
    states = bert.hidden_states(
      encoder, config.encoder, tokens, layers=config.layers
    )
    mask = (tokens != config.encoder.pad_id).astype(np.float32)
    return heads.layer_vectors(config, states, mask)

  return jax.jit(of)


def _vectors(params, config, batch):
  of = _layer_vectors(config)
  found = {'ratings': batch['ratings']}
  for role in ROLES:
    vectors = of(params['encoder'], batch[f'{role}_tokens'])
    found[f'{role}_vectors'] = np.asarray(vectors)
  return found


def _head(params):
  return {k: v for k, v in params.items() if k != 'encoder'}


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'reference': False},
    {'layer_transformation': 'sparsemax', 'layer_norm': True, 'pooling': 'cls'},
    {'layer': 1, 'pooling': 'max'},
  ],
)
def test_head_on_vectors_is_the_estimator_on_tokens(changes):
  config = dataclasses.replace(CONFIG, **changes)
  params, batch = _params(config), _tokens()
  whole = regressors.EstimatorModel(config)
  head = regressors.HeadModel(config)
  vectors = _vectors(params, config, batch)
  expected = _predict(whole, params, batch)
  assert np.ptp(expected) > 0.1
  found = _predict(head, _head(params), vectors)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  if changes:
    return
  # As well as what is learned from them.
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    _gradient(head, _head(params), vectors),
    _head(_gradient(whole, params, batch)),
  )


def test_a_head_begins_as_the_estimator_does():
  key = jax.random.key(3)
  whole = jax.jit(regressors.EstimatorModel(CONFIG).init)(key)
  head = regressors.HeadModel(CONFIG)
  begun = jax.jit(head.init)(key)
  jax.tree.map(np.testing.assert_array_equal, begun, _head(whole))
  shapes = jax.tree.structure(begun)
  axes = jax.tree.structure(
    head.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)
  )
  assert shapes == axes


def test_loss_is_the_square_error_of_what_was_rated():
  params, batch = _params(CONFIG), _tokens()
  model = regressors.EstimatorModel(CONFIG)
  predicted = _predict(model, params, batch).astype(np.float64)
  error = predicted - batch['ratings']
  loss, aux = _loss(model, params, batch)
  assert float(aux['weight']) == 16
  np.testing.assert_allclose(loss, np.nansum(error**2), rtol=1e-5)
  total, weight = aux['metrics']['absolute_error']
  np.testing.assert_allclose(total, np.nansum(np.abs(error)), rtol=1e-5)
  assert float(weight) == 16


def test_what_was_not_rated_teaches_nothing():
  params, batch = _params(CONFIG), _tokens()
  model = regressors.EstimatorModel(CONFIG)
  batch['ratings'][4:] = np.nan
  others = {k: v.copy() for k, v in batch.items()}
  for role in ROLES:
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
    CONFIG,
    dropout_rate=0.5,
    encoder=dataclasses.replace(ENCODER, dropout_rate=0.3),
  )
  params, batch = _params(CONFIG), _tokens()
  model = regressors.EstimatorModel(config)
  still = _predict(model, params, batch)
  plain = _predict(regressors.EstimatorModel(CONFIG), params, batch)
  np.testing.assert_array_equal(still, plain)
  one, again, two = (
    _predict(model, params, batch, jax.random.key(n)) for n in (0, 0, 1)
  )
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - still).max() > 1e-3 < np.abs(one - two).max()


def test_a_cross_encoder_takes_ratings_with_and_without_an_axis():
  model = regressors.CrossEncoderModel(ENCODER)
  params = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  tokens = _tokens()['source_tokens']
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
  model = model or regressors.EstimatorModel(CONFIG)
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner)
  state = plan.create(jax.tree.map(jnp.array, params))
  step = states.make_step(model, optimizer, partitioner, plan, seed=0)
  for n in range(steps):
    batch = _tokens(seed=n)
    if vectors:
      batch = _vectors(_params(CONFIG), CONFIG, batch)
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
  params = _params(CONFIG)
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
  params = _params(CONFIG)
  how = {'clip_norm': 1e-3, 'eps': 1e-3}
  schedule = optimizers.constant(1e-2)
  *_, whole = _train(
    optimizers.adamw(schedule, frozen=frozen, **how), params, 2
  )
  *_, head = _train(
    optimizers.adamw(schedule, **how),
    _head(params),
    2,
    regressors.HeadModel(CONFIG),
    vectors=True,
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    head.params,
    _head(whole.params),
  )
  assert _changed(_head(params), head.params, 'estimator/')


def test_layerwise_rates():
  factors = optimizers.layerwise_multipliers(3, 0.5, encoder=0.2)
  config = dataclasses.replace(CONFIG, encoder=tiny_encoder.CONFIG)
  model = regressors.EstimatorModel(config)
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
  return tiny_encoder.make(tmp_path_factory.mktemp('encoder'), ENCODER)


def _shapes(model):
  partitioner = partitioning.Partitioner()
  optimizer = optimizers.adamw(optimizers.constant(1.0))
  return states.plan(model, optimizer, partitioner)


def _begin(paths, model, new='^(estimator|mix)/'):
  plan = _shapes(model)
  fresh = plan.init_params(jax.random.key(5))
  found = native.initial_params(paths, plan.shapes.params, fresh=fresh, new=new)
  return jax.device_get(found), jax.device_get(fresh)


def _save(folder, config, encoder_folder, seed=2):
  encoder = encoders.load_encoder(encoder_folder)
  estimators.save(
    estimators.Estimator(config, _params(config, seed), encoder.tokenizer),
    folder,
  )
  return dict(bundles.flatten_names(_params(config, seed)))


def test_a_new_head_stands_on_the_encoders_weights(encoder_folder):
  found, fresh = _begin(encoder_folder, regressors.EstimatorModel(CONFIG))
  encoder = encoders.load_encoder(encoder_folder)
  jax.tree.map(np.testing.assert_array_equal, found['encoder'], encoder.params)
  jax.tree.map(np.testing.assert_array_equal, _head(found), _head(fresh))
  found, fresh = _begin(encoder_folder, regressors.HeadModel(CONFIG))
  jax.tree.map(np.testing.assert_array_equal, found, fresh)
  with pytest.raises(CheckpointError, match='estimator/layers_0'):
    _begin(encoder_folder, regressors.EstimatorModel(CONFIG), new=None)


@pytest.mark.parametrize(
  'model', [regressors.EstimatorModel, regressors.HeadModel]
)
def test_a_single_output_is_widened(tmp_path, encoder_folder, model):
  config = dataclasses.replace(CONFIG, outputs=('score',))
  stored = _save(tmp_path / 'one', config, encoder_folder)
  found, _ = _begin(tmp_path / 'one', model(CONFIG))
  for name, value in bundles.flatten_names(found):
    expected = stored[name]
    if name.startswith('estimator/layers_2/'):
      expected = np.repeat(expected, 3, axis=-1)
    np.testing.assert_array_equal(value, expected, name)
  # All outputs begin as the one that was there.
  batch, whole = _tokens(), regressors.EstimatorModel(config)
  one = _predict(whole, bundles.nest(stored), batch)
  if model is regressors.EstimatorModel:
    three = _predict(model(CONFIG), found, batch)
    np.testing.assert_allclose(three, np.repeat(one, 3, axis=1), atol=1e-6)


def test_a_head_and_an_encoder_complete_each_other(tmp_path, encoder_folder):
  stored = _save(tmp_path / 'estimator', CONFIG, encoder_folder)
  model = regressors.EstimatorModel(CONFIG)
  found, _ = _begin([tmp_path / 'estimator', encoder_folder], model, new=None)
  encoder = encoders.load_encoder(encoder_folder)
  jax.tree.map(np.testing.assert_array_equal, found['encoder'], encoder.params)
  for name, value in bundles.flatten_names(_head(found)):
    np.testing.assert_array_equal(value, stored[name])


def test_several_outputs_are_not_widened(tmp_path, encoder_folder):
  config = dataclasses.replace(CONFIG, outputs=('a', 'b'))
  _save(tmp_path / 'two', config, encoder_folder)
  with pytest.raises(CheckpointError, match='estimator/layers_2'):
    _begin(tmp_path / 'two', regressors.EstimatorModel(CONFIG))


# How they are judged.


@pytest.mark.slow
@pytest.mark.parametrize('partitions', [1, 2])
def test_four_devices_learn_as_one(tmp_path, partitions):
  program = Path(__file__).with_name('regress_on_devices.py')
  found = []
  for count, parts in ((1, 1), (4, partitions)):
    flags = f'--xla_force_host_platform_device_count={count}'
    file = tmp_path / f'{count}.npz'
    subprocess.run(
      [sys.executable, str(program), str(file), str(parts)],
      env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
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
