"""Folders that appear under their names only when they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
  """Yields a folder to fill, which takes the name when the block ends.

  If the block raises, nothing is left, and what had the name is as it was.
  Whether something may be replaced at all is for the caller to find out.

  Args:
    folder: The name; its parents are made.

  Raises:
    OSError: The folder can't be made.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = Path(
    tempfile.mkdtemp(prefix=f'.{folder.name[:200]}.', dir=folder.parent)
  )
  try:
    # mkdtemp makes what only its owner can read.
    temporary.chmod(0o777 & ~_umask())
    yield temporary
    _swap(temporary, folder)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _swap(new: Path, folder: Path) -> None:
  """Puts the finished folder `new` in the place of `folder`."""
  if not folder.exists():
    os.replace(new, folder)
    return
  # A folder that is not empty cannot be replaced in one step: the old one
  # steps aside and comes back should the second step fail.
  old = Path(tempfile.mkdtemp(prefix=f'.{folder.name[:200]}.', dir=new.parent))
  os.replace(folder, old)
  try:
    os.replace(new, folder)
  except OSError:
    os.replace(old, folder)
    raise
  shutil.rmtree(old, ignore_errors=True)
