"""T5Score in JAX: a learned metric for generated text.

`load` returns a metric that scores; everything that is not in `__all__` is
imported from the module that defines it. Importing this package is cheap: JAX
is imported when a model is loaded, TensorFlow and SeqIO only by the training
input.
"""

from __future__ import annotations

import os
import typing
from typing import Any

from t5score_jax import errors
from t5score_jax.version import __version__

if typing.TYPE_CHECKING:
  from t5score_jax.metrics.base import Metric, Progress, Scores

__all__ = ['Metric', 'Scores', '__version__', 'errors', 'load']


def load(
  name_or_path: str | os.PathLike[str] | None = None,
  metric: str | None = None,
  *,
  progress: Progress | None = None,
  **options: Any,
) -> Metric:
  """Loads a metric, ready to score; by default T5Score with its model.

  `load()(hypotheses, references)` gives the same numbers as `t5score score`,
  and `load('my_run/')` those of `t5score score -m my_run/`.

  Args:
    name_or_path: The name of an embedded model; a model folder that training
      wrote, one of its `checkpoint_N` folders, or a folder with a model alone;
      or, without `metric`, the name of a metric: `'chrf'`. A model folder
      says whether its model is T5Score's (the default), COMES's or
      FrugalScore's.
    metric: The metric; needed for an encoder's folder, which several metrics
      read.
    progress: Called with (items done, items in all) while scoring, by metrics
      with a model.
    **options: Options of the metric's class, for example
      `direction='precision'` of `t5score_jax.metrics.t5score.Metric`. They have
      the names of the flags of `t5score score`, except `reference_rule`
      (`--several`) and `token_log_probs` (`--tokens`).

  Returns:
    The metric.

  Raises:
    TypeError: The metric has no option of that name.
    ValueError: An option has an invalid value, or a folder holds an encoder
      and no metric is named.
    FileNotFoundError: There is no such model.
  """
  from t5score_jax.metrics import registry

  loaded = registry.load(name_or_path, metric, **options)
  if progress is not None:
    loaded.progress = progress
  return loaded


if not typing.TYPE_CHECKING:

  def __getattr__(name: str) -> Any:
    """Imports the classes on first use: NumPy takes a tenth of a second."""
    if name in ('Metric', 'Scores'):
      from t5score_jax.metrics import base

      return getattr(base, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return list(__all__)
