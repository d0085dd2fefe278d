"""`t5score train`: gin files and flags, as T5X takes them, to `loop.train`.

Only reads the configuration and says plainly what is wrong with it; training
is `training/loop.py`.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from t5score_jax import processes

SUMMARY = 'train a model from gin configuration files'

_BINDING = '--gin.NAME'
# Exit codes of runs that were told to stop: Ctrl-C as a shell gives it, SIGTERM
# as EX_TEMPFAIL of sysexits.h, 'try again'.
_STOPPED = {'interrupted': 130, 'preempted': 75}
# What gin and the modules that it imports raise at a wrong configuration.
_WRONG = (
  OSError,
  ValueError,
  TypeError,
  SyntaxError,
  ImportError,
  AttributeError,
  NameError,
  RuntimeError,
)

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
  ARRAYS                    folder made by scripts/cache_batches.py
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

many processes, each with its index (scripts/launch_hosts.sh does this):
  t5score train ... --coordinator_address=10.0.0.1:8476 \\
      --process_count=2 --process_index=0

exit code: 0 finished or dry run; 1 the run failed, or another process did; 2
the configuration is wrong; 75 SIGTERM, 130 Ctrl-C to any of the processes: a
checkpoint was saved, and the same command goes on from it
"""


class ConfigurationError(ValueError):
  """What is wrong with the gin files or flags, for a person."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EPILOG
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  add_gin_arguments(parser)
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


def add_gin_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the flags that say what to train, which other verbs take too."""
  parser.add_argument(
    '--gin_file',
    action='append',
    default=[],
    metavar='FILE',
    help='configuration; may be given several times, the later wins; looked '
    'for in --gin_search_paths, here, and among the files of the package',
  )
  parser.add_argument(
    _BINDING,
    dest='gin_bindings',
    action='append',
    default=[],
    metavar='VALUE',
    help='sets the macro or parameter NAME, as in --gin.TRAIN_STEPS=1000 or '
    '--gin.loop.Cadence.log_every=10',
  )
  parser.add_argument(
    '--gin_search_paths',
    default='',
    metavar='DIR,...',
    help='folders in which gin files are looked for first',
  )
  # argparse knows no options with a free part: --gin.A=1 becomes
  # --gin.NAME=A=1 before it looks.
  parse = parser.parse_known_args

  def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
    args = sys.argv[1:] if args is None else args
    return parse([_named(text) for text in args], namespace)

  parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def run(args: argparse.Namespace) -> int:
  """Parses the configuration and trains; returns the exit code."""
  return processes.together(
    'train', args, lambda: _run(args), agreed=(0, *_STOPPED.values())
  )


def _run(args: argparse.Namespace) -> int:
  import gin

  from t5score_jax.training import loop

  try:
    configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
    train = gin.get_configurable(loop.train)
  except ConfigurationError as error:
    print(f't5score train: {error}', file=sys.stderr)
    return 2
  try:
    outcome = train(dry_run=args.dry_run, quiet=args.quiet)
  except Exception as error:
    code, message = _explain(error, loop)
    if not message:
      raise
    print(f't5score train: {message}', file=sys.stderr)
    return code
  return _STOPPED.get(outcome.reason, 0)


def configure(
  gin_files: list[str], bindings: list[str], search_paths: str = ''
) -> None:
  """Makes gin's global configuration anew.

  Args:
    gin_files: Files, the later wins.
    bindings: 'NAME=VALUE' each, which win over files.
    search_paths: Folders, separated by commas.

  Raises:
    ConfigurationError: What is wrong, where, and what to do.
  """
  import gin

  # Gin reports a missing file to the log as well.
  logging.getLogger().setLevel(logging.CRITICAL)
  if not gin_files:
    raise ConfigurationError(
      'no configuration: give at least one --gin_file (see --help)'
    )
  gin.clear_config()
  folders = [folder for folder in search_paths.split(',') if folder]
  for folder in folders:
    if not Path(folder).is_dir():
      raise ConfigurationError(f'--gin_search_paths: no folder {folder}')
  # The one that was added last is searched first.
  for folder in [str(packaged_folder()), '', *reversed(folders)]:
    gin.add_config_file_search_path(folder)
  try:
    # Not finalized: a macro that this run never reads needs no value.
    gin.parse_config_files_and_bindings(
      gin_files, [_checked(text) for text in bindings], finalize_config=False
    )
  except _WRONG as error:
    raise ConfigurationError(_plain(error)) from error
  _check_macros(bindings, gin.config_str())


