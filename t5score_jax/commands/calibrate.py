"""`t5score calibrate`: maps a metric's scores to the scale of human ratings.

Scores rated segments with the metric, fits a function and reports its error on
held-out segments. The function itself is in `fitting/calibration.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _score_output, _usage
from t5score_jax.data import files, records, tables
from t5score_jax.errors import UsageError
from t5score_jax.fitting import calibration as calibrations
from t5score_jax.metrics import base

SUMMARY = "fit a metric's scores to the scale of human ratings"

DESCRIPTION = """
Scores the rated segments of FILE and fits an increasing function from scores
to ratings, which `t5score score --calibration` then applies: ranks do not
change, and a score is the expected rating. The segments should not be training
data of the metric. Cross-validation over segment ids gives the root mean
squared error of predicting the mean rating, by a line and by the isotonic
function.

FILE is TSV or JSONL with a header, as for `t5score score --input`, and a
column of ratings, higher is better; rows without a rating are left out and
counted.

The calibration is written to the model's folder, where `t5score score
--calibration model` finds it. An existing one is kept unless --overwrite is
given; the folder of an embedded model is never written.
"""

EPILOG = """
examples:
  t5score calibrate -m my_run/ --input judged.tsv.gz --human z
  t5score calibrate -m chrf --input judged.jsonl --human da --method affine \\
      -o chrf.calibration.json
  t5score score -m my_run/ -r refs.txt -t hyps.txt --calibration model

exit code: 0 fitted; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  metric_arguments.add_choice(parser)
  parser.add_argument(
    '--input', metavar='FILE', required=True, help='rated segments'
  )
  parser.add_argument(
    '--human', metavar='COL', required=True, help='the column of ratings'
  )
  parser.add_argument(
    '--columns',
    metavar='FIELD=COL,...',
    default='',
    help='columns of the fields whose names differ',
  )
  parser.add_argument(
    '--quoting',
    choices=tables.QUOTING,
    default='none',
    help='of TSV cells (default: %(default)s)',
  )
  parser.add_argument(
    '--method',
    choices=calibrations.METHODS,
    default='isotonic',
    help='any increasing function, or a line (default: %(default)s)',
  )
  parser.add_argument(
    '--folds',
    type=int,
    default=calibrations.FOLDS,
    metavar='N',
    help='folds of the cross-validation (default: %(default)s)',
  )
  parser.add_argument(
    '--seed',
    type=_usage.count,
    default=0,
    help='seed of the division into folds (default: %(default)s)',
  )
  parser.add_argument(
    '-o',
    '--output',
    metavar='OUT',
    help=f"the file (default: {calibrations.FILE} in the model's folder)",
  )
  parser.add_argument(
    '--overwrite',
    action='store_true',
    help="replace the calibration in the model's folder",
  )
  parser.add_argument(
    '--format',
    choices=('table', 'json'),
    default='table',
    help='format of the report (default: %(default)s)',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='no progress bar and no report'
  )
  metric_arguments.add_model_options(parser, tokens=False)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  options = metric_arguments.metric_options(args)
  if args.folds < 2:
    raise UsageError(f'--folds {args.folds}: at least 2')
  output = _output(args, options)
  segments, unrated = _rated(args)
  metric = metric_arguments.load(args.model, options, args.metric)
  with _score_output.scoring_bar(metric, args.quiet):
    scores = metric.score_segments(segments)
  fitted = _fit(args, segments, scores)
  calibrations.write(output, fitted)
  if not args.quiet:
    report = _report(args, fitted, output, unrated)
    files.write_lines('-', report.splitlines())
  return 0


def _output(args: argparse.Namespace, options: Mapping[str, Any]) -> Path:
  """The file to write, checked before the work."""
  if args.output:
    if args.overwrite:
      raise UsageError('--overwrite: -o overwrites anyway; leave one out')
    path = Path(args.output)
  else:
    folder = metric_arguments.model_folder(args.model, options, args.metric)
    if folder is None:
      raise UsageError('the metric has no folder: give -o OUT')
    path = folder / calibrations.FILE
  embedded = [kinds.folder(name).resolve() for name in kinds.embedded()]
  if path.resolve().parent in embedded:
    raise UsageError(
      f'{path.resolve().parent} is the folder of an embedded model, which all '
      'users of the package share: give -o OUT'
    )
  if not (args.output or args.overwrite) and path.exists():
    raise UsageError(
      f'{path} exists: give --overwrite to replace it, or -o OUT'
    )
  _usage.check_writable(str(path), [args.input, args.model, *options.values()])
  return path


def _rated(args: argparse.Namespace) -> tuple[list[records.Segment], int]:
  """The segments with a rating, and how many have none."""
  segments = records.read_records(
    args.input,
    columns=_usage.assignments(args.columns, '--columns', 'FIELD=COLUMN'),
    ratings=(args.human,),
    quoting=args.quoting,
  )
  rated = [segment for segment in segments if args.human in segment.ratings]
  if not rated:
    raise calibrations.CalibrationError(
      f'{args.input}: no row has a rating in the column {args.human!r}'
    )
  return rated, len(segments) - len(rated)


def _fit(
  args: argparse.Namespace,
  segments: list[records.Segment],
  scores: base.Scores,
) -> calibrations.Calibration:
  ratings = [segment.ratings[args.human] for segment in segments]
  # All systems' versions of one segment share its fold.
  groups = [
    (s.language_pair, s.document, s.segment)
    if s.segment is not None
    else (s.source, s.references)
    for s in segments
  ]
  report = calibrations.cross_validate(
    scores.values, ratings, groups, args.folds, args.seed
  )
  fitted = calibrations.fit(
    scores.values, ratings, args.method, args.human, scores.signature
  )
  return calibrations.with_report(fitted, report)


def _report(
  args: argparse.Namespace,
  fitted: calibrations.Calibration,
  output: Path,
  unrated: int,
) -> str:
  report: dict[str, Any] = dict(fitted.report)
  if args.format == 'json':
    return json.dumps(
      {
        'calibration': fitted.name,
        'file': str(output),
        'segments': fitted.segments,
        'unrated': unrated,
        **report,
        'signature': fitted.signature,
      },
      indent=2,
    )
  lines = [
    f'{fitted.segments} rated segments'
    + (f' ({unrated} rows without a rating left out)' if unrated else ''),
    f'root mean squared error on {args.human}, {report["folds"]} folds over '
    f'{report["groups"]} segment ids:',
    *(f'  {name:<9} {value:.4f}' for name, value in report['rmse'].items()),
    'tenths by prediction, held out:',
    '  predicted  observed',
    *(
      f'  {row["predicted"]:9.3f} {row["observed"]:9.3f}'
      for row in report['deciles']
    ),
    f'calibration: {fitted.name} ({len(fitted.scores)} knots) in {output}',
    f'signature: {fitted.signature}',
  ]
  return '\n'.join(lines)
