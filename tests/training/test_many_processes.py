"""Two processes of four devices train what one process of eight trains."""

import json
import signal
import subprocess
import sys

import devices
import numpy as np
import pytest
import train_in_processes

from t5score_jax.checkpoints import selection
from t5score_jax.checkpoints.formats import orbax
from tests.runtime import test_processes as test_processes

pytestmark = pytest.mark.slow


def _start(folder, count, index, port, cases):
  return subprocess.Popen(
    [sys.executable, train_in_processes.__file__, str(folder), str(port)]
    + [str(count), str(index), *cases],
    env=devices.environment(JAX_NUM_CPU_DEVICES=str(8 // count)),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _run(folder, counts, *cases):
  """Runs cases; returns {processes: [(exit code, standard error)]}."""
  running = {
    count: [
      _start(folder / str(count), count, index, port, cases)
      for index in range(count)
    ]
    for count, port in zip(
      counts, (test_processes.free_port() for _ in counts), strict=True
    )
  }
  found = {}
  for count, several in running.items():
    ended = [process.communicate(timeout=600) for process in several]
    found[count] = [
      (process.returncode, error)
      for process, (_, error) in zip(several, ended, strict=True)
    ]
  return found


def _lines(folder, count, case):
  path = folder / str(count) / case / 'run' / 'metrics.jsonl'
  return [json.loads(line) for line in path.open()]


def _check_the_same(folder, case):
  one, two = (_lines(folder, count, case) for count in (1, 2))
  for line, other in zip(one, two, strict=True):
    assert line.keys() == other.keys()
    for key, value in line.items():
      if key not in ('kind', 'steps_per_second'):
        assert other[key] == pytest.approx(value, rel=1e-5), (key, line)
  weights, others = (
    orbax.open_weights(folder / str(count) / case / 'run') for count in (1, 2)
  )
  assert weights.keys() == others.keys()
  for name in weights:
    np.testing.assert_allclose(
      weights[name].read(), others[name].read(), rtol=1e-4, atol=1e-6
    )


@pytest.fixture(scope='module')
def ran(tmp_path_factory):
  folder = tmp_path_factory.mktemp('processes')
  found = _run(folder, (1, 2), 'partitions', 'buckets', 'stopped')
  for code, error in (x for several in found.values() for x in several):
    assert code == 0, error[-3000:]
  return folder


@pytest.mark.parametrize('case', ['partitions', 'buckets', 'stopped'])
def test_losses_are_those_of_one_process(ran, case):
  _check_the_same(ran, case)
  steps = [x['step'] for x in _lines(ran, 2, case) if x['kind'] == 'train']
  assert steps == list(range(1, len(steps) + 1))


def test_process_0_reports(ran):
  run = ran / '2' / 'partitions' / 'run'
  assert ' 2 process(es)' in (run / 'model-info.txt').read_text()
  assert (run / 'curves.png').is_file() and (run / 'config.gin').is_file()
  assert len(list((run / 'train').iterdir())) == 1
  # One that was stopped and went on.
  assert len(list((ran / '2' / 'stopped' / 'run' / 'train').iterdir())) == 2


def test_a_stop_costs_no_evaluation(ran):
  """It fell on a step of evaluation, as every step of this run is one."""
  lines = _lines(ran, 2, 'stopped')
  judged = [x['step'] for x in lines if x['kind'] == 'evaluation']
  assert sorted(judged) == list(range(1, 31))
  run = ran / '2' / 'stopped' / 'run'
  best = max(
    (x for x in lines if x['kind'] == 'evaluation'),
    key=lambda x: x['weight/sum'],
  )
  assert selection.find_checkpoint(run).name == f'checkpoint_{best["step"]}'


@pytest.mark.slow
def test_a_network_its_evaluators_and_seqio(tmp_path):
  pytest.importorskip('seqio')
  found = _run(tmp_path, (1, 2), 't5', 'seqio')
  for code, error in (x for several in found.values() for x in several):
    assert code == 0, error[-3000:]
  for case in ('t5', 'seqio'):
    _check_the_same(tmp_path, case)


@pytest.mark.slow
def test_one_dies_and_both_go_on(tmp_path):
  found = _run(tmp_path, (1, 2), 'dying')
  assert found[1][0][0] == 0
  (code, error), (killed, _) = found[2]
  assert killed == -signal.SIGKILL
  assert code == 1, error[-3000:]
  assert 'process 1 of 2 is gone, so process 0 exits too' in error
  assert 'Traceback' not in error
  run = tmp_path / '2' / 'dying' / 'run'
  assert selection.find_checkpoint(run).name == 'checkpoint_12'
  found = _run(tmp_path, (2,), 'going_on')
  assert [code for code, _ in found[2]] == [0, 0], found
  _check_the_same(tmp_path, 'dying')


@pytest.mark.slow
def test_processes_that_were_told_different_things(tmp_path):
  found = _run(tmp_path, (2,), 'differing')
  codes, errors = zip(*found[2], strict=True)
  assert codes == (1, 1)
  assert any('processes differ in what they train' in x for x in errors)
