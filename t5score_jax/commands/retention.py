"""`t5score retention`: how much distilled metrics retain of their teacher.

Loads, times and scores; the numbers and the table are in
`evaluation/reports/retention.py`, the plot in `evaluation/reports/plots.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _record_files, _score_files, _usage
from t5score_jax.data import files
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError, UsageError
from t5score_jax.evaluation.reports import plots, retention

# Seconds below which a measured speed is mostly overhead and noise.
_SHORT = 0.1

SUMMARY = 'compare distilled metrics with their teacher: agreement, speed, size'

DESCRIPTION = """
Scores rated records with a metric (the teacher), with metrics distilled from it
(students) and with others, one after the other in one process, and prints one
table: parameters, pairs per second, Pearson with human ratings by language pair
and on average, the share of the teacher's that a student retains (with a paired
bootstrap interval), and Pearson with the teacher.

A metric is [NAME=]METRIC[:OPTION=VALUE,...], METRIC as for `t5score score -m`.

Speed is warm: a metric first scores all records, which compiles its programs
(with loading, the cold seconds), and then again, which is timed; with --repeats
the fastest run counts. --time-pairs times a part only.
"""

EPILOG = """
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
  group = parser.add_argument_group('metrics')
  group.add_argument(
    '--teacher', required=True, metavar='METRIC', help='the large metric'
  )
  group.add_argument(
    '--students',
    nargs='+',
    default=[],
    metavar='METRIC',
    help='metrics distilled from the teacher',
  )
  group.add_argument(
    '--beside',
    nargs='+',
    default=[],
    metavar='METRIC',
    help='other metrics, for comparison',
  )
  _add_records(parser.add_argument_group('records'))
  group = parser.add_argument_group('measurement')
  group.add_argument(
    '--speed-against',
    metavar='NAME',
    help='the metric whose speed is 1 in `faster` (default: the teacher)',
  )
  group.add_argument(
    '--repeats',
    type=_usage.positive,
    default=1,
    metavar='N',
    help='timed runs; the fastest counts (default: %(default)s)',
  )
  group.add_argument(
    '--time-pairs',
    type=_usage.positive,
    metavar='N',
    help='number of records to time, evenly spaced (default: all)',
  )
  group.add_argument(
    '--bootstrap',
    type=_usage.resamples,
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
  _record_files.add_argument(group, '--input', action='append', required=True)
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
  _score_files.add_output(
    group, 3, 'decimals of correlations (default: %(default)s)'
  )
  group.add_argument(
    '--plot',
    metavar='FILE',
    help='draw size against retention to FILE.png, .svg or .pdf (needs '
    'matplotlib)',
  )
  group.add_argument(
    '--quiet', action='store_true', help='no progress on standard error'
  )


@dataclasses.dataclass(frozen=True)
class Spec:
  """A metric of the command line.

  Attributes:
    name: The name in the report.
    metric: The name of a metric or of a model.
    options: The metric's options.
    role: A role of `evaluation/reports/retention.py`.
  """

  name: str
  metric: str
  options: dict[str, Any]
  role: str


def parse_spec(text: str, role: str) -> Spec:
  """Parses [NAME=]METRIC[:OPTION=VALUE,...].

  Raises:
    UsageError: The text has another form.
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
  # A value may contain a comma, but not the beginning of an option.
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
  inputs = _record_files.parse_all(args.input, '--input')
  read: list[object] = [file.path for file in inputs]
  read += [value for spec in specs for value in spec.options.values()]
  if args.plot:
    with _usage.blamed():
      plots.format_of(args.plot)
    plots.check_available()
    _usage.check_writable(args.plot, read, '--plot')
  _usage.check_writable(args.output, read)
  for spec in specs:
    metric_arguments.check(spec.metric, spec.options)
  report, notes = _measure(args, specs, inputs)
  text = retention.render(report, args.table, args.digits, notes)
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  # After the table, which is written even if drawing fails.
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
    raise InputError(f'no record has a rating {args.human!r}')
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


def _segment_key(segment: Segment, index: int) -> Hashable:
  """A key that all rated outputs of one segment share."""
  if segment.segment is None:
    return index
  shared = segment.source or segment.references
  return segment.language_pair, segment.document, segment.segment, shared


def _timed(
  spec: Spec, segments: Sequence[Segment], args: argparse.Namespace
) -> retention.Measured:
  """Scores with a metric and measures its speed."""
  started = time.monotonic()
  metric = metric_arguments.load(spec.metric, spec.options)
  scores = metric.score_segments(segments)
  cold = time.monotonic() - started
  part = segments
  if args.time_pairs and args.time_pairs < len(segments):
    chosen = np.linspace(0, len(segments) - 1, args.time_pairs).astype(int)
    part = [segments[n] for n in chosen]
    # Fewer texts may need programs of other shapes.
    metric.score_segments(part)
  seconds = []
  for _ in range(args.repeats):
    started = time.monotonic()
    metric.score_segments(part)
    seconds.append(time.monotonic() - started)
  speed = len(part) / max(min(seconds), 1e-9)
  say = _usage.printer(args.quiet)
  say(
    f'{spec.name}: {len(segments)} records, {cold:.1f} s cold; '
    f'{len(part)} in {min(seconds):.2f} s warm, {speed:.1f}/s'
  )
  if min(seconds) < _SHORT:
    say(
      f'note: {spec.name}: {len(part)} pairs take too little time to measure '
      'speed by; give more records'
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
