"""Says in words which argument of a run is not what it should be.

Gin passes on whatever a file or flag says, also 3 where a list belongs. Checked
before anything is computed or written. Not here: values that are of the right
kind and out of range, which their own classes refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t5score_jax.checkpoints import native
from t5score_jax.errors import T5ScoreError
from t5score_jax.training import optimizers, partitioning


class ArgumentError(T5ScoreError, ValueError):
  """An argument of `loop.train` is of the wrong kind."""


#: Those that are numbers and texts, which other classes may get as well.
PLAIN = (
  'model_dir',
  'train_steps',
  'random_seed',
  'microbatches',
  'keep_checkpoints',
  'ema_decay',
)


def check(arguments: Mapping[str, Any]) -> None:
  """Checks the arguments of `loop.train`.

  Args:
    arguments: By name; those that are not known here are not looked at.

  Raises:
    ArgumentError: One of them is wrong.
  """
  for name, (fits, wanted) in _KINDS.items():
    if name in arguments and not fits(arguments[name]):
      value = arguments[name]
      raise ArgumentError(f'{name.upper()} = {_shown(value)}: must be {wanted}')


def _has(*methods: str) -> Any:
  # A class in place of an object: in gin the brackets of @name() are missing.
  return lambda value: (
    not isinstance(value, type)
    and all(callable(getattr(value, method, None)) for method in methods)
  )


def _evaluators(value: Any) -> bool:
  return isinstance(value, Sequence) and all(
    _has('evaluate')(one) and isinstance(getattr(one, 'name', None), str)
    for one in value
  )


def _whole(least: int) -> Any:
  return lambda value: (
    isinstance(value, int) and not isinstance(value, bool) and value >= least
  )


def _expression(value: Any) -> bool:
  try:
    re.compile(value)
  except (TypeError, re.error):
    return False
  return True


def _shown(value: Any) -> str:
  text = ' '.join(repr(value).split())
  return text if len(text) <= 60 else f'{text[:57]}...'


def _or_none(fits: Any) -> Any:
  return lambda value: value is None or fits(value)


_KINDS: dict[str, tuple[Any, str]] = {
  'model': (
    _has('init', 'logical_axes', 'loss_fn'),
    'a model, as @t5score.GenerativeModel()',
  ),
  'model_dir': (
    lambda value: isinstance(value, str | os.PathLike) and str(value) != '',
    "a folder, as '/data/run'",
  ),
  'dataset': (_has('batches'), 'a dataset, as @datasets.ArrayDataset()'),
  'optimizer': (
    lambda value: isinstance(value, optimizers.Optimizer),
    'an optimizer, as @optimizers.adafactor()',
  ),
  'train_steps': (_whole(0), 'a whole number, at least 0'),
  'partitioner': (
    lambda value: isinstance(value, partitioning.Partitioner),
    'a partitioner, as @partitioning.Partitioner()',
  ),
  'evaluators': (
    _evaluators,
    'a list of evaluators, as [@evaluators.HeldOutLoss()], or ()',
  ),
  'selection': (
    _or_none(lambda value: isinstance(value, native.Selection)),
    'None, or @native.Selection()',
  ),
  'initial_checkpoint_path': (
    _or_none(
      lambda value: (
        isinstance(value, str | os.PathLike)
        or (
          isinstance(value, list | tuple)
          and bool(value)
          and all(isinstance(one, str | os.PathLike) for one in value)
        )
      )
    ),
    "None, a folder, as '/data/run', or a list of folders",
  ),
  'new_parameters': (
    _or_none(_expression),
    "None, or a regular expression, as '^output/'",
  ),
  'random_seed': (_whole(0), 'a whole number, at least 0'),
  'microbatches': (_whole(1), 'a whole number, at least 1'),
  'keep_checkpoints': (_whole(1), 'a whole number, at least 1'),
  'ema_decay': (
    _or_none(
      lambda value: (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < 1
      )
    ),
    'None, or a number from 0 to below 1',
  ),
  'settings': (
    _or_none(lambda value: isinstance(value, Mapping)),
    "None, or a dictionary, as {'name': 'mine'}",
  ),
}
