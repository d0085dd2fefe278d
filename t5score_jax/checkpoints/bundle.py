"""Bundles: folders with everything that scoring needs, and nothing else.

Models are distributed as bundles: `config.json` (network, vocabulary,
settings), `model.safetensors` (weights under T5X's names joined by '/') and,
unless the vocabulary is bytes, `vocabulary.model`. The description is read and
written separately from the weights, so that a training folder can have the same
description beside its own checkpoints.

Not here: checkpoints of a training run with optimizer state
(`checkpoints/native.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import layouts, weights
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.source import Options, Source, check_options
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data import files, folders, vocab
from t5score_jax.nn.t5 import T5Config

FORMAT = 1
CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'
VOCABULARY_FILE = 'vocabulary.model'

_INDEX_FILE = f'{WEIGHTS_FILE}.index.json'
# Configuration fields that do not change scores, or that show elsewhere (dtypes
# in signatures, the locations of position biases in the names of weights).
_NOT_OF_SCORES = frozenset(
  ('dropout_rate', 'remat', 'dtype', 'scan_layers')
  + ('relative_attention_per_layer',)
)


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A model that can score.

  Attributes:
    config: The network's shape.
    params: Nested dict of arrays under T5X's names.
    vocabulary: Turns text into ids below `config.vocab_size`.
    settings: Recommended use; all optional. `name` (str),
      `max_length` (tokens per text, `</s>` included), `direction` (a
      direction of `metrics/t5score.py`), `lowercase` (bool).
  """

  config: T5Config
  params: Mapping[str, Any]
  vocabulary: vocab.Vocabulary
  settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def flatten_names(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  """Yields ('encoder/layers_0/mlp/wo/kernel', array) in sorted order."""
  for key in sorted(params):
    value = params[key]
    if isinstance(value, Mapping):
      for name, leaf in flatten_names(value):
        yield f'{key}/{name}', leaf
    else:
      yield key, value


def checkpoint_hash(params: Mapping[str, Any]) -> str:
  """Identifies weights: 12 hex digits of SHA-256 over names, shapes, values.

  Values are hashed as float32, which represents every bfloat16 exactly. The
  hash identifies the stored weights, whatever dtype they are loaded or used in.

  Args:
    params: Nested dict of arrays.

  Returns:
    12 lower-case hexadecimal digits.
  """
  digest = hashlib.sha256()
  for name, array in flatten_names(params):
    array = np.ascontiguousarray(np.asarray(array), dtype='<f4')
    digest.update(f'{name} {array.shape}\n'.encode())
    digest.update(array.data)
  return digest.hexdigest()[:12]


def network_hash(config: Any) -> str:
  """Identifies the settings that change scores: 12 hex digits of SHA-256.

  The same weights give different scores with other heads, activations, norms,
  pooling or token positions.

  Args:
    config: A dataclass: the configuration of a network, or of a model on one.

  Returns:
    12 lower-case hexadecimal digits; equal for scanned and unscanned layers.
  """

  def read(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
      key: read(value) if isinstance(value, Mapping) else value
      for key, value in settings.items()
      if key not in _NOT_OF_SCORES
    }

  text = json.dumps(read(dataclasses.asdict(config)), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_bundle(path: str | os.PathLike[str]) -> bool:
  """Whether `path` is a folder with a description and bundled weights.

  A damaged bundle counts as one. Hugging Face's folders and regressors have
  files of the same names but are none: their `config.json` has `model_type` or
  `kind`.
  """
  folder = Path(path)
  if not (folder / CONFIG_FILE).is_file() or not any(
    (folder / name).is_file() for name in (WEIGHTS_FILE, _INDEX_FILE)
  ):
    return False
  try:
    description = json.loads((folder / CONFIG_FILE).read_bytes())
  except ValueError:
    return True
  foreign = {'model_type', 'kind'}
  return not isinstance(description, dict) or not foreign & set(description)


def write_description(
  folder: str | os.PathLike[str],
  config: T5Config,
  vocabulary: vocab.Vocabulary,
  settings: Mapping[str, Any],
) -> None:
  """Writes `config.json` and the vocabulary into an existing folder.

  Args:
    folder: Where to write; each file appears whole or not at all.
    config: The network's shape.
    vocabulary: SentencePiece or bytes.
    settings: See `Bundle.settings`; must be JSON-serialisable.
  """
  folder = Path(folder)
  spec = 'bytes'
  if isinstance(vocabulary, vocab.SentencePieceVocabulary):
    spec = VOCABULARY_FILE
    _write_bytes(folder / VOCABULARY_FILE, vocabulary.model_bytes)
  description = {
    'format': FORMAT,
    'model': dataclasses.asdict(config),
    'vocabulary': spec,
    'extra_ids': vocabulary.extra_ids,
    'settings': dict(settings),
  }
  text = json.dumps(description, indent=2, ensure_ascii=False) + '\n'
  _write_bytes(folder / CONFIG_FILE, text.encode())


def read_description(
  folder: str | os.PathLike[str],
) -> tuple[T5Config, vocab.Vocabulary, dict[str, Any]]:
  """Reads what `write_description` wrote.

  Args:
    folder: A bundle, or a training folder with a description.

  Returns:
    The network's configuration, the vocabulary and the settings.

  Raises:
    CheckpointError: A file is missing, damaged, in another format or from
      another program.
  """
  folder = Path(folder)
  path = folder / CONFIG_FILE
  description = weights.read_json(path)
  if description.get('format') != FORMAT:
    raise CheckpointError(
      f'{path}: field "format" is {description.get("format")!r}, not {FORMAT}: '
      'the file is of another program or of a newer release of this one'
    )
  model = _field(description, 'model', dict, path)
  known = {field.name for field in dataclasses.fields(T5Config)}
  if unknown := sorted(set(model) - known):
    raise CheckpointError(
      f'{path}: field "model" has the unknown key {unknown[0]!r}: the file is '
      'damaged or of a newer release'
    )
  try:
    config = T5Config(**model)
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{path}: field "model": {error}') from error
  settings = _field(description, 'settings', dict, path)
  spec = _field(description, 'vocabulary', str, path)
  extra_ids = _field(description, 'extra_ids', int, path)
  vocabulary = _read_vocabulary(folder, spec, extra_ids)
  if vocabulary.vocab_size > config.vocab_size:
    raise CheckpointError(
      f'{path}: the vocabulary has {vocabulary.vocab_size} ids, the network '
      f'only {config.vocab_size} (field "model.vocab_size"): they do not '
      'belong together'
    )
  return config, vocabulary, settings


def save_bundle(
  folder: str | os.PathLike[str],
  bundle: Bundle,
  dtype: str = 'bfloat16',
) -> None:
  """Writes a bundle; it appears whole or not at all.

  Args:
    folder: A new folder, or an earlier bundle, which is replaced.
    bundle: What to write.
    dtype: The dtype of the stored weights, 'bfloat16' or 'float32'.

  Raises:
    CheckpointError: `folder` exists and is something other than a bundle.
    ValueError: `dtype` is neither of the two, or a weight is not finite.
  """
  if dtype not in weights.DTYPES:
    raise ValueError(f'dtype {dtype!r}: use one of {sorted(weights.DTYPES)}')
  folder = Path(folder)
  if folder.exists() and not (
    is_bundle(folder) or (folder.is_dir() and not any(folder.iterdir()))
  ):
    raise CheckpointError(
      f'{folder}: exists and is not a bundle; it is left as it is, choose '
      'another folder'
    )
  arrays = {}
  for name, array in flatten_names(bundle.params):
    stored = np.ascontiguousarray(
      np.asarray(array), dtype=weights.DTYPES[dtype]
    )
    arrays[name] = LazyArray.of(layouts.finite(name, stored))
  source = Source(bundle.config, arrays, bundle.vocabulary, bundle.settings)
  with folders.new_folder(folder) as temporary:
    write(
      source,
      temporary,
      dtype=dtype,
      max_shard_bytes=weights.SHARD_BYTES,
    )


def load_bundle(folder: str | os.PathLike[str]) -> Bundle:
  """Reads a bundle.

  Args:
    folder: The bundle's folder.

  Returns:
    The bundle, with float32 NumPy arrays as weights.

  Raises:
    CheckpointError: The folder or a file in it is missing, truncated, or does
      not fit the rest.
  """
  return read_source(open_source(Path(folder), Options()))


def read_source(source: Source) -> Bundle:
  """Reads a model of any format into memory.

  Returns:
    The bundle, with float32 NumPy arrays as weights.

  Raises:
    CheckpointError: The model can't be read, or its vocabulary is unknown.
  """
  params = {
    name: array.read().astype(np.float32)
    for name, array in source.weights.items()
  }
  return Bundle(
    source.config,
    nest(params),
    source.need_vocabulary(),
    dict(source.settings),
  )


def detect(path: Path) -> bool:
  """Whether a path is a bundle; see `checkpoints/registry.py`."""
  return is_bundle(path)


def open_source(path: Path, options: Options) -> Source:
  """Opens a bundle without reading its weights.

  Args:
    path: The bundle's folder.
    options: Must agree with the bundle, which states everything itself.

  Returns:
    The model.

  Raises:
    CheckpointError: As `load_bundle`.
    ContradictionError: The options contradict the bundle.
  """
  if not path.is_dir():
    raise CheckpointError(f'{path}: no such folder')
  config, vocabulary, settings = read_description(path)
  check_options(options, config, vocabulary, path / CONFIG_FILE)
  try:
    arrays = safetensors_files.open_folder(path)
    weights.check(
      layouts.parameter_shapes(config),
      weights.shapes_of(arrays),
      f'{path}: the weights do not fit {CONFIG_FILE}',
    )
  except CheckpointError as error:
    raise CheckpointError(str(error)) from error
  return Source(
    config,
    dict(sorted(arrays.items())),
    vocabulary,
    settings,
    {'format': 'bundle', 'path': str(path)},
  )


def write(
  source: Source, folder: Path, *, dtype: str, max_shard_bytes: int
) -> None:
  """Writes a bundle into an existing empty folder, a block at a time.

  Args:
    source: The model.
    folder: The folder.
    dtype: The dtype of the stored weights, a key of `weights.DTYPES`.
    max_shard_bytes: Larger models are split into several files, with an index.

  Raises:
    CheckpointError: The source can't be read, or has no vocabulary.
    OSError: The folder can't be written.
  """
  write_description(
    folder, source.config, source.need_vocabulary(), source.settings
  )
  arrays = {
    name: array.astype(weights.DTYPES[dtype])
    for name, array in source.weights.items()
  }
  safetensors_files.write_folder(
    folder, arrays, max_shard_bytes, metadata={'format': 'flax'}
  )


def nest(arrays: Mapping[str, Any]) -> dict[str, Any]:
  """The inverse of `flatten_names`."""
  nested: dict[str, Any] = {}
  for name, array in arrays.items():
    *parents, leaf = name.split('/')
    place = nested
    for parent in parents:
      place = place.setdefault(parent, {})
    place[leaf] = array
  return nested


def _read_vocabulary(
  folder: Path, spec: str, extra_ids: int
) -> vocab.Vocabulary:
  if spec == 'bytes':
    return vocab.ByteVocabulary(extra_ids)
  if spec != VOCABULARY_FILE:
    raise CheckpointError(
      f'{folder / CONFIG_FILE}: field "vocabulary" is {spec!r}; it must be '
      f'"bytes" or "{VOCABULARY_FILE}"'
    )
  path = folder / VOCABULARY_FILE
  if not path.is_file():
    raise CheckpointError(f'{path}: no such file: the folder is incomplete')
  try:
    return vocab.SentencePieceVocabulary(path.read_bytes(), extra_ids)
  except (RuntimeError, ValueError) as error:
    raise CheckpointError(
      f'{path}: not a SentencePiece model ({error})'
    ) from error


def _field(
  description: Mapping[str, Any], name: str, kind: type, path: Path
) -> Any:
  value = description.get(name)
  if not isinstance(value, kind):
    raise CheckpointError(
      f'{path}: field "{name}" must be of type {kind.__name__}, it is {value!r}'
    )
  return value


def _write_bytes(path: Path, content: bytes) -> None:
  with files.write_atomically(path, 'wb') as stream:
    stream.write(content)
