"""`t5score crossvalidate`: cross-validates COMES on a corpus.

Reads records and gin's configuration, hands both to
`fitting/crossvalidation.py`, writes the joined predictions and prints a table.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.commands import (
  _gin,
  _record_files,
  _regressors,
  _score_output,
  _usage,
)
from t5score_jax.data import files, instances, records
from t5score_jax.data import tables as data_tables
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import dimensions
from t5score_jax.evaluation.reports import tables

SUMMARY = 'cross-validate a regressor (COMES) on rated records'

PREDICTED = 'predicted_'

DESCRIPTION = """
Cross-validates a regressor on rated records (COMES, 2022): divides documents
into folds, trains a model for each fold on the others, stops it early on the
next fold, and scores its own. A row is a judgment: each annotator's judgment of
an output is a row of its own, and every reference makes another instance. At
test the best reference counts, for each output of the model.

The configuration is that of `t5score train`; MODEL_DIR, ARRAYS,
VALIDATION_ARRAYS and TEXTS are set here, ENCODER_PATH is yours. Recipes that
train a head on the vectors of a frozen encoder (runs/comes_head.gin) encode
each distinct text once, for all folds; with FINE_TUNE_EPOCHS above 0 the whole
network is trained afterwards (runs/comes_fine_tune.gin).

WORK keeps everything: the texts, and for each fold its arrays, its runs and
fold_K/model, a regressor for `t5score score --metric comes -m
WORK/fold_K/model`. Repeat the command to resume a stopped run.

Writes a line for each output of a system: ids, the mean of each rating, the
prediction `predicted_NAME`, and the fold of the predicting model. Prints
Kendall's tau of the systems' mean predictions with their mean ratings; a system
without ratings in a dimension is left out of its tau, and a note reports it.

Choose settings with --part validation: every document is scored by the model
that was selected on it, and the test part is not used.
"""

EPILOG = f"""
examples:
  t5score crossvalidate --gin_file=recipes/comes_minilm.gin \\
      --gin.ENCODER_PATH="'all-MiniLM-L6-v2'" --input summeval.jsonl.gz \\
      --ratings coherence,consistency,fluency,relevance \\
      --also litepyramid realsumm.jsonl.gz --work comes/ -o summeval.comes.jsonl
  t5score crossvalidate ... --part validation --gin.LEARNING_RATE=1e-4 \\
      --texts comes/texts --work try/ -o try.jsonl
  t5score correlate summeval.comes.jsonl --human coherence \\
      --metrics predicted_coherence --level system --stat kendall
{_regressors.EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _gin.add_arguments(parser)
  help = _record_files.HELP.removesuffix('; repeatable')
  _record_files.add_argument(parser, '--input', help, required=True)
  parser.add_argument(
    '--by',
    default='document',
    metavar='FIELD',
    help='the field kept within one fold: document, segment, system, '
    'language_pair or source (default: %(default)s)',
  )
  parser.add_argument(
    '--folds',
    type=int,
    default=10,
    metavar='N',
    help='at least 3 (default: %(default)s)',
  )
  parser.add_argument(
    '--part',
    choices=('test', 'validation'),
    default='test',
    help='the part of the documents that each model scores (default: '
    '%(default)s)',
  )
  parser.add_argument(
    '--also',
    nargs='+',
    action='append',
    default=[],
    metavar=('RATING', 'FILE'),
    help='other records, which every model scores; prints mean and deviation '
    'over folds of the agreement with RATING, and writes WORK/also_FILE.jsonl; '
    'NAME=VALUE after FILE as for --input; repeatable',
  )
  parser.add_argument(
    '--texts',
    metavar='FOLDER',
    help='folder of the encoded texts of --input, to share it between runs '
    '(default: WORK/texts)',
  )
  parser.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='OUT',
    help='the joined predictions, .jsonl or .tsv, perhaps .gz',
  )
  parser.add_argument(
    '--table',
    choices=tables.FORMATS,
    default='text',
    help='format of the printed tables (default: %(default)s)',
  )
  _regressors.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  files.write_lines('-', _run(args).splitlines())
  return 0


@dataclasses.dataclass(frozen=True)
class _Other:
  """Records of --also, and the rating to correlate with."""

  rating: str
  file: _record_files.RecordFile

  @property
  def name(self) -> str:
    return Path(self.file.path).name.partition('.')[0]

  def segments(self) -> list[Segment]:
    segments = list(self.file.segments([self.rating]))
    instances.check_rated(segments, [self.rating], self.file.path)
    return segments


