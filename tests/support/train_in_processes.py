"""Trains as one of several processes: FOLDER PORT COUNT INDEX CASE...

A program of its own, because a process joins others once and before JAX starts.
Every process of a run is given the same FOLDER and cases. COUNT 1 is a run of
one process, with as many devices in all.
"""

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path

import fake_training
import jax
import numpy as np
import train_on_devices

from t5score_jax.checkpoints import native
from t5score_jax.data import records, vocab
from t5score_jax.inputs import bucketing, datasets
from t5score_jax.models import t5score
from t5score_jax.runtime import processes
from t5score_jax.training import evaluators, loop, partitioning

STEPS = 6
BYTES = vocab.ByteVocabulary()
CONFIG = train_on_devices.config(dropout_rate=0.1)


@dataclasses.dataclass
class PooledModel(fake_training.LinearModel):
  """Takes the mean over x [B, L, 8] first, of any length."""

  def loss_fn(self, params, batch, rng):
    return super().loss_fn(params, {**batch, 'x': batch['x'].mean(1)}, rng)


def segments():
  generator = np.random.default_rng(0)
  return [
    records.Segment(
      hypothesis=f'{system} said {segment}',
      references=(f'reference {segment}',),
      system=system,
      segment=str(segment),
      language_pair='de-en',
      ratings={'da': float(generator.integers(0, 100))},
    )
    for segment in range(3)
    for system in 'xyz'
  ]


def write(folder, arrays):
  """Process 0 writes arrays that all read."""

  def save():
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in arrays.items():
      np.save(folder / f'{key}.npy', value)

  processes.on_first(save)
  return folder


def t5(folder):
  """The real thing: parameters split over all devices, evaluators, average."""
  arrays = write(folder / 'arrays', train_on_devices.make_arrays('generative'))
  model = t5score.GenerativeModel(CONFIG)
  dataset = datasets.ArrayDataset(arrays, 16)
  loop.train(
    model=model,
    model_dir=str(folder / 'run'),
    dataset=dataset,
    optimizer=fake_training.adamw(0.003),
    train_steps=STEPS,
    intervals=loop.Intervals(log_every=1, save_every=4, eval_every=3),
    partitioner=partitioning.Partitioner(fully_sharded=True),
    evaluators=[
      evaluators.EvaluationLoss(model, dataset, 'held_out', 2),
      evaluators.EvaluationLoss(
        model, datasets.ArrayDataset(arrays, 3), 'odd', 1
      ),
      evaluators.JudgmentEvaluator(
        segments(), CONFIG, BYTES, 'da', max_length=32
      ),
    ],
    selection=native.Selection('judgments/pearson', patience=3),
    microbatches=2,
    ema_decay=0.9,
    vocabulary=BYTES,
  )


def buckets(folder):
  """Lengths 3 and 5 with batches of their own sizes."""
  generator = np.random.default_rng(1)
  for length in (3, 5):
    arrays = {
      'x': generator.normal(size=(40, length, 8)),
      'y': generator.normal(size=(40, 2)),
      'weights': generator.integers(0, 3, 40),
    }
    write(folder / 'arrays' / f'length_{length}', arrays)
  fake_training.train(
    folder,
    2 * STEPS,
    model=PooledModel(dropout_rate=0.1),
    dataset=bucketing.from_folder(
      folder / 'arrays', batch_tokens=16 * 41, row_multiple=8
    ),
  )


def linear(folder, **options):
  generator = np.random.default_rng(2)
  arrays = {
    'x': generator.normal(size=(64, 8)),
    'y': generator.normal(size=(64, 2)),
    'weights': generator.integers(0, 3, 64),
  }
  path = write(folder / 'arrays', arrays)
  return fake_training.train(
    folder,
    options.pop('steps', STEPS),
    dataset=options.pop(
      'dataset', lambda path: datasets.ArrayDataset(path, 16)
    )(path),
    **options,
  )


def partitions(folder):
  """One copy of the model over the devices of all processes."""
  linear(folder, partitioner=partitioning.Partitioner(8))


