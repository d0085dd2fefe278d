import dataclasses
import json
import time

import fake_training
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5score_jax.checkpoints import native
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.inputs import datasets
from t5score_jax.training import loop, partitioning
from t5score_jax.training import state as states


def _lines(folder, kind):
  text = (folder / 'run' / 'metrics.jsonl').read_text()
  lines = map(json.loads, text.splitlines())
  return [line for line in lines if line['kind'] == kind]


def test_a_run_learns_and_leaves_its_files(tmp_path):
  result = fake_training.train(
    tmp_path,
    60,
    intervals=loop.Intervals(log_every=10, save_every=30),
    ema_decay=0.9,
  )
  assert result == loop.Result(60, None, 'finished')
  losses = fake_training.losses(tmp_path)
  assert list(losses) == [10, 20, 30, 40, 50, 60]
  assert losses[60] < 0.7 * losses[10]
  names = {child.name for child in (tmp_path / 'run').iterdir()}
  assert names == {
    *('checkpoint_30', 'checkpoint_60', 'config.gin', 'model-info.txt'),
    *('metrics.jsonl', 'curves.png', 'train', 'training_eval'),
  }


def test_losses_are_means_over_what_they_weigh(tmp_path):
  frozen = fake_training.adamw(0.0)
  model = fake_training.LinearModel()
  options = {'model': model, 'optimizer': frozen}
  fake_training.train(tmp_path / 'each', 4, **options)
  fake_training.train(
    tmp_path / 'all', 4, intervals=loop.Intervals(log_every=4), **options
  )
  each = _lines(tmp_path / 'each', 'train')
  weights = [line['weights'] for line in each]
  expected = np.average([line['loss'] for line in each], weights=weights)
  [line] = _lines(tmp_path / 'all', 'train')
  np.testing.assert_allclose(line['loss'], expected, rtol=1e-5)
  assert len(set(weights)) > 1


@pytest.mark.parametrize(
  'steps_per_call',
  [
    pytest.param(2, marks=pytest.mark.slow),
    5,
    pytest.param(100, marks=pytest.mark.slow),
  ],
)
def test_steps_in_one_call_change_nothing(tmp_path, steps_per_call):
  def run(name, number):
    intervals = loop.Intervals(
      log_every=7, save_every=20, steps_per_call=number
    )
    fake_training.train(tmp_path / name, 20, intervals=intervals)
    return fake_training.losses(tmp_path / name)

  one, several = run('one', 1), run('several', steps_per_call)
  assert list(one) == list(several) == [7, 14, 20]
  np.testing.assert_allclose(
    list(one.values()), list(several.values()), rtol=1e-5
  )


def _evaluated(folder, values, **options):
  selection = {
    name: options.pop(name) for name in ('mode', 'patience') if name in options
  }
  return fake_training.train(
    folder,
    options.pop('steps', 2 * len(values)),
    intervals=loop.Intervals(log_every=1, save_every=100, eval_every=2),
    evaluators=[fake_training.Fixed(values)],
    selection=native.Selection('fixed/value', **selection),
    **options,
  )


def test_the_best_checkpoint_stays(tmp_path):
  values = [0.1, 0.4, 0.3, 0.2, 0.1]
  result = _evaluated(tmp_path, values, keep_checkpoints=1)
  assert result == loop.Result(10, 4, 'finished')
  with native.Checkpoints(tmp_path / 'run') as checkpoints:
    assert checkpoints.steps == [4, 10]
  assert native.find_checkpoint(tmp_path / 'run').name == 'checkpoint_4'
  found = [line['fixed/value'] for line in _lines(tmp_path, 'evaluation')]
  assert found == values


def test_the_least_may_be_the_best(tmp_path):
  result = _evaluated(tmp_path, [0.4, 0.1, 0.3], mode='min')
  assert result.best_step == 4


def test_training_stops_early(tmp_path):
  values = [0.4, 0.5, 0.3, 0.2]
  result = _evaluated(tmp_path, values, steps=100, patience=2)
  assert result == loop.Result(8, 4, 'stopped early')
  with native.Checkpoints(tmp_path / 'run') as checkpoints:
    assert checkpoints.latest == 8


