"""Processes connect to each other, or fail with a one-line error."""

import argparse
import os
import queue
import socket
import subprocess
import sys
import threading

import devices
import numpy as np
import pytest

from t5score_jax.runtime import lifeline, processes, rendezvous


def free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _settings(*arguments, environment=None):
  parser = argparse.ArgumentParser()
  processes.add_arguments(parser)
  args = parser.parse_args([str(x) for x in arguments])
  return processes.settings(args, environment or {})


def test_one_process_needs_no_flags():
  assert _settings() is None
  processes.start(None)
  assert (processes.count(), processes.index()) == (1, 0)
  assert processes.stop(7, agreed=False) == 7


def test_flags_and_environment():
  flags = ('--coordinator_address=host:99', '--process_count=4')
  environment = {
    'JAX_COORDINATOR_ADDRESS': 'other:1',
    'JAX_PROCESS_ID': '3',
  }
  assert _settings(*flags, environment=environment) == processes.Settings(
    'host:99', 4, 3
  )
  assert _settings('--coordinator_address=auto') == processes.Settings('auto')
  v6 = processes.Settings('[::1]:99', 2, 0, 5, 6)
  assert v6.host_and_port == ('::1', 99)


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--process_count=2', '--process_index=0'], '--coordinator_address'),
    (['--coordinator_address=a:1', '--process_count=2'], 'together'),
    (['--coordinator_address=a:1', '--process_index=0'], 'together'),
    (['--coordinator_address=a:1'], 'together'),
    (['--coordinator_address=auto', '--process_count=2'], '--process_index'),
  ],
)
def test_parts_are_missing(flags, words):
  with pytest.raises(processes.ProcessError, match=words) as caught:
    _settings(*flags)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('address', 'count', 'index', 'words'),
  [
    ('a:1', 2, 2, '--process_index 2: .* must be 0 to 1'),
    ('a:1', 2, -1, '--process_index -1'),
    ('a:1', 0, 0, '--process_count 0'),
    ('host', 2, 0, 'HOST:PORT'),
    ('host:', 2, 0, 'HOST:PORT'),
    ('host:70000', 2, 0, 'HOST:PORT'),
    (':80', 2, 0, 'HOST:PORT'),
  ],
)
def test_out_of_range(address, count, index, words):
  with pytest.raises(processes.ProcessError, match=words):
    processes.Settings(address, count, index)


def test_environment_that_is_no_number():
  environment = {'JAX_COORDINATOR_ADDRESS': 'a:1', 'JAX_NUM_PROCESSES': 'two'}
  with pytest.raises(processes.ProcessError, match='JAX_NUM_PROCESSES=two'):
    _settings(environment=environment)


def test_flags_load_no_jax():
  program = (
    'import sys\n'
    'from t5score_jax.runtime import processes\n'
    'processes.count(), processes.is_first()\n'
    "sys.exit('jax' in sys.modules)"
  )
  assert subprocess.run([sys.executable, '-c', program]).returncode == 0


