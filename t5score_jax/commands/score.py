"""`t5score score`: files of texts to scores, a line a segment, and a summary.

Reads segments and loads the metric that the name means. How a metric scores is
in `metrics/`, what is written in `_score_output.py`; nothing here imports JAX
unless a model is loaded.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5score_jax import calibration as calibrations
from t5score_jax import processes
from t5score_jax.commands import _score_output
from t5score_jax.data import records, tables
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base

SUMMARY = 'score texts with T5Score, BLEU, chrF, TER or ROUGE'

DEFAULT_MODEL = 't5score-tiny'
# Those of metrics/t5score.py and scoring.py, whose import takes a second; a
# test compares them.
DIRECTIONS = ('f', 'precision', 'recall', 'source', 'ref_src')
DTYPES = ('float32', 'bfloat16')

# Options of a T5Score model: attribute of the parsed arguments -> flag.
_MODEL_OPTIONS = {
  'direction': '--direction',
  'source_based': '--source-based',
  'reference_rule': '--several',
  'max_length': '--max-length',
  'batch_tokens': '--batch-tokens',
  'num_partitions': '--num-partitions',
  'dtype': '--dtype',
  'remove_chinese_spaces': '--remove-chinese-spaces',
  'token_log_probs': '--tokens',
}

_DESCRIPTION = """
Scores texts and writes a line for each, in the order of the input. Higher is
better. Then each system's value with a 95% bootstrap interval, and a signature
that is enough to reproduce the scores: on standard output where -o takes the
scores, otherwise on standard error.

Parallel text (-t, -r, -s): line n of every file is segment n. Or --input: TSV
with a header, or JSONL, with the fields source, hypothesis, reference,
reference_2, ..., system, document, segment, language_pair. Every file may be
compressed with gzip, and one of them may be standard input (-).
"""

_EXAMPLES = """
examples:
  t5score score -r references.txt -t A.txt B.txt -o scores.jsonl
  t5score score -s source.txt -t A.txt --direction source
  t5score score -m my_run/ --input wmt.tsv.gz \\
      --columns reference=ref_A,hypothesis=hyp --format tsv
  cat records.jsonl | t5score score -m chrf++ --input - --quiet | head -1

exit code: 0 scored; 1 the run failed; 2 the command line is wrong
"""


class UsageError(ValueError):
  """The arguments don't go together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    default=DEFAULT_MODEL,
    help='an embedded model, a model folder, a MODEL_DIR or checkpoint of '
    'training; or bleu, chrf, chrf++, ter, rouge1, rouge2, rouge3, rouge4, '
    'rougeL (default: %(default)s)',
  )
  _add_input(parser.add_argument_group('input'))
  add_model_options(parser.add_argument_group('T5Score models'))
  metric = parser.add_argument_group('other metrics')
  metric.add_argument(
    '--option',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='an option of the metric, for example tokenize=zh of bleu',
  )
  processes.add_arguments(parser)
  output = parser.add_argument_group('output')
  output.add_argument(
    '--format',
    choices=_score_output.FORMATS,
    help='jsonl and tsv: ids, score and what it is made of; text: the score '
    "alone (default: by OUT's name, else jsonl)",
  )
  output.add_argument(
    '-o',
    '--output',
    metavar='OUT',
    default='-',
    help='where scores go; appears whole or not at all; .gz is compressed '
    '(default: standard output)',
  )
  output.add_argument(
    '--calibration',
    metavar='FILE',
    help='put scores on the human scale of a calibration that `t5score '
    "calibrate` made; a model's folder, or the word model, means its own "
    '(default: none; scores are as the metric gives them)',
  )
  output.add_argument(
    '--bootstrap',
    type=_count,
    default=base.DEFAULT_RESAMPLES,
    metavar='N',
    help='samples for the intervals; 0 for none (default: %(default)s)',
  )
  output.add_argument(
    '--seed',
    type=int,
    default=base.DEFAULT_SEED,
    help='of the samples (default: %(default)s)',
  )
  output.add_argument(
    '--quiet', action='store_true', help='scores and errors only'
  )


def _add_input(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '-t',
    '--hypotheses',
    nargs='+',
    default=[],
    metavar='[NAME=]HYP',
    help="hypotheses, one file a system, whose name is NAME or the file's",
  )
  group.add_argument(
    '-r',
    '--references',
    nargs='+',
    default=[],
    metavar='REF',
    help='references',
  )
  group.add_argument('-s', '--source', metavar='SRC', help='sources')
  group.add_argument(
    '--input', metavar='FILE', help='TSV or JSONL records; - is standard input'
  )
  group.add_argument(
    '--columns',
    metavar='FIELD=COL,...',
    help='what the columns of --input are called, where the names differ',
  )
  group.add_argument(
    '--quoting',
    choices=tables.QUOTING,
    help='of TSV cells: none, or csv where they may stand in double quotes '
    '(default: none)',
  )