def packaged_folder() -> Path:
  """The folder of the gin files that come with the package."""
  from t5score_jax import gin_configs

  return Path(next(iter(gin_configs.__path__)))


def _named(text: str) -> str:
  match = re.match(r'--gin\.([^=]+)=', text)
  return f'{_BINDING}={text[len("--gin.") :]}' if match else text


def _checked(text: str) -> str:
  """A binding from the command line, its value tried by itself."""
  import gin

  name, equals, value = text.partition('=')
  if not equals:
    raise ConfigurationError(
      f'--gin.{name}: write --gin.NAME=VALUE, in one word'
    )
  try:
    gin.config.parse_value(value)
  except (SyntaxError, ValueError):
    raise ConfigurationError(
      f'--gin.{name}={value}: the value is not one that gin reads; a string '
      f'needs quotes of its own: --gin.{name}="\'{value}\'"'
    ) from None
  return f'{name} = {value}'


def _check_macros(bindings: list[str], config: str) -> None:
  """A macro that nothing uses is a typing error, not a wish."""
  used = set(re.findall(r'%([A-Za-z_][\w.]*)', config))
  for binding in bindings:
    name = binding.partition('=')[0].strip()
    if '.' not in name and name not in used:
      close = difflib.get_close_matches(name, used, n=1)
      hint = f' did you mean {close[0]}?' if close else ''
      raise ConfigurationError(
        f'--gin.{name}: nothing in the gin files uses {name};{hint} These '
        f'are used: {", ".join(sorted(used))}'
      )


def _plain(error: Exception) -> str:
  """Gin's words in one line, with what to do."""
  text = str(error).strip()
  if match := re.search(r"'macro' \(.*\) in scope '([\w.]+)'", text):
    return f'{match[1]} has no value: give --gin.{match[1]}=VALUE'
  if match := re.search(r'Unable to open file: (\S+)\. Searched.*', text):
    where = f'looked for here, in --gin_search_paths and in {packaged_folder()}'
    text = text.replace(match[0], f'no gin file {match[1]}; {where}')
  if isinstance(error, ImportError):
    text = f'a gin file imports what is not installed: {text}'
  return _in_one_line(text)


def _in_one_line(text: str) -> str:
  """Puts what gin adds about places into brackets, and leaves out its calls."""
  text = re.sub(r'\n\s*In call to configurable .*', '', text)
  # The line itself, perhaps with a mark under the place in it, comes after.
  line = r'(?:\n    (.*))?(?:\n[ ^]*(?=\n|$))?'
  text = re.sub(
    r'\n\s*In file "(.*)", line (\d+)' + line, r' (\1, line \2: \3)', text
  )
  text = re.sub(r'\n\s*In bindings string line \d+' + line, r' (\1)', text)
  module = r"; <module '([\w.]+)' from .*?> has no attribute (\w+)\."
  return re.sub(module, r': \1 has no \2', text)


def _explain(error: Exception, loop: Any) -> tuple[int, str]:
  """Exit code and words for an error of the user's; '' for one of ours."""
  if lost := processes.explain_loss(error):
    return 1, lost
  if isinstance(error, loop.arguments.ArgumentError):
    return 2, _in_one_line(str(error))
  told = (
    processes.ProcessError,
    loop.TrainingError,
    loop.native.CheckpointError,
    loop.inputs.DatasetError,
    loop.optimizers.OptimizerError,
    loop.partitioning.MeshError,
    loop.partitioning.shares.ShareError,
    loop.native.bundles.BundleError,
    loop.records.RecordError,
    OSError,
  )
  if isinstance(error, told):
    return 1, _in_one_line(str(error))
  frames = traceback.walk_tb(error.__traceback__)
  inside = any(
    frame.f_code.co_filename == loop.__file__
    and frame.f_code.co_name == 'train'
    for frame, _ in frames
  )
  # Before the trunk's first line gin calls what the configuration names.
  if not inside and isinstance(error, ValueError | TypeError | RuntimeError):
    return 2, _plain(error)
  return 1, ''
