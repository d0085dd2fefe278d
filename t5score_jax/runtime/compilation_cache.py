"""Keeps compiled programs on disk, so that a second run starts at once.

Uses JAX's own persistent cache; this only decides where it lies. Nothing here
is needed for a right result, so whatever goes wrong is silent.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from pathlib import Path

# 'off' disables the cache, anything else is the folder to use.
VARIABLE = 'T5SCORE_COMPILATION_CACHE'


def folder() -> Path | None:
  """Where compiled programs go; None where the user wants no cache.

  ``$T5SCORE_COMPILATION_CACHE``, else ``$XDG_CACHE_HOME/t5score-jax``, else
  ``~/.cache/t5score-jax``; below it one folder for each kind of processor.
  """
  chosen = os.environ.get(VARIABLE, '')
  if chosen.lower() in ('off', '0', 'no', 'false'):
    return None
  if chosen:
    root = Path(chosen)
  else:
    base = os.environ.get('XDG_CACHE_HOME', '')
    # The XDG specification: a relative path is invalid and is ignored.
    if not os.path.isabs(base):
      base = os.path.join(os.path.expanduser('~'), '.cache')
    root = Path(base) / 't5score-jax'
  return root / f'xla-{_processor()}'


def enable() -> None:
  """Switches JAX's cache on unless the user has set one up or forbidden it."""
  import jax

  # Made when JAX starts, so that type checkers don't know it.
  if getattr(jax.config, 'jax_compilation_cache_dir', None) is not None:
    return
  path = folder()
  if path is None or not _writable(path):
    return
  jax.config.update('jax_compilation_cache_dir', str(path))
  # JAX keeps only what took a second; the programs of a small model take less.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)


def _writable(path: Path) -> bool:
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      return True
  except OSError:
    return False


def _processor() -> str:
  """Names the instruction set: programs for one CPU may not run on another."""
  features = platform.machine() + platform.processor()
  try:
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as lines:
      features += next((x for x in lines if x.startswith('flags')), '')
  except OSError:
    pass  # not Linux: JAX's own key has to do
  return hashlib.sha256(features.encode()).hexdigest()[:8]
