"""Reports of a run: progress bar, metrics.jsonl, TensorBoard, loss curves.

All files are in MODEL_DIR. A resumed run keeps lines and events up to its first
step and drops later ones. TensorFlow is never imported. Not here: what is
measured (`training/state.py`, `training/evaluators.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import rich.console
import rich.progress

from t5score_jax.data import files
from t5score_jax.runtime import processes

METRICS_FILE = 'metrics.jsonl'
CURVES_FILE = 'curves.png'
# T5X's names of the folders with event files, by kind of report.
EVENT_FOLDERS = {'train': 'train', 'evaluation': 'training_eval'}
_TRAINING = 'training'
# Sizes of the data, which are not results.
_NOT_DRAWN = ('tokens',)


class Reports:
  """Writes values to all reports.

  A context manager; on exit it closes the files and draws the curves.
  """

  def __init__(
    self,
    model_dir: str | os.PathLike[str],
    start_step: int,
    train_steps: int,
    quiet: bool = False,
  ):
    """Opens or continues the reports of a run.

    Args:
      model_dir: The folder of the run, which must exist.
      start_step: The step at which training starts or resumes.
      train_steps: The last step.
      quiet: Whether to write only files.
    """
    self._folder = Path(model_dir)
    self.history = _keep_until(self._folder / METRICS_FILE, start_step)
    self._jsonl = open(  # noqa: SIM115 (closed by __exit__)
      self._folder / METRICS_FILE, 'a', encoding='utf-8'
    )
    self._events = {
      kind: EventFile(self._folder / name, start_step)
      for kind, name in EVENT_FOLDERS.items()
    }
    self._console = rich.console.Console(stderr=True, quiet=quiet)
    self._plain = not self._console.is_terminal
    self._progress = rich.progress.Progress(
      '[progress.description]{task.description}',
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeRemainingColumn(),
      '{task.fields[numbers]}',
      console=self._console,
      disable=quiet or self._plain,
      refresh_per_second=2,
    )
    self._task = self._progress.add_task(
      'training', total=train_steps, completed=start_step, numbers=''
    )
    self._train_steps = train_steps
    self._last = (start_step, time.monotonic())

  def __enter__(self) -> Reports:
    self._progress.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._progress.stop()
    # A second error must not hide the first one, such as a full disk.
    with contextlib.suppress(*[OSError] if unused[0] is not None else []):
      self._jsonl.close()
      for events in self._events.values():
        events.close()
      self.draw()

  def note(self, text: str) -> None:
    """Prints a message above the progress bar."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)

  def train(
    self, step: int, numbers: Mapping[str, float], ended: float | None = None
  ) -> None:
    """Reports training values and the speed since the last report.

    Args:
      step: The last step of the interval.
      numbers: The values.
      ended: When the device finished that step, by `time.monotonic`; None is
        now.
    """
    last_step, last_time = self._last
    now = time.monotonic() if ended is None else ended
    self._last = (step, now)
    speed = (step - last_step) / max(now - last_time, 1e-9)
    self._write('train', step, {**numbers, 'steps_per_second': speed})
    shown = f'loss {numbers["loss"]:.4f}  {speed:.1f} steps/s'
    self._progress.update(self._task, completed=step, numbers=shown)
    if self._plain:
      self.note(f'step {step}/{self._train_steps}  {shown}')

  def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
    """Reports the values of the evaluators."""
    self._write('evaluation', step, numbers)
    shown = '  '.join(f'{name} {x:.4f}' for name, x in sorted(numbers.items()))
    self.note(f'step {step}  {shown}')
    # Exclude evaluation from the training time.
    self._last = (self._last[0], time.monotonic())

  def draw(self) -> None:
    """Draws the loss curves of the whole history into MODEL_DIR."""
    if self.history:
      draw_curves(self._folder / CURVES_FILE, self.history)

  def _write(self, kind: str, step: int, numbers: Mapping[str, float]) -> None:
    line = {'step': step, 'kind': kind, **numbers}
    self.history.append(line)
    # JSON has no NaN: values that are not finite become null.
    plain = {
      key: None if isinstance(x, float) and not math.isfinite(x) else x
      for key, x in line.items()
    }
    with files.named(self._folder / METRICS_FILE):
      self._jsonl.write(json.dumps(plain) + '\n')
      self._jsonl.flush()
    self._events[kind].scalars(step, numbers)


class Silence:
  """Reports nothing; used in all processes but the first."""

  history: Sequence[Mapping[str, Any]] = ()

  def __enter__(self) -> Silence:
    return self

  def __exit__(self, *unused: Any) -> None:
    pass

  def note(self, text: str) -> None:
    """See `Reports`."""

  def train(
    self, step: int, numbers: Mapping[str, float], ended: float | None = None
  ) -> None:
    """See `Reports`."""

  def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
    """See `Reports`."""


