"""Folders that appear under their names only when they are complete.

Temporary folders are created beside their final names. The next process that
needs a folder of that name removes those left by killed processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
  """Yields a temporary folder that takes the given name when the block ends.

  If the block raises, nothing is left behind and whatever had the name is
  unchanged. The caller decides whether an existing folder may be replaced.

  Args:
    folder: The name. Parent folders are created.

  Raises:
    OSError: The folder cannot be created.
  """
  target = Path(os.path.abspath(folder))
  target.parent.mkdir(parents=True, exist_ok=True)
  with scratch(target) as temporary:
    # mkdtemp creates a folder that only its owner can read.
    temporary.chmod(0o777 & ~_umask())
    yield temporary
    _replace(temporary, target)


@contextlib.contextmanager
def scratch(target: str | os.PathLike[str]) -> Iterator[Path]:
  """Yields a temporary folder beside a file or folder, and removes it.

  Args:
    target: The file or folder that it is for, in an existing folder.

  Raises:
    OSError: The folder cannot be created.
  """
  target = Path(os.path.abspath(target))
  prefix = f'.{target.name[:100]}.'
  # Locks are seen on this host only.
  suffix = f'.{socket.gethostname()}.temporary'
  for path in target.parent.iterdir():
    if path.name.startswith(prefix) and path.name.endswith(suffix):
      # Locked as long as its process lives.
      with contextlib.suppress(OSError), _locked(path):
        shutil.rmtree(path)
  with contextlib.ExitStack() as held:
    while True:
      temporary = Path(tempfile.mkdtemp(suffix, prefix, target.parent))
      try:
        held.enter_context(_locked(temporary))
      except BlockingIOError:
        continue  # Another process has just taken it for an abandoned one.
      except OSError:
        pass  # A file system without locks: no process removes anything.
      if temporary.is_dir():
        break
    try:
      yield temporary
    finally:
      shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
  """Holds a folder's lock; raises OSError where another process has it."""
  descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(descriptor)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _replace(new: Path, target: Path) -> None:
  """Moves the finished folder `new` to `target`."""
  if not target.exists():
    os.replace(new, target)
    return
  # A folder that is not empty cannot be replaced in one step: the old one is
  # moved aside, and moved back if the second step fails.
  prefix = f'.{target.name[:100]}.'
  # Not a scratch folder: its contents must not be lost.
  old = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
  os.replace(target, old)
  try:
    os.replace(new, target)
  except OSError:
    os.replace(old, target)
    raise
  shutil.rmtree(old, ignore_errors=True)
