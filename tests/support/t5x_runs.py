"""Runs T5X's programs on the made-up tasks, each in a process of its own.

Only where T5X is installed; see docs/t5x.md.
"""

import json
import pathlib
import subprocess
import sys

import devices as device_env

TASKS = {
  'generative': 'made_up',
  'pairs': 'made_up_pairs',
  'groups': 'made_up_groups',
}
LENGTHS = {
  'generative': {'inputs': 40, 'targets': 40},
  'pairs': {'inputs': 40, 'targets': 40},
  'groups': {'inputs': 40, 'targets': 40, 'ratings': 4},
}
STEPS = 6
BATCH_SIZE = 8
LEARNING_RATE = 1e-2
WARMUP_STEPS = 2
# Small enough that the tiny network's matrices are factored.
MIN_DIM_SIZE_TO_FACTOR = 32
_GIN = 't5score_jax/gin_configs/t5x'


def run(program, files, bindings, devices=1):
  """Runs `t5x.PROGRAM`; its log is the message of an AssertionError."""
  command = [sys.executable, '-m', f't5x.{program}', '--alsologtostderr']
  command += [f'--gin_file={name}' for name in files]
  command += [f'--gin.{name}={value!r}' for name, value in bindings.items()]
  environment = device_env.environment(devices, TF_CPP_MIN_LOG_LEVEL='2')
  done = subprocess.run(
    command, capture_output=True, text=True, env=environment
  )
  assert done.returncode == 0, done.stderr[-5000:]
  return done.stderr


def train(kind, folder, more='', devices=1, network='tiny', **bindings):
  """Trains from random weights; returns what was logged at each step.

  Args:
    kind: 'generative', 'pairs' or 'groups'.
    folder: MODEL_DIR.
    more: Lines of gin.
    devices: Of the host.
    network: A gin file, or its name in gin_configs/t5x.
    **bindings: Macros.
  """
  if not str(network).endswith('.gin'):
    network = f'{_GIN}/{network}.gin'
  extra = pathlib.Path(f'{folder}.gin')
  extra.write_text(
    'from __gin__ import dynamic_registration\n'
    'from t5x import adafactor\n'
    'from t5x import partitioning\n'
    'adafactor.Adafactor.min_dim_size_to_factor = '
    f'{MIN_DIM_SIZE_TO_FACTOR}\n{more}\n'
  )
  run(
    'train',
    [network, f'{_GIN}/train_{kind}.gin', extra],
    {
      'MODEL_DIR': str(folder),
      'MIXTURE_OR_TASK_NAME': TASKS[kind],
      'MIXTURE_OR_TASK_MODULE': 't5score_jax.tasks.made_up',
      'TASK_FEATURE_LENGTHS': LENGTHS[kind],
      'TRAIN_STEPS': STEPS,
      'BATCH_SIZE': BATCH_SIZE,
      'LEARNING_RATE': LEARNING_RATE,
      'WARMUP_STEPS': WARMUP_STEPS,
      'DROPOUT_RATE': 0.0,
      'EVAL_PERIOD': STEPS,
      'EVAL_STEPS': 1,
      'SAVE_PERIOD': STEPS,
      'STATS_PERIOD': 1,
      **bindings,
    },
    devices,
  )
  return events(folder / 'train')


def evaluate(kind, checkpoint, folder, network='tiny'):
  """Runs `t5x.eval`; returns the numbers of the evaluation."""
  run(
    'eval',
    [f'{_GIN}/{network}.gin', f'{_GIN}/{kind}.gin', f'{_GIN}/eval.gin'],
    {
      'EVAL_OUTPUT_DIR': str(folder),
      'CHECKPOINT_PATH': str(checkpoint),
      'MIXTURE_OR_TASK_NAME': TASKS[kind],
      'MIXTURE_OR_TASK_MODULE': 't5score_jax.tasks.made_up',
      'TASK_FEATURE_LENGTHS': LENGTHS[kind],
    },
  )
  found = events(folder / 'inference_eval' / TASKS[kind])
  return {name.rpartition('/')[2]: x for name, x in found.items()}


def infer(kind, checkpoint, folder, objective=None, **bindings):
  """Runs `t5x.infer` in score mode; returns its lines."""
  objective = objective or kind
  run(
    'infer',
    [f'{_GIN}/tiny.gin', f'{_GIN}/{objective}.gin', f'{_GIN}/infer.gin'],
    {
      'INFER_OUTPUT_DIR': str(folder),
      'CHECKPOINT_PATH': str(checkpoint),
      'MIXTURE_OR_TASK_NAME': TASKS[kind],
      'MIXTURE_OR_TASK_MODULE': 't5score_jax.tasks.made_up',
      'TASK_FEATURE_LENGTHS': LENGTHS[kind],
      **bindings,
    },
  )
  (path,) = folder.glob('*-score.jsonl-00000-of-00001')
  return [json.loads(line) for line in path.read_text().splitlines()]


def events(folder):
  """Scalars of TensorBoard's files: name -> {step: number}."""
  import tensorflow as tf

  found = {}
  for path in sorted(folder.glob('events*')):
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      for value in event.summary.value:
        if value.HasField('tensor'):
          number = tf.make_ndarray(value.tensor)
          if number.dtype.kind == 'f' and not number.shape:
            found.setdefault(value.tag, {})[event.step] = float(number)
        elif value.HasField('simple_value'):
          found.setdefault(value.tag, {})[event.step] = value.simple_value
  return found