def open_reports(
  model_dir: str | os.PathLike[str],
  start_step: int,
  train_steps: int,
  quiet: bool = False,
) -> Reports | Silence:
  """Opens `Reports` in process 0 and `Silence` in the others."""
  if not processes.is_first():
    return Silence()
  return Reports(model_dir, start_step, train_steps, quiet)


class EventFile:
  """TensorBoard scalars, written without TensorFlow."""

  def __init__(self, folder: Path, start_step: int):
    """Starts a new file, which voids earlier events past `start_step`."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer import record_writer

    self._event = event_pb2.Event
    folder.mkdir(parents=True, exist_ok=True)
    name = f'events.out.tfevents.{time.time_ns()}.{socket.gethostname()}'
    self._stream: IO[bytes] = open(folder / name, 'wb')  # noqa: SIM115
    self._writer = record_writer.RecordWriter(self._stream)
    self._write(self._event(file_version='brain.Event:2'))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(self._event(step=start_step + 1, session_log=start))

  def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
    """Appends one event with all numbers."""
    event = self._event(step=step)
    for name, number in numbers.items():
      event.summary.value.add(tag=name, simple_value=number)
    self._write(event)

  def close(self) -> None:
    """Closes the file."""
    self._stream.close()

  def _write(self, event: Any) -> None:
    event.wall_time = time.time()
    with files.named(self._stream.name):
      self._writer.write(event.SerializeToString())
      self._stream.flush()


def draw_curves(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
  """Draws the loss and the values of the evaluators into a PNG.

  A quantity measured both in training and on held-out data has one panel with
  two curves.

  Args:
    path: The PNG file, replaced atomically.
    history: The lines of `metrics.jsonl`.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  panels = _panels(history) or {'loss': {}}
  columns = min(2, len(panels))
  rows = -(-len(panels) // columns)
  figure = Figure(figsize=(5.5 * columns, 3 * rows), layout='constrained')
  FigureCanvasAgg(figure)
  last_step = max((line['step'] for line in history), default=1)
  colors = {_TRAINING: 0}
  for index, (title, curves) in enumerate(panels.items()):
    axis = figure.add_subplot(rows, columns, index + 1)
    for name, points in curves.items():
      axis.plot(
        *zip(*points, strict=True),
        '-' if len(points) > 40 else '.-',
        color=f'C{colors.setdefault(name, len(colors))}',
        label=name,
      )
    axis.set_title(title, fontsize=10, loc='left')
    axis.set_xlim(0, last_step * 1.02)
    axis.set_xlabel('step', fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.spines[['top', 'right']].set_visible(False)
    if set(curves) - {_TRAINING}:
      axis.legend(fontsize=8, frameon=False)
  with files.write_atomically(path, 'wb') as stream:
    figure.savefig(stream, format='png', dpi=110)


def _panels(
  history: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, list[tuple[int, float]]]]:
  """Quantity -> 'training' or an evaluator's name -> (step, value) points."""
  series = {kind: _series(history, kind) for kind in EVENT_FOLDERS}
  panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
  for name, points in series['evaluation'].items():
    evaluator, _, quantity = name.rpartition('/')
    if quantity not in _NOT_DRAWN:
      panels.setdefault(quantity, {})[evaluator] = points
  names = ['loss', *(name for name in panels if name != 'loss')]
  drawn: dict[str, dict[str, list[tuple[int, float]]]] = {}
  for name in names:
    trained = series['train'].get(name)
    curves = {_TRAINING: trained} if trained else {}
    curves = {**curves, **panels.get(name, {})}
    # A loss with one term would be drawn twice under two names.
    if curves and curves not in drawn.values():
      drawn[name] = curves
  return drawn


def _series(
  history: Sequence[Mapping[str, Any]], kind: str
) -> dict[str, list[tuple[int, float]]]:
  series: dict[str, list[tuple[int, float]]] = {}
  for line in history:
    for name, value in line.items():
      if line['kind'] != kind or name in ('step', 'kind'):
        continue
      if value is not None and math.isfinite(value):
        series.setdefault(name, []).append((line['step'], value))
  return series


def _keep_until(path: Path, step: int) -> list[dict[str, Any]]:
  """Drops lines past `step` and a truncated line; returns the rest."""
  if not path.is_file():
    return []
  kept = []
  for text in path.read_text('utf-8').splitlines():
    try:
      line = json.loads(text)
    except json.JSONDecodeError:
      continue  # The process was killed while writing.
    if line['step'] <= step:
      kept.append(line)
  with files.write_atomically(path) as stream:
    stream.writelines(json.dumps(line) + '\n' for line in kept)
  return kept
