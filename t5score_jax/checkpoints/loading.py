"""Loads models and tokenizers, by name or from a folder of any kind."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds, registry
from t5score_jax.checkpoints.source import Options
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import vocab
from t5score_jax.errors import OptionError
from t5score_jax.nn import first_step

if TYPE_CHECKING:
  from t5score_jax.checkpoints import cross_encoders, regressors
  from t5score_jax.data import subwords

_LOGGER = logging.getLogger(__name__)
# `t5score train` silences libraries; assumptions about a checkpoint are still
# shown.
_LOGGER.setLevel(logging.WARNING)
_KERNEL = 'decoder/logits_dense/kernel'


def embedded_models() -> list[str]:
  """The names of the T5Score models that come with the package."""
  return kinds.embedded(kinds.BUNDLE)


def load_model(name_or_path: str | os.PathLike[str]) -> bundles.Bundle:
  """Loads a T5 model by the name of an embedded one, or from a folder.

  Args:
    name_or_path: The name of an embedded model, a bundle, a MODEL_DIR (its best
      checkpoint by `selection.json`, otherwise its latest), one of its
      `checkpoint_N`, or a checkpoint of any format (`checkpoints/registry.py`).

  Returns:
    A bundle with float32 NumPy weights, the moving average if the run had
    one.

  Raises:
    FileNotFoundError: There is no such model.
    CheckpointError: The folder holds none, or a damaged one.
  """
  path = kinds.folder(name_or_path)
  source = registry.load(registry.detect(path)).open_source(path, Options())
  for note in source.notes:
    _LOGGER.warning('%s: %s', path, note)
  return bundles.read_source(source)


def load_first_step(
  name_or_path: str | os.PathLike[str],
  ids: Callable[[bundles.Bundle], Sequence[int]],
  vocabulary: str | os.PathLike[str] | None = None,
) -> tuple[bundles.Bundle, tuple[int, ...]]:
  """Loads a T5 with only a few columns of its output matrix.

  Args:
    name_or_path: See `load_model`.
    ids: Returns the pieces of these columns, given the model without weights.
    vocabulary: 'bytes', or the path of a SentencePiece model or of a folder
      with one, if the model has none, like the published MetricX.

  Returns:
    The bundle, with the columns [emb_dim, n] as 'first_step/kernel' in place of
    the output matrix; and the pieces.

  Raises:
    FileNotFoundError: There is no such model.
    CheckpointError: The folder holds none, a damaged one, or no vocabulary.
    OptionError: The network has no such piece.
  """
  path = kinds.folder(name_or_path)
  spec = None if vocabulary is None else os.fspath(vocab.find(vocabulary)[0])
  source = registry.load(registry.detect(path)).open_source(
    path, Options(vocabulary=spec)
  )
  if source.vocabulary is None:
    raise CheckpointError(
      f'{path}: has no vocabulary; --option vocabulary=PATH names the '
      'SentencePiece model that its network reads (spiece.model of '
      'google/mt5-xl for a published MetricX)'
    )
  for note in source.notes:
    _LOGGER.warning('%s: %s', path, note)
  empty = bundles.Bundle(
    source.config, {}, source.vocabulary, dict(source.settings)
  )
  chosen = tuple(ids(empty))
  if wrong := [i for i in chosen if not 0 <= i < source.config.vocab_size]:
    raise OptionError(
      f'{path}: the network has the ids 0 to {source.config.vocab_size - 1}, '
      f'not {wrong[0]}'
    )
  arrays = dict(source.weights)
  kernel = arrays.pop(_KERNEL, None)
  loaded = bundles.read_source(dataclasses.replace(source, weights=arrays))
  if kernel is None:
    columns = np.asarray(
      first_step.columns(loaded.params, loaded.config, chosen)
    )
  else:
    rows = slice(0, kernel.shape[0])
    columns = np.concatenate(
      [kernel.read((rows, slice(i, i + 1))) for i in chosen], axis=1
    )
  # [emb_dim, n]
  kernels = {first_step.COLUMNS: {'kernel': columns.astype(np.float32)}}
  params = {**loaded.params, **kernels}
  return dataclasses.replace(loaded, params=params), chosen


def load_regressor(
  path: str | os.PathLike[str],
) -> regressors.Regressor | cross_encoders.CrossEncoder:
  """Loads a regressor or a cross-encoder from any folder that holds one.

  Args:
    path: Its folder, the MODEL_DIR of a run (its best checkpoint), or a
      `checkpoint_N` in one.

  Raises:
    CheckpointError: It holds neither, or a damaged one.
    FileNotFoundError: There is no such folder.
  """
  # A T5 loads faster without encoders and their tokenizers.
  from t5score_jax.checkpoints import (
    cross_encoders,
    descriptions,
    regressors,
    selection,
  )
  from t5score_jax.nn import bert, heads

  folder = Path(path)
  if not folder.is_dir():
    raise FileNotFoundError(f'no model {str(path)!r}: there is no such folder')
  if kinds.has_weights(folder):
    if regressors.is_regressor(folder):
      return regressors.load(folder)
    return cross_encoders.load(folder)
  # Orbax takes a second to import.
  from t5score_jax.checkpoints.formats import orbax

  checkpoint = selection.find_checkpoint(folder)
  config, tokenizer, settings = descriptions.read(checkpoint.parent)
  stored = orbax.open_weights(checkpoint)
  if isinstance(config, heads.RegressorConfig):
    where = str(checkpoint)
    return regressors.assemble(config, tokenizer, settings, stored, where)
  if not isinstance(config, bert.BertConfig):
    raise CheckpointError(f'{path}: a run of T5, not of a regressor')
  arrays = {n: np.asarray(a.read(), np.float32) for n, a in stored.items()}
  params = bundles.nest(arrays)
  return cross_encoders.CrossEncoder(config, params, tokenizer, settings)


def load_tokenizer(folder: str | os.PathLike[str]) -> subwords.SubwordTokenizer:
  """Loads the tokenizer of an encoder or of a model that is built on one.

  Args:
    folder: The model's name or folder.

  Raises:
    FileNotFoundError: There is no such model.
    InputError: It has no tokenizer, or a damaged one.
  """
  from t5score_jax.data import subwords

  return subwords.load_tokenizer(kinds.folder(folder))
