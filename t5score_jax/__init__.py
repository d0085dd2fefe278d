"""T5Score in JAX: a learned metric for generated text.

`load` gives a metric that scores; everything else is imported from the module
that defines it. Importing this package costs next to nothing: JAX is imported
when a model is loaded, TensorFlow and SeqIO only by the training input.
"""

from __future__ import annotations

import typing
from typing import Any

if typing.TYPE_CHECKING:
  from t5score_jax.metrics.base import Metric

__version__ = '0.1.0'
__all__ = ['__version__', 'load']


def load(name_or_path: str = 't5score-tiny', **options: Any) -> Metric:
  """Loads a T5Score model, ready to score.

  `load().score(hypotheses, references)` gives the same numbers as
  `t5score score`. Other metrics (BLEU, chrF, ...) come from
  `t5score_jax.metrics.base.load_metric`.

  Args:
    name_or_path: The name of an embedded model, a model folder that training
      wrote, one of its `checkpoint_N` folders, or a bundle folder.
    **options: Options of `t5score_jax.metrics.t5score.Metric`, for example
      `direction='precision'`.

  Returns:
    The metric.

  Raises:
    TypeError: There is no option of that name.
    ValueError: An option has a value that it can't have.
    FileNotFoundError: There is no such model.
  """
  from t5score_jax.metrics import base

  return base.load_metric('t5score', model=name_or_path, **options)
