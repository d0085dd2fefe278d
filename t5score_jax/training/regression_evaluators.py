"""Agreement of a regressor with held-out ratings during training.

Configured by gin like the evaluators of `training/evaluators.py`. Not here:
scoring texts (`metrics/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from t5score_jax.evaluation import correlation, dimensions
from t5score_jax.inputs import texts
from t5score_jax.inputs.datasets import Batch
from t5score_jax.models import regression
from t5score_jax.runtime import processes
from t5score_jax.training import evaluators

PyTree = Any
# The array of groups, such as language pairs, each with its own correlation.
GROUPS_KEY = 'groups'


class Epochs(Protocol):
  """Held-out examples, as in `ArrayDataset` and `TextsDataset`."""

  batch_size: int

  def epoch(self) -> Iterator[Batch]:
    """Yields every example once; the last batch may be smaller."""


class Predictions(NamedTuple):
  """Predictions and human ratings of N held-out examples.

  Attributes:
    predicted: float64 [N, outputs].
    rated: float64 [N, outputs], NaN where not rated.
    groups: int [N], groups, each with its own correlation.
    systems: int [N], -1 where unknown.
  """

  predicted: np.ndarray
  rated: np.ndarray
  groups: np.ndarray
  systems: np.ndarray


class PearsonEvaluator:
  """Correlations of each output with the ratings of held-out data.

  Returns 'mse' and 'pearson', averaged over outputs; with several outputs also
  the correlation of each by its name. If the data have an array 'groups' int
  [N], correlations are means over the groups. If they have an array 'system'
  int [N], the result includes 'system_kendall', Kendall's tau between mean
  predictions and mean human ratings of systems, averaged over outputs. It is
  the right criterion for a metric that ranks systems: errors of single outputs
  that cancel in the mean lower Pearson's correlation. An undefined correlation
  (constant predictions or ratings) counts as 0.
  """

  def __init__(
    self,
    model: regression.Regressor,
    datasets: Epochs | Sequence[Epochs],
    name: str = 'validation',
    outputs: Sequence[str] = (),
  ):
    """Sets up the evaluator.

    Args:
      model: The regressor.
      datasets: One or several datasets of held-out batches with 'ratings', such
        as one per length.
      name: The name of this evaluator in reports.
      outputs: The names of the outputs, by default 'output_0' and so on.
    """
    self.name = name
    self._model = model
    one_only = not isinstance(datasets, Sequence)
    given: Any = [datasets] if one_only else datasets
    self._datasets: list[Epochs] = list(given)
    self._outputs = tuple(outputs)
    self._predict = jax.jit(lambda p, batch: model.predict(p, batch))

  def predictions(self, params: PyTree) -> Predictions:
    """Predictions and ratings of all held-out data."""
    parts: list[Predictions] = []
    for dataset in self._datasets:
      for batch in dataset.epoch():
        ratings = np.asarray(batch.pop('ratings'), np.float64)
        rows = len(ratings)
        groups = batch.pop(GROUPS_KEY, np.zeros(rows, np.int32))
        systems = batch.pop(texts.SYSTEM_KEY, np.full(rows, -1, np.int32))
        # One shape, so the same program serves the last batch.
        padded = {
          key: np.concatenate(
            [array, np.repeat(array[:1], dataset.batch_size - rows, axis=0)]
          )
          for key, array in batch.items()
        }
        placed = evaluators.beside(params, padded)
        result = processes.local_copy(self._predict(params, placed))
        values = np.asarray(result, np.float64)[:rows]
        parts.append(
          Predictions(values, ratings.reshape(rows, -1), groups, systems)
        )
    return Predictions(*map(np.concatenate, zip(*parts, strict=True)))

  def evaluate(self, params: PyTree) -> Mapping[str, float]:
    """See the class."""
    predicted, rated, groups, systems = self.predictions(params)
    width = predicted.shape[1]
    names = self._outputs or tuple(f'output_{n}' for n in range(width))
    by_output = {
      name: _pearson(predicted[:, n], rated[:, n], groups)
      for n, name in enumerate(names)
    }
    numbers = {
      'pearson': float(np.mean(list(by_output.values()))),
      'mse': float(np.nanmean((predicted - rated) ** 2)),
    }
    if (systems >= 0).all():
      numbers['system_kendall'] = _system_kendall(predicted, rated, systems)
    return numbers if width == 1 else {**numbers, **by_output}


def _pearson(
  predicted: np.ndarray, rated: np.ndarray, groups: np.ndarray
) -> float:
  values = []
  for group in np.unique(groups):
    chosen = (groups == group) & ~np.isnan(rated)
    values.append(
      _or_zero(correlation.pearson, predicted[chosen], rated[chosen])
    )
  return float(np.mean(values))


def _system_kendall(
  predicted: np.ndarray, rated: np.ndarray, systems: np.ndarray
) -> float:
  """Kendall's tau-b between systems' means, averaged over outputs."""
  values = []
  for prediction, rating in zip(predicted.T, rated.T, strict=True):
    chosen = ~np.isnan(rating)
    x, y = (
      dimensions.system_means(column[chosen], systems[chosen])
      for column in (prediction, rating)
    )
    values.append(_or_zero(correlation.kendall, x, y))
  return float(np.mean(values))


def _or_zero(
  correlate: Callable[[np.ndarray, np.ndarray], float],
  x: np.ndarray,
  y: np.ndarray,
) -> float:
  """A correlation, or 0 if undefined."""
  if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return 0.0
  return float(correlate(x, y))
