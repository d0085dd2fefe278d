"""Bundles: one folder that holds all that scoring needs, and nothing else.

A bundle is what ships and what is passed around: ``config.json`` (network,
vocabulary, settings), ``model.safetensors`` (weights under T5X's names joined
by '/') and, unless the vocabulary is bytes, ``vocabulary.model``. Reading and
writing the description is apart from the weights, so that a training folder can
carry the same description beside its own checkpoints.

Not here: checkpoints of a training run with optimizer state
(``checkpoints/native.py``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from t5score_jax.data import records, vocab
from t5score_jax.nn import t5
from t5score_jax.nn.t5 import T5Config

FORMAT = 1
CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'
VOCABULARY_FILE = 'vocabulary.model'

_DTYPES = {
  'float32': np.dtype(np.float32),
  'bfloat16': np.dtype(ml_dtypes.bfloat16),
}


class BundleError(ValueError):
  """A folder is not a bundle, or a damaged one; the message says which."""


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A model that can score.

  Attributes:
    config: the network's shape.
    params: nested dict of arrays under T5X's names.
    vocabulary: turns text into ids below ``config.vocab_size``.
    settings: how the model wants to be used; all optional. ``name`` (str),
      ``max_length`` (tokens a text, ``</s>`` included), ``direction`` (a
      direction of ``metrics/t5score.py``), ``lowercase`` (bool).
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
  """Names the weights: 12 hex digits of SHA-256 over names, shapes, values.

  Values enter as float32, which holds every bfloat16 exactly: the hash is that
  of the weights as stored, whatever dtype they are loaded or used in.

  Args:
    params: nested dict of arrays.

  Returns:
    12 lower-case hexadecimal digits.
  """
  digest = hashlib.sha256()
  for name, array in flatten_names(params):
    array = np.ascontiguousarray(np.asarray(array), dtype='<f4')
    digest.update(f'{name} {array.shape}\n'.encode())
    digest.update(array.data)
  return digest.hexdigest()[:12]


def is_bundle(path: str | os.PathLike[str]) -> bool:
  """Whether ``path`` is a folder with a description and bundled weights."""
  folder = Path(path)
  return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


def write_description(
  folder: str | os.PathLike[str],
  config: T5Config,
  vocabulary: vocab.Vocabulary,
  settings: Mapping[str, Any],
) -> None:
  """Writes ``config.json`` and the vocabulary into an existing folder.

  Args:
    folder: where to write; each file appears whole or not at all.
    config: the network's shape.
    vocabulary: SentencePiece or bytes.
    settings: see ``Bundle.settings``; must be JSON-serialisable.
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
  """Reads what ``write_description`` wrote.

  Args:
    folder: a bundle, or a training folder with a description.

  Returns:
    The network's configuration, the vocabulary and the settings.

  Raises:
    BundleError: a file is missing, damaged, of another format or of another
      program.
  """
  folder = Path(folder)
  path = folder / CONFIG_FILE
  description = _read_json(path)
  if description.get('format') != FORMAT:
    raise BundleError(
      f'{path}: field "format" is {description.get("format")!r}, not {FORMAT}: '
      'the file is of another program or of a newer release of this one'
    )
  model = _field(description, 'model', dict, path)
  known = {field.name for field in dataclasses.fields(T5Config)}
  if unknown := sorted(set(model) - known):
    raise BundleError(
      f'{path}: field "model" has the unknown key {unknown[0]!r}: the file is '
      'damaged or of a newer release'
    )
  try:
    config = T5Config(**model)
  except (TypeError, ValueError) as error:
    raise BundleError(f'{path}: field "model": {error}') from error
  settings = _field(description, 'settings', dict, path)
  spec = _field(description, 'vocabulary', str, path)
  extra_ids = _field(description, 'extra_ids', int, path)
  vocabulary = _read_vocabulary(folder, spec, extra_ids)
  if vocabulary.vocab_size > config.vocab_size:
    raise BundleError(
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
    folder: a new folder, or an earlier bundle, which is replaced.
    bundle: what to write.
    dtype: of the stored weights, 'bfloat16' or 'float32'.

  Raises:
    BundleError: ``folder`` exists and is something other than a bundle.
    ValueError: ``dtype`` is neither of the two, or a weight is not finite.
  """
  if dtype not in _DTYPES:
    raise ValueError(f'dtype {dtype!r}: use one of {sorted(_DTYPES)}')
  folder = Path(folder)
  if folder.exists() and not (
    is_bundle(folder) or (folder.is_dir() and not any(folder.iterdir()))
  ):
    raise BundleError(
      f'{folder}: exists and is not a bundle; it is left as it is, choose '
      'another folder'
    )
  tensors = {}
  for name, array in flatten_names(bundle.params):
    stored = np.ascontiguousarray(np.asarray(array), dtype=_DTYPES[dtype])
    if not np.isfinite(stored.astype(np.float32)).all():
      raise ValueError(f'the weight {name} is not finite: nothing was written')
    tensors[name] = stored
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = Path(
    tempfile.mkdtemp(prefix=f'.{folder.name}.', dir=folder.parent)
  )
  try:
    write_description(
      temporary, bundle.config, bundle.vocabulary, bundle.settings
    )
    safetensors.numpy.save_file(
      tensors, temporary / WEIGHTS_FILE, metadata={'format': 'flax'}
    )
    # safetensors and mkdtemp make what only its owner can read.
    umask = _umask()
    (temporary / WEIGHTS_FILE).chmod(0o666 & ~umask)
    temporary.chmod(0o777 & ~umask)
    _swap(temporary, folder)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def load_bundle(folder: str | os.PathLike[str]) -> Bundle:
  """Reads a bundle.

  Args:
    folder: the bundle's folder.

  Returns:
    The bundle, with float32 NumPy arrays as weights.

  Raises:
    BundleError: the folder or a file in it is missing, truncated, or does not
      fit the rest.
  """
  folder = Path(folder)
  if not folder.is_dir():
    raise BundleError(f'{folder}: no such folder')
  config, vocabulary, settings = read_description(folder)
  path = folder / WEIGHTS_FILE
  if not path.is_file():
    raise BundleError(f'{path}: no such file: the bundle is incomplete')
  tensors: dict[str, np.ndarray] = {}
  try:
    with safetensors.safe_open(path, framework='np') as stored:
      for name in stored.keys():  # noqa: SIM118  (not a dict)
        tensors[name] = stored.get_tensor(name).astype(np.float32)
  except safetensors.SafetensorError as error:
    raise BundleError(
      f'{path}: not a whole safetensors file ({error}): copy or download it '
      'again'
    ) from error
  _check_names(tensors, config, path)
  return Bundle(config, _nest(tensors), vocabulary, settings)


def _check_names(
  tensors: Mapping[str, np.ndarray], config: T5Config, path: Path
) -> None:
  """Compares the weights' names and shapes with those of the network."""
  shapes = jax.eval_shape(
    lambda rng: t5.init_params(config, rng), jax.random.key(0)
  )
  expected = {name: leaf.shape for name, leaf in flatten_names(shapes)}
  if missing := sorted(set(expected) - set(tensors)):
    raise BundleError(
      f'{path}: the weight {missing[0]} is missing ({len(missing)} of '
      f'{len(expected)} are): the file does not fit {CONFIG_FILE}'
    )
  if extra := sorted(set(tensors) - set(expected)):
    raise BundleError(
      f'{path}: the network has no weight {extra[0]} ({len(extra)} too many): '
      f'the file does not fit {CONFIG_FILE}'
    )
  for name, shape in expected.items():
    if tensors[name].shape != shape:
      raise BundleError(
        f'{path}: the weight {name} has shape {tensors[name].shape}, the '
        f'network needs {shape}: the file does not fit {CONFIG_FILE}'
      )


def _nest(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """The inverse of ``flatten_names``."""
  nested: dict[str, Any] = {}
  for name, array in tensors.items():
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
    raise BundleError(
      f'{folder / CONFIG_FILE}: field "vocabulary" is {spec!r}; it must be '
      f'"bytes" or "{VOCABULARY_FILE}"'
    )
  path = folder / VOCABULARY_FILE
  if not path.is_file():
    raise BundleError(f'{path}: no such file: the folder is incomplete')
  try:
    return vocab.SentencePieceVocabulary(path.read_bytes(), extra_ids)
  except (RuntimeError, ValueError) as error:
    raise BundleError(f'{path}: not a SentencePiece model ({error})') from error


def _read_json(path: Path) -> dict[str, Any]:
  if not path.is_file():
    raise BundleError(
      f'{path}: no such file: {path.parent} is not the folder of a model of '
      'this program'
    )
  try:
    value = json.loads(path.read_bytes().decode('utf-8'))
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise BundleError(f'{path}: not JSON ({error})') from error
  if not isinstance(value, dict):
    raise BundleError(f'{path}: must hold a JSON object')
  return value


def _field(
  description: Mapping[str, Any], name: str, kind: type, path: Path
) -> Any:
  value = description.get(name)
  if not isinstance(value, kind):
    raise BundleError(
      f'{path}: field "{name}" must be of type {kind.__name__}, it is {value!r}'
    )
  return value


def _write_bytes(path: Path, content: bytes) -> None:
  with records.write_atomically(path, 'wb') as stream:
    stream.write(content)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _swap(new: Path, folder: Path) -> None:
  """Puts the finished folder ``new`` in the place of ``folder``."""
  if not folder.exists():
    os.replace(new, folder)
    return
  # A folder that is not empty cannot be replaced in one step: the old one
  # steps aside and comes back should the second step fail.
  old = Path(tempfile.mkdtemp(prefix=f'.{folder.name}.', dir=folder.parent))
  os.replace(folder, old)
  try:
    os.replace(new, folder)
  except OSError:
    os.replace(old, folder)
    raise
  shutil.rmtree(old, ignore_errors=True)
