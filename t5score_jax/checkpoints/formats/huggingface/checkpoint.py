"""Reads and writes HuggingFace folders of T5, T5 1.1, mT5, ByT5 and umT5.

A folder holds `config.json`, weights as safetensors or as torch's `.bin`, in
one file or in shards with an index, and the tokenizer's files. transformers and
torch are not needed, nothing in a folder is executed, and arrays are read
lazily. A folder written here gives the same scores in transformers; its
README.md has the code.

Not here: encoders (`encoders.py`), downloads.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds, layouts
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.formats.huggingface import card, names, tokenizer
from t5score_jax.checkpoints.formats.huggingface import (
  config as huggingface_config,
)
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.checkpoints.formats.huggingface.names import (
  EMBEDDING,
  EMBEDDING_COPIES,
  HEAD,
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
  Index,
  LazyArray,
  check,
  shapes_of,
)
from t5score_jax.data import files
from t5score_jax.data.vocab import Vocabulary
from t5score_jax.nn.t5 import T5Config

#: How often `write` reads the weights: to store them, and for their hash.
PASSES = 2

_GENERATION = {
  'decoder_start_token_id': 0,
  'eos_token_id': 1,
  'pad_token_id': 0,
}


def detect(path: Path) -> bool:
  """Whether a path is a HuggingFace folder of a T5."""
  kind = huggingface_config.model_type(path)
  return kind in huggingface_config.MODEL_TYPES


def open_source(path: Path, options: Options) -> Source:
  """Opens a folder.

  Args:
    path: The folder.
    options: They must agree with the folder; `vocabulary` takes precedence
      over a tokenizer that had to be assumed or reconstructed.

  Returns:
    The model, not scanned; weights in the dtypes in which they are stored.

  Raises:
    CheckpointError: Not such a folder, a damaged one, an unsupported network,
      or weights that do not fit it (with a diff).
  """
  if not path.is_dir():
    raise CheckpointError(f'{path}: no such folder')
  description = huggingface_config.read(path)
  config = description.config
  check_options(options, config, None, description.path)
  stored = huggingface_weights.open_folder(path)
  if not any(name.startswith('decoder.') for name in stored):
    raise CheckpointError(
      f'{path}: has no weights of a decoder: an encoder alone cannot score'
    )
  stored, tied, notes = _settle_output(description, stored)
  config = dataclasses.replace(config, logits_via_embedding=tied)
  weights = {}
  for name, array in stored.items():
    ours = names.to_ours(name, config.relative_attention_per_layer)
    if ours == name:
      weights[name] = array
    else:
      weights[ours] = names.turn(name, array)
  check(
    layouts.parameter_shapes(config),
    shapes_of(weights),
    f'{path}: the weights are not those of the network that its config.json '
    "describes (names and layouts are T5X's)",
  )
  vocabulary, more = _vocabulary(path, options, config)
  return Source(
    config,
    dict(sorted(weights.items())),
    vocabulary,
    _settings(description) or {},
    {
      'format': 'hf',
      'path': str(path),
      'model_type': description.model_type,
    },
    (*notes, *more),
  )


def read_settings(path: Path) -> dict[str, Any] | None:
  """The settings of a folder that this library wrote; None for others.

  Raises:
    CheckpointError: As `open_source`, for the description.
  """
  return _settings(huggingface_config.read(path))


def _settings(
  description: huggingface_config.Description,
) -> dict[str, Any] | None:
  settings = description.own.get('settings')
  if isinstance(settings, dict):
    return settings
  return huggingface_config.metricx_settings(description.path.parent)


def _vocabulary(
  path: Path, options: Options, config: T5Config
) -> tuple[Vocabulary | None, tuple[str, ...]]:
  """The folder's vocabulary, or the named one if the folder's is uncertain."""
  try:
    found, notes = tokenizer.read(path, config.vocab_size)
  except CheckpointError:
    if options.vocabulary is None:
      raise
    found, notes = None, ()
  # Notes are about what was assumed.
  if options.vocabulary is not None and (found is None or notes):
    return choose_vocabulary(options.vocabulary, config)
  check_options(options, config, found, path)
  if found is not None and found.vocab_size > config.vocab_size:
    raise CheckpointError(
      f'{path}: the tokenizer has {found.vocab_size} ids, the network only '
      f'{config.vocab_size}: they do not belong together'
    )
  return found, notes


def _settle_output(
  description: huggingface_config.Description, stored: Mapping[str, LazyArray]
) -> tuple[dict[str, LazyArray], bool, tuple[str, ...]]:
  """Determines the output matrix, and drops redundant names.

  Returns:
    Weights with the embedding and, unless it is tied, the output; whether it is
    tied, which in our network means scaled as well; what was assumed.

  Raises:
    CheckpointError: The names contradict each other or the settings.
  """
  made = dict(stored)
  for name in names.UNUSED:
    made.pop(name, None)
  for name in EMBEDDING_COPIES:
    copy = made.pop(name, None)
    if copy is None:
      continue
    if not _equal(made.setdefault(EMBEDDING, copy), copy):
      raise CheckpointError(
        f'{description.path.parent}: {name} differs from {EMBEDDING}; encoder '
        'and decoder share one embedding here'
      )
  embedding, head = made.get(EMBEDDING), made.get(HEAD)
  if not description.scaled and head is not None:
    return made, False, ()
  if description.scaled:
    if head is None:
      return made, True, ()
    if embedding is not None and _equal(embedding, head):
      del made[HEAD]
      return made, True, ()
    raise CheckpointError(
      f'{description.path}: tie_word_embeddings is true, but {HEAD} is another '
      f'matrix than {EMBEDDING}: if the output is not to be scaled by '
      '1/sqrt(d_model), as in T5 1.1, set it to false'
    )
  if description.saved_by >= 5 and embedding is not None:
    # transformers 5 ties a network without an output of its own, but does not
    # apply T5 1.0's scale, as our tied networks do: untie it, same numbers.
    made[HEAD] = embedding
    return (
      made,
      False,
      (
        f'output: {EMBEDDING} serves as {HEAD} without a scale, as in '
        f'transformers {description.saved_by}; read as an untied network',
      ),
    )
  return made, False, ()


def _equal(first: LazyArray, second: LazyArray) -> bool:
  """Whether two arrays are equal; reads them unless they are one object."""
  if first is second:
    return True
  if first.shape != second.shape:
    return False
  return all(
    np.array_equal(first.read(index), second.read(index))
    for index in first.blocks()
  )


def write(
  source: Source, folder: Path, *, dtype: str, max_shard_bytes: int
) -> None:
  """Writes a model into an existing empty folder, a block at a time.

  The weights are read twice, by two threads, because the card's signature has
  their hash.

  Args:
    source: The model; scanned layers are separated.
    folder: The folder.
    dtype: The dtype of the stored weights, a key of `weights.DTYPES`.
    max_shard_bytes: Larger models are split into several files, with an index.

  Raises:
    CheckpointError: The source can't be read, or transformers has no such
      network or vocabulary.
    OSError: The folder can't be written.
  """
  vocabulary = source.need_vocabulary()
  settings = dict(source.settings)
  # The signature has a name, which would otherwise be the folder's.
  settings.setdefault('name', _name(source))
  config, weights = layouts.relayout(
    source.config, source.weights, scan_layers=False
  )
  before = source.provenance.get('model_type')
  if settings.get(kinds.METRIC_SETTING) == kinds.METRICX:
    before = 'mt5'
  kind = huggingface_config.choose_model_type(config, vocabulary, before)
  contents = tokenizer.files(vocabulary, settings.get('max_length'))
  contents[huggingface_config.CONFIG_FILE] = _dump(
    huggingface_config.make(
      config,
      kind,
      dtype,
      tokenizer.tokenizer_class(vocabulary),
      {'settings': settings},
    )
  )
  contents['generation_config.json'] = _dump(_GENERATION)
  arrays = {name: a.astype(DTYPES[dtype]) for name, a in weights.items()}
  with _beside(card.make, arrays) as made:
    readme = made(config, kind, dtype, vocabulary, settings, folder)
    safetensors_files.write_folder(
      folder,
      names.all_to_theirs(arrays),
      max_shard_bytes,
      metadata={'format': 'pt'},
    )
  contents['README.md'] = readme.result().encode()
  for name, content in contents.items():
    with files.write_atomically(folder / name, 'wb') as stream:
      stream.write(content)


@contextlib.contextmanager
def _beside(
  function: Callable[..., str], arrays: Mapping[str, LazyArray]
) -> Iterator[Callable[..., concurrent.futures.Future[str]]]:
  """Runs a function that reads weights while others are written.

  An error or Ctrl-C ends both.

  Args:
    function: Takes further arguments, and then the weights.
    arrays: The weights.

  Yields:
    Starts the function in a thread.
  """
  stop = threading.Event()

  def stoppable(array: LazyArray) -> LazyArray:
    def fetch(index: Index) -> np.ndarray:
      if stop.is_set():
        raise CheckpointError('stopped')
      return array.fetch(index)

    return dataclasses.replace(array, fetch=fetch)

  given = {name: stoppable(array) for name, array in arrays.items()}
  with concurrent.futures.ThreadPoolExecutor(1) as executor:
    try:
      yield lambda *args: executor.submit(function, *args, given)
    except BaseException:
      stop.set()
      raise


def _name(source: Source) -> str:
  path = source.provenance.get('path')
  return (Path(path).resolve().name if path else '') or 'model'


def _dump(value: Mapping[str, Any]) -> bytes:
  return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()
