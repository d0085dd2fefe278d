"""A run that is cut off anywhere ends as one that was not."""

import json
import os
import signal
import subprocess
import sys
import time

import fake_training
import jax
import numpy as np
import pytest

from t5score_jax.checkpoints import native
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.inputs import datasets
from t5score_jax.training import loop, reports

STEPS = 14


def _params(folder):
  stored = orbax.open_weights(folder / 'run')
  return {name: array.read() for name, array in stored.items()}


def _same(folder, other):
  assert fake_training.losses(folder) == fake_training.losses(other)
  jax.tree.map(np.testing.assert_array_equal, _params(folder), _params(other))


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
  folder = tmp_path_factory.mktemp('unbroken')
  fake_training.train(folder, STEPS)
  assert sorted(fake_training.losses(folder)) == list(range(1, STEPS + 1))
  return folder


@pytest.mark.parametrize('stop', [4, 7])
def test_after_a_clean_end(tmp_path, unbroken, stop):
  # The schedule does not depend on where the first part ends.
  result = fake_training.train(tmp_path, stop)
  assert result == loop.Result(stop, None, 'finished')
  fake_training.train(tmp_path, STEPS)
  _same(tmp_path, unbroken)


def test_a_finished_run_stays_as_it_is(tmp_path, unbroken):
  before = (unbroken / 'run' / 'metrics.jsonl').read_text()
  result = fake_training.train(unbroken, STEPS)
  assert result == loop.Result(STEPS, None, 'finished')
  assert (unbroken / 'run' / 'metrics.jsonl').read_text() == before


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(tmp_path, unbroken, number):
  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  dataset = fake_training.InterruptedDataset(arrays, 8, 9, number)
  result = fake_training.train(tmp_path, STEPS, dataset=dataset)
  reason = 'preempted' if number == signal.SIGTERM else 'interrupted'
  assert result.reason == reason and 1 <= result.step < STEPS
  assert handlers == (
    signal.getsignal(signal.SIGTERM),
    signal.getsignal(signal.SIGINT),
  )
  with native.Checkpoints(tmp_path / 'run') as checkpoints:
    assert checkpoints.latest == result.step
  fake_training.train(tmp_path, STEPS)
  _same(tmp_path, unbroken)


def test_steps_that_were_not_saved_are_taken_again(tmp_path, unbroken):
  """As after a power cut: reports are ahead of the last checkpoint."""

  class Cut(datasets.ArrayDataset):
    def batches(self, start_step=0, share=None):
      for step, batch in enumerate(super().batches(start_step)):
        if step == 11:
          raise OSError('the power is gone')
        yield batch

  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  with pytest.raises(OSError, match='power'):
    fake_training.train(tmp_path, STEPS, dataset=Cut(arrays, 8))
  metrics = tmp_path / 'run' / reports.METRICS_FILE
  assert max(fake_training.losses(tmp_path)) > 8
  with metrics.open('a') as stream:
    stream.write('{"step": 11, "kind": "tra')  # cut off while it was written
  fake_training.train(tmp_path, STEPS)
  _same(tmp_path, unbroken)


def _until_killed(folder, steps, hidden):
  """Kills a run with SIGKILL in the middle of its second save."""
  program = subprocess.Popen(
    [sys.executable, fake_training.__file__, folder, str(steps), str(hidden)],
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    stderr=subprocess.PIPE,
  )
  run = folder / 'run'
  deadline = time.monotonic() + 120
  try:
    while time.monotonic() < deadline and program.poll() is None:
      if list(run.glob('checkpoint_8.*tmp*')):
        program.kill()
        break
      time.sleep(0.001)
  finally:
    program.kill()
    _, error = program.communicate()
  assert program.returncode == -signal.SIGKILL, error.decode()[-3000:]
  return list(run.glob('checkpoint_8.*tmp*'))


@pytest.mark.slow
def test_after_kill_9_in_the_middle_of_a_save(tmp_path):
  hidden, steps = 100_000, 10
  model = fake_training.LinearModel(dropout_rate=0.1, hidden=hidden)
  half = _until_killed(tmp_path / 'killed', steps, hidden)
  assert half, 'the save was faster than this test'
  run = tmp_path / 'killed' / 'run'
  assert native.find_checkpoint(run).name == 'checkpoint_4'
  fake_training.train(tmp_path / 'killed', steps, model=model)
  assert sorted(f.name for f in run.glob('checkpoint*')) == [
    'checkpoint_10',
    'checkpoint_4',
    'checkpoint_8',
  ]
  fake_training.train(tmp_path / 'whole', steps, model=model)
  _same(tmp_path / 'killed', tmp_path / 'whole')


