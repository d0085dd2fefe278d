"""A regressor's outputs, from the vectors of texts that were embedded once.

Scoring (`metrics/comes.py`) and fitting use it. The vectors come from
`inference/embedding.py`, the network is `nn/heads.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.nn import heads

# Rows computed at once.
_ROWS = 4096


def outputs(
  model: regressors.Regressor,
  vectors: np.ndarray,
  hypothesis: np.ndarray,
  source: np.ndarray,
  reference: np.ndarray | None = None,
) -> np.ndarray:
  """Applies a regressor's head to vectors of texts.

  Args:
    model: The regressor.
    vectors: The vectors of all texts, [T, emb_dim].
    hypothesis: The row of each instance's hypothesis in `vectors`, int [N].
    source: That of its source.
    reference: That of its reference, for a model that reads references.

  Returns:
    float32 [N, outputs].
  """
  head = {'estimator': model.params['estimator']}
  columns = [c for c in (hypothesis, source, reference) if c is not None]
  count = len(hypothesis)
  # Few shapes: one for many rows, else powers of two.
  size = _ROWS if count > _ROWS else 1 << max(0, count - 1).bit_length()
  parts = [np.zeros((0, len(model.config.outputs)), np.float32)]
  for start in range(0, count, _ROWS):
    rows = [column[start : start + _ROWS] for column in columns]
    padding = 0, size - len(rows[0])
    values = _predict(
      model.config, head, *(vectors[np.pad(row, padding)] for row in rows)
    )
    parts.append(np.asarray(values)[: len(rows[0])])
  return np.concatenate(parts)


@functools.partial(jax.jit, static_argnums=0)
def _predict(
  config: Any, params: Any, hypothesis: Any, source: Any, reference: Any = None
) -> Any:
  # Accelerators round products below float32 by default.
  with jax.default_matmul_precision('float32'):
    return heads.predict(params, config, hypothesis, source, reference)


def over_references(
  values: np.ndarray, record: np.ndarray, rule: str = 'max'
) -> np.ndarray:
  """Reduces outputs over a record's references (COMES, section 4.1).

  Each output has its own best reference.

  Args:
    values: Outputs for instances, [N, D].
    record: The record of each instance, int [N], ascending.
    rule: 'max' or 'mean'.

  Returns:
    [records, D], in the records' order.
  """
  if not len(values):
    return values
  starts = np.flatnonzero(np.diff(record, prepend=-1))
  if rule == 'max':
    return np.maximum.reduceat(values, starts, axis=0)
  counts = np.diff(starts, append=len(values))
  return np.add.reduceat(values, starts, axis=0) / counts[:, None]


def mixed(model: regressors.Regressor, layers: np.ndarray) -> np.ndarray:
  """Mixes layers' vectors, [T, layers, emb_dim] -> [T, emb_dim]."""
  parts = [
    heads.mix_vectors(
      model.params, model.config, jnp.asarray(layers[start : start + _ROWS])
    )
    for start in range(0, len(layers), _ROWS)
  ]
  return np.concatenate([np.asarray(part) for part in parts])