def test_nobody_knows_who_the_processes_are():
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('SLURM_', 'OMPI_', 'JAX_', 'TPU_', 'KUBERNETES'))
  }
  done = subprocess.run(
    [sys.executable, '-m', 't5score_jax', 'train', '--gin_file=x.gin']
    + ['--coordinator_address=auto'],
    env={**environment, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and done.stdout == ''
  assert done.stderr.startswith('t5score train: --coordinator_address=auto: n')
  assert done.stderr.count('\n') == 1


def _meet(port, arguments):
  """Runs `rendezvous.meet` once per (count, index, release) side by side."""
  results = [None] * len(arguments)
  held = []

  def one(place, count, index, release, timeout):
    try:
      held.append(
        rendezvous.meet('127.0.0.1', port, count, index, timeout, release)
      )
      results[place] = 'met'
    except rendezvous.RendezvousError as error:
      results[place] = str(error)

  threads = [
    threading.Thread(target=one, args=(place, *words))
    for place, words in enumerate(arguments)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for peers in held:
    for peer in peers.values():
      peer.close()
  return results


def test_all_meet_and_the_port_is_free_again():
  port = free_port()
  for _ in range(2):
    assert _meet(port, [(3, i, 'r', 20) for i in range(3)]) == ['met'] * 3
    with socket.create_server(('127.0.0.1', port)):
      pass


def test_some_do_not_come():
  errors = _meet(free_port(), [(4, 0, 'r', 1.5), (4, 2, 'r', 5)])
  assert '2 of 4' in errors[0] and 'missing: 1, 3.' in errors[0]
  assert errors[1] == f'process 0: {errors[0]}'


def test_nobody_is_there():
  port = free_port()
  [error] = _meet(port, [(2, 1, 'r', 0.5)])
  assert 'process 1 of 2' in error and f'process 0 at 127.0.0.1:{port}' in error
  assert 'Connection refused' in error


def test_the_port_is_taken():
  with socket.create_server(('', 0)) as taken:
    port = taken.getsockname()[1]
    [error] = _meet(port, [(2, 0, 'r', 1)])
  assert f'port {port}' in error


@pytest.mark.parametrize(
  ('others', 'words'),
  [
    ([(2, 1, 'b', 5)], 'process 1 has b, process 0 has a'),
    ([(3, 1, 'a', 5)], 'process 1 has --process_count 3, process 0 has 2'),
  ],
)
def test_they_do_not_belong_together(others, words):
  errors = _meet(free_port(), [(2, 0, 'a', 5), *others])
  assert all(words in error for error in errors), errors


def test_the_same_index_twice():
  errors = _meet(free_port(), [(3, 0, 'a', 5), (3, 1, 'a', 5), (3, 1, 'a', 5)])
  assert any('--process_index 1' in error for error in errors), errors
  assert 'met' not in errors


def test_strangers_and_those_who_leave_again_are_no_processes():
  port = free_port()
  results = []
  first = threading.Thread(
    target=lambda: results.extend(_meet(port, [(2, 0, 'r', 20)]))
  )
  first.start()
  while True:
    try:
      stranger = socket.create_connection(('127.0.0.1', port))
      break
    except OSError:
      continue
  stranger.sendall(b'GET / HTTP/1.1\n')
  assert stranger.recv(1) == b''
  stranger.close()
  assert _meet(port, [(2, 1, 'r', 20)]) == ['met']
  first.join()
  assert results == ['met']


def _lifelines(count, lost, gone=None):
  """Lifelines of processes that have met; bare connections of `gone`."""
  port, lifelines = free_port(), {}

  def one(index):
    peers = rendezvous.meet('127.0.0.1', port, count, index, 20)
    if index == gone:
      lifelines[index] = peers
    else:
      lifelines[index] = lifeline.Lifeline(
        peers, 20, lambda gone: lost.put((index, gone))
      )

  threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return lifelines


@pytest.mark.parametrize('gone', [0, 2])
def test_the_loss_of_one_is_known_to_all(gone):
  lost = queue.Queue()
  lifelines = _lifelines(4, lost, gone)
  for peer in lifelines[gone].values():
    peer.close()  # As the system does when a process is killed.
  losses = {lost.get(timeout=10) for _ in range(3)}
  assert losses == {(index, gone) for index in range(4) if index != gone}


def test_a_farewell_is_no_loss():
  lost = queue.Queue()
  lifelines = _lifelines(3, lost)
  for index in (1, 0, 2):
    lifelines[index].close()
  assert lost.empty()


def test_helpers_of_one_process():
  value = {'a': [1, 2.5, float('inf')], 'b': None}
  assert processes.broadcast(value) == value
  done = []
  processes.on_first(lambda: done.append(1))
  assert done == [1]
  assert processes.own_rows(3).tolist() == [0, 1, 2]
  rows = np.arange(6.0).reshape(3, 2)
  np.testing.assert_array_equal(processes.all_gather(rows, 3), rows)
  tree = {'a': rows}
  assert processes.local_copy(tree) is tree
  processes.barrier('here')
  processes.agree(3, 'number')
  assert processes.explain_loss(RuntimeError('gloo')) == ''


_TALK = """
import sys
import jax, numpy as np
from t5score_jax.runtime import processes
port, index = sys.argv[1], int(sys.argv[2])
processes.start(processes.Settings('127.0.0.1:' + port, 2, index, 60, 30))
assert (processes.count(), processes.index()) == (2, index)
assert jax.device_count() == 4
value = processes.broadcast({'x': [index, float('inf'), 'é' * 400]})
assert value == {'x': [0, float('inf'), 'é' * 400]}, value
for total in (5, 1):
  rows = processes.own_rows(total)
  values = np.stack([rows * 1.5, rows + 2**40], 1)
  whole = processes.all_gather(values, total)
  wanted = np.stack([np.arange(total) * 1.5, np.arange(total) + 2.0**40], 1)
  np.testing.assert_array_equal(whole, wanted)
mesh = jax.make_mesh((4,), ('d',))
P = jax.sharding.PartitionSpec
tree = {
  name: jax.make_array_from_callback(
    (8,), jax.sharding.NamedSharding(mesh, spec), lambda i: np.arange(8.0)[i])
  for name, spec in (('whole', P()), ('parts', P('d')))
}
for name, leaf in processes.local_copy({**tree, 'own': np.arange(8.0)}).items():
  np.testing.assert_array_equal(np.asarray(leaf), np.arange(8.0), name)
processes.agree(5, 'x')
try:
  processes.agree(index, 'the answer')
  raise AssertionError
except processes.ProcessError as error:
  assert str(error) == 'processes differ in the answer: [0, 1]'
def fail():
  raise OSError('no disk')
try:
  processes.on_first(fail)
  raise AssertionError
except OSError as error:
  assert index == 0 and str(error) == 'no disk'
except processes.ProcessError as error:
  assert index == 1 and str(error) == 'process 0: no disk'
processes.barrier('end')
print('output of', index)
sys.exit(processes.stop(7, agreed=True))
"""


def test_two_processes_talk():
  port = str(free_port())
  environment = devices.environment(JAX_NUM_CPU_DEVICES='2')
  running = [
    subprocess.Popen(
      [sys.executable, '-c', _TALK, port, str(index)],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(2)
  ]
  for index, process in enumerate(running):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 7, error[-3000:]
    # What gloo prints goes to standard error.
    assert out == f'output of {index}\n'
