"""`t5score compare`: is one system better than another under a metric?

Takes the outputs of systems and a metric, or existing scores, and tests the
systems against a baseline. The tests are in
`evaluation/paired_tests.py`. JAX is imported only when a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from t5score_jax.commands import (
  _compare_page,
  _score_files,
  _text_files,
  _usage,
)
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.data import files, tables
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import paired_tests, scores
from t5score_jax.evaluation.readers import layouts
from t5score_jax.evaluation.reports import system_tables
from t5score_jax.metrics import systems as system_values

SUMMARY = 'test whether one system is better than another under a metric'

DESCRIPTION = """
Compares two or more systems on the same segments, each with the baseline: the
difference of their values, its 95% bootstrap interval, the two-sided p-values
of the paired bootstrap and of approximate randomisation, the share of
resamples that the system wins, and the numbers of segments on which it is
better and worse.

The input is score files: what `t5score score` writes, or any layout of `t5score
correlate`; NAME=FILE names the system of a file without that column. A system's
value is then the mean over segments. Or it is texts (-t, -r, -s, --input as for
`t5score score`) with a metric, -m: a system's value is then what the metric
computes, for BLEU, chrF and TER from sums over segments, and the draws are
those of `sacrebleu --paired-bs` and `--paired-ar`. --bootstrap-p sacrebleu
prints its p-values too. --html FILE writes a page of the segments on which the
systems differ most; the texts for score files are in these (hypothesis, source,
reference), or are given beside them.
"""

EPILOG = """
examples:
  t5score compare -m chrf -r references.txt -t baseline.txt A.txt B.txt
  t5score compare --metric bertscore -m bert/ -r references.txt -t A.txt B.txt
  t5score compare -r references.txt -t baseline.txt A.txt --html page.html
  t5score compare scores.jsonl --baseline Online-B --table markdown
  t5score compare old=old.tsv new=new.tsv --all-pairs
  t5score compare comet.tsv -s source.txt -r references.txt -t A.txt B.txt \\
      --html page.html

exit code: 0 compared; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument(
    'files', nargs='*', metavar='[NAME=]FILE', help='score files'
  )
  group = parser.add_argument_group('score files')
  group.add_argument(
    '--score',
    metavar='COL',
    help='the column with the scores, higher is better (default: score)',
  )
  _score_files.add_layout_arguments(group)
  texts = parser.add_argument_group('texts')
  metric_arguments.add_choice(texts)
  _text_files.add_arguments(texts)
  metric_arguments.add_model_options(parser, tokens=False)
  group = parser.add_argument_group('tests and output')
  _add_tests(group)
  _score_files.add_output(group)
  _compare_page.add_arguments(parser)


