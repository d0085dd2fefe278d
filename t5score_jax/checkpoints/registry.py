"""Formats of checkpoints, found by module: `checkpoints/formats/FORMAT.py`.

A module of `checkpoints/` or `checkpoints/formats/`, or the module `checkpoint`
of a folder there, is a format if it defines

    open_source(path, options) -> Source
        Reads no weights yet. Raises CheckpointError.
    detect(path) -> bool
        Whether the path looks like one, for `--from` left out.

and it can be written if it defines

    write(source, folder, *, dtype, max_shard_bytes) -> None
        Into an existing empty folder, which the caller renames. `dtype` is a
        key of `weights.DTYPES`.

    PASSES
        How often `write` reads all weights, for progress; once if left out.

Such modules are found without importing them, so that a format that is not
there is not offered. Not here: what converting does (`checkpoints/convert.py`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from t5score_jax import checkpoints
from t5score_jax.checkpoints import formats, kinds
from t5score_jax.checkpoints.weights import CheckpointError

#: What formats are called, where that is not the module's name.
_SHORT = {'huggingface': 'hf'}


@functools.lru_cache(maxsize=1)
def _functions() -> dict[str, frozenset[str]]:
  """Format -> the functions that its module defines."""
  defined = {}
  for name, (_, file) in _modules().items():
    names = frozenset(
      node.name
      for node in ast.parse(file.read_text(encoding='utf-8')).body
      if isinstance(node, ast.FunctionDef)
    )
    if {'open_source', 'detect'} <= names:
      defined[name] = names
  return defined


def _modules() -> dict[str, tuple[str, Path]]:
  """Name to show -> (module, file) of every candidate."""
  candidates = {}
  for package in (checkpoints, formats):
    for info in pkgutil.iter_modules(package.__path__):
      module = f'{info.name}.checkpoint' if info.ispkg else info.name
      file = Path(package.__path__[0], f'{module.replace(".", "/")}.py')
      if file.exists():
        name = _SHORT.get(info.name, info.name)
        candidates[name] = (f'{package.__name__}.{module}', file)
  return candidates


def readable() -> list[str]:
  """Names of the formats that can be read."""
  return sorted(_functions())


def writable() -> list[str]:
  """Names of the formats that can be written."""
  return sorted(
    name for name, found in _functions().items() if 'write' in found
  )


def load(name: str) -> ModuleType:
  """The module of a format.

  Raises:
    CheckpointError: There is none of that name.
  """
  if name not in _functions():
    raise CheckpointError(
      f'there is no format {name!r}; there are {", ".join(readable())}'
    )
  return importlib.import_module(_modules()[name][0])


def detect(path: Path, advice: str = '') -> str:
  """Names the format that a path is of.

  Args:
    path: Where something lies.
    advice: What to do where no format knows it, for the message.

  Raises:
    CheckpointError: There is no such path, or no format knows it.
  """
  if not path.exists():
    raise CheckpointError(f'{path}: no such file or folder')
  for name in readable():
    if load(name).detect(path):
      return name
  said = kinds.WORDS.get(kinds.of(path))
  raise CheckpointError(
    f'{path}: {f"{said}, " if said else ""}not a checkpoint of a known format '
    f'({", ".join(readable())})' + (f'; {advice}' if advice else '')
  )
