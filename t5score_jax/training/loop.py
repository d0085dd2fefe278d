"""The trunk: `train()`, read from top to bottom, is the whole of a run.

Gin binds `t5score_jax.training.loop.train`. Which metric is trained never
shows here: a model brings its loss, a dataset its batches, evaluators their
numbers. Not here: the update itself (`training/state.py`), files
(`checkpoints/native.py`, `training/reports.py`).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gin
import jax
import jax.numpy as jnp

from t5score_jax.checkpoints import native
from t5score_jax.data import records
from t5score_jax.errors import T5ScoreError
from t5score_jax.inputs import datasets, prefetch
from t5score_jax.runtime import processes, validation
from t5score_jax.training import (
  optimizers,
  partitioning,
  reports,
  stopping,
)
from t5score_jax.training import state as states

#: Arguments of `train` that are numbers or strings. Other configurables may
#: take the same macros.
PLAIN_ARGUMENTS = (
  'model_dir',
  'train_steps',
  'random_seed',
  'microbatches',
  'keep_checkpoints',
  'ema_decay',
)


class ArgumentError(T5ScoreError, ValueError):
  """An argument of `train` has the wrong type or is out of range."""

  exit_code = 2


class TrainingError(T5ScoreError, ValueError):
  """A run cannot start or go on; the message says why and what to do."""


@runtime_checkable
class Evaluator(Protocol):
  """Judges parameters during training."""

  name: str

  def evaluate(self, params: Any) -> Mapping[str, float]:
    """Returns numbers; the trunk reports them as `name/key`."""


@dataclasses.dataclass(frozen=True)
class Cadence:
  """How often things happen, in steps.

  Attributes:
    log_every: Fetch and report the mean loss.
    save_every: Save a checkpoint; the last step is always saved.
    eval_every: Run the evaluators, and once at the end; None: at the end
      only.
    steps_per_call: Steps the device takes in one call without the host,
      where no other cadence falls between.
  """

  log_every: int = 100
  save_every: int = 1000
  eval_every: int | None = None
  steps_per_call: int = 1

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value is not None or field.name != 'eval_every':
        validation.check(validation.Positive, ValueError, **{field.name: value})

  @property
  def all(self) -> list[int]:
    """The cadences no call may cross."""
    every = [self.log_every, self.save_every, self.eval_every]
    return [steps for steps in every if steps is not None]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended.

  Attributes:
    step: The last step.
    best_step: The step of the best checkpoint, if one was selected.
    reason: 'finished', 'stopped early', 'interrupted' (Ctrl-C), 'preempted'
      (SIGTERM) or 'dry run'.
  """

  step: int
  best_step: int | None
  reason: str


