"""`t5score fit`: one estimator, COMET's or COMES's, from rated records.

Reads records and gin's configuration, hands both to `fitting/fit.py`, and says
what came of it.
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
from t5score_jax.commands._usage import UsageError
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment

SUMMARY = 'train an estimator (COMET, COMES) on rated records'

_DESCRIPTION = """
Trains one estimator on records that people rated, and chooses its checkpoint by
others: COMET (one rating, of translations), or the COMES that is to be used. A
row is a judgment: those of one output by several people are rows of their own,
and every reference makes another instance. Agreement on documents that a model
has not seen is the business of `t5score crossvalidate`.

The configuration is that of `t5score train`; MODEL_DIR, ARRAYS,
VALIDATION_ARRAYS and TEXTS are set here, ENCODER_PATH is yours: the folder of
an encoder, or of an estimator to go on from (COMES_MT), whose single output is
widened. Recipes that train a head on the vectors of a frozen encoder
(runs/comes_head.gin) encode each distinct text once; with FINE_TUNE_EPOCHS
above 0 the whole network is trained afterwards (runs/comes_fine_tune.gin).

Every estimator reads a source. An encoder of English alone can learn from
translations into English with source=COLUMN, that of the reference.

WORK keeps everything; WORK/model is the estimator. The same command, given
again, goes on where it was stopped.
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
wrong; 75 SIGTERM, 130 Ctrl-C: the same command goes on
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
    help='what is learned from: ' + _record_files.HELP,
  )
  _fitting.add_ratings(parser)
  chosen = parser.add_mutually_exclusive_group(required=True)
  chosen.add_argument(
    '--validation',
    nargs='+',
    action='append',
    metavar=('FILE', 'NAME=VALUE'),
    help='records by which the checkpoint is chosen, as for --input',
  )
  chosen.add_argument(
    '--validation-share',
    type=float,
    metavar='X',
    help='choose by this share of the documents of --input, and learn from '
    'the others',
  )
  parser.add_argument(
    '--by',
    choices=instances.KEYS,
    default='document',
    help='what --validation-share does not divide (default: %(default)s)',
  )
  parser.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of --validation-share; those of the run are RANDOM_SEED and '
    'DATA_SEED (default: %(default)s)',
  )
  parser.add_argument(
    '--work',
    required=True,
    metavar='FOLDER',
    help='where the model and what leads to it are kept',
  )
  parser.add_argument(
    '--prepare',
    action='store_true',
    help='only write what training reads, and print the command of `t5score '
    'train`, which many hosts can share',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='the outcome and errors only'
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
    found = fit.fit(
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
    return _train_command(args, found.bindings)
  counts = found.instances
  text = (
    f'{found.folder}: an estimator of {", ".join(ratings)}, learned from '
    f'{counts[fit.TRAIN]:,} instances, validated on '
    f'{counts[fit.VALIDATION]:,}'
  )
  return f'{text}\n{found.chosen}' if found.chosen else text


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
