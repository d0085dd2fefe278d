"""Agreement with held-out ratings, as it is measured during training."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from t5score_jax.inputs import datasets
from t5score_jax.training import regression_evaluators


class _Echo:
  """Predicts what stands in the batch."""

  def predict(self, params, batch, rng=None):
    return batch['x'] * params


def _dataset(tmp_path, name='data', batch_size=4, **arrays):
  folder = tmp_path / name
  folder.mkdir()
  for key, value in arrays.items():
    np.save(folder / f'{key}.npy', value)
  return datasets.ArrayDataset(folder, batch_size, shuffle=False)


def _numbers(rows=10, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(rows, 2)).astype(np.float32)
  ratings = (x + rng.normal(size=x.shape)).astype(np.float32)
  ratings[2, 1] = ratings[5, 0] = np.nan
  return x, ratings


def test_pearson_is_scipys(tmp_path):
  x, ratings = _numbers()
  dataset = _dataset(tmp_path, x=x, ratings=ratings)
  evaluator = regression_evaluators.PearsonEvaluator(
    _Echo(), dataset, outputs=('coh', 'flu')
  )
  found = evaluator.evaluate(jnp.float32(2.0))
  rated = ~np.isnan(ratings)
  each = [
    scipy.stats.pearsonr(x[rated[:, n], n], ratings[rated[:, n], n])[0]
    for n in range(2)
  ]
  assert found['coh'] == pytest.approx(each[0], abs=1e-6)
  assert found['flu'] == pytest.approx(each[1], abs=1e-6)
  assert found['pearson'] == pytest.approx(np.mean(each), abs=1e-6)
  assert found['mse'] == pytest.approx(np.nanmean((2 * x - ratings) ** 2))


def test_pearson_over_groups_and_several_datasets(tmp_path):
  x, ratings = _numbers(11)
  ratings = np.nan_to_num(ratings[:, 0])
  groups = np.array([7, 7, 7, 7, 9, 9, 9, 9, 9, 7, 3])
  parts = [
    _dataset(
      tmp_path,
      str(n),
      x=x[part, :1],
      ratings=ratings[part],
      groups=groups[part],
    )
    for n, part in enumerate((slice(0, 6), slice(6, 11)))
  ]
  evaluator = regression_evaluators.PearsonEvaluator(
    _Echo(), parts, name='held'
  )
  assert evaluator.name == 'held'
  found = evaluator.evaluate(jnp.float32(1.0))
  # A group of one has no correlation.
  each = [
    scipy.stats.pearsonr(x[groups == g, 0], ratings[groups == g])[0]
    for g in (7, 9)
  ]
  assert found['pearson'] == pytest.approx(sum(each) / 3, abs=1e-6)
  assert set(found) == {'pearson', 'mse'}


def test_kendall_of_systems_means_is_scipys(tmp_path):
  """Of all instances that were rated in a dimension, whatever its other."""
  x, ratings = _numbers(12, seed=1)
  systems = np.array([3, 3, 1, 1, 1, 8, 8, 2, 2, 2, 2, 8], np.int32)
  dataset = _dataset(tmp_path, x=x, ratings=ratings, system=systems)
  found = regression_evaluators.PearsonEvaluator(_Echo(), dataset).evaluate(
    jnp.float32(1.0)
  )
  each = []
  for n in range(2):
    rated = ~np.isnan(ratings[:, n])
    means = [
      [values[rated & (systems == s), n].mean() for s in (1, 2, 3, 8)]
      for values in (x, ratings)
    ]
    each.append(scipy.stats.kendalltau(*means)[0])
  assert found['system_kendall'] == pytest.approx(np.mean(each), abs=1e-9)
  assert each[0] != each[1]


def test_constant_predictions_have_no_correlation(tmp_path):
  x, ratings = _numbers()
  ratings[:, 1] = np.nan
  systems = np.arange(10) % 3
  dataset = _dataset(tmp_path, x=x, ratings=ratings, system=systems)
  evaluator = regression_evaluators.PearsonEvaluator(_Echo(), dataset)
  found = evaluator.evaluate(jnp.float32(0.0))
  assert found['pearson'] == found['output_0'] == found['output_1'] == 0
  assert found['system_kendall'] == 0
  assert found['mse'] == pytest.approx(np.nanmean(ratings**2))
