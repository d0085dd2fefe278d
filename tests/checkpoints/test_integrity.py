"""Damage to a checkpoint is noticed, named, and skipped on request."""

import asyncio
import contextlib
import errno
import gc
import os
import resource
import shutil
import subprocess
import sys

import devices
import fake_training
import pytest

from t5score_jax.checkpoints import checkpointer, integrity, native
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.training import loop


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained')
  fake_training.train(folder, 8)
  return folder


def _truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def _zero(path):
  size = path.stat().st_size
  with open(path, 'r+b') as stream:
    stream.seek(size // 3)
    stream.write(bytes(size // 3))


def _empty(path):
  os.truncate(path, 0)


def _largest_data(state):
  return max(state.rglob('d/*'), key=lambda path: path.stat().st_size)


DAMAGE = [
  ('_METADATA', _truncate),
  ('_METADATA', os.unlink),
  ('_sharding', _truncate),
  ('manifest.ocdbt', _truncate),
  ('array_metadatas/process_0', _truncate),
  ('../_CHECKPOINT_METADATA', _truncate),
  ('../digests.json', _truncate),
  ('../numbers/metadata', _empty),
  ('data', _truncate),
  ('data', _zero),
  ('data', _empty),
  ('data', os.unlink),
]


@pytest.mark.parametrize(
  ('name', 'damage'),
  [
    *DAMAGE[::3],
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for n, row in enumerate(DAMAGE)
      if n % 3
    ),
  ],
  ids=lambda x: getattr(x, '__name__', x),
)
def test_damage_is_named_and_skipped(trained, tmp_path, name, damage):
  shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
  run = tmp_path / 'run'
  state = run / 'checkpoint_8' / 'state'
  path = _largest_data(state) if name == 'data' else state / name
  damage(path)
  with pytest.raises(native.CheckpointError) as error:
    fake_training.train(tmp_path, 12)
  message = str(error.value)
  assert path.name in message and 'checkpoint_8' in message
  assert 'checkpoint_4 is whole' in message and 'SKIP_DAMAGED' in message
  assert '\n' not in message
  # Scoring reads no damaged weights either.
  with pytest.raises(native.CheckpointError, match=path.name):
    orbax.open_weights(run)
  result = fake_training.train(tmp_path, 12, skip_damaged=True)
  assert result == loop.Result(12, None, 'finished')
  names = {child.name for child in run.glob('*checkpoint*')}
  assert names == {
    *('checkpoint_4', 'checkpoint_8', 'checkpoint_12'),
    'damaged_checkpoint_8',
  }
  expected = fake_training.losses(trained)
  losses = fake_training.losses(tmp_path)
  assert all(losses[step] == expected[step] for step in expected)


@pytest.mark.parametrize('place', [0, 150, -1])
def test_a_bit_in_any_block_of_a_file(trained, tmp_path, monkeypatch, place):
  monkeypatch.setattr(integrity, '_BLOCK', 100)
  checkpoint = tmp_path / 'checkpoint_8'
  shutil.copytree(trained / 'run' / 'checkpoint_8', checkpoint)
  integrity.write(checkpoint)
  assert integrity.damage(checkpoint) == ''
  path = _largest_data(checkpoint / 'state')
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  path.write_bytes(content)
  assert integrity.damage(checkpoint).startswith(f'{path}: damaged')


def test_numbers_are_covered_and_may_be_replaced(trained, tmp_path):
  checkpoint = tmp_path / 'checkpoint_8'
  shutil.copytree(trained / 'run' / 'checkpoint_8', checkpoint)
  path = checkpoint / 'numbers' / 'metadata'
  with checkpointer.Checkpoints(tmp_path) as checkpoints:
    checkpoints.annotate(8, {'held_out/loss': 2.5})
  assert integrity.damage(checkpoint) == ''
  # Killed after the numbers, before their digest.
  with contextlib.suppress(KeyboardInterrupt):
    with integrity.changing(checkpoint, path):
      path.write_text('{"held_out/loss": 3}')
      raise KeyboardInterrupt
  assert integrity.damage(checkpoint) == ''
  integrity.write(checkpoint)
  path.write_text('{"held_out/loss": 4}')
  assert integrity.damage(checkpoint).startswith(f'{path}: damaged')


def test_a_file_that_the_disk_cannot_read(trained, tmp_path, monkeypatch):
  checkpoint = tmp_path / 'checkpoint_8'
  shutil.copytree(trained / 'run' / 'checkpoint_8', checkpoint)
  path = _largest_data(checkpoint / 'state')

  def crc32(chunk, before):
    if len(chunk) == path.stat().st_size:
      raise OSError(errno.EIO, 'Input/output error')
    return before

  monkeypatch.setattr(integrity.zlib, 'crc32', crc32)
  shown = integrity.damage(checkpoint)
  assert shown == f'{path}: damaged (Input/output error)'


@pytest.mark.parametrize('skip_damaged', [False, True])
def test_no_checkpoint_is_whole(trained, tmp_path, skip_damaged):
  shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
  for checkpoint in (tmp_path / 'run').glob('checkpoint_*'):
    _truncate(_largest_data(checkpoint / 'state'))
  with pytest.raises(native.CheckpointError, match='no other checkpoint'):
    fake_training.train(tmp_path, 12, skip_damaged=skip_damaged)


def test_a_checkpoint_without_digests_is_used(trained, tmp_path):
  shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
  latest = tmp_path / 'run' / 'checkpoint_8'
  (latest / integrity.DIGESTS_FILE).unlink()
  assert integrity.damage(latest) == ''
  assert fake_training.train(tmp_path, 12).step == 12


def test_tasks_that_nobody_waits_for_say_nothing(tmp_path, caplog):
  async def fail():
    raise OSError(errno.ENOSPC, 'No space left on device')

  async def leave():
    tasks.append(asyncio.ensure_future(fail()))
    await asyncio.sleep(0)
    tasks.clear()

  tasks = []
  with checkpointer.Checkpoints(tmp_path):
    asyncio.run(leave())
    gc.collect()
  assert 'never retrieved' not in caplog.text


@pytest.mark.parametrize(
  'message, shown', [('Event loop is closed', 0), ('another', 1)]
)
def test_late_writes_of_a_failed_save_say_nothing(
  tmp_path, monkeypatch, message, shown
):
  class Late:
    def __del__(self):
      raise RuntimeError(message)

  seen = []
  monkeypatch.setattr(sys, 'unraisablehook', seen.append)
  checkpointer.ignore_late_writes.__wrapped__()
  Late()
  assert len(seen) == shown


def test_a_save_that_fails_ends_the_run_at_once(tmp_path):
  # No file may grow beyond 100 kB, as on a full disk.
  program = (
    'import resource, sys\n'
    f'sys.path.insert(0, {os.path.dirname(fake_training.__file__)!r})\n'
    'import fake_training, pathlib\n'
    'from t5score_jax import errors\n'
    f'resource.setrlimit({resource.RLIMIT_FSIZE}, (100_000, 100_000))\n'
    'try:\n'
    '  fake_training.train(pathlib.Path(sys.argv[1]), 4000,\n'
    '    model=fake_training.LinearModel(hidden=5000))\n'
    'except Exception as error:\n'
    '  sys.exit(errors.report("t5score train", error))\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program, str(tmp_path)],
    env=devices.environment(),
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 1
  # Threads of TensorStore may end after the run has.
  [line] = [
    line
    for line in done.stderr.splitlines()
    if line.startswith('t5score train: ')
  ]
  run = tmp_path / 'run'
  assert line.startswith(f't5score train: {run}/checkpoint_4: cannot be saved')
  assert 'File too large' in line
  # Orbax has not reported it as well.
  assert 'ERROR:' not in done.stderr and 'Traceback' not in done.stderr
  # Noticed long before the end, and nothing half-written stays.
  assert max(fake_training.losses(tmp_path)) < 2000
  assert not list(run.glob('*checkpoint*'))
