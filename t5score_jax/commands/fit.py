"""`t5score fit`: trains T5Score or a regressor (COMET, COMES) on rated records.

Reads records and gin's configuration, calls `fitting/fit.py` and prints the
result.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from t5score_jax.commands import (
  _fit_t5score,
  _gin,
  _record_files,
  _regressors,
  _score_output,
  _usage,
)
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment

SUMMARY = 'train T5Score, or a regressor (COMET, COMES), on rated records'

DESCRIPTION = """
Trains a metric on rated records and selects its checkpoint on others.

Without --gin_file: T5Score, on groups of rated hypotheses of one segment
(equation 3 of the paper), from the model -m. Lengths, steps and the network
follow from records and model; WORK/fit.gin has them all and is printed, with
the command of `t5score train` that many hosts can share. --gin.NAME=VALUE
changes any value.

With --gin_file: one regressor, COMET (one rating, of translations) or COMES. A
row is a judgment: each
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
translations into English with the reference in both places:
source=reference reference=reference.

WORK keeps everything; WORK/model is the metric's model. Repeat the command to
resume a stopped run.
"""

EPILOG = f"""
examples:
  t5score fit --input rated.jsonl --ratings rating --validation-share 0.1 \\
      --work tuned/
  t5score score -m tuned/model --input others.jsonl

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
{_regressors.EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _gin.add_arguments(parser)
  _record_files.add_argument(
    parser,
    '--input',
    'training records: ' + _record_files.HELP,
    action='append',
    required=True,
  )
  chosen = parser.add_mutually_exclusive_group(required=True)
  _record_files.add_argument(
    chosen,
    '--validation',
    'records to select the checkpoint on, as for --input',
    action='append',
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
    help='the field that --validation-share keeps together (default: document, '
    'or source if a record has no document)',
  )
  parser.add_argument(
    '--prepare',
    action='store_true',
    help='only write the training data, and print the command of `t5score '
    'train`, which many hosts can share',
  )
  _regressors.add_arguments(parser)
  _fit_t5score.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  files.write_lines('-', _run(args).splitlines())
  return 0


def _run(args: argparse.Namespace) -> str:
  # Imported here: help needs no JAX.
  from t5score_jax.fitting import fit

  if args.gin_file:
    _fit_t5score.refuse(args)
  ratings = tuple(_usage.split_names(args.ratings))
  learned = _read(args.input, '--input', ratings)
  if args.validation:
    parts = {
      fit.TRAIN: learned,
      fit.VALIDATION: _read(args.validation, '--validation', ratings),
    }
  else:
    parts = _divided(args, fit, learned)
  if not args.gin_file:
    return _fit_t5score.run(args, ratings, parts)
  with _score_output.bar('encoding', args.quiet) as progress:
    result = fit.fit(
      parts,
      ratings,
      args.work,
      _gin.phases(args),
      prepare_only=args.prepare,
      say=_usage.printer(args.quiet),
      progress=progress,
      quiet=args.quiet,
    )
  if args.prepare:
    return _train_command(args, result.bindings)
  counts = result.instances
  lines = [
    f'{result.folder}: a regressor of {", ".join(ratings)}, trained on '
    f'{counts[fit.TRAIN]:,} instances, validated on '
    f'{counts[fit.VALIDATION]:,}',
    result.chosen,
    *(f'note: {note}' for note in result.notes),
  ]
  return '\n'.join(filter(None, lines))


def _read(
  named: Sequence[Sequence[str]], flag: str, ratings: Sequence[str]
) -> list[Segment]:
  """The records of several files; each rating must be in one of them."""
  sources = _record_files.parse_all(named, flag)
  segments = [s for source in sources for s in source.segments(ratings)]
  instances.check_rated(segments, ratings, sources[0].path)
  return segments


def _divided(
  args: argparse.Namespace, fitting: Any, segments: Sequence[Segment]
) -> dict[str, list[Segment]]:
  by = args.by or instances.default_key(segments)
  keys = instances.keys(segments, by)
  chosen = instances.held_out(keys, args.validation_share, args.seed)
  pairs = list(zip(keys, segments, strict=True))
  return {
    fitting.TRAIN: [s for key, s in pairs if key not in chosen],
    fitting.VALIDATION: [s for key, s in pairs if key in chosen],
  }


def _train_command(args: argparse.Namespace, bindings: Sequence[str]) -> str:
  paths = args.gin_search_paths
  command = _gin.train_command(
    args.gin_file,
    [*args.gin_bindings, *('='.join(b.split(' = ', 1)) for b in bindings)],
  )
  return (
    f'{command} --gin_search_paths={shlex.quote(paths)}' if paths else command
  )
