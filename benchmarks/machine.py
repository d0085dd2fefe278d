"""What a measurement was made on: the machine, its load, versions."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterable
from typing import Any

_OURS = ('jax', 'jaxlib', 'numpy', 'scipy', 'tokenizers')
_FEATURES = ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16', 'amx_tile')


def describe(kind: str) -> dict[str, Any]:
  """The machine.

  Args:
    kind: The platform that computes: cpu, gpu or tpu.
  """
  cpu = _read('/proc/cpuinfo')
  memory = re.search(r'MemTotal:\s+(\d+)', _read('/proc/meminfo'))
  flags = set((_field(cpu, 'flags') or '').split())
  return {
    'platform': kind,
    'processor': _field(cpu, 'model name') or platform.processor(),
    'features': [name for name in _FEATURES if name in flags],
    'cores': len(os.sched_getaffinity(0)),
    'memory': int(memory[1]) * 1024 if memory else None,
    'system': f'{platform.system()} {platform.release()}',
    'python': platform.python_version(),
    'load': round(os.getloadavg()[0], 2),
  }


def _read(path: str) -> str:
  try:
    return pathlib.Path(path).read_text('utf-8')
  except OSError:
    return ''


def _field(text: str, name: str) -> str | None:
  found = re.search(rf'^{name}\s*:\s*(.+)$', text, re.MULTILINE)
  return found[1].strip() if found else None


def versions() -> dict[str, str]:
  """This library's version and those of what it computes with."""
  return {
    name: importlib.metadata.version(name) for name in ('t5score-jax', *_OURS)
  }


def versions_of(python: str, names: Iterable[str]) -> dict[str, str]:
  """Versions in another interpreter's environment; those that are there."""
  code = (
    'import importlib.metadata as m, sys\n'
    'for name in sys.argv[1:]:\n'
    '  try: print(name, m.version(name))\n'
    '  except m.PackageNotFoundError: pass'
  )
  done = subprocess.run(
    [python, '-c', code, *names], capture_output=True, text=True, check=True
  )
  return dict(line.split() for line in done.stdout.splitlines())
