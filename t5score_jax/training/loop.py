"""The training loop: `train` is a whole run, from top to bottom.

Gin binds `t5score_jax.training.loop.train`. The loop does not depend on the
metric that is trained: models have losses, datasets have batches, evaluators
have results. Not here: the update itself (`training/state.py`), files
(`checkpoints/native.py`, `training/reports.py`), means and the end of a
diverged run (`training/meter.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gin
import jax

from t5score_jax.checkpoints import native
from t5score_jax.data import files
from t5score_jax.errors import T5ScoreError
from t5score_jax.inputs import batch_checks, datasets, positions, prefetch
from t5score_jax.runtime import locks, processes, validation
from t5score_jax.training import (
  meter,
  model_info,
  optimizers,
  partitioning,
  reports,
  stopping,
)
from t5score_jax.training import state as states
from t5score_jax.training.meter import TrainingError

__all__ = [
  'PLAIN_ARGUMENTS',
  'ArgumentError',
  'Evaluator',
  'Intervals',
  'Result',
  'TrainingError',
  'check_arguments',
  'evaluate',
  'train',
]

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


@runtime_checkable
class Evaluator(Protocol):
  """Evaluates parameters during training."""

  name: str

  def evaluate(self, params: Any) -> Mapping[str, float]:
    """Returns values to report as `name/key`."""


@dataclasses.dataclass(frozen=True)
class Intervals:
  """Numbers of steps between reports, checkpoints and evaluations.

  Attributes:
    log_every: Steps between reports of the mean loss.
    save_every: Steps between checkpoints; the last step is always saved.
    eval_every: Steps between evaluations, in addition to the one at the end;
      None: only at the end.
    steps_per_call: Steps that the device takes in one call without the host,
      unless another interval ends earlier.
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
    """The intervals whose ends a call may not cross."""
    every = [self.log_every, self.save_every, self.eval_every]
    return [steps for steps in every if steps is not None]

  def due(self, step: int) -> bool:
    """Whether a step ends any interval."""
    return any(_due(step, every) for every in self.all)


@dataclasses.dataclass(frozen=True)
class Result:
  """How a run ended.

  Attributes:
    step: The last step.
    best_step: The step of the best checkpoint; None without a selection.
    reason: 'finished', 'stopped early', 'interrupted' (Ctrl-C), 'preempted'
      (SIGTERM) or 'dry run'.
  """

  step: int
  best_step: int | None
  reason: str


@dataclasses.dataclass
class _Evaluations:
  """The evaluations of a run and the checkpoint that they select."""

  selection: native.Selection | None
  results: list[tuple[int, Mapping[str, float]]]

  def add(self, step: int, scores: Mapping[str, float]) -> None:
    self.results.append((step, scores))

  def include(self, step: int) -> bool:
    return any(step == evaluated for evaluated, _ in self.results)

  @property
  def best_step(self) -> int | None:
    index = self.selection.best(self.results) if self.selection else -1
    return None if index < 0 else self.results[index][0]

  @property
  def exhausted(self) -> bool:
    """Whether to stop early."""
    return self.selection is not None and self.selection.exhausted(self.results)


