"""`t5score score`: scores files of texts, one line per segment, and a summary.

Options of the metric are in `_metric_arguments.py`, files of texts in
`_text_files.py`, the output in `_score_output.py`. JAX is imported only when a
model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import (
  _score_output,
  _score_table,
  _text_files,
  _usage,
)
from t5score_jax.data import files, tables
from t5score_jax.errors import InputError, UsageError
from t5score_jax.fitting import calibration as calibrations
from t5score_jax.metrics import systems
from t5score_jax.runtime import processes

SUMMARY = 'score texts with T5Score, COMES, BERTScore, BLEU or any other metric'

DESCRIPTION = """
Scores texts and writes one line for each, in the order of the input. Higher is
better. Then prints each system's value with a 95% bootstrap interval, and a
signature that suffices to reproduce the scores: on standard output if scores go
to -o, otherwise on standard error. A system's value is the mean of its scores;
for BLEU, chrF and TER it is computed over the corpus.

With several -m one table has a row per system and a column per metric, with
intervals and marks of significant differences; texts are read once.

Parallel text (-t, -r, -s): line n of every file is segment n. Or --input: TSV
with a header, or JSONL, with the fields source, hypothesis, reference,
reference_2, ..., system, document, segment, language_pair. Any file may be
compressed with gzip, and one of them may be standard input (-).
"""

EPILOG = """
examples:
  t5score score -r references.txt -t A.txt B.txt -o scores.jsonl
  t5score score -m chrf -m bleu -m t5score-tiny -r references.txt \\
      -t baseline.txt A.txt B.txt --table latex > table.tex
  t5score score -s source.txt -t A.txt --direction source
  t5score score -m my_run/ --input wmt.tsv.gz \\
      --columns reference=ref_A,hypothesis=hyp --format tsv
  t5score score --metric bertscore -m bert-base-uncased/ --option layer=9 \\
      -r references.txt -t A.txt
  t5score score -m wmt22-comet-da/ -s source.txt -r references.txt -t A.txt
  t5score score -m XCOMET-XL/ -s source.txt -r references.txt -t A.txt \\
      --spans errors.jsonl
  cat records.jsonl | t5score score -m chrf++ --input - --quiet | head -1

exit code: 0 scored; 1 the run failed; 2 the command line is wrong; 130
interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  metric_arguments.add_choice(parser, several=True)
  texts = parser.add_argument_group('input')
  _text_files.add_arguments(texts)
  _text_files.add_columns(
    texts, 'columns of --input that hold a field (FIELD=COL) of another name'
  )
  metric_arguments.add_model_options(parser)
  processes.add_arguments(parser)
  output = parser.add_argument_group('output')
  output.add_argument(
    '--format',
    choices=_score_output.FORMATS,
    help='jsonl and tsv: ids, score and its components; text: the score alone '
    "(default: by OUT's name, else jsonl)",
  )
  output.add_argument(
    '-o',
    '--output',
    metavar='OUT',
    default='-',
    help='the file of scores, written whole or not at all; .gz is compressed '
    '(default: standard output)',
  )
  _score_table.add_arguments(output)
  output.add_argument(
    '--spans',
    metavar='FILE',
    help='also write the errors found in each hypothesis, with their severity '
    '(JSONL; for models that tag words, such as XCOMET)',
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
    type=_usage.resamples,
    default=systems.DEFAULT_RESAMPLES,
    metavar='N',
    help='samples for the intervals; 0 for none (default: %(default)s)',
  )
  output.add_argument(
    '--seed',
    type=int,
    default=systems.DEFAULT_SEED,
    help='of the samples (default: %(default)s)',
  )
  output.add_argument(
    '--quiet', action='store_true', help='scores and errors only'
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together(
    'score', args, lambda: _run(args), advice='No scores were written'
  )


def _run(args: argparse.Namespace) -> int:
  format = _checked_format(args)
  several = metric_arguments.chosen(args)
  table = _score_table.check(args, len(several) > 1)
  read = [*_text_files.inputs(args), args.calibration]
  for one in several:
    read += [one.model, *one.options.values()]
    if processes.count() > 1 and (len(several) == 1 or one.spreads):
      one.options['spread'] = True
  _usage.check_writable(args.output, read)
  _check_spans_file(args, read)
  if table is not None:
    return _score_table.run(args, several, table, format)
  chosen = several[0]
  segments = _text_files.read_segments(args)
  if not segments:
    named = args.input or ', '.join(args.hypotheses)
    raise InputError(f'{named}: no segments; nothing was scored')
  metric = chosen.load()
  if args.spans is not None and not getattr(metric, 'labels', ()):
    raise UsageError(
      f'--spans: {metric.name} with this model finds no errors; models that '
      'tag words do, such as XCOMET'
    )
  calibration = _calibration(args, chosen)
  if calibration is not None:
    # Before the work rather than after it.
    calibrations.check_signature(
      metric.signature(), calibration, complete=False
    )
  with _score_output.scoring_bar(
    metric, args.quiet or not processes.is_first()
  ):
    scores = metric.score_segments(segments)
  if calibration is not None:
    scores = calibrations.apply(scores, calibration)
  notes = (*scores.notes, *_text_files.notes(segments))
  scores = dataclasses.replace(scores, notes=notes)
  processes.on_first(
    lambda: _score_output.write_scores(args.output, segments, scores, format)
  )
  if args.spans is not None:
    processes.on_first(
      lambda: _score_output.write_spans(args.spans, segments, scores)
    )
  if processes.is_first() and not args.quiet:
    summary = _score_output.summary(segments, scores, args.bootstrap, args.seed)
    if args.output == '-':
      sys.stderr.write(summary)
    elif sys.stdout is not None:  # It may be closed.
      with files.named('standard output'):
        sys.stdout.write(summary)
        sys.stdout.flush()
  return 0


def _check_spans_file(args: argparse.Namespace, read: Sequence[Any]) -> None:
  """Raises UsageError for a FILE of --spans that is also used otherwise."""
  if args.spans is None:
    return
  if args.spans == args.output:
    raise UsageError('--spans and -o are the same file')
  _usage.check_writable(args.spans, read, '--spans')


def _calibration(
  args: argparse.Namespace, chosen: metric_arguments.Chosen
) -> calibrations.Calibration | None:
  if args.calibration is None:
    return None
  if args.calibration != 'model':
    return calibrations.read(args.calibration)
  folder = metric_arguments.model_folder(
    chosen.model, chosen.options, chosen.metric
  )
  if folder is None:
    raise UsageError(
      '--calibration model is for metrics with a model: give a FILE'
    )
  return calibrations.read(folder)


def _checked_format(args: argparse.Namespace) -> str:
  format = args.format or tables.format_of(args.output)
  if format is None:
    _usage.check_ending(args.output, _score_output.FORMATS, '-o')
    format = 'jsonl'
  if args.token_log_probs and format != 'jsonl':
    raise UsageError(f'--tokens is for --format jsonl, not {format}')
  return format
