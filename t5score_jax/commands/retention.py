"""`t5score retention`: what distilled metrics keep of their teacher.

Loads, times and scores; the numbers and the table are in
`evaluation/reports/retention.py`, the picture in `evaluation/reports/plots.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _record_files, _usage, score
from t5score_jax.data import files
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.evaluation.reports import plots, retention, tables

SUMMARY = 'compare distilled metrics with their teacher: agreement, speed, size'

_DESCRIPTION = """
Scores judged records with a metric (the teacher), with metrics that were
distilled from it (students) and with others, one after the other in one
process, and prints one table: parameters, pairs a second, Pearson with people
by language pair and on average, the share of the teacher's that a student
keeps (with a paired bootstrap interval), and Pearson with the teacher.

A metric is [NAME=]METRIC[:OPTION=VALUE,...], METRIC as for `t5score score -m`.

Speed is warm: a metric scores all records once, which compiles its programs
and counts as cold seconds together with loading it, and then again, which is
timed; with --repeats the fastest counts. --time-pairs times a part only.
"""

_EXAMPLES = """
examples:
  t5score retention --input wmt17.jsonl.gz --human z \\
      --teacher bertscore:model=bert-base-uncased/,layer=9 \\
      --students tiny=frugalscore:model=tiny/ small=frugalscore:model=small/ \\
      --beside moverscore:model=bert-base-uncased/ chrf bleu \\
      --speed-against moverscore --plot sizes.svg

exit code: 0 measured; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  group = parser.add_argument_group('metrics')
  group.add_argument(
    '--teacher', required=True, metavar='METRIC', help='what was distilled'
  )
  group.add_argument(
    '--students',
    nargs='+',
    default=[],
    metavar='METRIC',
    help='what was distilled from it',
  )
  group.add_argument(
    '--beside',
    nargs='+',
    default=[],
    metavar='METRIC',
    help='others, to compare with',
  )
  _add_records(parser.add_argument_group('records'))
  group = parser.add_argument_group('measurement')
  group.add_argument(
    '--speed-against',
    metavar='NAME',
    help="whose pairs a second `faster` compares with (default: the teacher's)",
  )
  group.add_argument(
    '--repeats',
    type=metric_arguments.positive,
    default=1,
    metavar='N',
    help='timed runs, of which the fastest counts (default: %(default)s)',
  )
  group.add_argument(
    '--time-pairs',
    type=metric_arguments.positive,
    metavar='N',
    help='records that are timed, evenly spread (default: all)',
  )
  group.add_argument(
    '--bootstrap',
    type=_usage.count,
    default=1000,
    metavar='N',
    help='resamples of the segments for the interval; 0 for none (default: '
    '%(default)s)',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=12345,
    help='of the draws (%(default)s)',
  )
  _add_output(parser.add_argument_group('output'))


def _add_records(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--input',
    nargs='+',
    action='append',
    required=True,
    metavar=('FILE', 'NAME=VALUE'),
    help=_record_files.HELP,
  )
  group.add_argument(
    '--human',
    required=True,
    metavar='COL',
    help='column with the human ratings, higher is better; records without '
    'one are left out and counted',
  )
  group.add_argument(
    '--by',
    choices=('language_pair', 'none'),
    default='language_pair',
    help='a correlation for each language pair, and their mean; or one of all '
    'records (default: %(default)s)',
  )


def _add_output(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--format',
    choices=tables.FORMATS,
    default='table',
    help='how to print (default: %(default)s)',
  )
  group.add_argument(
    '--digits',
    type=_usage.decimals,
    default=3,
    metavar='N',
    help='decimals of correlations (default: %(default)s)',
  )
  group.add_argument(
    '-o', '--output', metavar='FILE', default='-', help='where to write'
  )
  group.add_argument(
    '--plot',
    metavar='FILE',
    help='draw size against retention to FILE.png or FILE.svg (needs '
    'matplotlib)',
  )
  group.add_argument(
    '--quiet', action='store_true', help='no progress on standard error'
  )


@dataclasses.dataclass(frozen=True)
class Spec:
  """A metric of the command line.

  Attributes:
    name: to show.
    metric: its name, or a model's.
    options: of the metric.
    role: of `evaluation.retention`.
  """

  name: str
  metric: str
  options: dict[str, Any]
  role: str


