"""T5Score in JAX: a learned metric for generated text.

`load` gives a metric that scores; everything else is imported from the module
that defines it. Importing this package costs next to nothing: JAX is imported
when a model is loaded, TensorFlow and SeqIO only by the training input.
"""

from __future__ import annotations

import os
import typing
from typing import Any

from t5score_jax.version import __version__

if typing.TYPE_CHECKING:
  from t5score_jax.metrics.base import Metric

__all__ = ['__version__', 'load']


def load(
  name_or_path: str | os.PathLike[str] | None = None,
  metric: str | None = None,
  **options: Any,
) -> Metric:
  """Loads a metric, ready to score; T5Score with its model by default.

  `load().score(hypotheses, references)` gives the same numbers as
  `t5score score`, and `load('my_run/')` those of `t5score score -m my_run/`.

  Args:
    name_or_path: The name of an embedded model; a model folder that training
      wrote, one of its `checkpoint_N` folders, or a folder with a model alone;
      or, without `metric`, the name of a metric: `'chrf'`. A folder says by
      itself whether its model is T5Score's (the default), COMES's or
      FrugalScore's.
    metric: The metric: an encoder's folder does not say what to do with it.
    **options: Options of the metric's class, for example
      `direction='precision'` of `t5score_jax.metrics.t5score.Metric`. They are
      called like the flags of `t5score score`, but for `reference_rule`
      (`--several`) and `token_log_probs` (`--tokens`).

  Returns:
    The metric.

  Raises:
    TypeError: There is no option of that name.
    ValueError: An option has a value that it can't have, or a folder holds an
      encoder and no metric is named.
    FileNotFoundError: There is no such model.
  """
  from t5score_jax.metrics import registry

  return registry.load(name_or_path, metric, **options)
