"""Loads regressors of any layout for the metrics built on them.

Not a metric by itself (hence the underscore).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from t5score_jax.checkpoints import kinds, loading, regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.errors import OptionError


def load(
  model: str | os.PathLike[str] | None,
  metric: str,
  wanted: Sequence[str],
  tokenizer: str | os.PathLike[str] | None = None,
  num_heads: int | None = None,
  layer_transformation: str | None = None,
) -> regressors.Regressor:
  """Loads a regressor from its own folder, a run's, or a COMET checkpoint.

  Args:
    model: The folder, or a COMET `.ckpt`.
    metric: The metric's name, for messages.
    wanted: The kinds in `checkpoints/kinds.py` that the metric reads.
    tokenizer: For a COMET checkpoint; see
      `checkpoints.formats.comet.checkpoint.load_comet`, also for the others.
    num_heads: Likewise.
    layer_transformation: Likewise.

  Raises:
    FileNotFoundError: There is no such folder.
    ValueError: No model is named, or it is of another kind or damaged.
  """
  if not model:
    raise OptionError(
      f'{metric} needs a model: give the folder of a regressor or of a COMET '
      'checkpoint as the model (-m)'
    )
  path = kinds.folder(model)
  kind = kinds.of(path)
  if kind in {*kinds.REGRESSORS, *kinds.COMETS} - set(wanted):
    raise OptionError(
      f'{path}: {kinds.WORDS[kind]}, which {metric} does not read'
    )
  if kind not in kinds.REGRESSORS:
    return comet.load_comet(path, tokenizer, num_heads, layer_transformation)
  if tokenizer or layer_transformation or num_heads:
    raise OptionError(
      'tokenizer, layer_transformation and num_heads are for COMET checkpoints'
    )
  loaded = loading.load_regressor(path)
  assert isinstance(loaded, regressors.Regressor)
  return loaded
