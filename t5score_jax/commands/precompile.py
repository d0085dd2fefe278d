"""`t5score precompile`: reports whether a program fits a TPU slice.

Reads the flags of `t5score train`; programs and reports are in `precompile/`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from t5score_jax import errors
from t5score_jax.commands import _gin
from t5score_jax.commands._usage import positive
from t5score_jax.errors import ConfigurationError, UsageError
from t5score_jax.runtime import configurables

SUMMARY = 'compile the training or scoring step for an absent TPU slice'

DESCRIPTION = """\
Compiles the program that `t5score train` would run with the same gin files and
flags, for a slice of absent TPU chips, on any Linux machine with libtpu (pip
install 't5score-jax[tpu]'). Reads no data, vocabulary or weights: shapes come
from BATCH_SIZE, TASK_FEATURE_LENGTHS and the network.

Prints the number of parameters, bytes needed and available per chip, FLOPs, a
roofline bound on the time of a step, and whether the program fits.
"""

EPILOG = """\
examples:
  t5score precompile --gin_file=recipes/t5score_xxl_contrastive.gin \\
      --topology=v5e:4x4
  t5score precompile --gin_file=models/mt5_base.gin \\
      --gin_file=runs/train_generative.gin --topology=auto --batch=128
  t5score precompile --gin_file=models/mt5_xl.gin \\
      --gin_file=runs/train_generative.gin --run_mode=score \\
      --topology=v5e:2x4 --partitions=4 --batch=64 --json
  t5score precompile --gin_file=recipes/tiny_run.gin --topology=cpu:8