def train(
  *,
  model: states.Model,
  model_dir: validation.Text | os.PathLike[str],
  dataset: datasets.Dataset,
  optimizer: optimizers.Optimizer,
  train_steps: validation.NonNegative,
  cadence: Cadence = Cadence(),  # noqa: B008 (frozen)
  partitioner: partitioning.Partitioner = partitioning.Partitioner(),  # noqa: B008
  evaluators: Sequence[Evaluator] = (),
  selection: native.Selection | None = None,
  initial_checkpoint_path: str
  | os.PathLike[str]
  | Sequence[str | os.PathLike[str]]
  | None = None,
  new_parameters: str | None = None,
  random_seed: validation.NonNegative = 0,
  microbatches: validation.Positive = 1,
  ema_decay: validation.Share | None = None,
  keep_checkpoints: validation.Positive = 3,
  vocabulary: Any = None,
  settings: Mapping[str, Any] | None = None,
  dry_run: bool = False,
  quiet: bool = False,
) -> Outcome:
  """Trains a model, or goes on where MODEL_DIR ends.

  With many processes (`processes.start`) all call this with the same
  arguments; each reads its share of the batches, process 0 writes the reports.

  Args:
    model: Parameters and loss.
    model_dir: Folder of the run; made if need be.
    dataset: Batches.
    optimizer: Updates.
    train_steps: Step at which to end, counted from the run's beginning.
    cadence: How often to report, save and evaluate.
    partitioner: Where arrays live.
    evaluators: Numbers for people, and for `selection`.
    selection: Which checkpoint is the best, and when to stop early.
    initial_checkpoint_path: MODEL_DIR, checkpoint_N, bundle or the folder of a
      regressor or an encoder whose weights a new run starts from, or several
      that complete each other. A run that has a checkpoint goes on from that.
    new_parameters: Regular expression of the parameters that are random where
      the initial checkpoint lacks them, as a new head on an encoder.
    random_seed: Of initial weights and dropout; data have a seed of their own.
    microbatches: Parts in which a batch is differentiated, to save memory.
    ema_decay: Moving average of the parameters, for evaluation and export.
    keep_checkpoints: How many of the latest to keep beside the best.
    vocabulary: Written beside the checkpoints, so that they score.
    settings: Likewise (`Bundle.settings`).
    dry_run: Whether to build everything, print it and train nothing.
    quiet: Whether to print nothing.

  Returns:
    How it ended.

  Raises:
    ArgumentError: An argument is not what it should be.
    TrainingError: A loss that is not finite, or arguments that do not fit.
    CheckpointError: MODEL_DIR or the initial checkpoint is of another model.
    DatasetError: Data that are missing or do not fit.
    ProcessError: Processes that differ in what they train, or do not see the
      same MODEL_DIR.
  """
  check_arguments(locals())
  plan = states.plan(model, optimizer, partitioner, ema_decay)
  text = describe(plan, partitioner, dataset, microbatches)
  if dry_run:
    if processes.is_first():
      print(text)
    return Outcome(0, None, 'dry run')
  folder = Path(model_dir)
  _check_alike(text, train_steps, cadence, random_seed, ema_decay, selection)
  processes.on_first(
    lambda: _claim(folder, model, vocabulary, settings, selection, text)
  )
  processes.agree(folder.is_dir(), f'whether they see MODEL_DIR {folder}')

  with native.Checkpoints(folder, keep_checkpoints) as checkpoints:
    start = checkpoints.latest or 0
    processes.agree(start, f'the last checkpoint that they see in {folder}')
    if checkpoints.latest is not None:
      state = checkpoints.restore(plan.shapes)
    elif initial_checkpoint_path:
      fresh = None
      if new_parameters is not None:
        fresh = plan.init_params(jax.random.key(random_seed))
      params = native.initial_params(
        initial_checkpoint_path,
        plan.shapes.params,
        fresh=fresh,
        new=new_parameters,
      )
      state = plan.create(params)
    else:
      state = plan.create(plan.init_params(jax.random.key(random_seed)))
    take_steps = states.make_step(
      model, optimizer, partitioner, plan, random_seed, microbatches, ema_decay
    )
    stacked = prefetch.calls(
      dataset.batches(start, share=partitioner.share),
      start,
      train_steps,
      cadence.steps_per_call,
      cadence.all,
    )
    batches = prefetch.prefetch(
      stacked, lambda batch: partitioner.put_batch(batch, leading=1)
    )
    with (
      reports.open_reports(folder, start, train_steps, quiet) as report,
      stopping.Stopping() as stop,
    ):
      report.note(_greeting(folder, start, train_steps, plan))
      meter = Meter(report)
      evaluations = processes.broadcast(_evaluations(report.history))
      step, saved, reason = start, start, 'finished'
      if evaluators and _owed(start, train_steps, cadence, evaluations):
        owed = evaluate(evaluators, state)
        report.evaluation(start, owed)
        evaluations.append((start, owed))
        checkpoints.annotate(start, owed)
      if selection and selection.exhausted(evaluations):
        batches, reason = iter(()), 'stopped early'
      for batch in batches:
        state, totals = take_steps(state, batch)
        step += len(next(iter(batch.values())))
        meter.add(totals)
        last = stop.check() or step >= train_steps
        if last or any(_due(step, every) for every in cadence.all):
          meter.log(step)
        numbers = None
        judge = evaluators and (last or _due(step, cadence.eval_every))
        # An end in a hurry: a due evaluation is made by the run that goes on.
        if judge and not stop.reason:
          meter.flush()
          numbers = evaluate(evaluators, state)
          report.evaluation(step, numbers)
          evaluations.append((step, numbers))
        best = _best_step(selection, evaluations)
        if selection and selection.exhausted(evaluations):
          last, reason = True, 'stopped early'
        if last or _due(step, cadence.save_every) or (numbers and best == step):
          meter.flush()
          meter.check(step)
          checkpoints.save(step, state, numbers, best)
          saved = step
        if last:
          break
      if stop.reason and (step < train_steps or judge):
        reason = stop.reason
      checkpoints.wait()
      best = _best_step(selection, evaluations)
      report.note(_farewell(folder, step, best, reason, saved))
  return Outcome(step, best, reason)


