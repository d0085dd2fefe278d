"""An estimator's outputs for instances, from the vectors of their texts.

Where texts are many times fewer than instances, they are embedded once and the
head is applied to rows of numbers. Not here: vectors
(`inference/embedding.py`), instances (`data/instances.py`), and scores of
segments (`metrics/comes.py`).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.data import instances
from t5score_jax.nn import heads

# Instances computed at once, and texts mixed at once.
_ROWS = 4096


def best_reference(values: np.ndarray, record: np.ndarray) -> np.ndarray:
  """Each output's largest value over a record's references (section 4.1).

  Args:
    values: [N, D], of instances.
    record: int [N], the record of each, ascending.

  Returns:
    [records, D], in the records' order.
  """
  starts = np.flatnonzero(np.diff(record, prepend=-1))
  return np.maximum.reduceat(values, starts, axis=0)


def outputs(
  model: regressors.Regressor,
  vectors: np.ndarray,
  chosen: instances.Instances,
) -> np.ndarray:
  """Outputs for instances, float32 [N, D].

  Args:
    model: The estimator.
    vectors: Of all texts, [T, emb_dim].
    chosen: The instances.
  """
  head = {'estimator': model.params['estimator']}
  found = []
  for start in range(0, len(chosen), _ROWS):
    part = slice(start, start + _ROWS)
    arrays = [chosen.hypothesis[part], chosen.source[part]]
    if chosen.reference is not None:
      arrays.append(chosen.reference[part])
    rows = len(arrays[0])
    size = _ROWS if len(chosen) > _ROWS else rows
    # One shape, so that one program serves the last part too.
    read = [vectors[np.pad(a, (0, size - rows))] for a in arrays]
    found.append(np.asarray(_estimate(model.config, head, *read))[:rows])
  return np.concatenate(found)


@functools.partial(jax.jit, static_argnums=0)
def _estimate(config, params, hypothesis, source, reference=None):
  with jax.default_matmul_precision('float32'):
    return heads.predict(params, config, hypothesis, source, reference)


def mixed(model: regressors.Regressor, layers: np.ndarray) -> np.ndarray:
  """Vectors before the mix to vectors, [T, layers, E] -> [T, E]."""
  found = [
    heads.mix_vectors(model.params, model.config, jnp.asarray(layers[n:stop]))
    for n in range(0, len(layers), _ROWS)
    if (stop := n + _ROWS)
  ]
  return np.concatenate([np.asarray(one) for one in found])