def _add_tests(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--baseline',
    metavar='SYSTEM',
    help='the system that the others are compared with (default: the first)',
  )
  group.add_argument(
    '--all-pairs',
    action='store_true',
    help='compare every system with every other one',
  )
  group.add_argument(
    '--bootstrap',
    type=_usage.some_resamples,
    metavar='N',
    default=paired_tests.BOOTSTRAP_DRAWS,
    help=f'resamples, at least {_usage.FEWEST_RESAMPLES} '
    '(default: %(default)s)',
  )
  group.add_argument(
    '--bootstrap-p',
    choices=paired_tests.RULES,
    default='centred',
    help='p-value of the bootstrap: centred on the null hypothesis, or by '
    "sacrebleu's rule, which rejects too often (default: %(default)s)",
  )
  group.add_argument(
    '--randomisations',
    type=_usage.count,
    metavar='N',
    default=paired_tests.RANDOMISATIONS,
    help='random exchanges, or all 2^N of N segments if these are no more; 0 '
    'leaves that test out (default: %(default)s)',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=12345,
    help='of both tests (%(default)s)',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit status."""
  texts = not args.files
  if texts and not (args.hypotheses or args.input):
    raise UsageError('give score files, or texts: -t HYP..., or --input FILE')
  _check_unused(args, texts)
  if args.all_pairs and args.baseline is not None:
    raise UsageError('give --baseline or --all-pairs')
  named = [path for _, path in _usage.split_files(args.files)]
  inputs = [*named, *_text_files.inputs(args)]
  _usage.check_writable(args.output, inputs)
  _compare_page.check(args, inputs)
  read = _from_texts if texts else _from_scores
  systems_of, notes, shown = read(args)
  comparisons = {
    pair: paired_tests.compare(
      systems,
      _against(args, systems),
      resamples=args.bootstrap,
      randomisations=args.randomisations,
      seed=args.seed,
      rule=args.bootstrap_p,
    )
    for pair, systems in systems_of.items()
  }
  for comparison in comparisons.values():
    notes += [note for note in comparison.notes if note not in notes]
  settings = {
    'bootstrap': args.bootstrap,
    'bootstrap_p': args.bootstrap_p,
    'randomisations': args.randomisations,
    'seed': args.seed,
  }
  text = system_tables.render_systems(
    comparisons, settings, notes, args.table, args.digits
  )
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  if shown is not None and args.html:
    _compare_page.write(args, shown, comparisons, notes)
  return 0


def _check_unused(args: argparse.Namespace, texts: bool) -> None:
  """Raises UsageError for options for the other kind of input."""
  if not texts:
    metric_arguments.refuse(args, 'is for texts (-t, --input)')
    if not args.html:
      flags = {'hypotheses': '-t', 'references': '-r', 'source': '-s'}
      why = 'is for texts without score files, or for --html'
      _usage.refuse(args, [*flags, 'input'], why, flags)
    _usage.fill(args, {'score': 'score'})
    return
  of_texts = ('columns', 'quoting') if args.input else ()
  for name in ('score', *_score_files.LAYOUT_NAMES):
    if name not in of_texts:
      _usage.refuse(args, [name], 'is for score files')


def _against(
  args: argparse.Namespace, systems: Sequence[paired_tests.System]
) -> list[tuple[int, int]]:
  names = [system.name for system in systems]
  if args.all_pairs:
    return list(itertools.combinations(range(len(systems)), 2))
  baseline = 0
  if args.baseline is not None:
    if args.baseline not in names:
      raise UsageError(
        f'--baseline: no system {args.baseline!r};'
        + tables.suggest(args.baseline, names)
      )
    baseline = names.index(args.baseline)
  return [(k, baseline) for k in range(len(systems)) if k != baseline]


# Systems by language pair.
_Systems = dict[str, list[paired_tests.System]]
# With notes, and with the texts if a page shows them.
_Read = tuple[_Systems, list[str], _compare_page.Texts | None]


def _from_scores(args: argparse.Namespace) -> _Read:
  options = _score_files.layout_options(args)
  loaded: list[scores.ScoreTable] = []
  for name, path in _usage.split_files(args.files):
    for table in layouts.read(path, [args.score], options):
      if not table.values:
        raise files.RecordError(
          f'no column {args.score!r}: name it with --score', path=path
        )
      loaded.append(_with_system(table, name))
  if args.loose_names:
    loaded = [scores.with_plain_systems(table) for table in loaded]
  notes = [note for table in loaded for note in table.notes]
  systems: _Systems = {}
  parts: dict[str, _compare_page.Part] = {}
  grids = scores.join(loaded, None, [args.score])
  for grid in _score_files.of_language_pair(grids, args.language_pair):
    values, ids = _complete(grid, args.score, args.intersect, notes)
    parts[grid.language_pair] = (grid.systems, ids, values)
    systems[grid.language_pair] = [
      paired_tests.of_means(system, row)
      for system, row in zip(grid.systems, values, strict=True)
    ]
    columns = dict(zip(grid.systems, map(tuple, values), strict=True))
    notes += _text_files.equal(columns, 'scores')
  shown = _compare_page.of_scores(args, loaded, parts) if args.html else None
  return systems, notes, shown


def _with_system(
  table: scores.ScoreTable, name: str | None
) -> scores.ScoreTable:
  """The table with a system in every row: its own, or the file's name."""
  if name is None:
    if 'system' not in table.keys:
      raise files.RecordError(
        'no column says which system a row is of: give NAME=FILE',
        path=table.path,
      )
    return dataclasses.replace(table, keys=scores.KEYS)
  count = len({system for _, system, _ in table.rows})
  if count > 1:
    raise files.RecordError(
      f'NAME=FILE is for a file of one system; this one has {count}',
      path=table.path,
    )
  if 'segment' not in table.keys:
    raise files.RecordError(
      'no column says which segment a row is of (segment)', path=table.path
    )
  rows = [(pair, name, segment) for pair, _, segment in table.rows]
  return dataclasses.replace(table, keys=scores.KEYS, rows=rows)


def _complete(
  grid: scores.ScoreGrid, column: str, intersect: bool, notes: list[str]
) -> tuple[np.ndarray, list[str]]:
  """A column [systems, segments] at the segments of all systems; their ids."""
  values = grid.metrics[column]
  complete = np.isfinite(values).all(axis=0)
  lost = int(np.count_nonzero(~complete))
  if lost and not intersect:
    system, segment = np.argwhere(~np.isfinite(values))[0]
    raise files.RecordError(
      f'{lost} segments are not of every system; the first is '
      f'{grid.segments[segment]!r}, which {grid.systems[system]!r} lacks. '
      'Complete the files, or leave such segments out (--intersect)'
    )
  if lost:
    notes.append(
      f'{grid.language_pair or "all"}: {lost} of {len(complete)} segments left '
      'out, because some system lacks them'
    )
  ids = list(itertools.compress(grid.segments, complete))
  return values[:, complete], ids


def _from_texts(args: argparse.Namespace) -> _Read:
  segments = _text_files.read_segments(args)
  # Texts are aligned as scores are.
  grids = system_values.grids(segments, args.input or 'hypotheses')
  notes = _text_files.equal_systems(segments)
  rows = {}
  for grid in grids:
    indices, _ = _complete(grid, 'index', args.intersect, notes)
    rows[grid.language_pair] = indices.astype(np.int64)
  options = metric_arguments.metric_options(args)
  options = _compare_page.options(args, options)
  metric = metric_arguments.load(args.model, options, args.metric)
  scored = metric.score_segments(segments)
  notes = [f'{metric.name}: {scored.signature}', *scored.notes, *notes]
  if scored.cut:
    notes.append(f'cut to the greatest length: {scored.cut}')
  systems = {
    grid.language_pair: [
      system_values.as_system(name, scored, row)
      for name, row in zip(grid.systems, rows[grid.language_pair], strict=True)
    ]
    for grid in grids
  }
  shown = _compare_page.Texts(metric.name, segments, scored, rows, metric)
  return systems, notes, shown
