"""`t5score fit`: trains one regressor (COMET, COMES) on rated records.

Reads records and gin's configuration, calls `fitting/fit.py` and prints the
result.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from t5score_jax.commands import (
  _fitting,
  _gin,
  _record_files,
  _score_files,
  _score_output,
)
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError

SUMMARY = 'train a regressor (COMET, COMES) on rated records'

_DESCRIPTION = """
Trains one regressor on rated records and selects its checkpoint on others:
COMET (one rating, of translations) or COMES. A row is a judgment: each
annotator's judgment of an output is a row of its own, and every reference makes
another instance. To measure agreement on unseen documents, use
`t5score crossvalidate`.

The configuration is that of `t5score train`; MODEL_DIR, ARRAYS,
VALIDATION_ARRAYS and TEXTS are set here, ENCODER_PATH is yours: the folder of
an encoder, or of a regressor to continue from (COMES_MT), whose single output
is widened. Recipes that train a head on the vectors of a frozen encoder
(runs/comes_head.gin) encode each distinct text once; with FINE_TUNE_EPOCHS
above 0 the whole network is trained afterwards (runs/comes_fine_tune.gin).

Every regressor reads a source. An English-only encoder can be trained on
translations into English with source=COLUMN naming the reference's column.

WORK keeps everything; WORK/model is the regressor. Repeat the command to resume
a stopped run.
"""

_EXAMPLES = """
examples:
  t5score fit --gin_file=recipes/comes_minilm.gin \\
      --gin.ENCODER_PATH="'all-MiniLM-L6-v2'" --input summeval.jsonl.gz \\
      --ratings coherence,consistency,fluency,relevance \\
      --validation-share 0.1 --work comes/
  t5score score --metric comes -m comes/model --input summaries.jsonl

  t5score fit --gin_file=recipes/comes_xlmr_large.gin \\
      --gin.ENCODER_PATH="'xlm-roberta-large'" --gin.OUTPUTS="('score',)" \\
      --input da2017.tsv --input da2018.tsv --validation da2019.tsv \\
      --ratings z --work comet/ --prepare
  # prints the command of `t5score train` that many hosts can share; after it,
  # the first command without --prepare makes comet/model

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
    action='append',
    required=True,
    metavar=('FILE', 'NAME=VALUE'),
    help='training records: ' + _record_files.HELP,
  )
  _fitting.add_ratings(parser)
  chosen = parser.add_mutually_exclusive_group(required=True)
  chosen.add_argument(
    '--validation',
    nargs='+',
    action='append',
    metavar=('FILE', 'NAME=VALUE'),
    help='records to select the checkpoint on, as for --input',
  )
  chosen.add_argument(
    '--validation-share',
    type=float,
    metavar='X',
    help='select the checkpoint on this share of the documents of --input, '
    'and train on the others',
  )
  parser.add_argument(
    '--by',
    choices=instances.KEYS,
    default='document',
    help='the field that --validation-share keeps together (default: '
    '%(default)s)',
  )
  parser.add_argument(
    '--seed',
    type=int,
    default=0,
    help='seed of --validation-share; those of training are RANDOM_SEED and '
    'DATA_SEED (default: %(default)s)',
  )
  parser.add_argument(
    '--work',
    required=True,
    metavar='FOLDER',
    help='folder of the model and its training',
  )
  parser.add_argument(
    '--prepare',
    action='store_true',
    help='only write the training data, and print the command of `t5score '
    'train`, which many hosts can share',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='print only the result and errors'
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  files.write_lines('-', _run(args).splitlines())
  return 0


def _run(args: argparse.Namespace) -> str:
  # Imported here: help needs no JAX.
  from t5score_jax.fitting import fit

  ratings = tuple(_score_files.split_names(args.ratings))
  learned = _read(args.input, '--input', ratings)
  if args.validation:
    parts = {
      fit.TRAIN: learned,
      fit.VALIDATION: _read(args.validation, '--validation', ratings),
    }
  else:
    parts = _divided(args, fit, learned)
  with _score_output.Bar('encoding', args.quiet) as progress:
    result = fit.fit(
      parts,
      ratings,
      args.work,
      _gin.phases(args),
      prepare_only=args.prepare,
      say=_fitting.teller(args.quiet),
      progress=progress,
      quiet=args.quiet,
    )
  if args.prepare:
    return _train_command(args, result.bindings)
  counts = result.instances
  text = (
    f'{result.folder}: a regressor of {", ".join(ratings)}, trained on '
    f'{counts[fit.TRAIN]:,} instances, validated on '
    f'{counts[fit.VALIDATION]:,}'
  )
  return f'{text}\n{result.chosen}' if result.chosen else text


def _read(
  named: Sequence[Sequence[str]], flag: str, ratings: Sequence[str]
) -> list[Segment]:
  """The records of several files; each rating must be in one of them."""
  try:
    sources = [_record_files.parse(words, flag) for words in named]
  except ValueError as error:
    raise UsageError(str(error)) from error
  segments = [s for source in sources for s in source.segments(ratings)]
  instances.check_rated(segments, ratings, sources[0].path)
  return segments


def _divided(
  args: argparse.Namespace, fitting: Any, segments: Sequence[Segment]
) -> dict[str, list[Segment]]:
  keys = instances.keys(segments, args.by)
  try:
    chosen = instances.held_out(keys, args.validation_share, args.seed)
  except ValueError as error:
    raise UsageError(f'--validation-share: {error}') from error
  pairs = list(zip(keys, segments, strict=True))
  return {
    fitting.TRAIN: [s for key, s in pairs if key not in chosen],
    fitting.VALIDATION: [s for key, s in pairs if key in chosen],
  }


def _train_command(args: argparse.Namespace, bindings: Sequence[str]) -> str:
  words = ['t5score', 'train']
  words += [f'--gin_file={file}' for file in args.gin_file]
  if args.gin_search_paths:
    words.append(f'--gin_search_paths={args.gin_search_paths}')
  words += [f'--gin.{binding}' for binding in args.gin_bindings]
  words += [f'--gin.{"=".join(b.split(" = ", 1))}' for b in bindings]
  return shlex.join(words)
