"""Compares installed distributions with this package's requirements.

Reads only metadata; `import_errors` imports distributions, in a separate
process. The metadata is that of the installation, so that `setup.py` is the
only place that lists requirements.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

from packaging import requirements, utils

DISTRIBUTION = 't5score-jax'
# Extras of contributors, which no command needs.
_OF_CONTRIBUTORS = ('test', 'parity', 'dev')


@dataclasses.dataclass(frozen=True)
class Package:
  """A required distribution.

  Attributes:
    name: Its name.
    wanted: The required versions, as '>=1.26'; '' for any.
    version: The installed version; None if it is missing.
    suits: Whether the installed version is a required one.
  """

  name: str
  wanted: str
  version: str | None
  suits: bool


def version() -> str | None:
  """The installed version of this package; None if it runs from a folder."""
  try:
    return importlib.metadata.version(DISTRIBUTION)
  except importlib.metadata.PackageNotFoundError:
    return None


def extras() -> list[str]:
  """The names of the extras that commands use."""
  named = importlib.metadata.metadata(DISTRIBUTION).get_all('Provides-Extra')
  return [name for name in named or () if name not in _OF_CONTRIBUTORS]


def packages(extra: str = '') -> list[Package]:
  """The package's requirements or, given an extra, those that it adds.

  Args:
    extra: One of `extras()`; '' for the requirements of every installation.

  Raises:
    importlib.metadata.PackageNotFoundError: This package is not installed.
  """
  return list(_required(DISTRIBUTION, extra))


def _required(distribution: str, extra: str) -> Iterator[Package]:
  for line in importlib.metadata.requires(distribution) or ():
    wanted = requirements.Requirement(line)
    named = wanted.marker is not None and 'extra' in str(wanted.marker)
    if named != bool(extra):
      continue
    if wanted.marker is None or wanted.marker.evaluate({'extra': extra}):
      yield from _with_extras(wanted)


def _with_extras(wanted: requirements.Requirement) -> Iterator[Package]:
  """A requirement, and the requirements of its own extras: `jax[tpu]`."""
  found = _installed(wanted.name)
  yield Package(
    wanted.name,
    str(wanted.specifier),
    found,
    found is not None and wanted.specifier.contains(found, prereleases=True),
  )
  if found is not None:
    for extra in wanted.extras:
      yield from _required(wanted.name, extra)


def _installed(name: str) -> str | None:
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def import_errors(names: Iterable[str], timeout: float = 300.0) -> list[str]:
  """Imports distributions in a new process, one after another.

  Args:
    names: Installed distributions.
    timeout: Seconds allowed for each.

  Returns:
    A line for each that cannot be imported: its name and the last line of the
    error.
  """
  failed = []
  for name in names:
    modules = _modules(name)
    program = '\n'.join(f'import {module}' for module in modules)
    try:
      done = subprocess.run(
        [sys.executable, '-c', program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors='replace',
        timeout=timeout,
      )
    except subprocess.TimeoutExpired:
      failed.append(f'{name}: not imported after {timeout:g} s')
      continue
    if done.returncode:
      last = done.stderr.strip().rpartition('\n')[2]
      failed.append(f'{name}: {last or f"exit code {done.returncode}"}')
  return failed


def _modules(name: str) -> Sequence[str]:
  """The top-level packages and modules of a distribution."""
  listed = importlib.metadata.files(name) or ()
  tops = {
    path.parts[0].removesuffix('.py')
    for path in listed
    if path.suffix == '.py' and len(path.parts) < 3 and path.parts[0] != '..'
  }
  usual = utils.canonicalize_name(name).replace('-', '_')
  chosen = [usual] if usual in tops else sorted(tops)
  return [top for top in chosen if top.isidentifier()]
