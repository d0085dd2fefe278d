"""`t5score precompile`: does it fit, before a slice is rented.

Reads the same flags as `t5score train`; what is compiled and measured is
`precompile/train_step.py`.
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
from collections.abc import Callable, Iterator
from typing import Any

from t5score_jax import errors
from t5score_jax.commands import _gin
from t5score_jax.commands._metric_arguments import positive
from t5score_jax.errors import ConfigurationError, UsageError
from t5score_jax.runtime import configurables

SUMMARY = 'compile the train or scoring step for a TPU slice that is not there'

_DESCRIPTION = """\
Compiles what `t5score train` would run with the same gin files and flags, for a
slice of TPU chips that need not be there, on any Linux machine with libtpu (pip
install 't5score-jax[tpu]'). Neither data nor a vocabulary nor weights are read:
shapes come from BATCH_SIZE, TASK_FEATURE_LENGTHS and the network.

Prints parameters, bytes on a chip beside what it has, FLOPs, collectives, an
estimate of the time a step takes, and whether it fits.
"""

_EPILOG = """\
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

# Of chip, where --topology=auto names none.
_KIND = 'v5e'

# Macros that a step does not depend on, where nothing sets them.
_STAND_INS = {'TRAIN_STEPS': 1, 'LEARNING_RATE': 1.0, 'WARMUP_STEPS': 0}

# What scoring takes where no --lengths are given.
_SCORE_LENGTHS = {'inputs': 128, 'targets': 128}
# And where no --batch is.
_SCORE_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EPILOG
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  _gin.add_arguments(parser)
  parser.add_argument(
    '--run_mode',
    default='train',
    choices=['train', 'score'],
    help='the train step (default), or the programs that score pairs',
  )
  parser.add_argument(
    '--topology',
    required=True,
    metavar='KIND:SHAPE',
    help='slice, as in v5e:4x4, v4:2x2x4, v5p:2x2x2, v6e:8x8; cpu:8 for '
    'host devices; auto or auto:v5p for the smallest of v5e, or another kind, '
    'that is large enough',
  )
  parser.add_argument(
    '--batch',
    type=positive,
    metavar='N',
    help='examples a step over all chips (BATCH_SIZE); pairs where scoring',
  )
  parser.add_argument(
    '--lengths',
    metavar='IN,OUT[,N]',
    help='tokens of inputs and targets, and hypotheses of a group '
    '(TASK_FEATURE_LENGTHS)',
  )
  parser.add_argument(
    '--partitions',
    type=positive,
    metavar='N',
    help='chips that share one copy of the network (NUM_PARTITIONS)',
  )
  parser.add_argument(
    '--fully_sharded',
    action=argparse.BooleanOptionalAction,
    help='whether parameters and optimizer are divided over all chips '
    '(FULLY_SHARDED)',
  )
  parser.add_argument(
    '--microbatches',
    type=positive,
    metavar='N',
    help='parts in which a batch is differentiated (MICROBATCHES)',
  )
  parser.add_argument(
    '--dtype',
    default='float32',
    choices=['float32', 'bfloat16'],
    help='arithmetic where scoring; training has its own in the gin files',
  )
  parser.add_argument(
    '--effort',
    default='quick',
    choices=['quick', 'full'],
    help="XLA's: the least, which asks for a little more memory (default), "
    'or what training spends, which takes about six times as long',
  )
  parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
  """Compiles and prints; returns the exit code."""
  if args.topology.startswith('cpu:') or not hasattr(os, 'fork'):
    return _run(args)
  return _survived(lambda: _run(args))


