"""Means of training values over intervals, and the handling of divergence.

Not here: what is measured (`training/state.py`), where it is written
(`training/reports.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.checkpoints import native
from t5score_jax.errors import T5ScoreError
from t5score_jax.training import reports
from t5score_jax.training import state as states


class TrainingError(T5ScoreError, ValueError):
  """A run cannot start or continue; the message says why and what to do."""


class DivergenceError(TrainingError):
  """The loss or the weights of a run are no longer finite.

  Attributes:
    good_step: The last step whose weights gave a finite loss.
  """

  def __init__(self, message: str, good_step: int):
    super().__init__(message)
    self.good_step = good_step


class Meter:
  """Sums totals on the device and fetches them one call late.

  The device never waits for the host: the next steps are queued before a sum is
  fetched.
  """

  def __init__(self, report: reports.Reports | reports.Silence, step: int):
    """Sends reports to `report`; training starts at `step`."""
    self._report = report
    self._start = step
    self._sums: Any = None
    self._waiting: tuple[int, int, Any, Any] | None = None
    self._clock = concurrent.futures.ThreadPoolExecutor(1, 'clock')
    self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))

  def add(self, totals: states.Totals) -> None:
    """Adds the totals of one call and reports the last interval if due."""
    self._sums = totals if self._sums is None else self._add(self._sums, totals)
    self.flush()

  def log(self, step: int) -> None:
    """Ends an interval at `step`."""
    # The sum is fetched later than it is ready.
    ended = self._clock.submit(_time_when_ready, self._sums)
    self._waiting = (self._start, step, self._sums, ended)
    self._start, self._sums = step, None

  def flush(self) -> None:
    """Reports the interval that ended last.

    Raises:
      DivergenceError: A loss in it is not finite.
    """
    if self._waiting is None:
      return
    start, step, sums, ended = self._waiting
    self._waiting = None
    sums = jax.device_get(sums)
    means = {
      name: float(total) / float(weight) if weight else 0.0
      for name, (total, weight) in sums.items()
      if name != states.FINITE
    }
    self._report.train(step, means, ended.result())
    _check_losses(start, sums)

  def check(self, step: int, state: states.TrainState) -> None:
    """Checks losses and weights before they are saved or evaluated.

    Raises:
      DivergenceError: They are not finite.
    """
    self.flush()
    if self._sums is not None:
      _check_losses(self._start, jax.device_get(self._sums))
    if not states.is_finite(state):
      raise DivergenceError(
        f'the weights or the state of the optimizer diverged at step {step}',
        step - 1,
      )


def check_weights(state: states.TrainState, source: str) -> None:
  """Checks the initial weights of training.

  Raises:
    TrainingError: They are not finite.
  """
  if not states.is_finite(state):
    raise TrainingError(
      f'{source}: weights that are not finite cannot be trained: use another '
      'checkpoint'
    )


def _time_when_ready(arrays: Any) -> float:
  jax.block_until_ready(arrays)
  return time.monotonic()


@contextlib.contextmanager
def only_good_checkpoints(
  checkpoints: native.Checkpoints, start: int
) -> Iterator[None]:
  """Sets aside the checkpoint from which a run diverged; names the last one.

  Args:
    checkpoints: The checkpoints of the run.
    start: The step at which it was started; that checkpoint stays.
  """
  try:
    yield
  except DivergenceError as error:
    text = f'{error}. '
    checkpoints.wait()
    for step in checkpoints.steps:
      if step > max(start, error.good_step):
        text += f'It followed from checkpoint_{step}, now '
        text += f'{checkpoints.set_aside(step, "diverged")}. '
    good = checkpoints.latest
    text += (
      'No checkpoint was saved before: the same command starts anew'
      if good is None
      else f'The same command continues from checkpoint_{good}'
    )
    raise TrainingError(
      f'{text}. Try a lower learning rate, a longer warm-up or float32'
    ) from error


def _check_losses(start: int, sums: states.Totals) -> None:
  """Checks the losses of the steps after `start`."""
  finite, steps = map(int, sums[states.FINITE])
  if finite < steps:
    # A non-finite loss leaves no finite weights.
    step = start + finite + 1
    raise DivergenceError(f'the loss is not finite at step {step}', step - 2)
