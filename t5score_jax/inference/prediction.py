"""A regressor's outputs, computed from text vectors that are embedded once.

Used in scoring (`metrics/comes.py`) and fitting. The vectors come from
`inference/embedding.py`; the network is `nn/heads.py`.
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
    source: The row of its source.
    reference: The row of its reference, for a model that reads references.

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


class PairedOutputs:
  """Outputs of a regressor for many pairs of a few hypotheses and references.

  The terms of single texts in the first layer are computed once per text. The
  terms of a pair are computed once for both directions (`heads.pair_terms`).

  Args:
    model: The regressor; it reads references.
    hypotheses: Vectors, [S, emb_dim].
    sources: Vectors of the hypotheses' sources, [S, emb_dim].
    references: Vectors, [R, emb_dim].
  """

  def __init__(
    self,
    model: regressors.Regressor,
    hypotheses: np.ndarray,
    sources: np.ndarray,
    references: np.ndarray,
  ):
    self._config = model.config
    self._params = jax.tree.map(jnp.asarray, model.params['estimator'])
    self._hypotheses = jnp.asarray(_padded(hypotheses))
    self._references = jnp.asarray(_padded(references))
    self._terms = _texts(
      self._params, self._hypotheses, _padded(sources), self._references
    )

  def outputs(
    self, hypothesis: np.ndarray, reference: np.ndarray
  ) -> np.ndarray:
    """The outputs of pairs: indices int [P] each -> float32 [P, outputs]."""
    (values,) = self._run(_one_way, hypothesis, reference)
    return values

  def both(
    self,
    first: np.ndarray,
    second: np.ndarray,
    first_reference: np.ndarray,
    second_reference: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of pairs whose texts are both hypothesis and reference.

    Args:
      first: Index of the first text as a hypothesis, int [P].
      second: Index of the second text as a hypothesis.
      first_reference: Index of the first text as a reference, int [P].
      second_reference: Index of the second text as a reference.

    Returns:
      Outputs for (first, second) and for (second, first), float32 [P, outputs].
    """
    one, other = self._run(
      _both_ways, first, second, first_reference, second_reference
    )
    return one, other

  def _run(self, function: Any, *columns: np.ndarray) -> list[np.ndarray]:
    count = len(columns[0])
    size = _ROWS if count > _ROWS else 1 << max(0, count - 1).bit_length()
    parts = []
    for start in range(0, max(count, 1), _ROWS):
      rows = [column[start : start + _ROWS] for column in columns]
      padding = 0, size - len(rows[0])
      values = function(
        self._config,
        self._params,
        self._hypotheses,
        self._references,
        self._terms,
        *(np.pad(row, padding).astype(np.int32) for row in rows),
      )
      parts.append([np.asarray(value)[: len(rows[0])] for value in values])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _padded(vectors: np.ndarray) -> np.ndarray:
  """Vectors with a power of two of rows, for few shapes."""
  rows = 1 << max(0, len(vectors) - 1).bit_length()
  return np.pad(vectors, ((0, rows - len(vectors)), (0, 0)))


@jax.jit
def _texts(
  params: Any, hypotheses: Any, sources: Any, references: Any
) -> tuple[Any, Any]:
  with jax.default_matmul_precision('float32'):
    return (
      heads.hypothesis_terms(params, hypotheses, sources),
      heads.reference_terms(params, references),
    )


@functools.partial(jax.jit, static_argnums=0)
def _one_way(
  config: Any,
  params: Any,
  hypotheses: Any,
  references: Any,
  terms: Any,
  hypothesis: Any,
  reference: Any,
) -> tuple[Any]:
  with jax.default_matmul_precision('float32'):
    pairs = heads.pair_terms(
      params, hypotheses[hypothesis], references[reference]
    )
    sums = terms[0][hypothesis] + terms[1][reference] + pairs
    return (heads.after_first_layer(params, config, sums),)


@functools.partial(jax.jit, static_argnums=0)
def _both_ways(
  config: Any,
  params: Any,
  hypotheses: Any,
  references: Any,
  terms: Any,
  first: Any,
  second: Any,
  first_reference: Any,
  second_reference: Any,
) -> tuple[Any, Any]:
  del references  # The same texts as the hypotheses.
  with jax.default_matmul_precision('float32'):
    pairs = heads.pair_terms(params, hypotheses[first], hypotheses[second])
    sums = (
      terms[0][first] + terms[1][second_reference] + pairs,
      terms[0][second] + terms[1][first_reference] + pairs,
    )
    one, other = (
      heads.after_first_layer(params, config, each) for each in sums
    )
    return one, other


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
