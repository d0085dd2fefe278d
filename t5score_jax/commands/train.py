"""`t5score train`: gin files and flags, as T5X takes them, to `loop.train`.

Only reads the configuration and says plainly what is wrong with it; training
is `training/loop.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import re

from t5score_jax.commands import _gin
from t5score_jax.errors import STOPPED
from t5score_jax.runtime import configurables, processes

SUMMARY = 'train a model from gin configuration files'

_DESCRIPTION = """\
Trains what gin files describe, or goes on where MODEL_DIR ends: the same
command, given again, resumes. Later files and flags override earlier ones.

Macros, most of them T5X's (--gin.NAME=VALUE; strings need quotes of their own):
  MODEL_DIR                 folder of the run: checkpoint_N/, config.gin,
                            model-info.txt, metrics.jsonl, curves.png, train/
                            and training_eval/ (TensorBoard)
  TRAIN_STEPS               step at which to end, counted from the beginning
  MODEL, CONFIG             objective and network; runs/ and models/ set them
  VOCABULARY                'bytes', or a SentencePiece file
  INITIAL_CHECKPOINT_PATH   weights of a new run: MODEL_DIR (its best
                            checkpoint), checkpoint_N or bundle
  RANDOM_SEED               of initial weights and dropout
data:
  MIXTURE_OR_TASK_NAME      SeqIO task or mixture; or, with runs/arrays.gin,
  ARRAYS                    folder made by scripts/prepare/cache_batches.py
  TASK_FEATURE_LENGTHS      most tokens, as {'inputs': 64, 'targets': 64}
  BATCH_SIZE                examples a step
  USE_CACHED_TASKS          whether SeqIO reads its cache (False)
  CACHE_DIRS                folders of such caches, as ['/data/cache']
  DATA_SEED                 of the order of examples
  DATASET                   any other source of batches
optimization:
  LEARNING_RATE, WARMUP_STEPS, DROPOUT_RATE
  OPTIMIZER, SCHEDULE       @optimizers.adafactor() or adamw();
                            @optimizers.linear(), constant() or inverse_sqrt()
  MICROBATCHES              parts in which a batch is differentiated (1)
  EMA_DECAY                 moving average of the weights (None)
  NUM_PARTITIONS            devices that share one copy of the model (1)
  FULLY_SHARDED             whether no device holds a whole copy (False)
evaluation:
  EVALUATORS, SELECTION     what is measured while training, and by which
                            number the best checkpoint is told
  SETTINGS                  kept with the model for scoring, {'name': ...}
Everything else is a parameter: --gin.loop.Cadence.save_every=500. MODEL_DIR's
config.gin lists all that a run used.
"""

_EPILOG = """\
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
checkpoint was saved, and the same command goes on from it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EPILOG
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  _gin.add_arguments(parser)
  parser.add_argument(
    '--run_mode',
    default='train',
    choices=['train'],
    help="for T5X's habits; scoring is `t5score score`",
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='build everything, print parameters, shapes and shardings, and train '
    'nothing',
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
  # Takes seconds; what is wrong with files and flags is known by now.
  from t5score_jax.training import loop

  _check_values()
  outcome = configurables.call(
    loop.train, dry_run=args.dry_run, quiet=args.quiet
  )
  return STOPPED.get(outcome.reason, 0)


def _check_values() -> None:
  """Refuses plain values that `loop.train` would, by the names of macros.

  Before gin calls what takes the same values, whose errors know no macro.

  Raises:
    ArgumentError: One of them is wrong.
  """
  import gin

  from t5score_jax.training import loop

  values = {}
  for name in loop.PLAIN_ARGUMENTS:
    # What has no value, or is made by a call, is looked at later.
    with contextlib.suppress(Exception):
      value = gin.query_parameter(f'loop.train.{name}')
      if (macro := re.fullmatch(r'%([\w./]+)', repr(value))) is not None:
        value = gin.query_parameter(f'%{macro[1]}')
      if not isinstance(value, gin.config.ConfigurableReference):
        values[name] = value
  loop.check_arguments(values)