def check_arguments(arguments: Mapping[str, Any]) -> None:
  """Checks arguments of `train` against its annotations.

  Args:
    arguments: Some or all of them by name.

  Raises:
    ArgumentError: One of them is wrong; the message names its gin macro.
  """
  validation.check_arguments(
    train,
    arguments,
    ArgumentError,
    lambda name, value: f'{name.upper()} = {value}',
  )
  try:
    re.compile(arguments.get('new_parameters') or '')
  except re.error as error:
    raise ArgumentError(
      f'NEW_PARAMETERS = {arguments["new_parameters"]!r}: must be a regular '
      f'expression: {error}'
    ) from error


def evaluate(
  evaluators: Sequence[Evaluator], state: states.TrainState
) -> dict[str, float]:
  """Runs all evaluators on the parameters to export: {'name/key': number}.

  Every process runs them; the numbers of process 0 are everyone's, so that all
  decide alike.
  """
  return processes.broadcast(
    {
      f'{evaluator.name}/{key}': float(value)
      for evaluator in evaluators
      for key, value in evaluator.evaluate(state.best_params).items()
    }
  )


def describe(
  plan: states.StatePlan,
  partitioner: partitioning.Partitioner,
  dataset: datasets.Dataset,
  microbatches: int = 1,
) -> str:
  """Everything about a run that is known before it starts, as text.

  A line a parameter: name, shape, and the axis of the mesh over which each
  dimension is split, or 'whole'.

  Raises:
    MeshError: The batch cannot be divided over the devices.
  """
  leaves = jax.tree_util.tree_leaves_with_path(plan.shapes.params)
  lines = [
    f'parameters: {sum(math.prod(x.shape) for _, x in leaves):,}',
    f'mesh: {dict(partitioner.mesh.shape)} of {jax.device_count()} '
    f'{jax.default_backend()} devices, {processes.count()} process(es)',
    '',
    *(
      f'{optimizers.parameter_name(path):<60} {str(leaf.shape):<20} '
      f'{tuple(leaf.sharding.spec) or "whole"}'
      for path, leaf in leaves
    ),
    '',
    'batch:',
  ]
  share = partitioner.share
  batch = next(iter(dataset.batches(0, share=share)))
  for key, value in sorted(batch.items()):
    shape = (share.batch_size(len(value)), *value.shape[1:])
    partitioner.check_batch_size(shape[0], microbatches)
    lines.append(f'{key:<60} {str(shape):<20} {value.dtype}')
  return '\n'.join(lines) + '\n'