def parse_spec(text: str, role: str) -> Spec:
  """Reads [NAME=]METRIC[:OPTION=VALUE,...].

  Raises:
    UsageError: the text has another form.
  """
  head, colon, rest = text.partition(':')
  name, equals, metric = head.partition('=')
  if not equals or '/' in name:
    name, metric = '', head
  if not metric or (colon and not rest):
    raise UsageError(
      f'a metric is [NAME=]METRIC[:OPTION=VALUE,...], not {text!r}'
    )
  options = {}
  # A comma may stand in a value; what begins an option does not.
  for part in re.split(r',(?=\w+=)', rest) if rest else []:
    option, equals, value = part.partition('=')
    if not (option.isidentifier() and equals):
      raise UsageError(f'{text}: {part!r} is not OPTION=VALUE')
    options[option] = metric_arguments.literal(value)
  return Spec(name or metric, metric, options, role)


def _specs(args: argparse.Namespace) -> list[Spec]:
  specs = [
    parse_spec(args.teacher, retention.TEACHER),
    *(parse_spec(text, retention.STUDENT) for text in args.students),
    *(parse_spec(text, retention.BESIDE) for text in args.beside),
  ]
  names = [spec.name for spec in specs]
  for name in names:
    if names.count(name) > 1:
      raise UsageError(f'two metrics are called {name!r}: give NAME=METRIC:...')
  if args.speed_against not in (None, *names):
    raise UsageError(
      f'--speed-against {args.speed_against}: there are {", ".join(names)}'
    )
  return specs


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  specs = _specs(args)
  with _usage.blamed():
    inputs = [_record_files.parse(words, '--input') for words in args.input]
  read: list[object] = [file.path for file in inputs]
  read += [value for spec in specs for value in spec.options.values()]
  if args.plot:
    with _usage.blamed():
      plots.format_of(args.plot)
    plots.check_available()
    score.check_writable(args.plot, read, '--plot')
  score.check_writable(args.output, read)
  for spec in specs:
    metric_arguments.check(spec.metric, spec.options)
  report, notes = _measure(args, specs, inputs)
  text = retention.render(report, args.format, args.digits, notes)
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  # After the table, which is there even if it cannot be drawn.
  if args.plot:
    plots.save(plots.sizes(report), args.plot)
  return 0


def _measure(
  args: argparse.Namespace,
  specs: Sequence[Spec],
  inputs: Sequence[_record_files.RecordFile],
) -> tuple[retention.Report, list[str]]:
  segments = [s for file in inputs for s in file.segments([args.human])]
  judged = [s for s in segments if args.human in s.ratings]
  if not judged:
    raise ValueError(f'no record has a rating {args.human!r}')
  notes = [f'{os.cpu_count()} processors']
  if len(judged) < len(segments):
    notes.append(f'{len(segments) - len(judged)} records without a rating')
  by = args.by == 'language_pair'
  groups = [(s.language_pair or '') if by else '' for s in judged]
  keys = [_segment_key(s, n) for n, s in enumerate(judged)]
  if args.bootstrap:
    # Before the work rather than after it.
    retention.check_drawn(groups, keys)
  report = retention.measure(
    [_timed(spec, judged, args) for spec in specs],
    np.array([s.ratings[args.human] for s in judged]),
    groups,
    keys,
    speed_against=args.speed_against,
    resamples=args.bootstrap,
    seed=args.seed,
  )
  return report, notes


def _segment_key(segment: Segment, place: int) -> Hashable:
  """What the judged translations of one segment have in common."""
  if segment.segment is None:
    return place
  shared = segment.source or segment.references
  return segment.language_pair, segment.document, segment.segment, shared


def _timed(
  spec: Spec, segments: Sequence[Segment], args: argparse.Namespace
) -> retention.Measured:
  """Scores with a metric, and times it."""
  started = time.monotonic()
  metric = metric_arguments.load(spec.metric, spec.options)
  scores = metric.score_segments(segments)
  cold = time.monotonic() - started
  part = segments
  if args.time_pairs and args.time_pairs < len(segments):
    chosen = np.linspace(0, len(segments) - 1, args.time_pairs).astype(int)
    part = [segments[n] for n in chosen]
    # Fewer texts may have programs of their own.
    metric.score_segments(part)
  seconds = []
  for _ in range(args.repeats):
    started = time.monotonic()
    metric.score_segments(part)
    seconds.append(time.monotonic() - started)
  speed = len(part) / max(min(seconds), 1e-9)
  if not args.quiet:
    print(
      f'{spec.name}: {len(segments)} records, {cold:.1f} s cold; '
      f'{len(part)} in {min(seconds):.2f} s warm, {speed:.1f}/s',
      file=sys.stderr,
      flush=True,
    )
  return retention.Measured(
    name=spec.name,
    role=spec.role,
    scores=scores.values,
    pairs_per_second=speed,
    cold_seconds=cold,
    parameters=metric.num_parameters,
    signature=scores.signature,
  )
