"""How well a regressor agrees with held-out ratings, during training.

Injected by gin as the evaluators of `training/evaluators.py` are. Not here:
scoring of texts (`metrics/`).
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
# Of examples that are correlated apart, such as language pairs.
GROUPS_KEY = 'groups'


class Epochs(Protocol):
  """Held-out examples: `ArrayDataset` and `TextsDataset` are such."""

  batch_size: int

  def epoch(self) -> Iterator[Batch]:
    """Yields every example once, the last batch short."""


class Judged(NamedTuple):
  """Outputs and people's ratings of N held-out examples.

  Attributes:
    predicted: float64 [N, outputs].
    rated: float64 [N, outputs], NaN where not rated.
    groups: int [N], what is correlated apart.
    systems: int [N], -1 where nobody says.
  """

  predicted: np.ndarray
  rated: np.ndarray
  groups: np.ndarray
  systems: np.ndarray


class PearsonEvaluator:
  """Correlations of each output with the ratings of held-out data.

  Gives 'pearson', the mean over outputs, each with its name where there are
  several, and 'mse'. With an array 'groups' int [N] in the data, correlations
  are means over the groups. With an array 'system' int [N] it gives
  'system_kendall', Kendall's tau of systems' means with people's, the mean over
  outputs: what a metric that ranks systems is asked for, and not what
  Pearson's correlation prefers, which punishes an error of one output that
  means take away. A correlation that is not defined (an output, or all
  ratings, constant) counts as 0.
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
      model: Predicts.
      datasets: Held-out batches with 'ratings', or several such datasets, as
        of several lengths.
      name: Of this evaluator in reports.
      outputs: Names of the outputs; 'output_0' and so on by default.
    """
    self.name = name
    self._model = model
    one_only = not isinstance(datasets, Sequence)
    given: Any = [datasets] if one_only else datasets
    self._datasets: list[Epochs] = list(given)
    self._outputs = tuple(outputs)
    self._predict = jax.jit(lambda p, batch: model.predict(p, batch))

  def predictions(self, params: PyTree) -> Judged:
    """Predictions beside ratings, of all held-out data."""
    found: list[Judged] = []
    for dataset in self._datasets:
      for batch in dataset.epoch():
        ratings = np.asarray(batch.pop('ratings'), np.float64)
        rows = len(ratings)
        groups = batch.pop(GROUPS_KEY, np.zeros(rows, np.int32))
        systems = batch.pop(texts.SYSTEM_KEY, np.full(rows, -1, np.int32))
        # One shape, so that one program serves the last batch too.
        padded = {
          key: np.concatenate(
            [array, np.repeat(array[:1], dataset.batch_size - rows, axis=0)]
          )
          for key, array in batch.items()
        }
        placed = evaluators.beside(params, padded)
        result = processes.local_copy(self._predict(params, placed))
        values = np.asarray(result, np.float64)[:rows]
        found.append(Judged(values, ratings.reshape(rows, -1), groups, systems))
    return Judged(*map(np.concatenate, zip(*found, strict=True)))

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
  """Mean over outputs of Kendall's tau-b of systems' means."""
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
  """A correlation, or 0 where it is not defined."""
  if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return 0.0
  return float(correlate(x, y))
