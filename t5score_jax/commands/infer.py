"""`t5score infer`: texts that a model writes, or scores of given ones, in bulk.

Reads the command line, for files or for a SeqIO task by gin. How a run is cut,
resumed and written is `inference/bulk.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from t5score_jax.commands import _gin, score
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.errors import UsageError
from t5score_jax.runtime import configurables, processes

SUMMARY = 'write texts for inputs (predict), or score targets, in bulk'

# Those of inference/bulk.py, whose import takes seconds; a test compares them.
MODES = ('predict', 'score')
FORMATS = ('jsonl', 'text')
SHARD = 10_000

_DESCRIPTION = """\
Runs a model over many inputs. --mode predict writes texts: pseudo-references,
back-translations. --mode score gives log p(target | input): as `score` the mean
a token, as `log_prob` the sum (T5X's score), and the number of tokens.

From files: -m, --inputs, --output, a line each. Or over a SeqIO task or each
task of a mixture, with T5X's macros and gin file:
  MIXTURE_OR_TASK_NAME, TASK_FEATURE_LENGTHS, CHECKPOINT_PATH, INFER_OUTPUT_DIR
  SPLIT (test), MODE (predict), USE_CACHED_TASKS, DTYPE, BATCH_TOKENS,
  NUM_PARTITIONS, SHARD_SIZE; search.Method.beams, .temperature, ...

Inputs are taken in shards, which are kept in OUTPUT.parts: the same command,
given again, goes on where it was broken off. The output appears whole.
"""

_EPILOG = """\
examples:
  t5score infer -m my_run/ --inputs monolingual.txt.gz --output back.jsonl
  t5score infer -m my_run/ --inputs src.txt --beams 4 --format text \\
      --output pseudo_references.txt
  t5score infer -m t5score-tiny --mode score --inputs src.txt \\
      --targets hyp.txt --output scores.jsonl
  t5score infer --gin_file=runs/infer.gin --gin_file=my_tasks.gin \\
      --gin.MIXTURE_OR_TASK_NAME="'my_task'" \\
      --gin.TASK_FEATURE_LENGTHS="{'inputs': 64, 'targets': 64}" \\
      --gin.CHECKPOINT_PATH="'/data/run'" --gin.INFER_OUTPUT_DIR="'/data/out'"

exit code: 0 done; 1 the run failed; 2 the command line or the configuration is
wrong; 130 interrupted (finished shards are kept)
"""

# Field of search.Method -> flag and help.
_METHOD: dict[str, tuple[type, str]] = {
  'max_tokens': (int, 'most tokens of an output, </s> included (128)'),
  'beams': (int, 'width of beam search (1: none)'),
  'length_penalty': (
    float,
    'beams are ranked by log-probability / tokens ** this (1)',
  ),
  'temperature': (float, 'of sampling (0: the most probable token)'),
  'top_k': (int, 'sample among so many of the most probable tokens (0: all)'),
  'top_p': (float, 'sample among the fewest tokens of this probability (1)'),
  'seed': (int, 'of sampling (0)'),
  'outputs': (int, 'outputs of an input: samples, or the best beams (1)'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EPILOG
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  group = parser.add_argument_group('files')
  group.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    help='an embedded model, a model folder, a MODEL_DIR or checkpoint',
  )
  group.add_argument(
    '--inputs', metavar='FILE', help='a text a line; - is standard input'
  )
  group.add_argument(
    '--targets', metavar='FILE', help='to be scored, as many lines'
  )
  group.add_argument(
    '-o', '--output', metavar='OUT', help='- is standard output, unresumed'
  )
  group.add_argument('--mode', choices=MODES, help='(predict)')
  group.add_argument(
    '--format',
    choices=FORMATS,
    help='text: the written text, or the score, alone (jsonl)',
  )
  for name in ('max-length', 'batch-tokens', 'num-partitions', 'shard-size'):
    group.add_argument(
      f'--{name}',
      type=metric_arguments.positive,
      metavar='N',
      help={
        'max-length': "tokens a text that is read (the model's, else 1024)",
        'batch-tokens': 'tokens computed at once on a device: bounds memory',
        'num-partitions': 'devices over which the weights are divided (1)',
        'shard-size': f'inputs that a broken-off run may lose ({SHARD})',
      }[name],
    )
  group.add_argument(
    '--dtype', choices=metric_arguments.DTYPES, help='(float32)'
  )
  group = parser.add_argument_group('predict')
  for name, (kind, words) in _METHOD.items():
    group.add_argument(
      f'--{name.replace("_", "-")}', type=kind, metavar='N', help=words
    )
  parser.add_argument(
    '--restart',
    action='store_true',
    help='throw away what an earlier run left in OUTPUT.parts',
  )
  parser.add_argument('--quiet', action='store_true', help='print errors only')
  _gin.add_arguments(parser)
  processes.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together(
    'infer', args, lambda: _run(args), advice='The same command goes on'
  )


def _run(args: argparse.Namespace) -> int:
  check(args)
  if args.output:
    score.check_writable(args.output, [args.inputs, args.targets])
  _Reporter(args.quiet).report(
    _from_gin(args) if args.gin_file else _from_files(args)
  )
  return 0


def check(args: argparse.Namespace) -> None:
  """Raises UsageError where arguments don't go together."""
  names = {
    name: '--' + name.replace('_', '-')
    for name in (
      *('model', 'inputs', 'targets', 'output', 'mode', 'max_length'),
      *('batch_tokens', 'num_partitions', 'shard_size', 'dtype', *_METHOD),
    )
  }
  given = [flag for name, flag in names.items() if getattr(args, name)]
  if args.gin_file or args.gin_bindings:
    if given:
      raise UsageError(
        f'{given[0]} is for files; with --gin_file give macros instead'
      )
    if args.format not in (None, 'jsonl'):
      raise UsageError('--format is for files; tasks give jsonl')
    return
  for name in ('model', 'inputs', 'output'):
    if not getattr(args, name):
      raise UsageError(
        f'{names[name]} is missing (or --gin_file, for a SeqIO task)'
      )
  if args.format is None:
    score.check_ending(args.output, FORMATS, '--output')
  if args.mode == 'score':
    if not args.targets:
      raise UsageError('--mode score needs --targets')
    if args.inputs == args.targets == '-':
      raise UsageError('standard input (-) can be only one of the files')
    for name in _METHOD:
      if getattr(args, name) is not None:
        raise UsageError(f'{names[name]} is for --mode predict')
  elif args.targets:
    raise UsageError('--targets is for --mode score')


def _from_files(args: argparse.Namespace) -> dict[str, Any]:
  """Infers over files; returns the totals of the output."""
  from t5score_jax.checkpoints import loading
  from t5score_jax.inference import bulk
  from t5score_jax.inference.search import Method

  method = {n: v for n in _METHOD if (v := getattr(args, n)) is not None}
  try:
    options = bulk.Options(
      args.mode or 'predict',
      Method(**method),
      args.max_length,
      args.batch_tokens,
      args.dtype or 'float32',
      args.num_partitions or 1,
    )
  except ValueError as error:
    raise UsageError(str(error)) from error
  bundle = loading.load_model(args.model)
  totals = bulk.run(
    bulk.from_files(
      args.inputs, args.targets, bool(bundle.settings.get('lowercase'))
    ),
    bulk.work(bundle, options),
    args.output,
    bulk.identity_of(bundle, options),
    format=args.format or 'jsonl',
    shard_size=args.shard_size or bulk.DEFAULT_SHARD,
    restart=args.restart,
    said=_Reporter(args.quiet).said,
  )
  return {args.output: totals}


def _from_gin(args: argparse.Namespace) -> dict[str, Any]:
  """Infers over SeqIO tasks; returns the totals of each output."""
  from t5score_jax.inference import bulk

  _gin.configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
  totals: dict[str, Any] = configurables.call(
    bulk.infer, restart=args.restart, said=_Reporter(args.quiet).said
  )
  return totals


class _Reporter:
  """Says on standard error how far a run is, and what it did."""

  def __init__(self, quiet: bool):
    self._quiet = quiet or not processes.is_first()
    self._last = time.monotonic()

  def said(self, done: int) -> None:
    """Takes the number of examples done; says it every ten seconds."""
    if not self._quiet and time.monotonic() - self._last > 10:
      self._last = time.monotonic()
      print(f'{done} done', file=sys.stderr)

  def report(self, found: dict[str, Any]) -> None:
    """Says what each output holds."""
    if self._quiet:
      return
    for path, totals in found.items():
      words = [f'{totals.examples} inputs']
      if totals.cut:
        words.append(f'{totals.cut} texts cut: longer than the model reads')
      if totals.unfinished:
        words.append(
          f'{totals.unfinished} outputs cut: no </s> within max_tokens'
        )
      name = 'standard output' if path == '-' else path
      print(f'{name}: {"; ".join(words)}', file=sys.stderr)