exit code: 0 it fits; 1 it does not, or cannot be compiled; 2 the configuration
is wrong
"""

# The kind of chip if --topology=auto names none.
_KIND = 'v5e'

# Macros that a compiled step does not depend on.
_UNUSED = {'TRAIN_STEPS': 1, 'LEARNING_RATE': 1.0, 'WARMUP_STEPS': 0}
# Macros that runs of regressors compute from their data.
_COUNTED = ('TRAIN_STEPS', 'EVAL_STEPS', 'FROZEN_STEPS')

# Defaults of --lengths and --batch for scoring.
_SCORE_LENGTHS = {'inputs': 128, 'targets': 128}
_SCORE_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _gin.add_arguments(parser)
  parser.add_argument(
    '--run_mode',
    default='train',
    choices=['train', 'score'],
    help='the training step (default), or the programs that score pairs',
  )
  parser.add_argument(
    '--topology',
    required=True,
    metavar='KIND:SHAPE',
    help='slice, as in v5e:4x4, v4:2x2x4, v5p:2x2x2, v6e:8x8; cpu:8 for '
    'host devices; auto or auto:v5p for the smallest slice of v5e, or of '
    'another kind, that is large enough',
  )
  parser.add_argument(
    '--batch',
    type=positive,
    metavar='N',
    help='examples per step over all chips (BATCH_SIZE), or pairs to score',
  )
  parser.add_argument(
    '--lengths',
    metavar='IN[,OUT[,N]]',
    help='tokens of inputs and targets, and hypotheses of a group '
    '(TASK_FEATURE_LENGTHS); of each text for an encoder (default: as many as '
    'it has positions)',
  )
  parser.add_argument(
    '--partitions',
    type=positive,
    metavar='N',
    help='chips over which each replica is sharded (NUM_PARTITIONS)',
  )
  parser.add_argument(
    '--fully_sharded',
    action=argparse.BooleanOptionalAction,
    help='whether parameters and optimizer state are sharded over all chips '
    '(FULLY_SHARDED)',
  )
  parser.add_argument(
    '--microbatches',
    type=positive,
    metavar='N',
    help='parts of a batch whose gradients are added (MICROBATCHES)',
  )
  parser.add_argument(
    '--dtype',
    default='float32',
    choices=['float32', 'bfloat16'],
    help='arithmetic of scoring; that of training is in the gin files',
  )
  parser.add_argument(
    '--effort',
    default='quick',
    choices=['quick', 'full'],
    help="XLA's effort: the least, whose programs need slightly more memory "
    '(default), or that of training, which takes about six times as long',
  )
  parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
  """Compiles and prints; returns the exit code."""
  if args.topology.startswith('cpu:') or not hasattr(os, 'fork'):
    return _run(args)
  return _survived(lambda: _run(args))


def _survived(work: Callable[[], int]) -> int:
  """Runs in a child process, because libtpu aborts the process on faults.

  Its pages of messages are replaced by one line.
  """
  from t5score_jax.precompile import topologies

  sys.stdout.flush()
  with tempfile.TemporaryFile() as messages:
    with warnings.catch_warnings():
      # JAX warns of threads that a child would lack; none has been started.
      warnings.simplefilter('ignore')
      child = os.fork()
    if child == 0:
      os.dup2(messages.fileno(), 2)
      sys.stderr = os.fdopen(2, 'w', buffering=1, closefd=False)
      code: int | None = None
      try:
        code = work()
        sys.stdout.flush()
      except BaseException as error:
        code = errors.report('t5score precompile', error)
        if code is None:
          traceback.print_exc()
      finally:
        os._exit(70 if code is None else code)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
      messages.seek(0)
      sys.stderr.write(messages.read().decode('utf-8', 'replace'))
      return os.WEXITSTATUS(status)
  raise topologies.TopologyError(
    f'libtpu aborted with signal {os.WTERMSIG(status)} while compiling: try '
    'other --partitions, --effort or --batch'
  )


def _run(args: argparse.Namespace) -> int:
  from t5score_jax.precompile import reports, topologies, train_step

  automatic = args.topology.split(':')[0] == 'auto'
  kind = args.topology.partition(':')[2] or _KIND
  if automatic and kind not in topologies.CHIPS:
    raise UsageError(
      f'topology {args.topology!r}: the kind is one of '
      f'{", ".join(topologies.CHIPS)}'
    )
  size = 1 if automatic else topologies.size_of(args.topology)
  on_host = args.topology.startswith('cpu:')
  topologies.use_no_accelerator(size if on_host else 1)
  _gin.configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
  _set_unused()
  program = (
    _score_program(args) if args.run_mode == 'score' else _train_program(args)
  )
  report = None
  with reports.effort(args.effort == 'full'):
    for report in (
      train_step.smallest(kind, program)
      if automatic
      else [program.on(topologies.get(args.topology))]
    ):
      text = json.dumps(report.as_dict()) if args.json else as_text(report)
      print(text, flush=True)
  fits = report is not None and report.fits
  if automatic and report is not None and not args.json:
    chosen = f'the smallest slice: {report.topology}'
    print(chosen if fits else 'no slice is large enough')
  return 0 if fits else 1


def _set_unused() -> None:
  """Gives values to macros that a compiled step does not depend on."""
  import gin

  for name, value in _UNUSED.items():
    try:
      gin.query_parameter(f'%{name}')
    except ValueError:
      gin.parse_config(f'{name} = {value}')
  for name in _COUNTED:
    try:
      counted = not isinstance(gin.query_parameter(f'%{name}'), int)
    except ValueError:
      continue
    if counted:
      gin.parse_config(f'{name} = 1')


def _score_program(args: argparse.Namespace) -> Any:
  from t5score_jax.nn import t5
  from t5score_jax.precompile import scoring

  model = _configured('model')
  if not isinstance(model.config, t5.T5Config):
    raise ConfigurationError(
      f'--run_mode=score compiles T5 networks, not {type(model).__name__}'
    )
  return scoring.Scoring(
    config=model.config,
    output_id=getattr(model, 'output_id', None),
    dtype=args.dtype,
    batch=args.batch or _SCORE_BATCH,
    lengths=_lengths(args, _SCORE_LENGTHS),
    num_partitions=args.partitions or 1,
  )


def _train_program(args: argparse.Namespace) -> Any:
  from t5score_jax.precompile import train_step
  from t5score_jax.runtime import validation

  model = _configured('model')
  numbers = {
    'BATCH_SIZE': args.batch or _macro('BATCH_SIZE', '--batch'),
    'MICROBATCHES': args.microbatches or _configured('microbatches'),
  }
  for name, value in numbers.items():
    validation.check(validation.Positive, ConfigurationError, **{name: value})
  lengths = _lengths(args, train_step.default_lengths(model))
  batch, pairs, unit = train_step.batch_shapes(
    model, numbers['BATCH_SIZE'], lengths
  )
  flags = {
    'num_partitions': args.partitions,
    'fully_sharded': args.fully_sharded,
  }
  given = {name: value for name, value in flags.items() if value is not None}
  return train_step.Training(
    model=model,
    optimizer=_configured('optimizer'),
    partitioner=dataclasses.replace(_configured('partitioner'), **given),
    batch=batch,
    pairs=pairs,
    unit=unit,
    microbatches=numbers['MICROBATCHES'],
    ema_decay=_configured('ema_decay'),
  )


def _configured(name: str) -> Any:
  """Evaluates one parameter of `loop.train`."""
  from t5score_jax.training import loop  # noqa: F401 (gin knows it then)

  return _query(f'loop.train.{name}')


def _macro(name: str, flag: str) -> Any:
  advice = f'{name} has no value: give --gin.{name}=VALUE or {flag}'
  return _query(f'%{name}', advice)


def _query(name: str, advice: str = '') -> Any:
  import gin

  try:
    # Gin evaluates a configuration by copying it.
    return copy.deepcopy(gin.query_parameter(name))
  except Exception as error:
    problem = advice or f'{name}: {configurables.plain(error)}'
    raise ConfigurationError(problem) from error


def _lengths(
  args: argparse.Namespace, default: dict[str, int] | None = None
) -> dict[str, int]:
  if args.lengths is None:
    return default or _macro('TASK_FEATURE_LENGTHS', '--lengths')
  try:
    numbers = [int(number) for number in args.lengths.split(',')]
    wanted = (1,) if default and len(default) == 1 else (2, 3)
    if len(numbers) not in wanted or min(numbers) < 1:
      raise ValueError
  except ValueError:
    raise ConfigurationError(
      f'--lengths={args.lengths}: write two or three numbers, as in 64,64 or '
      '64,64,8; one for an encoder'
    ) from None
  return dict(zip(('inputs', 'targets', 'ratings'), numbers, strict=False))


def as_text(report: Any) -> str:
  """Renders a report as text."""
  memory = report.memory
  mesh = ' x '.join(f'{axis} {size}' for axis, size in report.mesh.items())
  sharded = ', parameters sharded over all' if report.fully_sharded else ''
  shapes = ', '.join(f'{k} {list(v)}' for k, v in report.batch.items())
  lines = [
    f'{report.what} on {report.topology}: {report.chips} chip(s), {mesh}'
    f'{sharded}; microbatches {report.microbatches}',
    f'  batch        {report.pairs:,} x {report.unit}: {shapes}',
    f'  parameters   {report.parameters:,}',
    f'  compilation  {report.seconds:.0f} s, {report.effort} effort',
  ]
  if memory.arguments:
    lines.append(
      f'  GiB per chip arguments {_gib(memory.arguments)}, outputs '
      f'{_gib(memory.outputs)} (in place {_gib(memory.aliased)}), temporaries '
      f'{_gib(memory.temporaries)}, program {_gib(memory.program)}'
      + (f"; XLA's peak {_gib(memory.peak)}" if memory.peak else '')
    )
  usable = 'no bound' if report.usable is None else _gib(report.usable)
  lines += [
    f'  needed       {"" if memory.arguments else "at least "}'
    f'{_gib(memory.needed)} GiB per chip of {usable}: '
    + ('fits' if report.fits else 'does not fit'),
    f'  FLOPs        {report.flops:.3e} per step, '
    f'{report.flops / report.pairs:.3e} per pair; without recomputation '
    f'{report.model_flops:.3e}',
  ]
  for kind, traffic in sorted(report.collectives.items()):
    lines.append(
      f'  {kind:<12} {traffic.count:,} per step, {_gib(traffic.bytes)} GiB per '
      'chip'
    )
  if (bound := report.roofline) is not None:
    assumptions = report.as_dict()['roofline']['assumptions']
    lines += [
      f'  roofline     at least {bound.seconds:.3f} s per step: products '
      f'{bound.products:.3f}, HBM {bound.memory:.3f}; at most '
      f'{100 * bound.utilization:.0f}% of peak (MFU)',
      f'               assumes {assumptions}',
    ]
  return '\n'.join(lines)


def _gib(size: float) -> str:
  return f'{size / 2**30:.2f}'
