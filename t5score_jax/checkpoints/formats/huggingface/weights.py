"""Reads the weights of a Hugging Face folder, for any network.

These are safetensors or torch's `.bin`, whole or in shards. They are read
lazily and never executed; int8 (`checkpoints/int8.py`) becomes float32. Not
here: names and settings (`config.py`, `encoders.py`).
"""

from __future__ import annotations

from pathlib import Path

from t5score_jax.checkpoints import int8
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.formats.torch import reader
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray

SAFETENSORS = 'model.safetensors'
BIN = 'pytorch_model.bin'


def open_folder(folder: Path) -> dict[str, LazyArray]:
  """Opens the weights of a folder, preferring safetensors.

  Raises:
    CheckpointError: There are none, or they are damaged.
  """
  for name, module in ((SAFETENSORS, safetensors_files), (BIN, reader)):
    if any((folder / f).is_file() for f in (name, f'{name}.index.json')):
      return int8.dequantized(module.open_folder(folder), str(folder))
  raise CheckpointError(
    f'{folder}: has neither {SAFETENSORS} nor {BIN}, nor shards of one '
    '(*.index.json)'
  )
