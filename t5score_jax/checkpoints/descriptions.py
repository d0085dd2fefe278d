"""Descriptions of models beside their weights, for every kind of network.

A T5 network is described like a bundle, a regressor or a cross-encoder like its
own folder; each of these modules has `write_description` and
`read_description`. With a description in MODEL_DIR the checkpoints of a run can
score without further files. Not here: weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import bundle, cross_encoders, regressors
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.nn import bert, heads, t5

CONFIG_FILE = bundle.CONFIG_FILE
_MODULES: tuple[tuple[type, Any], ...] = (
  (t5.T5Config, bundle),
  (heads.RegressorConfig, regressors),
  (bert.BertConfig, cross_encoders),
)


def write(
  folder: str | os.PathLike[str],
  config: Any,
  tokenizer: Any,
  settings: Mapping[str, Any],
) -> None:
  """Writes a description into an existing folder.

  Args:
    folder: The folder; each file appears whole or not at all.
    config: A `T5Config`, a `RegressorConfig`, or the `BertConfig` of a
      cross-encoder.
    tokenizer: A `Vocabulary` for T5, else a `SubwordTokenizer`.
    settings: The model's recommended use; JSON-serialisable.

  Raises:
    CheckpointError: A configuration of another kind.
  """
  for kind, module in _MODULES:
    if isinstance(config, kind):
      module.write_description(folder, config, tokenizer, settings)
      return
  raise CheckpointError(
    f'a {type(config).__name__} cannot be described; known are '
    + ', '.join(kind.__name__ for kind, _ in _MODULES)
  )


def read(
  folder: str | os.PathLike[str],
) -> tuple[Any, Any, dict[str, Any]]:
  """Reads (configuration, tokenizer, settings) of a described folder.

  Raises:
    CheckpointError: It is damaged.
  """
  path = Path(folder)
  module: Any = bundle
  if regressors.is_regressor(path):
    module = regressors
  elif cross_encoders.is_cross_encoder(path):
    module = cross_encoders
  found: tuple[Any, Any, dict[str, Any]] = module.read_description(path)
  return found
