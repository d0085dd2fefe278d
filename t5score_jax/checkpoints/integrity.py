"""Digests of a checkpoint's files, to detect damage and name the file.

Orbax restores bytes that a disk has lost as zeros. Not here: shapes that do not
fit a model (`checkpoints/weights.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from t5score_jax.checkpoints import selection
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import files

DIGESTS_FILE = 'digests.json'
# Against damage, not forgery: five times as fast as a cryptographic digest.
# Digests are of blocks, so that threads can share a large file.
_ALGORITHM = 'crc32 of blocks of 64 MiB'
_BLOCK = 2**26
_CHUNK = 2**22
_MOST_THREADS = 16
# Size and digest of a file, by its path in the checkpoint.
_Entries = dict[str, tuple[int, str]]
# JSON files, which are parsed in any case.
_JSON = ('_METADATA', '_CHECKPOINT_METADATA', '_sharding')


def write(checkpoint: Path) -> None:
  """Writes the digests of a checkpoint whose items are complete.

  Args:
    checkpoint: The folder, perhaps still under a temporary name.
  """
  # Not for the files beside the items, which Orbax may still change.
  paths = [path for path in checkpoint.glob('*/**/*') if path.is_file()]
  _write_entries(checkpoint, _entries(checkpoint, sorted(paths)))


@contextlib.contextmanager
def changing(checkpoint: Path, path: Path) -> Iterator[None]:
  """Renews the digest of a file that the block replaces atomically.

  If interrupted at any point, the checkpoint still counts as undamaged.
  """
  entries = _read_entries(checkpoint)
  if entries is None:
    yield
    return
  entries.pop(path.relative_to(checkpoint).as_posix(), None)
  _write_entries(checkpoint, entries)
  yield
  _write_entries(checkpoint, entries | _entries(checkpoint, [path]))


def _entries(checkpoint: Path, paths: Sequence[Path]) -> _Entries:
  sizes = [path.stat().st_size for path in paths]
  return {
    path.relative_to(checkpoint).as_posix(): (size, digest)
    for path, size, digest in zip(
      paths, sizes, _digests(paths, sizes), strict=True
    )
  }


def _write_entries(checkpoint: Path, entries: _Entries) -> None:
  with files.write_atomically(checkpoint / DIGESTS_FILE) as stream:
    json.dump({'algorithm': _ALGORITHM, 'files': entries}, stream, indent=1)


def _read_entries(checkpoint: Path) -> _Entries | None:
  """Sizes and digests by name; None if absent or of an earlier version.

  Raises:
    CheckpointError: The file is damaged.
  """
  path = checkpoint / DIGESTS_FILE
  if not path.is_file():
    return None
  try:
    content = json.loads(path.read_text('utf-8'))
    if content['algorithm'] != _ALGORITHM:
      return None
    return {
      name: (int(size), str(digest))
      for name, (size, digest) in content['files'].items()
    }
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise CheckpointError(f'{path}: damaged ({error})') from error


def damage(checkpoint: Path) -> str:
  """Describes the first damaged file of a checkpoint; '' if it is whole.

  A checkpoint without digests, of an earlier version, is checked in part.
  """
  for path in (p for p in checkpoint.rglob('*') if p.name in _JSON):
    try:
      json.loads(path.read_text('utf-8'))
    except (OSError, ValueError) as error:
      return f'{path}: damaged ({error})'
  if not (checkpoint / selection.STATE).is_dir():
    return f'{checkpoint / selection.STATE}: missing'
  try:
    named = _read_entries(checkpoint)
  except CheckpointError as error:
    return str(error)
  entries = {checkpoint / name: entry for name, entry in (named or {}).items()}
  # Sizes first, which are cheap.
  for path, (size, _) in entries.items():
    if not path.is_file():
      return f'{path}: missing'
    if path.stat().st_size != size:
      return f'{path}: damaged ({path.stat().st_size} bytes, not {size})'
  try:
    digests = _digests(list(entries), [size for size, _ in entries.values()])
  except OSError as error:
    return f'{error.filename}: damaged ({error.strerror})'
  for path, digest in zip(entries, digests, strict=True):
    if digest != entries[path][1]:
      return f'{path}: damaged (its digest differs)'
  return ''


def check(checkpoint: Path) -> None:
  """Raises CheckpointError if a checkpoint is damaged; it names the file."""
  if text := damage(checkpoint):
    raise CheckpointError(text)


def cause(error: BaseException) -> str:
  """The reason why Orbax failed, in a few words, with the file if known."""
  text = ' '.join(str(error).split())
  if isinstance(error, OSError) and error.strerror:
    place = f' ({error.filename})' if error.filename else ''
    return error.strerror + place
  # Of TensorStore: ...local file "PATH"... No space left on device [...]
  reason = re.search(r": ([A-Z][\w ]+) \[os_error_code='\d+'", text)
  path = re.search(r'local file "([^"]+)"', text)
  if reason:
    return reason[1] + (f' ({path[1]})' if path else '')
  return text if len(text) <= 300 else f'{text[:297]}...'


def _digests(paths: Sequence[Path], sizes: Sequence[int]) -> list[str]:
  """Digests of files; several threads read the blocks."""
  threads = min(_MOST_THREADS, os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    blocks = [
      [pool.submit(_digest, path, at) for at in range(0, size, _BLOCK)]
      for path, size in zip(paths, sizes, strict=True)
    ]
    return [' '.join(block.result() for block in file) for file in blocks]


def _digest(path: Path, start: int) -> str:
  digest, left = 0, _BLOCK
  try:
    with open(path, 'rb') as stream:
      stream.seek(start)
      while left and (chunk := stream.read(min(left, _CHUNK))):
        digest = zlib.crc32(chunk, digest)
        left -= len(chunk)
  except OSError as error:
    error.filename = str(path)  # Errors of reading have none.
    raise
  return f'{digest:08x}'
