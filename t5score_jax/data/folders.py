"""Folders that appear under their names only when they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
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
  temporary = _temporary(target)
  try:
    # mkdtemp creates a folder that only its owner can read.
    temporary.chmod(0o777 & ~_umask())
    yield temporary
    _replace(temporary, target)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _temporary(target: Path) -> Path:
  prefix = f'.{target.name[:100]}.'
  return Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))


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
  old = _temporary(target)
  os.replace(target, old)
  try:
    os.replace(new, target)
  except OSError:
    os.replace(old, target)
    raise
  shutil.rmtree(old, ignore_errors=True)