def _survived(work: Callable[[], int]) -> int:
  """Runs in a child, because libtpu ends a process where it cannot go on.

  It writes pages about that; here one line is printed instead.
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
    f'libtpu ended with signal {os.WTERMSIG(status)} while it compiled, which '
    'is a fault of its own: try other --partitions, --effort or --batch'
  )


def _run(args: argparse.Namespace) -> int:
  from t5score_jax.precompile import topologies

  try:
    automatic = args.topology.split(':')[0] == 'auto'
    size = 1 if automatic else topologies.size_of(args.topology)
    kind = args.topology.partition(':')[2] or _KIND
    if automatic and kind not in topologies.CHIPS:
      raise topologies.TopologyError(
        f'topology {args.topology!r}: the kind is one of '
        f'{", ".join(topologies.CHIPS)}'
      )
    on_host = args.topology.startswith('cpu:')
    topologies.use_no_accelerator(size if on_host else 1)
  except topologies.TopologyError as error:
    raise UsageError(str(error)) from error
  _gin.configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
  _stand_in()
  asked = _asked_for(args)
  return _print_reports(args, asked, automatic)


def _print_reports(
  args: argparse.Namespace, asked: Any, automatic: bool
) -> int:
  from t5score_jax.precompile import train_step

  found = None
  with train_step.effort(args.effort == 'full'):
    for found in _reports(args, asked, automatic):
      text = json.dumps(found.as_dict()) if args.json else as_text(found)
      print(text, flush=True)
  if automatic and found is not None and not args.json:
    print(
      f'the smallest slice: {found.topology}'
      if found.fits
      else 'no slice is large enough'
    )
  return 0 if found is not None and found.fits else 1


def _reports(
  args: argparse.Namespace, asked: Any, automatic: bool
) -> Iterator[Any]:
  from t5score_jax.precompile import topologies, train_step

  if automatic:
    kind = args.topology.partition(':')[2] or _KIND
    yield from train_step.smallest(kind, asked)
  else:
    yield asked.on(topologies.get(args.topology))


def _stand_in() -> None:
  import gin

  for name, value in _STAND_INS.items():
    try:
      gin.query_parameter(f'%{name}')
    except ValueError:
      gin.parse_config(f'{name} = {value}')


def _asked_for(args: argparse.Namespace) -> Any:
  """What to compile, from gin and flags.

  Raises:
    ConfigurationError: What is missing or wrong.
  """
  from t5score_jax.precompile import scoring, train_step

  model = _configured('model')
  try:
    if args.run_mode == 'score':
      return scoring.Scoring(
        config=model.config,
        dtype=args.dtype,
        batch=_SCORE_BATCH if args.batch is None else args.batch,
        lengths=_lengths(args, _SCORE_LENGTHS),
        num_partitions=1 if args.partitions is None else args.partitions,
      )
    batch, pairs, unit = train_step.batch_shapes(
      model,
      _given(args.batch, 'BATCH_SIZE', lambda: _macro('BATCH_SIZE', '--batch')),
      _lengths(args, None),
    )
  except train_step.PrecompileError as error:
    raise ConfigurationError(str(error)) from error
  partitioner = _configured('partitioner')
  if args.partitions is not None:
    partitioner = dataclasses.replace(
      partitioner, num_partitions=args.partitions
    )
  if args.fully_sharded is not None:
    partitioner = dataclasses.replace(
      partitioner, fully_sharded=args.fully_sharded
    )
  return train_step.Training(
    model=model,
    optimizer=_configured('optimizer'),
    partitioner=partitioner,
    batch=batch,
    pairs=pairs,
    unit=unit,
    microbatches=_given(
      args.microbatches, 'MICROBATCHES', lambda: _configured('microbatches')
    ),
    ema_decay=_configured('ema_decay'),
  )


def _given(flag: int | None, name: str, otherwise: Callable[[], Any]) -> int:
  """What a flag says, or gin does.

  Raises:
    ConfigurationError: Gin's is no whole number, or less than 1.
  """
  from t5score_jax.runtime import validation

  value: int = otherwise() if flag is None else flag
  validation.check(validation.Positive, ConfigurationError, **{name: value})
  return value


def _configured(name: str) -> Any:
  """The value of one parameter of `loop.train`, and nothing else."""
  import gin

  from t5score_jax.training import loop  # noqa: F401 (gin knows it then)

  try:
    # Copying is how gin evaluates what stands in a configuration.
    return copy.deepcopy(gin.query_parameter(f'loop.train.{name}'))
  except Exception as error:
    raise ConfigurationError(
      f'loop.train.{name}: {configurables.plain(error)}'
    ) from error


def _macro(name: str, flag: str) -> Any:
  import gin

  try:
    return copy.deepcopy(gin.query_parameter(f'%{name}'))
  except Exception:
    raise ConfigurationError(
      f'{name} has no value: give --gin.{name}=VALUE or {flag}'
    ) from None


def _lengths(
  args: argparse.Namespace, default: dict[str, int] | None
) -> dict[str, int]:
  if args.lengths is None:
    return default or _macro('TASK_FEATURE_LENGTHS', '--lengths')
  try:
    numbers = [int(number) for number in args.lengths.split(',')]
    if len(numbers) not in (2, 3) or min(numbers) < 1:
      raise ValueError
  except ValueError:
    raise ConfigurationError(
      f'--lengths={args.lengths}: write two or three numbers, as in 64,64 or '
      '64,64,8'
    ) from None
  return dict(zip(('inputs', 'targets', 'ratings'), numbers, strict=False))


def as_text(report: Any) -> str:
  """A report for people."""
  memory = report.memory
  mesh = ' x '.join(f'{axis} {size}' for axis, size in report.mesh.items())
  divided = ', parameters divided over all' if report.fully_sharded else ''
  shapes = ', '.join(f'{k} {list(v)}' for k, v in report.batch.items())
  lines = [
    f'{report.what} on {report.topology}: {report.chips} chip(s), {mesh}'
    f'{divided}; microbatches {report.microbatches}',
    f'  batch        {report.pairs:,} x {report.unit}: {shapes}',
    f'  parameters   {report.parameters:,}',
    f'  compilation  {report.seconds:.0f} s, {report.effort} effort',
  ]
  if memory.arguments:
    lines.append(
      f'  GiB a chip   arguments {_gib(memory.arguments)}, outputs '
      f'{_gib(memory.outputs)} (in place {_gib(memory.aliased)}), temporaries '
      f'{_gib(memory.temporaries)}, program {_gib(memory.program)}'
      + (f"; XLA's peak {_gib(memory.peak)}" if memory.peak else '')
    )
  usable = 'no bound' if report.usable is None else _gib(report.usable)
  lines += [
    f'  needed       {"" if memory.arguments else "at least "}'
    f'{_gib(memory.needed)} GiB a chip of {usable}: '
    + ('fits' if report.fits else 'does not fit'),
    f'  FLOPs        {report.flops:.3e} a step, '
    f'{report.flops / report.pairs:.3e} a pair; without recomputation '
    f'{report.model_flops:.3e}',
  ]
  for kind, line in report.collectives_by_kind().items():
    lines.append(
      f'  {kind:<18} {line["count"]:>6,} runs, {_gib(line["bytes"])} GiB a chip'
      f', {_gib(line["sent"])} GiB sent'
    )
  if (estimate := report.estimate) is not None:
    low, high = (f'{100 * x:.0f}%' for x in estimate.utilization)
    lines += [
      f'  estimate     {estimate.least:.3f} s a step if all overlaps, '
      f'{estimate.most:.3f} s if nothing does: products {estimate.products:.3f}'
      f', HBM {estimate.memory:.3f}, links {estimate.links:.3f}; '
      f'{low} to {high} of peak (MFU)',
      f'               assumes {_assumptions()}',
    ]
  return '\n'.join(lines)


def _assumptions() -> str:
  from t5score_jax.precompile import train_step

  return train_step.ASSUMPTIONS


def _gib(size: float) -> str:
  return f'{size / 2**30:.2f}'
