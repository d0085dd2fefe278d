"""Texts as arrays on disk: tokens, or the vectors of a frozen encoder.

Each distinct text is a row, written once and read by every run that trains on
it (`inputs/texts.py`). Not here: which texts there are (`data/instances.py`)
and the encoding itself (`inference/embedding.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints import kinds, loading, regressors
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import error_spans, runs
from t5score_jax.data.instances import Texts
from t5score_jax.data.subwords import JsonTokenizer
from t5score_jax.errors import InputError, OptionError
from t5score_jax.inference import embedding, encoding
from t5score_jax.inputs import datasets
from t5score_jax.nn import heads, unified

FORMS = ('tokens', 'vectors')
# Fields of an encoder's config that may differ for the same weights.
_FREE_FIELDS = ('dropout_rate', 'dtype', 'remat')


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How texts are encoded before training; bound by gin.

  Attributes:
    config: The regressor's config.
    path: Name or folder of an encoder, folder of a regressor to start from, or
      MODEL_DIR of a regressor's training.
    form: 'tokens', or 'vectors' of the frozen encoder, one for each layer.
    max_length: Maximum tokens per text, special tokens included; None: the
      number of the encoder's positions. Longer texts are truncated. For
      networks that read texts jointly, that of a joint sequence.
    windows: Whether longer texts are read in windows of `max_length` tokens
      whose vectors are averaged; for vectors only.
    stride: Minimum number of tokens that neighbouring windows share.
    name: Name of the resulting regressor.
    errors: File of errors in hypotheses (`data/error_spans.py`), from which a
      network with labels learns word tags; None for none.
  """

  config: heads.RegressorConfig
  path: str
  form: str = 'tokens'
  max_length: int | None = None
  windows: bool = False
  stride: int = 0
  name: str = 'comes'
  errors: str | None = None

  def __post_init__(self) -> None:
    if self.form not in FORMS:
      raise OptionError(f'form {self.form!r}: use one of {", ".join(FORMS)}')
    if self.windows and self.form != 'vectors':
      raise OptionError(
        'WINDOWS = True is for vectors of a frozen encoder (FORM = "vectors"); '
        'a network that is trained whole reads texts that are cut'
      )

    if self._joint and self.form != 'tokens':
      raise OptionError(
        f'FORM = {self.form!r}: a network that reads texts jointly has no '
        'vectors of texts; its form is "tokens"'
      )
    if self.errors is not None and not self.config.num_tags:
      raise OptionError(
        f'ERRORS = {self.errors!r}: the network has no LABELS to learn'
      )

  @property
  def _joint(self) -> bool:
    return isinstance(self.config, unified.UnifiedConfig)

  def text_length(self, positions: int) -> int:
    """Maximum tokens per text on an encoder with this many positions."""
    length = self.max_length or positions
    return unified.text_length(length) if self._joint else length

  @property
  def settings(self) -> dict[str, Any]:
    """Returns the settings stored with the regressor."""
    settings: dict[str, Any] = {'name': self.name}
    if self.max_length is not None:
      settings['max_length'] = self.max_length
    if self.windows:
      settings |= {'windows': True, 'stride': self.stride}
    return settings


@dataclasses.dataclass(frozen=True)
class Table:
  """A folder of texts.

  Attributes:
    folder: Holds `tokens.npy` and `lengths.npy`, or `vectors.npy`.
    texts: Number of texts.
    cut: Number of truncated texts.
    windowed: Number of texts read in several windows.
    seconds: Time taken to encode them.
  """

  folder: Path
  texts: int
  cut: int
  windowed: int
  seconds: float

  def about(self) -> str:
    """Describes the table: number of texts and share truncated."""
    share = 100.0 * self.cut / max(self.texts, 1)
    text = f'{self.texts} distinct texts, {self.cut} ({share:.1f}%) cut'
    if self.windowed:
      text += f', {self.windowed} read in several windows'
    return f'{text}; prepared in {self.seconds:.1f} s'


def load_start(wanted: Encoding) -> regressors.Regressor:
  """Loads the encoder or regressor that a run starts from.

  Args:
    wanted: The encoding, with its path. An encoder gets a random head.

  Returns:
    A regressor with the encoder of `wanted.config` and the folder's own head
    and outputs.

  Raises:
    CheckpointError: The folder's encoder has another shape, or there is none.
    FileNotFoundError: There is no such folder.
  """
  folder = kinds.folder(wanted.path)
  if folder.is_dir() and (
    regressors.is_regressor(folder) or orbax.detect(folder)
  ):
    start = loading.load_regressor(folder)
    if not isinstance(start, regressors.Regressor):
      raise CheckpointError(f'{folder}: a cross-encoder, not a regressor')
  else:
    bundle = encoders.load_encoder(folder)
    config = dataclasses.replace(wanted.config, encoder=bundle.config)
    params = heads.init_params(config, jax.random.key(0), bundle.params)
    start = regressors.Regressor(config, params, bundle.tokenizer)
  ours, theirs = (
    dataclasses.asdict(c.encoder) for c in (wanted.config, start.config)
  )
  if lines := [
    f'{name} {theirs[name]} there, {value} in the configuration'
    for name, value in ours.items()
    if name not in _FREE_FIELDS and theirs[name] != value
  ]:
    raise CheckpointError(f'{folder}: another encoder: {"; ".join(lines)}')
  return start


