"""`t5score train`: trains a model from gin files and flags, as in T5X.

Reads and checks the configuration; training is `training/loop.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import re

from t5score_jax.commands import _gin
from t5score_jax.errors import STOPPED
from t5score_jax.runtime import configurables, processes

SUMMARY = 'train a model from gin configuration files'

DESCRIPTION = """\
Trains the model that gin files describe. The same command resumes a run from
the last checkpoint in MODEL_DIR. Later files and flags override earlier ones.

Macros, most of them T5X's (--gin.NAME=VALUE; strings need quotes of their own):
  MODEL_DIR                 folder of the run: checkpoint_N/, config.gin,
                            model-info.txt, metrics.jsonl, curves.png, train/
                            and training_eval/ (TensorBoard)
  TRAIN_STEPS               step at which to end, counted from the beginning
  MODEL, CONFIG             objective and network; runs/ and models/ set them
  VOCABULARY                'bytes', a SentencePiece file, or that of a model:
                            its folder or name, such as t5score-tiny
  INITIAL_CHECKPOINT_PATH   weights of a new run: a model's folder or name,
                            MODEL_DIR (its best checkpoint) or checkpoint_N
  RANDOM_SEED               seed of initial weights and dropout
  SKIP_DAMAGED              whether to continue from the last whole checkpoint
                            if later ones are damaged (False)
data:
  MIXTURE_OR_TASK_NAME      SeqIO task or mixture
  MIXTURE_OR_TASK_MODULE    Python module that registers it
  ARRAYS                    with runs/arrays.gin, instead of a task: a folder
                            from scripts/prepare/cache_batches.py
  TASK_FEATURE_LENGTHS      maximum tokens, as {'inputs': 64, 'targets': 64}
  BATCH_SIZE                examples per step
  USE_CACHED_TASKS          whether SeqIO reads its cache (False)
  CACHE_DIRS                folders of such caches, as ['/data/cache']
  DATA_SEED                 seed of the order of examples
  DATASET                   any other source of batches
optimization:
  LEARNING_RATE, WARMUP_STEPS, DROPOUT_RATE
  OPTIMIZER, SCHEDULE       @optimizers.adafactor() or adamw();
                            @optimizers.linear(), constant() or inverse_sqrt()
  MICROBATCHES              parts of a batch whose gradients are added (1)
  EMA_DECAY                 moving average of the weights (None)
  NUM_PARTITIONS            devices over which each replica is sharded (1)
  FULLY_SHARDED             whether parameters and optimizer state are sharded
                            over all devices (False)
evaluation:
  EVALUATORS, SELECTION     what is measured while training, and the number
                            that selects the best checkpoint
  SETTINGS                  kept with the model for scoring, {'name': ...}; by
                            default those of the initial model
Everything else is a parameter: --gin.loop.Intervals.save_every=500. A run lists
all values that it used in MODEL_DIR/config.gin.
"""

EPILOG = """\
examples:
  t5score train --gin_file=recipes/tiny_run.gin --gin.MODEL_DIR="'/tmp/run'"
  t5score train --gin_file=models/mt5_small.gin \\
      --gin_file=runs/train_generative.gin \\
      --gin.MODEL_DIR="'/data/run'" --gin.TRAIN_STEPS=10000 \\
      --gin.VOCABULARY="'/data/mt5.model'" \\
      --gin.ARRAYS="'/data/paracotta'" --gin_file=runs/arrays.gin

many processes, each with its index (scripts/launch/hosts.sh does this):
  t5score train ... --coordinator_address=10.0.0.1:8476 \\
      --process_count=2 --process_index=0

exit code: 0 finished or dry run; 1 the run failed, or another process did; 2
the configuration is wrong; 75 SIGTERM, 130 Ctrl-C to any of the processes: a
checkpoint was saved, from which the same command resumes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _gin.add_arguments(parser)
  parser.add_argument(
    '--run_mode',
    default='train',
    choices=['train'],
    help='accepted as in T5X; scoring is `t5score score`',
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='build everything and print parameters, shapes and shardings without '
    'training',
  )
  parser.add_argument('--quiet', action='store_true', help='print errors only')
  processes.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Parses the configuration and trains; returns the exit code."""
  return processes.together(
    'train', args, lambda: _run(args), agreed=(0, *STOPPED.values())
  )


def _run(args: argparse.Namespace) -> int:
  _gin.configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
  # Takes seconds, so that files and flags are checked first.
  from t5score_jax.training import loop

  _check_values()
  result = configurables.call(
    loop.train, dry_run=args.dry_run, quiet=args.quiet
  )
  return STOPPED.get(result.reason, 0)


def _check_values() -> None:
  """Checks plain values before gin passes them on, to name macros in errors."""
  import gin

  from t5score_jax.training import loop

  values = {}
  for name in loop.PLAIN_ARGUMENTS:
    # A value that is missing or computed by a call is checked later.
    with contextlib.suppress(Exception):
      value = gin.query_parameter(f'loop.train.{name}')
      if (macro := re.fullmatch(r'%([\w./]+)', repr(value))) is not None:
        value = gin.query_parameter(f'%{macro[1]}')
      if not isinstance(value, gin.config.ConfigurableReference):
        values[name] = value
  loop.check_arguments(values)
