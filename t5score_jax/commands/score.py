"""`t5score score`: files of texts to scores, a line a segment, and a summary.

Reads segments and scores them. Which metric is meant is in
`_metric_arguments.py`, how it scores in `metrics/`, what is written in
`_score_output.py`; nothing here imports JAX unless a model is loaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5score_jax.commands import _score_output
from t5score_jax.commands._metric_arguments import (
  add_choice,
  add_model_options,
  load,
  metric_options,
  model_folder,
)
from t5score_jax.data import files, records, tables
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.fitting import calibration as calibrations
from t5score_jax.metrics import base
from t5score_jax.runtime import processes

SUMMARY = 'score texts with T5Score, COMES, BERTScore, BLEU or any other metric'

_DESCRIPTION = """
Scores texts and writes a line for each, in the order of the input. Higher is
better. Then each system's value with a 95% bootstrap interval, and a signature
that is enough to reproduce the scores: on standard output where -o takes the
scores, otherwise on standard error. A system's value is the mean of its scores,
but for BLEU, chrF and TER, which have one of the whole corpus.

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
  t5score score --metric bertscore -m bert-base-uncased/ --option layer=9 \\
      -r references.txt -t A.txt
  t5score score -m wmt22-comet-da/ -s source.txt -r references.txt -t A.txt
  cat records.jsonl | t5score score -m chrf++ --input - --quiet | head -1

exit code: 0 scored; 1 the run failed; 2 the command line is wrong; 130
interrupted
"""

# Endings of an output that promise what is not written.
_OTHER_FORMATS = frozenset(
  '.csv .xml .html .parquet .feather .arrow .xls .xlsx .ods .json .yaml .yml'
  ' .npy .npz .pkl .db .sqlite .zip .bz2 .xz .zst'.split()
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  add_choice(parser)
  _add_input(parser.add_argument_group('input'))
  add_model_options(parser)
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


def _count(text: str) -> int:
  number = int(text)
  if number < 0:
    raise argparse.ArgumentTypeError(f'{text} is negative')
  return number


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together(
    'score', args, lambda: _run(args), advice='No scores were written'
  )


def _run(args: argparse.Namespace) -> int:
  format = _checked_format(args)
  options = metric_options(args)
  if processes.count() > 1:
    options['spread'] = True
  check_writable(args.output, [*_inputs(args), *options.values()])
  segments = read_segments(args)
  metric = load(args.model, options, args.metric)
  calibration = _calibration(args, options)
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
  return 0


def _calibration(
  args: argparse.Namespace, options: Mapping[str, Any]
) -> calibrations.Calibration | None:
  if args.calibration is None:
    return None
  if args.calibration != 'model':
    return calibrations.read(args.calibration)
  folder = model_folder(args.model, options, args.metric)
  if folder is None:
    raise UsageError(
      '--calibration model is for metrics with a model: give a FILE'
    )
  return calibrations.read(folder)


def _checked_format(args: argparse.Namespace) -> str:
  format = args.format or tables.format_of(args.output)
  if format is None:
    check_ending(args.output, _score_output.FORMATS, '-o')
    format = 'jsonl'
  if args.token_log_probs and format != 'jsonl':
    raise UsageError(f'--tokens is for --format jsonl, not {format}')
  return format


def check_ending(path: str, formats: Iterable[str], flag: str) -> None:
  """Raises UsageError for a name that promises what is not written.

  Args:
    path: Of the output, where no format was asked for.
    formats: Those that there are.
    flag: Of the output, for the message.
  """
  ending = os.path.splitext(path.lower().removesuffix('.gz'))[1]
  if ending in _OTHER_FORMATS:
    raise UsageError(
      f'{flag} {path}: {ending} is none of the formats; choose another name, '
      f'or give --format {", ".join(formats)}'
    )


def check_writable(
  path: str, inputs: Iterable[object] = (), flag: str = '-o'
) -> None:
  """Finds out before the work rather than after it.

  Args:
    path: Where something is to be written; `-` is standard output.
    inputs: What is read, as for `files.check_not_input`.
    flag: Of the output, for the message.

  Raises:
    UsageError: The output is an input too.
    OSError: It can't be written.
  """
  if path == '-':
    return
  try:
    files.check_not_input(path, inputs, flag)
  except files.OverwriteError as error:
    raise UsageError(str(error)) from error
  folder = os.path.dirname(os.path.realpath(path))
  if os.path.isdir(path):
    raise IsADirectoryError(f'cannot write {path}: it is a folder')
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'cannot write {path}: there is no folder {folder}; create it first'
    )
  if not os.access(path if os.path.exists(path) else folder, os.W_OK):
    raise PermissionError(f'cannot write {path}: permission denied')


def _inputs(args: argparse.Namespace) -> list[str | None]:
  """The files that the command line names to be read."""
  hypotheses = _systems(args.hypotheses).values()
  others = args.source, args.input, args.calibration, args.model
  return [*hypotheses, *args.references, *others]


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
      # The locale may not know the letters; they are UTF-8 all the same.
      name = os.fsencode(name).decode('utf-8', 'backslashreplace')
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