class Weight:
  """An evaluator that differs by process where it is not told otherwise."""

  name = 'weight'

  def evaluate(self, params):
    params = processes.local_copy(params)
    scale = np.asarray(params['norm']['scale'])
    return {'sum': float(scale.sum()) + 100 * processes.index()}


class HeldOut(evaluators.EvaluationLoss):
  """Of arrays that are not there yet when it is made."""

  def __init__(self, path):
    super().__init__(fake_training.LinearModel(), None, num_batches=2)
    self.path = path

  def evaluate(self, params):
    self._dataset = datasets.ArrayDataset(self.path, 24)
    return super().evaluate(params)


def stopped(folder, number=signal.SIGTERM):
  """The last process alone is told to stop; then all go on."""
  alone = processes.index() == processes.count() - 1
  signalled = processes.count() > 1 and alone
  options = {
    'steps': 30,
    'intervals': loop.Intervals(log_every=1, save_every=100, eval_every=1),
    'evaluators': [Weight(), HeldOut(folder / 'arrays')],
    'selection': native.Selection('weight/sum'),
    'partitioner': partitioning.Partitioner(fully_sharded=True),
  }
  result = linear(
    folder,
    dataset=lambda path: fake_training.InterruptedDataset(
      path, 16, 8 if signalled else -1, number
    ),
    **options,
  )
  if processes.count() > 1:
    assert result.reason == 'preempted' and 3 <= result.step < 30, result
    processes.agree(result.step, 'where they stopped')
    result = linear(folder, **options)
  assert (result.reason, result.step) == ('finished', 30), result


def seqio(folder):
  from t5score_jax.tasks import made_up  # noqa: F401 (registers)

  loop.train(
    model=t5score.GenerativeModel(CONFIG),
    model_dir=str(folder / 'run'),
    dataset=datasets.SeqioDataset(
      'made_up', {'inputs': 24, 'targets': 24}, 'encoder_decoder', 16
    ),
    optimizer=fake_training.adamw(0.003),
    train_steps=STEPS,
    intervals=loop.Intervals(log_every=1),
    vocabulary=BYTES,
    quiet=True,
  )


class Dying(datasets.ArrayDataset):
  """Kills this process in the middle of a run, after a checkpoint."""

  def batches(self, start_step=0, share=None):
    for step, batch in enumerate(super().batches(start_step, share)):
      if step + start_step == 12:
        time.sleep(2)  # The checkpoint before has been committed.
        os.kill(os.getpid(), signal.SIGKILL)
      yield batch


def dying(folder):
  """Process 1 dies; the others must not wait for ever."""
  kind = Dying if processes.index() == 1 else datasets.ArrayDataset
  late = threading.Timer(300, lambda: os._exit(99))
  late.daemon = True
  late.start()
  linear(
    folder,
    steps=20,
    dataset=lambda path: kind(path, 16),
    intervals=loop.Intervals(log_every=1, save_every=4),
  )


def going_on(folder):
  """What `dying` left, to its end."""
  linear(
    folder,
    steps=20,
    intervals=loop.Intervals(log_every=1, save_every=4),
  )


def differing(folder):
  """Processes that were given different commands."""
  linear(folder, steps=10 + processes.index())


CASES = {
  function.__name__: function
  for function in (
    *(t5, buckets, partitions, stopped, seqio, dying, going_on, differing),
  )
}


def main():
  folder = Path(sys.argv[1])
  port, count, index = sys.argv[2:5]
  parser = argparse.ArgumentParser()
  processes.add_arguments(parser)
  args = parser.parse_args(
    [f'--coordinator_address=127.0.0.1:{port}', f'--process_count={count}']
    + [f'--process_index={index}', '--heartbeat_timeout=20']
  )

  def body():
    assert jax.process_count() == int(count)
    for case in sys.argv[5:]:
      # What one case leaves is what the next goes on from.
      name = 'dying' if case == 'going_on' else case
      start = time.monotonic()
      CASES[case](folder / name)
      print(f'{case}: {time.monotonic() - start:.1f} s', file=sys.stderr)
    return 0

  sys.exit(processes.together('test', args, body))


if __name__ == '__main__':
  main()