def add_model_options(group: argparse._ArgumentGroup) -> None:
  """Declares the options of T5Score models, for any verb that scores."""
  group.add_argument(
    '--direction',
    choices=DIRECTIONS,
    help='precision: reference to hypothesis; recall: hypothesis to reference; '
    'f: mean of both; source: as f, with the source; ref_src: mean of all four '
    "(default: the model's, else f)",
  )
  group.add_argument(
    '--source-based',
    action='store_true',
    default=None,
    help='use sources in place of references, with any direction',
  )
  group.add_argument(
    '--several',
    dest='reference_rule',
    choices=('max', 'mean'),
    help='what several references give (default: max)',
  )
  group.add_argument(
    '--max-length',
    type=positive,
    metavar='N',
    help="tokens a text; the rest is cut, and counted (default: the model's, "
    'else 1024)',
  )
  group.add_argument(
    '--batch-tokens',
    type=positive,
    metavar='N',
    help='tokens computed at once on a device: bounds memory, does not change '
    'scores',
  )
  group.add_argument(
    '--num-partitions',
    type=positive,
    metavar='N',
    help='devices of this process over which the weights are divided, for '
    'models that one cannot hold; the others hold copies (default: 1)',
  )
  group.add_argument(
    '--dtype',
    choices=DTYPES,
    help='number format of the computation (default: float32)',
  )
  group.add_argument(
    '--remove-chinese-spaces',
    action='store_true',
    default=None,
    help='remove spaces between Chinese characters of hypotheses',
  )
  group.add_argument(
    '--tokens',
    dest='token_log_probs',
    action='store_true',
    default=None,
    help='write the log-probability of every target token as well (jsonl)',
  )


def _count(text: str) -> int:
  number = int(text)
  if number < 0:
    raise argparse.ArgumentTypeError(f'{text} is negative')
  return number