def _other(words: Sequence[str]) -> _Other:
  if len(words) < 2:
    raise UsageError('--also: give a rating and a file')
  return _Other(words[0], _record_files.parse(words[1:], '--also'))


def _run(args: argparse.Namespace) -> str:
  # Imported here: help needs no JAX.
  from t5score_jax.fitting import crossvalidation

  ratings = tuple(_usage.split_names(args.ratings))
  config = crossvalidation.Config(
    ratings, args.by, args.folds, args.seed, args.part
  )
  source = _record_files.parse(args.input, '--input')
  others = [_other(words) for words in args.also]
  if len({other.name for other in others}) < len(others):
    raise UsageError('--also: two files of one name; rename one')
  inputs = [source.path, *(other.file.path for other in others)]
  _usage.check_writable(args.output, inputs)
  if data_tables.format_of(args.output) is None:
    raise UsageError(
      f'-o {args.output}: the name ends neither in .jsonl nor in .tsv (nor '
      'these with .gz)'
    )
  segments = list(source.segments(ratings))
  instances.check_rated(segments, ratings, source.path)
  # Read before the training, so that errors come early.
  other_segments = [other.segments() for other in others]
  with _score_output.bar('encoding', args.quiet) as progress:
    validation = crossvalidation.CrossValidation(
      segments,
      config,
      args.work,
      _gin.phases(args),
      texts=args.texts,
      say=_usage.printer(args.quiet),
      progress=progress,
    )
    results = validation.run()
    _write(args.output, results, ratings)
    blocks = [_render(args, validation, results)]
    for other, those in zip(others, other_segments, strict=True):
      results = validation.also(other.name, those)
      path = Path(args.work) / f'also_{other.name}.jsonl'
      _write_folds(path, results, validation.encoding.config.outputs)
      blocks.append(_render_also(args, validation, results, other))
  return '\n\n'.join(blocks)


def _write(path: str, results: Any, ratings: Sequence[str]) -> None:
  columns = {
    f'{PREDICTED}{name}': results.values[:, n] for n, name in enumerate(ratings)
  }
  columns['fold'] = results.fold
  _write_ids(path, results.segments, columns)


def _write_folds(path: Path, results: Any, outputs: Sequence[str]) -> None:
  """A column per output and fold, named as `t5score correlate` expects."""
  columns = {
    f'{PREDICTED}{name}@{fold}': values[:, n]
    for n, name in enumerate(outputs)
    for fold, values in enumerate(results.values, 1)
  }
  _write_ids(path, results.segments, columns)


def _write_ids(
  path: str | Path, segments: Sequence[Any], columns: dict[str, Any]
) -> None:
  """Writes ids and numbers, but no texts.

  For records without a segment, the document takes its place, so that `t5score
  correlate` can distinguish rows.
  """
  named = [
    dataclasses.replace(s, segment=s.document) if s.segment is None else s
    for s in segments
  ]
  names = ('system', 'document', 'segment', 'language_pair')
  fields = [n for n in names if any(getattr(s, n) is not None for s in named)]
  records.write_records(path, named, values=columns, fields=fields)


def _render(args: argparse.Namespace, validation: Any, results: Any) -> str:
  config = validation.config
  # The runs of all folds are about as long.
  notes = [results.table.about(), *validation.notes[:1]]
  values, systems = dimensions.system_kendall(
    results.segments, config.ratings, results.values, notes.append
  )
  return tables.render_values(
    f"Kendall's tau of {systems} systems' means, {config.folds} folds by "
    f'{config.by} (seed {config.seed}), {config.part} documents',
    [*config.ratings, 'mean'],
    [validation.encoding.name],
    [[*values, values.mean()]],
    notes,
    args.table,
  )


def _render_also(
  args: argparse.Namespace, validation: Any, results: Any, other: _Other
) -> str:
  each = []
  notes = [results.table.about()]
  for values in results.values:
    kendall, systems = dimensions.system_kendall(
      results.segments, [other.rating], values, notes.append
    )
    each.append(kendall)
  outputs = validation.encoding.config.outputs
  return tables.render_values(
    f"{other.name}: Kendall's tau of {systems} systems' means with "
    f'{other.rating}, over the models of {len(each)} folds',
    outputs,
    ['mean', 'deviation (n - 1)'],
    [np.mean(each, axis=0), np.std(each, axis=0, ddof=1)],
    list(dict.fromkeys(notes)),
    args.table,
  )
