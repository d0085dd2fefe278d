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
  _fitting,
  _gin,
  _record_files,
  _score_files,
  _score_output,
  score,
)
from t5score_jax.data import files, instances, records
from t5score_jax.data import tables as data_tables
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import dimensions
from t5score_jax.evaluation.reports import tables

SUMMARY = 'cross-validate a regressor (COMES) on rated records'

PREDICTED = 'predicted_'

_DESCRIPTION = """
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

_EXAMPLES = """
examples:
  t5score crossvalidate --gin_file=recipes/comes_minilm.gin \\
      --gin.ENCODER_PATH="'all-MiniLM-L6-v2'" --input summeval.jsonl.gz \\
      --ratings coherence,consistency,fluency,relevance \\
      --also litepyramid realsumm.jsonl.gz --work comes/ -o summeval.comes.jsonl
  t5score crossvalidate ... --part validation --gin.LEARNING_RATE=1e-4 \\
      --texts comes/texts --work try/ -o try.jsonl
  t5score correlate summeval.comes.jsonl --human coherence \\
      --metrics predicted_coherence --level system --stat kendall

exit code: 0 done; 1 the run failed; 2 the command line or configuration is
wrong; 75 SIGTERM, 130 Ctrl-C: the same command resumes the run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  _gin.add_arguments(parser)
  parser.add_argument(
    '--input',
    nargs='+',
    required=True,
    metavar=('FILE', 'NAME=VALUE'),
    help=_record_files.HELP.removesuffix('; repeatable'),
  )
  _fitting.add_ratings(parser)
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
    '--seed',
    type=int,
    default=0,
    help='of the division into folds; those of the runs are RANDOM_SEED and '
    'DATA_SEED (default: %(default)s)',
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
    '--work',
    required=True,
    metavar='FOLDER',
    help='folder of the models and their training',
  )
  parser.add_argument(
    '--texts',
    metavar='FOLDER',
    help='where the encoded texts of --input are kept, to share them between '
    'runs (default: WORK/texts)',
  )
  parser.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='OUT',
    help='the joined predictions, .jsonl or .tsv, perhaps .gz',
  )
  parser.add_argument(
    '--format',
    choices=tables.FORMATS,
    default='table',
    help='of what is printed (default: %(default)s)',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='print only the table and errors'
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  files.write_lines('-', _run(args).splitlines())
  return 0


def _run(args: argparse.Namespace) -> str:
  # Imported here: help needs no JAX.
  from t5score_jax.fitting import crossvalidation

  ratings = tuple(_score_files.split_names(args.ratings))
  try:
    config = crossvalidation.Config(
      ratings, args.by, args.folds, args.seed, args.part
    )
    source = _record_files.parse(args.input, '--input')
    others = [_other(words) for words in args.also]
  except ValueError as error:
    raise UsageError(str(error)) from error
  if len({name for name, *_ in others}) < len(others):
    raise UsageError('--also: two files of one name; rename one')
  _check_output(args.output, [source, *(file for *_, file in others)])
  say = _fitting.teller(args.quiet)
  segments = list(source.segments(ratings))
  # Before the work rather than after it.
  other_segments = [list(file.segments([r])) for _, r, file in others]
  for (_, rating, file), those in zip(others, other_segments, strict=True):
    instances.check_rated(those, [rating], file.path)
  instances.check_rated(segments, ratings, source.path)
  with _score_output.Bar('encoding', args.quiet) as progress:
    validation = crossvalidation.CrossValidation(
      segments,
      config,
      args.work,
      _gin.phases(args),
      texts=args.texts,
      say=say,
      progress=progress,
    )
    found = validation.run()
    _write(args.output, found, ratings)
    blocks = [_render(args, validation, found)]
    for (name, rating, _), others_of in zip(
      others, other_segments, strict=True
    ):
      seen = validation.also(name, others_of)
      path = Path(args.work) / f'also_{name}.jsonl'
      _write_folds(path, seen, validation.encoding.config.outputs)
      blocks.append(_render_also(args, validation, seen, name, rating))
  return '\n\n'.join(blocks)


def _check_output(
  path: str, inputs: Sequence[_record_files.RecordFile]
) -> None:
  """Raises before the training what would be raised after it."""
  try:
    score.check_writable(path, [file.path for file in inputs])
  except UsageError as error:
    raise UsageError(str(error)) from error
  if data_tables.format_of(path) is None:
    raise UsageError(
      f'-o {path}: the name ends neither in .jsonl nor in .tsv (nor these with '
      '.gz), so that no format is named'
    )


def _other(words: Sequence[str]) -> tuple[str, str, _record_files.RecordFile]:
  if len(words) < 2:
    raise ValueError('--also: give a rating and a file')
  file = _record_files.parse(words[1:], '--also')
  return Path(file.path).name.partition('.')[0], words[0], file


def _write(path: str, found: Any, ratings: Sequence[str]) -> None:
  columns = {
    f'{PREDICTED}{name}': found.values[:, n] for n, name in enumerate(ratings)
  }
  columns['fold'] = found.fold
  _write_ids(path, found.segments, columns)


def _write_folds(path: Path, found: Any, outputs: Sequence[str]) -> None:
  """One column an output and fold, named as `t5score correlate` knows folds."""
  columns = {
    f'{PREDICTED}{name}@{fold}': values[:, n]
    for n, name in enumerate(outputs)
    for fold, values in enumerate(found.values, 1)
  }
  _write_ids(path, found.segments, columns)


def _write_ids(
  path: str | Path, segments: Sequence[Any], columns: dict[str, Any]
) -> None:
  """Writes ids and numbers, no texts.

  Where records have no segment the document stands for it, so that `t5score
  correlate` can tell rows apart.
  """
  named = [
    dataclasses.replace(s, segment=s.document) if s.segment is None else s
    for s in segments
  ]
  names = ('system', 'document', 'segment', 'language_pair')
  fields = [n for n in names if any(getattr(s, n) is not None for s in named)]
  records.write_records(path, named, values=columns, fields=fields)


def _render(args: argparse.Namespace, validation: Any, found: Any) -> str:
  config = validation.config
  notes = [found.table.about()]
  values, systems = dimensions.system_kendall(
    found.segments, config.ratings, found.values, notes.append
  )
  return tables.render_values(
    f"Kendall's tau of {systems} systems' means, {config.folds} folds by "
    f'{config.by} (seed {config.seed}), {config.part} documents',
    [*config.ratings, 'mean'],
    [validation.encoding.name],
    [[*values, values.mean()]],
    notes,
    args.format,
  )


def _render_also(
  args: argparse.Namespace, validation: Any, found: Any, name: str, rating: str
) -> str:
  each = []
  notes = [found.table.about()]
  for values in found.values:
    kendall, systems = dimensions.system_kendall(
      found.segments, [rating], values, notes.append
    )
    each.append(kendall)
  outputs = validation.encoding.config.outputs
  return tables.render_values(
    f"{name}: Kendall's tau of {systems} systems' means with {rating}, over "
    f'the models of {len(each)} folds',
    outputs,
    ['mean', 'deviation (n - 1)'],
    [np.mean(each, axis=0), np.std(each, axis=0, ddof=1)],
    list(dict.fromkeys(notes)),
    args.format,
  )
