"""Keeps compiled programs on disk, for JAX's persistent compilation cache.

Entries are written whole or not at all and verified when they are read, so that
a full disk or a killed process leaves nothing that later runs stumble over.
Results do not depend on the cache; a folder that cannot be used is reported
once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# 'off' disables the cache; any other value is its folder.
VARIABLE = 'T5SCORE_COMPILATION_CACHE'

_SUFFIX = '-program'
_DIGEST_SIZE = hashlib.sha256().digest_size
_LOGGER = logging.getLogger(__name__)
# Gin silences the root logger.
_LOGGER.setLevel(logging.WARNING)


class ProgramCache:
  """A folder of compiled programs: JAX's `CacheInterface`.

  An entry is a program and its SHA-256. Errors of the file system are reported
  once and never raised.
  """

  def __init__(self, path: Path):
    """Takes the folder, which exists."""
    self._path = path
    self._writes = True

  def get(self, key: str) -> bytes | None:
    """Returns a program; None if it is absent or damaged."""
    path = self._path / f'{key}{_SUFFIX}'
    try:
      entry = path.read_bytes()
    except FileNotFoundError:
      return None
    except OSError as error:
      self._report(error)
      return None
    program = entry[:-_DIGEST_SIZE]
    if hashlib.sha256(program).digest() == entry[-_DIGEST_SIZE:]:
      return program
    with contextlib.suppress(OSError):
      path.unlink()
    return None

  def put(self, key: str, value: bytes) -> None:
    """Stores a program."""
    if not self._writes:
      return
    temporary = None
    try:
      with tempfile.NamedTemporaryFile(
        dir=self._path, prefix='.', delete=False
      ) as file:
        temporary = file.name
        file.write(value + hashlib.sha256(value).digest())
      os.replace(temporary, self._path / f'{key}{_SUFFIX}')
    except OSError as error:
      if temporary is not None:
        with contextlib.suppress(OSError):
          os.unlink(temporary)
      self._report(error)

  def _report(self, error: OSError) -> None:
    if self._writes:
      _report(self._path, error)
    self._writes = False


def folder() -> Path | None:
  """Returns the folder of compiled programs; None if the cache is disabled.

  `$T5SCORE_COMPILATION_CACHE`, else `$XDG_CACHE_HOME/t5score-jax`, else
  `~/.cache/t5score-jax`; inside it, one folder per processor type.
  """
  chosen = os.environ.get(VARIABLE, '')
  if chosen.lower() in ('off', '0', 'no', 'false'):
    return None
  return (Path(chosen) if chosen else root()) / f'xla-{_processor()}'


def root() -> Path:
  """This library's cache: `$XDG_CACHE_HOME/t5score-jax`, or in `~/.cache`."""
  base = os.environ.get('XDG_CACHE_HOME', '')
  # The XDG specification: a relative path is invalid and is ignored.
  if not os.path.isabs(base):
    base = os.path.join(os.path.expanduser('~'), '.cache')
  return Path(base) / 't5score-jax'


def enable() -> None:
  """Enables JAX's cache unless the user configured or disabled it."""
  import jax

  # Defined at run time, unknown to type checkers.
  if getattr(jax.config, 'jax_compilation_cache_dir', None) is not None:
    return
  path = folder()
  if path is None:
    return
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
  except OSError as error:
    _report(path, error)
    return
  _use_own_format()
  jax.config.update('jax_compilation_cache_dir', str(path))
  # By default JAX keeps programs that took a second; small models take less.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)


def _use_own_format() -> None:
  """Makes JAX read and write our folder through `ProgramCache`.

  There is no public interface for this. Without these names JAX uses its own
  format, in which every run recompiles damaged entries.
  """
  from jax._src import compilation_cache

  original: Callable[[str], Any] | None
  original = getattr(compilation_cache, 'get_file_cache', None)
  if original is None or getattr(original, 'own_format', False):
    return

  def get_file_cache(path: str) -> Any:
    if Path(path) == folder():
      return ProgramCache(Path(path)), path
    return original(path)

  get_file_cache.own_format = True  # type: ignore[attr-defined]
  compilation_cache.get_file_cache = get_file_cache


_reported: set[Path] = set()


def _report(path: Path, error: OSError) -> None:
  """Names a folder that cannot be used, once."""
  if path not in _reported:
    _reported.add(path)
    _LOGGER.warning(
      'compiled programs are not kept: %s: %s; set %s to another folder, or to '
      'off',
      path,
      error.strerror or error,
      VARIABLE,
    )


def _processor() -> str:
  """Identifies the instruction set: programs may not run on another CPU."""
  features = platform.machine() + platform.processor()
  try:
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as lines:
      features += next((x for x in lines if x.startswith('flags')), '')
  except OSError:
    pass  # Not Linux: rely on JAX's own key.
  return hashlib.sha256(features.encode()).hexdigest()[:8]