def table(
  folder: str | os.PathLike[str],
  texts: Texts,
  wanted: Encoding,
  start: regressors.Regressor,
  progress: encoding.Progress | None = None,
) -> Table:
  """Encodes texts into a folder, or opens an existing one.

  Args:
    folder: The folder, written atomically.
    texts: The texts, in this order.
    wanted: The encoding.
    start: The encoder and tokenizer.
    progress: Called with the number of encoded texts.

  Raises:
    RunError: The folder holds other texts, or another encoding.
  """
  folder = Path(folder)
  identity = {
    'texts': texts.digest(),
    'encoder': str(kinds.folder(wanted.path).resolve()),
    'form': wanted.form,
    'max_length': wanted.max_length,
    'windows': wanted.windows,
    'stride': wanted.stride,
    'layers': list(wanted.config.layers),
    'pooling': wanted.config.pooling,
    'layer_norm': wanted.config.layer_norm,
    **_errors_identity(wanted),
  }
  if folder.exists():
    return _open(folder, identity)
  begin = time.perf_counter()
  if wanted.form == 'tokens':
    arrays, cut, windowed = _tokens(list(texts), wanted, start)
  else:
    arrays, cut, windowed = _vectors(list(texts), wanted, start, progress)
  counts = {
    'count': len(texts),
    'cut': cut,
    'windowed': windowed,
    'seconds': round(time.perf_counter() - begin, 2),
  }
  with datasets.new_array_folder(folder) as new:
    for name, array in arrays.items():
      np.save(new / f'{name}.npy', array)
    description = json.dumps({**identity, **counts}, indent=2)
    (new / datasets.INFO_FILE).write_text(description + '\n', 'utf-8')
  return _open(folder, identity)


def _tokens(
  texts: Sequence[str], wanted: Encoding, start: regressors.Regressor
) -> tuple[dict[str, np.ndarray], int, int]:
  longest = wanted.text_length(start.config.encoder.max_length)
  tokenizer = start.tokenizer
  if wanted.errors is not None:
    tokenizer = tokenizer.with_offsets()
  encoded = tokenizer.encode_batch(texts, longest)
  lengths = np.array([len(text.ids) for text in encoded], np.int32)
  pad_id = start.config.encoder.pad_id
  tokens = np.full((len(texts), lengths.max()), pad_id, np.int32)
  for row, text in zip(tokens, encoded, strict=True):
    row[: len(text.ids)] = text.ids
  cut = sum(text.cut for text in encoded)
  arrays = {'tokens': tokens, 'lengths': lengths}
  if isinstance(tokenizer, JsonTokenizer) and wanted.errors is not None:
    arrays['tags'] = _tags(texts, wanted, tokenizer, tokens.shape[1])
  return arrays, cut, 0


def _errors_identity(wanted: Encoding) -> dict[str, Any]:
  if wanted.errors is None:
    return {}
  assert isinstance(wanted.config, unified.UnifiedConfig)
  return {
    'errors': runs.digest(Path(wanted.errors)),
    'labels': list(wanted.config.labels),
  }


def _tags(
  texts: Sequence[str], wanted: Encoding, tokenizer: JsonTokenizer, width: int
) -> np.ndarray:
  """Tags of tokens, int8 [texts, width]; -1 where none are known."""
  assert isinstance(wanted.config, unified.UnifiedConfig)
  assert wanted.errors is not None
  labels = wanted.config.labels
  known = error_spans.read(wanted.errors, labels)
  tags = np.full((len(texts), width), -1, np.int8)
  # As long as the longest text, so that nothing is cut anew.
  for row, text, offsets in zip(
    tags, texts, tokenizer.offsets(texts, width), strict=True
  ):
    if text in known:
      row[: len(offsets)] = error_spans.tags(offsets, known[text], labels)
  if not (tags >= 0).any():
    raise InputError(f'{wanted.errors}: has none of the hypotheses')
  return tags


def _vectors(
  texts: Sequence[str],
  wanted: Encoding,
  start: regressors.Regressor,
  progress: encoding.Progress | None,
) -> tuple[dict[str, np.ndarray], int, int]:
  # Layer mix and pooling are those of the requested config.
  model = dataclasses.replace(
    start,
    config=dataclasses.replace(wanted.config, encoder=start.config.encoder),
  )
  embedder = embedding.TextEmbedder(
    model,
    max_length=wanted.max_length,
    windows=wanted.windows,
    stride=wanted.stride,
  )
  encoded = embedder.layer_vectors(texts, progress)
  return {'vectors': encoded.values}, encoded.cut, encoded.windowed


def _open(folder: Path, identity: dict[str, Any]) -> Table:
  there = runs.read_manifest(folder, datasets.INFO_FILE) or {}
  before = {name: there.get(name) for name in identity}
  runs.check_identity(folder, before, identity, 'choose another folder')
  return Table(
    folder, there['count'], there['cut'], there['windowed'], there['seconds']
  )