def test_selection_by_what_nobody_measures(tmp_path):
  with pytest.raises(native.CheckpointError, match="'fixed/velue'"):
    fake_training.train(
      tmp_path,
      2,
      evaluators=[fake_training.Fixed([1.0])],
      selection=native.Selection('fixed/velue'),
    )


def test_evaluators_see_the_moving_average(tmp_path):
  seen = []

  class Watch:
    name = 'watch'

    def evaluate(self, params):
      seen.append(np.asarray(params['norm']['scale']))
      return {'x': 0.0}

  def last(name, **options):
    fake_training.train(tmp_path / name, 8, evaluators=[Watch()], **options)
    return seen.pop()

  # With a decay of 0 the average is the parameters themselves.
  plain = last('plain')
  np.testing.assert_array_equal(last('zero', ema_decay=0.0), plain)
  assert np.abs(last('average', ema_decay=0.9) - plain).max() > 1e-3


@dataclasses.dataclass
class _Exploding(fake_training.LinearModel):
  """Its loss is infinite once a weight has moved by more than `limit`."""

  limit: float = 0.0

  def loss_fn(self, params, batch, rng):
    loss, aux = super().loss_fn(params, batch, rng)
    moved = jnp.any(jnp.abs(params['norm']['scale'] - 1) > self.limit)
    return jnp.where(moved, jnp.inf, loss), aux


@pytest.mark.parametrize('log_every', [1, 100])
@pytest.mark.parametrize('save_every', [1, 4])
def test_weights_without_a_finite_loss_are_no_checkpoint(
  tmp_path, log_every, save_every
):
  with pytest.raises(loop.TrainingError, match='at step 2.*No checkpoint'):
    fake_training.train(
      tmp_path,
      8,
      model=_Exploding(),
      intervals=loop.Intervals(log_every=log_every, save_every=save_every),
    )
  assert not list((tmp_path / 'run').glob('checkpoint*'))


@pytest.mark.parametrize(
  'steps_per_call', [pytest.param(1, marks=pytest.mark.slow), 4]
)
def test_a_diverged_run_continues_from_its_last_good_checkpoint(
  tmp_path, steps_per_call
):
  # Adam moves a weight by .01 per step: step 4 is the first above .035, its
  # loss is that of step 5.
  options = {
    'model': _Exploding(limit=0.035),
    'intervals': loop.Intervals(100, 2, steps_per_call=steps_per_call),
  }
  with pytest.raises(loop.TrainingError, match='at step 5.*checkpoint_2') as e:
    fake_training.train(tmp_path, 8, **options)
  assert 'diverged_checkpoint_4' in str(e.value)
  names = [path.name for path in (tmp_path / 'run').glob('*checkpoint*')]
  assert sorted(names) == ['checkpoint_2', 'diverged_checkpoint_4']
  slower = fake_training.adamw(1e-4)
  result = fake_training.train(tmp_path, 8, optimizer=slower, **options)
  assert result == loop.Result(8, None, 'finished')


@pytest.mark.parametrize('steps', [1, 2])
def test_weights_that_are_not_finite_never_finish(tmp_path, steps):
  with pytest.raises(loop.TrainingError, match='step 1'):
    fake_training.train(
      tmp_path,
      steps,
      optimizer=fake_training.adamw(1e30),
      intervals=loop.Intervals(1, 1),
    )
  assert not list((tmp_path / 'run').glob('checkpoint*'))


def test_weights_that_are_not_finite_are_never_trained(tmp_path):
  fake_training.train(tmp_path, 2)
  with native.Checkpoints(tmp_path / 'run') as checkpoints:
    model, optimizer = fake_training.LinearModel(), fake_training.adamw()
    plan = states.plan(model, optimizer, partitioning.Partitioner())
    state = checkpoints.restore(plan.shapes)
    broken = jax.tree.map(lambda x: x * jnp.nan, state.params)
    checkpoints.save(3, state.replace(params=broken))
  with pytest.raises(loop.TrainingError, match='checkpoint_3'):
    fake_training.train(tmp_path, 4)
  with pytest.raises(loop.TrainingError, match='INITIAL_CHECKPOINT_PATH'):
    fake_training.train(
      tmp_path / 'new', 4, initial_checkpoint_path=tmp_path / 'run'
    )