def _evaluating(folder, steps, values, **options):
  return fake_training.train(
    folder,
    steps,
    intervals=loop.Intervals(log_every=2, save_every=100, eval_every=2),
    evaluators=[fake_training.Fixed(values)],
    selection=native.Selection('fixed/value', patience=3),
    keep_checkpoints=1,
    **options,
  )


def test_the_best_is_remembered_across_a_restart(tmp_path):
  result = _evaluating(tmp_path, 6, [0.1, 0.9, 0.5])
  assert (result.step, result.best_step) == (6, 4)
  result = _evaluating(tmp_path, 8, [0.7])
  assert (result.step, result.best_step) == (8, 4)
  with native.Checkpoints(tmp_path / 'run', 1) as checkpoints:
    assert checkpoints.steps == [4, 8]
  assert native.find_checkpoint(tmp_path / 'run').name == 'checkpoint_4'


def test_an_evaluation_left_out_in_a_hurry_is_made_by_the_next_run(tmp_path):
  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  dataset = fake_training.InterruptedDataset(arrays, 8, 7)
  options = {
    'intervals': loop.Intervals(log_every=1, save_every=100, eval_every=1),
    'selection': native.Selection('fixed/value'),
    'keep_checkpoints': 1,
  }
  falling = [1 - step / 100 for step in range(STEPS + 1)]
  stopped = fake_training.train(
    tmp_path,
    STEPS,
    dataset=dataset,
    evaluators=[fake_training.Fixed(falling[1:])],
    **options,
  )
  at = stopped.step
  numbers = tmp_path / 'run' / f'checkpoint_{at}' / 'numbers' / 'metadata'
  assert stopped.reason == 'preempted' and at < STEPS
  assert json.loads(numbers.read_text()) == {}
  # It is the best, as only the run that goes on finds out.
  result = fake_training.train(
    tmp_path,
    at + 1,
    evaluators=[fake_training.Fixed([2.0, 0.0])],
    **options,
  )
  assert result == loop.Result(at + 1, at, 'finished')
  assert json.loads(numbers.read_text()) == {'fixed/value': 2.0}
  assert native.find_checkpoint(tmp_path / 'run').name == f'checkpoint_{at}'
  lines = (tmp_path / 'run' / reports.METRICS_FILE).read_text().splitlines()
  judged = [
    line['step'] for line in map(json.loads, lines) if 'fixed/value' in line
  ]
  assert judged == list(range(1, at + 2))


def test_a_stop_at_the_last_step_is_no_end_without_its_evaluation(tmp_path):
  class Signals(fake_training.Fixed):
    def evaluate(self, params):
      os.kill(os.getpid(), signal.SIGTERM)
      return super().evaluate(params)

  intervals = loop.Intervals(log_every=1, eval_every=1)
  result = fake_training.train(
    tmp_path, 2, intervals=intervals, evaluators=[Signals([0.25])]
  )
  assert result == loop.Result(2, None, 'preempted')
  result = fake_training.train(
    tmp_path, 2, intervals=intervals, evaluators=[fake_training.Fixed([0.5])]
  )
  assert result == loop.Result(2, None, 'finished')
  lines = (tmp_path / 'run' / reports.METRICS_FILE).read_text().splitlines()
  found = [x for x in map(json.loads, lines) if x['kind'] == 'evaluation']
  assert [(x['step'], x['fixed/value']) for x in found] == [(1, 0.25), (2, 0.5)]


def test_patience_goes_on_across_a_restart(tmp_path):
  _evaluating(tmp_path, 6, [0.9, 0.1, 0.2])
  result = _evaluating(tmp_path, 100, [0.3, 0.4])
  assert result == loop.Result(8, 2, 'stopped early')
  # It has been decided: the same command once more trains nothing.
  again = _evaluating(tmp_path, 100, [])
  assert again == loop.Result(8, 2, 'stopped early')
