"""Formats of checkpoints that `t5score convert` and `load_model` know by name.

The module of a format defines

    open_source(path, options) -> Source
        Reads no weights yet. Raises CheckpointError.
    detect(path) -> bool
        Whether the path looks like this format, if `--from` is omitted.

and, if it can be written,

    write(source, folder, *, dtype, max_shard_bytes) -> None
        Into an existing empty folder, which the caller renames. `dtype` is a
        key of `weights.DTYPES`.
    PASSES
        How often `write` reads all weights, for progress; by default once.

Not here: what converting does (`checkpoints/convert.py`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.weights import CheckpointError

# Name -> module, imported when needed: Orbax takes a second.
_MODULES = {
  'bundle': 'bundle',
  'hf': 'formats.huggingface.checkpoint',
  'orbax': 'formats.orbax',
  't5x': 'formats.t5x',
}
_READ_ONLY = ('t5x',)


def readable() -> list[str]:
  """Names of the formats that can be read."""
  return list(_MODULES)


def writable() -> list[str]:
  """Names of the formats that can be written."""
  return [name for name in _MODULES if name not in _READ_ONLY]


def load(name: str) -> ModuleType:
  """The module of a format.

  Raises:
    CheckpointError: There is no format of that name.
  """
  if name not in _MODULES:
    raise CheckpointError(
      f'there is no format {name!r}; there are {", ".join(readable())}'
    )
  return importlib.import_module(f't5score_jax.checkpoints.{_MODULES[name]}')


def detect(path: Path, advice: str = '') -> str:
  """Detects the format of a path.

  Args:
    path: The path of a checkpoint.
    advice: What to do if no format is detected, for the message.

  Raises:
    CheckpointError: There is no such path, or it has no known format.
  """
  if not path.exists():
    raise CheckpointError(f'{path}: no such file or folder')
  for name in readable():
    if load(name).detect(path):
      return name
  kind = kinds.WORDS.get(kinds.of(path))
  raise CheckpointError(
    f'{path}: {f"{kind}, " if kind else ""}not a checkpoint of a known format '
    f'({", ".join(readable())})' + (f'; {advice}' if advice else '')
  )