def train(
  *,
  model: states.Model,
  model_dir: validation.Text | os.PathLike[str],
  dataset: datasets.Dataset,
  optimizer: optimizers.Optimizer,
  train_steps: validation.NonNegative,
  intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
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
  skip_damaged: bool = False,
  vocabulary: Any = None,
  settings: Mapping[str, Any] | None = None,
  dry_run: bool = False,
  quiet: bool = False,
) -> Result:
  """Trains a model, or resumes the run in MODEL_DIR.

  With several processes (`processes.start`) all call this with the same
  arguments. Each reads its share of the batches; process 0 writes the reports.

  Args:
    model: The model: parameters and loss.
    model_dir: The folder of the run, created if absent.
    dataset: The batches.
    optimizer: The optimizer with its schedule.
    train_steps: The last step, counted from the beginning of the run.
    intervals: How often to report, save and evaluate.
    partitioner: The mesh and the shardings.
    evaluators: Evaluators for reports and for `selection`.
    selection: Which checkpoint is the best, and when to stop early.
    initial_checkpoint_path: The initial weights of a new run: the name of an
      embedded model, a MODEL_DIR, checkpoint_N, bundle, or folder of a
      regressor or an encoder; or several that complement each other. A run that
      already has a checkpoint ignores it.
    new_parameters: Regular expression of parameters that may be missing from
      the initial checkpoint and are then random, such as a new head on an
      encoder.
    random_seed: The seed of initial weights and dropout; data have their own.
    microbatches: Number of parts of a batch to differentiate one after the
      other, which saves memory.
    ema_decay: Decay of the parameters' moving average, which is then evaluated
      and exported; None for no average.
    keep_checkpoints: Number of latest checkpoints to keep besides the best.
    skip_damaged: Whether to set aside damaged checkpoints later than the last
      intact one, instead of raising an error.
    vocabulary: The vocabulary, saved with the checkpoints for scoring.
    settings: `Bundle.settings`, saved with the checkpoints for scoring; None
      takes those of the initial model, except its name.
    dry_run: Whether to build and print everything without training.
    quiet: Whether to print nothing.

  Returns:
    The last step, the best step and the reason for the end.

  Raises:
    ArgumentError: An argument has the wrong type or is out of range.
    TrainingError: The loss or the weights are not finite. They are never saved.
    CheckpointError: MODEL_DIR or the initial checkpoint belongs to another
      model, or a checkpoint is damaged or cannot be saved.
    LockError: Another process is training in MODEL_DIR.
    DatasetError: Data are missing or do not fit the model.
    ProcessError: Processes have different configurations or see different
      folders.
  """
  check_arguments(locals())
  plan = states.plan(model, optimizer, partitioner, ema_decay)
  take_steps = states.make_step(
    model, optimizer, partitioner, plan, random_seed, microbatches, ema_decay
  )
  batch_checks.check_arrays(dataset, model)
  text = model_info.describe(plan, partitioner, dataset, model, microbatches)
  if dry_run:
    if processes.is_first():
      print(text, *getattr(dataset, 'notes', ()), sep='\n')
    return Result(0, None, 'dry run')
  folder = Path(model_dir)
  _check_alike(text, train_steps, intervals, random_seed, ema_decay, selection)
  initial = None
  if initial_checkpoint_path and not native.has_checkpoint(folder):
    # Before MODEL_DIR is written, so errors leave nothing behind.
    initial = native.open_initial(
      initial_checkpoint_path, plan.shapes.params, new_parameters
    )
  if settings is None:
    path = None if initial is None else initial_checkpoint_path
    settings = native.inherited_settings(folder, path)

  with (
    _claimed(folder, model, vocabulary, settings, selection, text),
    native.Checkpoints(folder, keep_checkpoints, skip_damaged) as checkpoints,
  ):
    start = checkpoints.latest or 0
    processes.agree(start, f'the last checkpoint that they see in {folder}')
    if checkpoints.latest is not None:
      state = checkpoints.restore(plan.shapes)
    else:
      state = _initial_state(plan, initial, new_parameters, random_seed)
    meter.check_weights(
      state,
      f'{folder}/checkpoint_{start}'
      if checkpoints.latest is not None
      else f'INITIAL_CHECKPOINT_PATH = {initial_checkpoint_path}',
    )
    share = partitioner.share
    position = positions.Positions(
      [intervals.save_every, intervals.eval_every],
      checkpoints.data_position(),
      lambda text: report.note(text),
    )
    stacked = prefetch.calls(
      batch_checks.checked(
        positions.batches(dataset, start, share, position),
        model,
        start,
        # Read in a thread that starts after `report` was opened.
        lambda text: report.note(text),
        whole=share.count == 1,
      ),
      start,
      train_steps,
      intervals.steps_per_call,
      intervals.all,
    )
    batches = prefetch.prefetch(
      stacked, lambda batch: partitioner.put_batch(batch, leading=1)
    )
    with (
      reports.open_reports(folder, start, train_steps, quiet) as report,
      stopping.Stopping() as stop,
      meter.only_good_checkpoints(checkpoints, start),
    ):
      report.note(
        model_info.greeting(folder, start, train_steps, plan, settings)
      )
      for text in getattr(dataset, 'notes', ()):
        report.note(text)
      means = meter.Meter(report, start)
      evaluations = _Evaluations(
        selection, processes.broadcast(_evaluations_in(report.history))
      )
      step, saved, reason = start, start, 'finished'

      # A preempted run leaves the evaluation of its last step to this one.
      evaluation_due = start >= train_steps or _due(start, intervals.eval_every)
      if start and evaluators and evaluation_due:
        if not evaluations.include(start):
          missing = evaluate(evaluators, state)
          report.evaluation(start, missing)
          evaluations.add(start, missing)
          checkpoints.annotate(start, missing)
      if evaluations.exhausted:
        batches, reason = iter(()), 'stopped early'

      for batch in batches:
        state, totals = take_steps(state, batch)
        step += len(next(iter(batch.values())))
        data_position = position.at(step)
        means.add(totals)
        checkpoints.check()
        last = stop.check() or step >= train_steps
        if last or intervals.due(step):
          means.log(step)
        evaluation_due = last or _due(step, intervals.eval_every)
        save_due = last or _due(step, intervals.save_every)
        if evaluation_due or save_due:
          means.check(step, state)
        scores = None
        if evaluators and evaluation_due and not stop.reason:
          scores = evaluate(evaluators, state)
          report.evaluation(step, scores)
          evaluations.add(step, scores)
        best = evaluations.best_step
        if evaluations.exhausted:
          last, reason = True, 'stopped early'
        is_best = scores is not None and best == step
        if last or is_best or save_due:
          checkpoints.save(step, state, scores, best, data_position)
          saved = step
        if last:
          break

      if stop.reason and (step < train_steps or evaluators):
        reason = stop.reason
      checkpoints.wait()
      best = evaluations.best_step
      report.note(model_info.farewell(folder, step, best, reason, saved))
  return Result(step, best, reason)


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
  """Runs all evaluators on the parameters to export: {'name/key': value}.

  Every process runs them; all receive the values of process 0, so that they
  make the same decisions.
  """
  return processes.broadcast(
    {
      f'{evaluator.name}/{key}': float(value)
      for evaluator in evaluators
      for key, value in evaluator.evaluate(state.best_params).items()
    }
  )


