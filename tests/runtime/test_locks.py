"""One process at a time uses a folder."""

import errno
import fcntl
import os
import subprocess
import sys

import fake_training
import pytest

from t5score_jax.runtime import locks

HOLD = (
  'import pathlib, sys\n'
  'from t5score_jax.runtime import locks\n'
  "with locks.hold(pathlib.Path(sys.argv[1]), 'MODEL_DIR'):\n"
  "  print('held', flush=True)\n"
  '  sys.stdin.read()\n'
)


def test_the_holder_is_named_and_its_death_frees_the_folder(tmp_path):
  run = tmp_path / 'run'
  run.mkdir()
  with subprocess.Popen(
    [sys.executable, '-c', HOLD, str(run)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as holder:
    assert holder.stdout.readline() == 'held\n'
    with pytest.raises(locks.LockError, match=f'process {holder.pid} on') as e:
      fake_training.train(tmp_path, 2)
    assert str(run) in str(e.value)
    # Nothing was written.
    assert os.listdir(run) == [locks.LOCK_FILE]
    holder.kill()
  assert fake_training.train(tmp_path, 2).step == 2
  assert not (run / locks.LOCK_FILE).exists()


def test_many_processes_that_take_turns(tmp_path):
  """The lock file disappears with its holder, in which others may wait."""
  program = (
    'import os, pathlib, sys, time\n'
    'from t5score_jax.runtime import locks\n'
    'folder = pathlib.Path(sys.argv[1])\n'
    'end = time.monotonic() + 2\n'
    'while time.monotonic() < end:\n'
    '  try:\n'
    "    with locks.hold(folder, 'MODEL_DIR'):\n"
    "      os.close(os.open(folder / 'used', os.O_CREAT | os.O_EXCL))\n"
    "      os.unlink(folder / 'used')\n"
    '  except locks.LockError:\n'
    '    pass\n'
  )
  command = [sys.executable, '-c', program, str(tmp_path)]
  turns = [
    subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(3)
  ]
  errors = [process.communicate(timeout=60)[1] for process in turns]
  assert [process.returncode for process in turns] == [0, 0, 0], errors


def test_a_file_system_without_locks(tmp_path, monkeypatch):
  def flock(*unused):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)
  assert fake_training.train(tmp_path, 2).step == 2
  assert not (tmp_path / 'run' / locks.LOCK_FILE).exists()