class Meter:
  """Sums totals on the device; fetches them one call late.

  The device does not wait for the host: while a sum is being fetched, the next
  steps are already queued.
  """

  def __init__(self, report: reports.Reports | reports.Silence):
    """Reports go to `report`."""
    self._report = report
    self._sums: Any = None
    self._waiting: tuple[int, Any] | None = None
    self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))

  def add(self, totals: states.Totals) -> None:
    """Adds the totals of one call; reports an interval that has ended."""
    self._sums = totals if self._sums is None else self._add(self._sums, totals)
    self.flush()

  def log(self, step: int) -> None:
    """Ends an interval at `step`."""
    self._waiting = (step, self._sums)
    self._sums = None

  def flush(self) -> None:
    """Reports the interval that was ended last.

    Raises:
      TrainingError: Its loss is not finite.
    """
    if self._waiting is None:
      return
    step, sums = self._waiting
    self._waiting = None
    numbers = {
      name: float(total) / float(weight) if weight else 0.0
      for name, (total, weight) in jax.device_get(sums).items()
    }
    self._report.train(step, numbers)
    _check_finite(step, numbers['loss'])

  def check(self, step: int) -> None:
    """Looks at what has not been reported yet, before it is saved.

    Raises:
      TrainingError: A loss since the last report is not finite.
    """
    if self._sums is not None:
      _check_finite(step, float(self._sums['loss'][0]))


def _check_finite(step: int, loss: float) -> None:
  if not math.isfinite(loss):
    raise TrainingError(
      f'the loss is {loss} at step {step}; nothing was saved since the last '
      'checkpoint. Try a lower learning rate, a longer warm-up or float32'
    )


def _check_alike(*what: Any) -> None:
  """What processes must have in common, or they would wait for ever."""
  processes.agree(
    '\n'.join(map(str, what)), 'what they train: give all the same command'
  )


def _claim(
  folder: Path,
  model: states.Model,
  vocabulary: Any,
  settings: Mapping[str, Any] | None,
  selection: native.Selection | None,
  text: str,
) -> None:
  """Makes the folder of the run and writes what is known beforehand."""
  config = getattr(model, 'config', None)
  native.claim(folder, config, vocabulary, settings, selection)
  _write(folder / 'model-info.txt', text)
  _write(folder / 'config.gin', gin.operative_config_str())


def _owed(
  start: int,
  train_steps: validation.NonNegative,
  cadence: Cadence,
  evaluations: Sequence[tuple[int, Mapping[str, float]]],
) -> bool:
  """Whether the evaluation of the first step was left out in a hurry."""
  due = _due(start, cadence.eval_every) or start >= train_steps
  return start > 0 and due and start not in {step for step, _ in evaluations}


def _due(step: int, every: int | None) -> bool:
  return every is not None and step % every == 0


def _best_step(
  selection: native.Selection | None,
  evaluations: Sequence[tuple[int, Mapping[str, float]]],
) -> int | None:
  if selection is None:
    return None
  index = selection.best(evaluations)
  return None if index < 0 else evaluations[index][0]


def _evaluations(
  history: Sequence[Mapping[str, Any]],
) -> list[tuple[int, Mapping[str, float]]]:
  return [
    (line['step'], line) for line in history if line['kind'] == 'evaluation'
  ]


def _write(path: Path, text: str) -> None:
  with records.write_atomically(path) as stream:
    stream.write(text)


def _greeting(
  folder: Path, start: int, train_steps: int, plan: states.StatePlan
) -> str:
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(plan.shapes.params))
  verb = f'goes on at step {start}' if start else 'starts'
  return (
    f'{folder}: training {verb}, to step {train_steps}; {count:,} parameters '
    f'on {jax.device_count()} {jax.default_backend()} device(s)'
    + (f' of {processes.count()} processes' if processes.count() > 1 else '')
  )


def _farewell(
  folder: Path, step: int, best: int | None, reason: str, saved: int
) -> str:
  text = f'{folder}: {reason} at step {step} ({time.strftime("%H:%M:%S")})'
  if best is not None:
    text += f'; best: checkpoint_{best}'
  if reason in ('interrupted', 'preempted'):
    text += f'; the same command goes on from checkpoint_{saved}'
  return text