def _initial_state(
  plan: states.StatePlan,
  initial: Mapping[str, Any] | None,
  new_parameters: str | None,
  random_seed: int,
) -> states.TrainState:
  """Creates the state of a new run: random, or from opened initial weights."""
  fresh = None
  if initial is None or new_parameters is not None:
    fresh = plan.init_params(jax.random.key(random_seed))
  if initial is None:
    return plan.create(fresh)
  return plan.create(native.read_initial(initial, plan.shapes.params, fresh))


def _check_alike(*what: Any) -> None:
  """Raises an error, instead of hanging, when configurations differ."""
  processes.agree(
    '\n'.join(map(str, what)), 'what they train: give all the same command'
  )


@contextlib.contextmanager
def _claimed(
  folder: Path,
  model: states.Model,
  vocabulary: Any,
  settings: Mapping[str, Any] | None,
  selection: native.Selection | None,
  text: str,
) -> Iterator[None]:
  """Creates the run's folder with its configuration, and locks it."""
  with contextlib.ExitStack() as held:

    def claim() -> None:
      if not folder.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(locks.hold(folder, 'MODEL_DIR'))
      config = getattr(model, 'config', None)
      native.claim(folder, config, vocabulary, settings, selection)
      _write(folder / 'model-info.txt', text)
      _write(folder / 'config.gin', gin.operative_config_str())

    processes.on_first(claim)
    processes.agree(folder.is_dir(), f'whether they see MODEL_DIR {folder}')
    yield


def _due(step: int, every: int | None) -> bool:
  return every is not None and step % every == 0


def _evaluations_in(
  history: Sequence[Mapping[str, Any]],
) -> list[tuple[int, Mapping[str, float]]]:
  return [
    (line['step'], line) for line in history if line['kind'] == 'evaluation'
  ]


def _write(path: Path, text: str) -> None:
  with files.write_atomically(path) as stream:
    stream.write(text)
