"""Folders that appear whole, and temporary ones that killed processes leave."""

import os
import signal
import subprocess
import sys

import pytest

from t5score_jax.data import folders

_HOLD = """
import sys, time
from t5score_jax.data import folders
with folders.scratch(sys.argv[1]) as folder:
  (folder / 'x').write_text('x')
  print(folder, flush=True)
  time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
  """A process with a scratch folder beside `out`, and that folder."""
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLD, str(tmp_path / 'out')],
    stdout=subprocess.PIPE,
    text=True,
  )
  yield process, process.stdout.readline().strip()
  process.kill()
  process.wait()


def test_what_a_killed_process_leaves_is_removed(tmp_path, holder):
  process, left = holder
  mine = tmp_path / '.out.of.the.user'
  mine.mkdir()
  with folders.scratch(tmp_path / 'out') as folder:
    # Nothing is taken from a process that lives.
    assert os.path.exists(left) and folder.is_dir()
  os.kill(process.pid, signal.SIGKILL)
  process.wait()
  assert os.path.exists(left)
  with folders.scratch(tmp_path / 'other'):
    assert os.path.exists(left)
  with folders.new_folder(tmp_path / 'out') as folder:
    (folder / 'y').write_text('y')
    assert not os.path.exists(left)
  assert sorted(p.name for p in tmp_path.iterdir()) == [mine.name, 'out']


def test_scratch_folders_of_one_target_may_be_nested(tmp_path):
  with folders.new_folder(tmp_path / 'out') as outer:
    with folders.scratch(tmp_path / 'out') as inner:
      assert outer.is_dir() and inner.is_dir() and outer != inner
  assert os.listdir(tmp_path) == ['out']


def test_without_locks_nothing_is_removed(tmp_path, holder, monkeypatch):
  _, left = holder

  def flock(descriptor, operation):
    raise OSError('no locks here')

  monkeypatch.setattr(folders.fcntl, 'flock', flock)
  with folders.scratch(tmp_path / 'out') as folder:
    assert folder.is_dir() and os.path.exists(left)
