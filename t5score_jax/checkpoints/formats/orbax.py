"""This library's own checkpoints as a format: `checkpoint_N` in a MODEL_DIR.

TensorStore reads and writes them chunk by chunk, as models larger than memory
require; a run of `t5score train` saves and resumes through
`checkpoints/native.py`. A checkpoint written here holds only parameters: it can
score, and a new run can start from it (INITIAL_CHECKPOINT_PATH).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from t5score_jax.checkpoints import (
  bundle,
  integrity,
  layouts,
  selection,
  stores,
)
from t5score_jax.checkpoints.source import (
  Options,
  Source,
  check_options,
  choose_vocabulary,
)
from t5score_jax.checkpoints.weights import (
  DTYPES,
  CheckpointError,
  LazyArray,
  check,
  shapes_of,
)
from t5score_jax.data.vocab import Vocabulary

#: Parts of a saved state that are parameters; the moving average is preferred.
_PARTS = ('ema.', 'params.')


def detect(path: Path) -> bool:
  """Whether a path is a MODEL_DIR with checkpoints, or one of them."""
  try:
    state = selection.find_checkpoint(path) / selection.STATE
  except CheckpointError:
    return False
  return any(stores.has(state, part) for part in _PARTS)


def open_weights(path: Path) -> dict[str, LazyArray]:
  """Opens the parameters of any network.

  Args:
    path: A MODEL_DIR (its best checkpoint) or a `checkpoint_N` in one.

  Returns:
    Arrays by '/'-joined name; the moving average if the run had one.

  Raises:
    CheckpointError: There are none, or they can't be read.
  """
  checkpoint = selection.find_checkpoint(path)
  integrity.check(checkpoint)
  for part in _PARTS:
    if found := stores.open_state(checkpoint / selection.STATE, part):
      return found
  raise CheckpointError(f'{checkpoint}: holds no parameters')


def open_source(path: Path, options: Options) -> Source:
  """Opens a checkpoint; see `open_weights`.

  Args:
    path: A MODEL_DIR or a `checkpoint_N` in one.
    options: They must agree with MODEL_DIR's description; without one, the
      network is inferred from the shapes.

  Returns:
    The model.

  Raises:
    CheckpointError: Not a checkpoint of a T5 network, a damaged one, or one
      that contradicts the options.
  """
  checkpoint = selection.find_checkpoint(path)
  weights = open_weights(checkpoint)
  shapes = shapes_of(weights)
  folder = checkpoint.parent
  vocabulary: Vocabulary | None
  settings: dict[str, Any] = {}
  notes: tuple[str, ...] = ()
  if (folder / bundle.CONFIG_FILE).is_file():
    config, vocabulary, settings = bundle.read_description(folder)
    message = f'{checkpoint} does not fit {folder / bundle.CONFIG_FILE}'
    check(layouts.parameter_shapes(config), shapes, message)
    check_options(options, config, vocabulary, folder / bundle.CONFIG_FILE)
  else:
    config, notes = layouts.infer_config(shapes, options.activation)
    vocabulary, more = choose_vocabulary(options.vocabulary, config, folder)
    notes = (*notes, *more)
  match = selection.FOLDER.fullmatch(checkpoint.name)
  return Source(
    config,
    weights,
    vocabulary,
    settings,
    {
      'format': 'orbax',
      'path': str(path),
      **({'step': int(match[1])} if match else {}),
    },
    notes,
  )


def write(
  source: Source, folder: Path, *, dtype: str, max_shard_bytes: int
) -> None:
  """Writes a MODEL_DIR with one checkpoint, at the source's step.

  Args:
    source: The model, with scanned layers or not.
    folder: An existing empty folder.
    dtype: The dtype of the stored weights, a key of `weights.DTYPES`.
    max_shard_bytes: Unused: Orbax chooses the size of its files.

  Raises:
    CheckpointError: The source can't be read, or has no vocabulary.
    OSError: The folder can't be written.
  """
  del max_shard_bytes
  bundle.write_description(
    folder, source.config, source.need_vocabulary(), source.settings
  )
  checkpoint = folder / f'checkpoint_{source.provenance.get("step", 0)}'
  checkpoint.mkdir()
  arrays = {
    f'params/{name}': array.astype(DTYPES[dtype])
    for name, array in source.weights.items()
  }
  stores.write_state(
    checkpoint / selection.STATE,
    arrays,
    apart={n: 1 for n in arrays if layouts.is_scanned([n.partition('/')[2]])},
  )
  integrity.write(checkpoint)
  _write_numbers(checkpoint / selection.NUMBERS, {})
  handlers = {
    selection.STATE: ocp.StandardCheckpointHandler.typestr(),
    selection.NUMBERS: ocp.JsonCheckpointHandler.typestr(),
  }
  stores.write_checkpoint_metadata(checkpoint, handlers)


def _write_numbers(folder: Path, numbers: Mapping[str, float]) -> None:
  """The evaluation stored with a checkpoint; here there is none."""
  folder.mkdir()
  text = json.dumps(dict(numbers))
  (folder / 'metadata').write_text(text, encoding='utf-8')
