import dataclasses
import json

import fake_training
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_on_devices

from t5score_jax.checkpoints import bundle, checkpointer, loading, native
from t5score_jax.data import vocab
from t5score_jax.training import partitioning
from t5score_jax.training import state as states


def _plan(model=None, ema_decay=None):
  model = model or fake_training.LinearModel()
  return states.plan(
    model, fake_training.adamw(), partitioning.Partitioner(), ema_decay
  )


def _state(plan, seed=0):
  return plan.create(plan.init_params(jax.random.key(seed)))


def _save(folder, steps, keep=100, best=None):
  """Saves one state a step; its step counter tells them apart."""
  folder.mkdir(exist_ok=True)
  plan = _plan()
  with native.Checkpoints(folder, keep) as checkpoints:
    for step in steps:
      state = _state(plan).replace(step=jnp.int32(step))
      checkpoints.save(step, state, {'held_out/loss': 1.0 / step}, best)
  return plan


def _folders(folder):
  return sorted(child.name for child in folder.iterdir())


def test_what_is_restored_is_what_was_saved(tmp_path):
  plan = _plan(ema_decay=0.9)
  state = _state(plan)
  copy = jax.tree.map(np.asarray, state)
  with native.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(3, state)
    checkpoints.wait()
    restored = checkpoints.restore(plan.shapes)
  assert isinstance(restored, states.TrainState)
  jax.tree.map(np.testing.assert_array_equal, restored, copy)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  jax.tree.map(
    lambda leaf, want: leaf.sharding == want.sharding or pytest.fail(),
    restored,
    plan.shapes,
  )


def test_keeps_the_latest_and_the_best(tmp_path):
  _save(tmp_path / 'run', [1, 2, 3, 4, 5], keep=2, best=2)
  with native.Checkpoints(tmp_path / 'run', 2) as checkpoints:
    assert checkpoints.steps == [2, 4, 5] and checkpoints.latest == 5
  with pytest.raises(ValueError, match='at least one'):
    native.Checkpoints(tmp_path, 0)


def test_half_written_checkpoints_are_not_there_and_are_removed(
  tmp_path, monkeypatch
):
  folder = tmp_path / 'run'
  plan = _save(folder, [4])
  half = folder / 'checkpoint_8.orbax-checkpoint-tmp'
  (half / 'state').mkdir(parents=True)
  (half / 'state' / 'd').write_bytes(b'half')
  assert native.find_checkpoint(folder).name == 'checkpoint_4'
  orbax = checkpointer.ocp.CheckpointManager
  seen = []

  def manager(path, **options):
    seen.append((_folders(folder), options['options'].cleanup_tmp_directories))
    return orbax(path, **options)

  monkeypatch.setattr(checkpointer.ocp, 'CheckpointManager', manager)
  with native.Checkpoints(folder) as checkpoints:
    assert checkpoints.latest == 4
    assert int(checkpoints.restore(plan.shapes).step) == 4
  # Orbax would remove them in a thread that ends in a traceback where the
  # program ends meanwhile; they are gone before it starts.
  assert seen == [(['checkpoint_4'], False)]


def test_another_shape_is_named(tmp_path):
  _save(tmp_path, [1])
  wide = _plan(fake_training.LinearModel(hidden=24))
  with (
    native.Checkpoints(tmp_path) as checkpoints,
    pytest.raises(native.CheckpointError) as error,
  ):
    checkpoints.restore(wide.shapes)
  assert 'other shape params/mlp/wi/kernel [8, 16], expected [8, 24]' in str(
    error.value
  )
  assert 'INITIAL_CHECKPOINT_PATH' in str(error.value)


def test_selection_takes_the_first_best():
  history = [(1, {'a': 0.1}), (2, {'a': 0.3}), (3, {'a': 0.3}), (4, {'a': 0.2})]
  highest = native.Selection('a')
  assert highest.best(history) == 1
  assert native.Selection('a', 'min').best(history) == 0
  assert highest.best([]) == -1
  # A number that was not finite is none.
  assert highest.best([(1, {'a': None}), (2, {'a': -5.0})]) == 1
  assert highest.best([(1, {'a': float('nan')}), (2, {'a': -5.0})]) == 1
  with pytest.raises(native.CheckpointError, match="'b'.*there are.*'a'"):
    native.Selection('b').best(history)
  with pytest.raises(ValueError, match="'max' or 'min'"):
    native.Selection('a', 'highest')


def test_selection_runs_out_of_patience():
  values = [0.1, 0.3, 0.2, 0.25, 0.29]
  history = [(step, {'a': value}) for step, value in enumerate(values)]
  patient = native.Selection('a', patience=2)
  assert [patient.exhausted(history[:n]) for n in range(6)] == [
    *(False, False, False, False),
    *(True, True),
  ]
  assert not native.Selection('a').exhausted(history)