def test_dry_run_prints_and_trains_nothing(tmp_path, capsys):
  result = fake_training.train(tmp_path, 8, dry_run=True, microbatches=2)
  assert result.reason == 'dry run'
  shown = capsys.readouterr().out
  assert 'parameters: 162' in shown
  assert "mesh: {'data': 1, 'model': 1}" in shown
  for words in (
    ('mlp/wi/kernel', '(8, 16)', "(None, 'model')"),
    ('norm/scale', '(2,)', 'whole'),
    ('weights', '(8,)', 'int32'),
    ('x', '(8, 8)', 'float32'),
  ):
    [line] = [x for x in shown.splitlines() if x.split()[:1] == [words[0]]]
    assert all(word in line for word in words), line
  assert not (tmp_path / 'run').exists()


def test_a_batch_that_cannot_be_cut(tmp_path):
  with pytest.raises(partitioning.MeshError, match='batch of 8.*multiple of 3'):
    fake_training.train(tmp_path, 8, microbatches=3)
  assert not (tmp_path / 'run').exists()


def test_initial_weights_start_a_new_run_at_step_0(tmp_path):
  fake_training.train(tmp_path / 'a', 8)
  result = fake_training.train(
    tmp_path / 'b',
    4,
    optimizer=fake_training.adamw(0.0),
    initial_checkpoint_path=str(tmp_path / 'a' / 'run'),
  )
  assert result.step == 4
  first, second = (
    native.find_checkpoint(tmp_path / name / 'run') for name in 'ab'
  )
  assert (first.name, second.name) == ('checkpoint_8', 'checkpoint_4')
  np.testing.assert_array_equal(
    *(
      orbax.open_weights(folder)['mlp/wi/kernel'].read()
      for folder in (first, second)
    )
  )


def test_the_seed_makes_the_weights(tmp_path):
  def first_loss(name, seed):
    fake_training.train(tmp_path / name, 1, random_seed=seed)
    return fake_training.losses(tmp_path / name)[1]

  assert first_loss('a', 1) == first_loss('b', 1) != first_loss('c', 2)


@pytest.mark.parametrize('field', ['log_every', 'eval_every', 'save_every'])
def test_intervals_say_what_is_wrong(field):
  message = f'{field} = 0'
  with pytest.raises(ValueError, match=message):
    loop.Intervals(**{field: 0})


def test_speed_is_that_of_each_interval(tmp_path):
  class Slow(datasets.ArrayDataset):
    def batches(self, start_step=0, share=None):
      for batch in super().batches(start_step):
        time.sleep(0.05)
        yield batch

  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  intervals = loop.Intervals(log_every=1, save_every=100)
  fake_training.train(
    tmp_path, 16, dataset=Slow(arrays, 8), intervals=intervals
  )
  speeds = [line['steps_per_second'] for line in _lines(tmp_path, 'train')]
  # A step takes .05 s; the first ones were read ahead.
  assert len(speeds) == 16 and np.median(speeds[8:]) < 60


def test_a_run_that_is_beyond_its_last_step(tmp_path, capfd):
  fake_training.train(tmp_path, 8)
  result = fake_training.train(tmp_path, 4, quiet=False)
  assert result.step == 8
  shown = capfd.readouterr().err
  assert 'already trained to step 8; TRAIN_STEPS = 4' in shown


def test_data_that_end(tmp_path):
  class Three(datasets.ArrayDataset):
    def batches(self, start_step=0, share=None):
      for _, batch in zip(range(3), super().batches(), strict=False):
        yield batch

  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  with pytest.raises(datasets.DatasetError, match='ended at step 3 of 8'):
    fake_training.train(tmp_path, 8, dataset=Three(arrays, 8))
