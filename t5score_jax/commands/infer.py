"""`t5score infer`: generates texts, or scores given ones, in bulk.

Reads the command line, for files or for a SeqIO task by gin; the run is
`inference/bulk.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from t5score_jax.commands import _gin, _usage
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.errors import UsageError
from t5score_jax.runtime import configurables, processes

SUMMARY = 'generate texts for inputs (predict), or score targets, in bulk'

# As in inference/{bulk,shards}.py, whose import takes seconds; a test compares
# them.
MODES = ('predict', 'score')
FORMATS = ('jsonl', 'text')
SHARD = 10_000

DESCRIPTION = """\
Runs a model over many inputs. --mode predict generates texts, for example
pseudo-references or back-translations. --mode score gives log p(target | input)
as `score` (mean per token) and `log_prob` (sum, T5X's score), and `tokens`.

From files: -m, --inputs, --output, one text per line. Or over a SeqIO task or
each task of a mixture, with T5X's macros and gin file:
  MIXTURE_OR_TASK_NAME, TASK_FEATURE_LENGTHS, CHECKPOINT_PATH, INFER_OUTPUT_DIR
  MIXTURE_OR_TASK_MODULE (Python module that registers the task)
  SPLIT (test), MODE (predict), USE_CACHED_TASKS, DTYPE, BATCH_TOKENS,
  NUM_PARTITIONS, SHARD_SIZE; search.Method.beams, .temperature, ...

Finished shards are kept in OUTPUT.parts, from which the same command resumes an
interrupted run. The output is written whole.
"""

EPILOG = """\
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
  'max_tokens': (int, 'maximum tokens of an output, </s> included (128)'),
  'beams': (int, 'width of beam search (1: none)'),
  'length_penalty': (float, 'rank beams by log-probability / tokens ** N (1)'),
  'temperature': (float, 'of sampling (0: the most probable token)'),
  'top_k': (int, 'sample from the N most probable tokens (0: all)'),
  'top_p': (float, 'sample from the fewest tokens of probability N (1)'),
  'seed': (int, 'seed of sampling (0)'),
  'outputs': (int, 'outputs per input: samples, or the best beams (1)'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  group = parser.add_argument_group('files')
  group.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    help='an embedded model, a model folder, a MODEL_DIR or checkpoint',
  )
  group.add_argument(
    '--inputs', metavar='FILE', help='one text per line; - is standard input'
  )
  group.add_argument(
    '--targets', metavar='FILE', help='texts to score, one per input'
  )
  group.add_argument(
    '-o', '--output', metavar='OUT', help='- is standard output, unresumed'
  )
  group.add_argument('--mode', choices=MODES, help='(predict)')
  group.add_argument(
    '--format',
    choices=FORMATS,
    help='text: the generated text, or the score, alone (jsonl)',
  )
  for name, words in (
    ('max-length', "maximum tokens per text (the model's, else 1024)"),
    ('batch-tokens', 'tokens per batch and device: bounds memory'),
    ('num-partitions', 'devices over which the weights are sharded (1)'),
    (
      'shard-size',
      f'inputs per shard, which an interrupted run loses ({SHARD})',
    ),
  ):
    group.add_argument(
      f'--{name}', type=_usage.positive, metavar='N', help=words
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
    help='discard what an earlier run left in OUTPUT.parts',
  )
  parser.add_argument('--quiet', action='store_true', help='print errors only')
  _gin.add_arguments(parser)
  processes.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together(
    'infer', args, lambda: _run(args), advice='The same command resumes it'
  )


def _run(args: argparse.Namespace) -> int:
  check(args)
  if args.output:
    _usage.check_writable(args.output, [args.inputs, args.targets])
  infer = _from_gin if args.gin_file else _from_files
  say = _usage.printer(args.quiet or not processes.is_first())
  for path, totals in infer(args, _usage.Progress(say)).items():
    name = 'standard output' if path == '-' else path
    say(f'{name}: {_describe(totals)}')
  return 0


def check(args: argparse.Namespace) -> None:
  """Raises UsageError for arguments that contradict each other."""
  if args.gin_file or args.gin_bindings:
    _usage.refuse(
      args,
      [
        *('model', 'inputs', 'targets', 'output', 'mode', 'max_length'),
        *('batch_tokens', 'num_partitions', 'shard_size', 'dtype', *_METHOD),
      ],
      'is for files; with --gin_file give macros instead',
    )
    if args.format not in (None, 'jsonl'):
      raise UsageError('--format is for files; tasks give jsonl')
    return
  for name in ('model', 'inputs', 'output'):
    if not getattr(args, name):
      raise UsageError(f'give --{name} (or --gin_file, for a SeqIO task)')
  if args.format is None:
    _usage.check_ending(args.output, FORMATS, '--output')
  if args.mode == 'score':
    if not args.targets:
      raise UsageError('--mode score needs --targets')
    if args.inputs == args.targets == '-':
      raise UsageError('standard input (-) can be only one of the files')
    _usage.refuse(args, _METHOD, 'is for --mode predict')
  elif args.targets:
    raise UsageError('--targets is for --mode score')


def _from_files(
  args: argparse.Namespace, progress: Callable[[int], None]
) -> dict[str, Any]:
  """Runs over files; returns the totals of the output."""
  from t5score_jax.checkpoints import loading
  from t5score_jax.inference import bulk, shards
  from t5score_jax.inference.search import Method

  method = {n: v for n in _METHOD if (v := getattr(args, n)) is not None}
  with _usage.blamed():
    options = bulk.Options(
      args.mode or 'predict',
      Method(**method),
      args.max_length,
      args.batch_tokens,
      args.dtype or 'float32',
      args.num_partitions or 1,
    )
  bundle = loading.load_model(args.model)
  totals = shards.run(
    bulk.from_files(
      args.inputs, args.targets, bool(bundle.settings.get('lowercase'))
    ),
    bulk.work(bundle, options),
    args.output,
    bulk.identity_of(bundle, options),
    format=args.format or 'jsonl',
    shard_size=args.shard_size or shards.DEFAULT_SHARD,
    restart=args.restart,
    progress=progress,
  )
  return {args.output: totals}


def _from_gin(
  args: argparse.Namespace, progress: Callable[[int], None]
) -> dict[str, Any]:
  """Runs over SeqIO tasks; returns the totals of each output."""
  from t5score_jax.inference import bulk

  _gin.configure(args.gin_file, args.gin_bindings, args.gin_search_paths)
  totals: dict[str, Any] = configurables.call(
    bulk.infer, restart=args.restart, progress=progress
  )
  return totals


def _describe(totals: Any) -> str:
  words = [f'{totals.examples} inputs']
  if totals.cut:
    words.append(f'{totals.cut} texts cut: longer than the model reads')
  if totals.unfinished:
    words.append(f'{totals.unfinished} outputs cut: no </s> within max_tokens')
  return '; '.join(words)