def positive(text: str) -> int:
  """The type of an argument that counts from 1."""
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{text} is not positive')
  return number


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together('score', args, lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
  try:
    format = _checked_format(args)
    options = metric_options(args)
    if processes.count() > 1:
      if is_lexical(args.model):
        raise UsageError(
          f'many processes are for T5Score models, not for {args.model}'
        )
      options['spread'] = True
    check_writable(args.output)
    segments = read_segments(args)
    metric = load(args.model, options)
    calibration = _calibration(args)
    if calibration is not None:
      # Before the work rather than after it.
      calibrations.check_signature(
        metric.signature(), calibration, complete=False
      )
    with _score_output.Progress(metric, args.quiet or not processes.is_first()):
      scores = metric.score_segments(segments)
    if calibration is not None:
      scores = calibrations.apply(scores, calibration)
    processes.on_first(
      lambda: _score_output.write_scores(args.output, segments, scores, format)
    )
    if processes.is_first() and not args.quiet:
      stream = sys.stderr if args.output == '-' else sys.stdout
      stream.write(
        _score_output.summary(segments, scores, args.bootstrap, args.seed)
      )
  except UsageError as error:
    print(f't5score score: {error}', file=sys.stderr)
    return 2
  except BrokenPipeError:
    raise  # the reader of the output has seen enough
  except (ValueError, OSError) as error:
    print(f't5score score: {error}', file=sys.stderr)
    return 1
  except RuntimeError as error:
    message = explain(error, 'No scores were written')
    if message is None:
      raise
    print(f't5score score: {message}', file=sys.stderr)
    return 1
  return 0


def explain(error: RuntimeError, advice: str) -> str | None:
  """Words for an error that the user can do something about.

  Args:
    error: What came of a model.
    advice: What to do where another process is gone.
  """
  if 'RESOURCE_EXHAUSTED' in str(error):
    return 'out of memory; give a smaller --batch-tokens or --max-length'
  # ScoringError, whose module may not have been imported.
  known = isinstance(error, processes.ProcessError)
  if known or type(error).__name__ == 'ScoringError':
    return str(error)
  return processes.explain_loss(error, advice) or None


def _calibration(
  args: argparse.Namespace,
) -> calibrations.Calibration | None:
  if args.calibration is None:
    return None
  if args.calibration != 'model':
    return calibrations.read(args.calibration)
  if is_lexical(args.model):
    raise UsageError('--calibration model is for T5Score models: give a FILE')
  from t5score_jax.metrics import t5score

  return calibrations.read(t5score.model_folder(args.model))


def _checked_format(args: argparse.Namespace) -> str:
  format = args.format or tables.format_of(args.output) or 'jsonl'
  if args.token_log_probs and format != 'jsonl':
    raise UsageError(f'--tokens is for --format jsonl, not {format}')
  return format


def metric_options(args: argparse.Namespace) -> dict[str, Any]:
  """The options of the metric that were given, by name.

  Raises:
    UsageError: An option is not of this metric.
  """
  given = {
    name: getattr(args, name)
    for name in _MODEL_OPTIONS
    if getattr(args, name) is not None
  }
  if is_lexical(args.model):
    for name in given:
      raise UsageError(
        f'{_MODEL_OPTIONS[name]} is for T5Score models, not for {args.model}'
      )
  elif args.source_based and args.direction == 'ref_src':
    raise UsageError('--direction ref_src is never --source-based')
  for text in args.option:
    name, equals, value = text.partition('=')
    if not (name and equals):
      raise UsageError(f'--option takes NAME=VALUE, not {text!r}')
    if name in _MODEL_OPTIONS and not is_lexical(args.model):
      raise UsageError(f'--option {name}: give {_MODEL_OPTIONS[name]}')
    given[name] = literal(value)
  return given


def literal(text: str) -> Any:
  """A number, True, False or None where it looks like one, else the text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def check_writable(path: str) -> None:
  """Finds out before the work rather than after it."""
  if path == '-':
    return
  folder = os.path.dirname(os.path.realpath(path))
  if os.path.isdir(path):
    raise IsADirectoryError(f'cannot write {path}: it is a folder')
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'cannot write {path}: there is no folder {folder}; create it first'
    )
  if not os.access(path if os.path.exists(path) else folder, os.W_OK):
    raise PermissionError(f'cannot write {path}: permission denied')


def read_segments(args: argparse.Namespace) -> list[Segment]:
  """Reads what the command line names.

  Raises:
    UsageError: The arguments contradict each other.
    records.RecordError: Something in a file is not as it must be.
    OSError: A file can't be read.
  """
  parallel = bool(args.hypotheses or args.references or args.source)
  if args.input and parallel:
    raise UsageError('give either --input, or -t with -r and -s')
  if args.input:
    return records.read_records(
      args.input,
      columns=renames(args.columns or ''),
      quoting=args.quoting or 'none',
    )
  for flag in ('columns', 'quoting'):
    if getattr(args, flag) is not None:
      raise UsageError(f'--{flag} is for --input')
  if not args.hypotheses:
    raise UsageError('no hypotheses: give -t HYP, or --input FILE')
  if [*args.hypotheses, *args.references, args.source].count('-') > 1:
    raise UsageError('standard input (-) can be only one of the files')
  return records.read_parallel(
    _systems(args.hypotheses), args.references, args.source
  )


def _systems(arguments: Sequence[str]) -> dict[str, str]:
  """Files by system: NAME=FILE, or the file's name without its endings."""
  named = {}
  for argument in arguments:
    name, equals, path = argument.partition('=')
    # A path that holds '=' is still a path where its left side has a '/'.
    if not (name and equals and path) or '/' in name:
      path = argument
      name = os.path.basename(path).removesuffix('.gz').removesuffix('.txt')
      if name == '-':
        name = 'stdin'
      if name in named or not name:
        name = path
    if name in named:
      raise UsageError(f'two systems are called {name!r}: give NAME=FILE')
    named[name] = path
  return named


def renames(text: str) -> dict[str, str]:
  """Reads FIELD=COLUMN,...

  Raises:
    UsageError: The text has another form.
  """
  found = {}
  for part in filter(None, (part.strip() for part in text.split(','))):
    field, equals, column = part.partition('=')
    if not (field and equals and column):
      raise UsageError(f'--columns takes FIELD=COLUMN, not {part!r}')
    found[field] = column
  return found


def is_lexical(name: str) -> bool:
  """Whether a name means a metric without a model."""
  stems = set(base.available_metrics()) - {'t5score'}
  plain = name.lower().replace('-', '').replace('_', '')
  if '/' in name or not plain.startswith(tuple(stems)):
    return False
  return plain in stems or not os.path.isdir(name)


def load(name: str, options: dict[str, Any]) -> base.Metric:
  """Loads a metric by its name, or T5Score by that of a model.

  A metric's name goes before a folder's: the folder is `./NAME`.

  Args:
    name: `'bleu'`, `'t5score-tiny'`, `'runs/mine'`, ...
    options: Options of the metric.

  Raises:
    OSError: There is no such metric or model.
    ValueError: An option has a value that it can't have, or the model is
      damaged.
    UsageError: There is no such option.
  """
  model = DEFAULT_MODEL if name.lower() == 't5score' else name
  try:
    if is_lexical(name):
      return base.load_metric(name, **options)
    return base.load_metric('t5score', model=model, **options)
  except TypeError as error:
    raise UsageError(str(error)) from error
  except FileNotFoundError as error:
    if Path(model).exists():
      raise
    others = [m for m in base.available_metrics() if m != 't5score']
    raise FileNotFoundError(
      f'{error}. Other metrics: {", ".join(others)}'
    ) from error