def test_path_means_the_best_or_the_latest(tmp_path):
  folder = tmp_path / 'run'
  _save(folder, [10, 20, 100])
  assert native.find_checkpoint(folder).name == 'checkpoint_100'
  native.claim(folder, selection=native.Selection('held_out/loss', 'max'))
  assert native.find_checkpoint(folder).name == 'checkpoint_10'
  native.claim(folder, selection=native.Selection('never/measured'))
  assert native.find_checkpoint(folder).name == 'checkpoint_100'
  assert native.find_checkpoint(folder / 'checkpoint_20').name[-2:] == '20'


def test_paths_that_mean_nothing(tmp_path):
  with pytest.raises(native.CheckpointError, match='no such folder'):
    native.find_checkpoint(tmp_path / 'nothing')
  with pytest.raises(native.CheckpointError, match='neither a bundle'):
    native.find_checkpoint(tmp_path)
  (tmp_path / 'checkpoint_3').mkdir()
  with pytest.raises(native.CheckpointError, match='not a complete'):
    native.find_checkpoint(tmp_path / 'checkpoint_3')
  folder = tmp_path / 'run'
  _save(folder, [1])
  (folder / native.SELECTION_FILE).write_text('{"metric": ')
  with pytest.raises(native.CheckpointError, match='selection.json: damaged'):
    native.find_checkpoint(folder)


@pytest.fixture(scope='module')
def t5_run(tmp_path_factory):
  """A MODEL_DIR of a T5 with a moving average; and its state."""
  folder = tmp_path_factory.mktemp('native') / 'run'
  model = train_on_devices.make_model('generative', train_on_devices.config())
  plan = _plan(model, ema_decay=0.9)
  state = _state(plan)
  state = state.replace(ema=jax.tree.map(lambda p: p + 1, state.params))
  native.claim(folder, model.config, vocab.ByteVocabulary(), {'name': 'x'})
  with native.Checkpoints(folder) as checkpoints:
    checkpoints.save(5, state)
  return folder, plan, state


def test_a_run_scores_by_itself_with_its_moving_average(t5_run):
  folder, _, state = t5_run
  for path in (folder, folder / 'checkpoint_5'):
    loaded = loading.load_model(path)
    assert loaded.config == train_on_devices.config()
    assert loaded.vocabulary == vocab.ByteVocabulary()
    assert loaded.settings['name'] == 'x'
    jax.tree.map(np.testing.assert_array_equal, loaded.params, state.ema)
    assert {x.dtype for x in jax.tree.leaves(loaded.params)} == {
      np.dtype('float32')
    }


def test_initial_weights_from_a_run_and_from_a_bundle(t5_run, tmp_path):
  folder, plan, state = t5_run
  bundle.save_bundle(
    tmp_path / 'bundle', loading.load_model(folder), dtype='float32'
  )
  for path in (folder, folder / 'checkpoint_5', tmp_path / 'bundle'):
    params = native.initial_params(path, plan.shapes.params)
    jax.tree.map(np.testing.assert_array_equal, params, state.ema)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(params))


def test_initial_weights_of_another_model(t5_run, tmp_path):
  folder, _, _ = t5_run
  bundle.save_bundle(tmp_path / 'bundle', loading.load_model(folder))
  wide = dataclasses.replace(train_on_devices.config(), mlp_dim=48)
  plan = _plan(train_on_devices.make_model('generative', wide))
  for path in (folder, tmp_path / 'bundle'):
    with pytest.raises(native.CheckpointError) as error:
      native.initial_params(path, plan.shapes.params)
    assert str(path) in str(error.value)
    text = 'decoder/layers_0/mlp/wo/kernel [32, 16], expected [48, 16]'
    assert text in str(error.value)


def test_a_folder_belongs_to_one_model(t5_run):
  folder, _, _ = t5_run
  config, bytes_ = train_on_devices.config(), vocab.ByteVocabulary()
  # Dropout and arithmetic may change from run to run.
  free = dataclasses.replace(config, dropout_rate=0.3, dtype='bfloat16')
  native.claim(folder, free, bytes_)
  wide = dataclasses.replace(config, emb_dim=32)
  with pytest.raises(native.CheckpointError) as error:
    native.claim(folder, wide, bytes_)
  assert 'emb_dim: 16 there, 32 here' in str(error.value)
  assert 'num_heads' not in str(error.value)
  with pytest.raises(native.CheckpointError, match='vocabulary: another'):
    native.claim(folder, config, vocab.ByteVocabulary(extra_ids=10))
  native.claim(folder, config, bytes_)
  assert json.loads((folder / 'config.json').read_text())


def test_a_file_is_no_folder(tmp_path):
  (tmp_path / 'run').write_text('')
  with pytest.raises(native.CheckpointError, match='is a file'):
    native.claim(tmp_path / 'run')
