"""A lock on a folder that one process at a time may use.

The lock is released when the process ends, in whatever way. Not here: the
processes of one run, the first of which holds the lock
(`runtime/processes.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from t5score_jax.errors import T5ScoreError

LOCK_FILE = '.lock'


class LockError(T5ScoreError, RuntimeError):
  """Another process uses the folder."""


@contextlib.contextmanager
def hold(folder: Path, name: str) -> Iterator[None]:
  """Holds the lock of an existing folder within the block.

  On file systems without locks, nothing is locked.

  Args:
    folder: The folder, which contains the lock file while the lock is held.
    name: The folder's name in messages, as 'MODEL_DIR'.

  Raises:
    LockError: Another process holds the lock; the message names it.
  """
  path = folder / LOCK_FILE
  with contextlib.ExitStack() as opened:
    while True:
      stream = opened.enter_context(open(path, 'a+', encoding='utf-8'))
      if not _take(stream):
        stream.seek(0)
        holder = stream.read().strip() or 'another process'
        raise LockError(
          f'{name} {folder} is in use by {holder}: wait until it has ended, or '
          'choose another folder'
        )
      # The previous holder may have removed the file after it was opened here.
      if _is_at(stream, path):
        break
    stream.truncate(0)
    stream.write(
      f'process {os.getpid()} on {socket.gethostname()} since '
      f'{time.strftime("%Y-%m-%d %H:%M:%S")}'
    )
    stream.flush()
    try:
      yield
    finally:
      with contextlib.suppress(OSError):
        path.unlink()


def _take(stream: IO[str]) -> bool:
  """Locks a file; False if another process holds the lock."""
  try:
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    # Other errors come from file systems without locks.
    return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
  return True


def _is_at(stream: IO[str], path: Path) -> bool:
  try:
    return os.path.samestat(os.fstat(stream.fileno()), path.stat())
  except FileNotFoundError:
    return False
