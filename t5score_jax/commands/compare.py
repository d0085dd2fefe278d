"""`t5score compare`: is one system better than another under a metric?

Takes the outputs of systems and a metric, or scores that were made before, and
tests the systems against a baseline. The tests are in
`evaluation.system_tests`; nothing here imports JAX unless a model is loaded.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _score_files, _usage
from t5score_jax.commands import score as score_verb
from t5score_jax.data import files
from t5score_jax.data import tables as data_tables
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import scores, system_tests
from t5score_jax.evaluation.readers import layouts
from t5score_jax.evaluation.reports import system_tables, tables
from t5score_jax.metrics import base

SUMMARY = 'test whether one system is better than another under a metric'

_DESCRIPTION = """
Compares two or more systems on the same segments, each with the baseline: the
difference of their values, its 95% bootstrap interval, the two-sided p-values
of the paired bootstrap and of approximate randomisation, the share of
resamples that the system wins, and the segments on which it is better and
worse.

Either score files: what `t5score score` writes, or any layout of `t5score
correlate`; NAME=FILE is the system NAME where the file does not say. Then a
system's value is the mean of its segments. Or texts (-t, -r, -s, --input as
`t5score score` takes them) with a metric, -m: a system's value is then as the
metric computes it, for BLEU, chrF and TER from sums over segments, and the
draws are those of `sacrebleu --paired-bs` and `--paired-ar`.
"""

_EXAMPLES = """
examples:
  t5score compare -m chrf -r references.txt -t baseline.txt A.txt B.txt
  t5score compare --metric bertscore -m bert/ -r references.txt -t A.txt B.txt
  t5score compare -r references.txt -t baseline.txt A.txt --direction f
  t5score compare scores.jsonl --baseline Online-B --format markdown
  t5score compare old=old.tsv new=new.tsv --all-pairs

exit code: 0 compared; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
  texts.add_argument(
    '-t',
    '--hypotheses',
    nargs='+',
    default=[],
    metavar='[NAME=]HYP',
    help="hypotheses, one file a system, whose name is NAME or the file's",
  )
  texts.add_argument('-r', '--references', nargs='+', default=[], metavar='REF')
  texts.add_argument('-s', '--source', metavar='SRC', help='sources')
  texts.add_argument(
    '--input', metavar='FILE', help='TSV or JSONL records with a system each'
  )
  metric_arguments.add_model_options(parser, tokens=False)
  _add_tests(parser.add_argument_group('tests and output'))


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
    type=_usage.positive,
    metavar='N',
    default=system_tests.BOOTSTRAP_DRAWS,
    help='resamples, at least 1 (default: %(default)s)',
  )
  group.add_argument(
    '--randomisations',
    type=_usage.count,
    metavar='N',
    default=system_tests.RANDOMISATIONS,
    help='random exchanges; 0 leaves that test out (default: %(default)s)',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=12345,
    help='of both tests (%(default)s)',
  )
  group.add_argument(
    '--format',
    choices=tables.FORMATS,
    default='table',
    help='how to print (default: %(default)s)',
  )
  group.add_argument(
    '--digits',
    type=_usage.decimals,
    default=4,
    metavar='N',
    help='decimals of scores (default: %(default)s)',
  )
  group.add_argument(
    '-o', '--output', metavar='FILE', default='-', help='where to write'
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit status."""
  texts = bool(args.hypotheses or args.input)
  if texts == bool(args.files):
    raise UsageError('give score files, or texts: -t HYP..., or --input FILE')
  _check_unused(args, texts)
  if args.all_pairs and args.baseline is not None:
    raise UsageError('give --baseline or --all-pairs')
  _check_output(args)
  named, notes = _from_texts(args) if texts else _from_scores(args)
  comparisons = {
    pair: system_tests.compare(
      systems,
      _against(args, systems),
      resamples=args.bootstrap,
      randomisations=args.randomisations,
      seed=args.seed,
    )
    for pair, systems in named.items()
  }
  settings = {
    'bootstrap': args.bootstrap,
    'randomisations': args.randomisations,
    'seed': args.seed,
  }
  text = system_tables.render_systems(
    comparisons, settings, notes, args.format, args.digits
  )
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  return 0


def _check_unused(args: argparse.Namespace, texts: bool) -> None:
  """Raises UsageError for what is of score files beside texts, or of texts."""
  if not texts:
    metric_arguments.refuse(args, 'is for texts (-t, --input)')
    flags = {'references': '-r', 'source': '-s'}
    _usage.refuse(args, flags, 'is for texts (-t, --input)', flags)
    _usage.fill(args, {'score': 'score'})
    return
  of_texts = ('columns', 'quoting') if args.input else ()
  for name in ('score', *_score_files.LAYOUT_NAMES):
    if name not in of_texts:
      _usage.refuse(args, [name], 'is for score files')


def _check_output(args: argparse.Namespace) -> None:
  """Raises before the work what would be raised after it."""
  texts = [*args.hypotheses, *args.references, args.source, args.input]
  named = [path for _, path in _score_files.split_files(args.files)]
  systems = [path for _, path in _score_files.split_files(args.hypotheses)]
  score_verb.check_writable(args.output, [*texts, *named, *systems])


def _against(
  args: argparse.Namespace, systems: Sequence[system_tests.System]
) -> list[tuple[int, int]]:
  names = [system.name for system in systems]
  if args.all_pairs:
    return list(itertools.combinations(range(len(systems)), 2))
  baseline = 0
  if args.baseline is not None:
    if args.baseline not in names:
      raise UsageError(
        f'--baseline: no system {args.baseline!r};'
        + data_tables.suggest(args.baseline, names)
      )
    baseline = names.index(args.baseline)
  return [(k, baseline) for k in range(len(systems)) if k != baseline]


# Systems by language pair.
_Systems = dict[str, list[system_tests.System]]


def _from_scores(args: argparse.Namespace) -> tuple[_Systems, list[str]]:
  options = _score_files.layout_options(args)
  loaded: list[scores.ScoreTable] = []
  for name, path in _score_files.split_files(args.files):
    for table in layouts.read(path, [args.score], options):
      if not table.values:
        raise files.RecordError(
          f'no column {args.score!r}: name it with --score', path=path
        )
      loaded.append(_with_system(table, name))
  if args.loose_names:
    loaded = [scores.with_plain_systems(table) for table in loaded]
  merged, notes = _merge(loaded)
  grids = scores.join([merged], None, [args.score])
  systems: _Systems = {}
  for grid in grids:
    values = grid.metrics[args.score]
    complete = np.isfinite(values).all(axis=0)
    if not complete.all():
      notes.append(_missing(args, grid, values, complete))
      values = values[:, complete]
    systems[grid.language_pair] = [
      system_tests.of_means(system, row)
      for system, row in zip(grid.systems, values, strict=True)
    ]
  return systems, notes


def _with_system(
  table: scores.ScoreTable, name: str | None
) -> scores.ScoreTable:
  # Every row says its system.
  systems = {system for _, system, _ in table.rows}
  if name is None:
    if 'system' not in table.keys:
      raise files.RecordError(
        'no column says which system a row is of: give NAME=FILE',
        path=table.path,
      )
    return table
  if len(systems) > 1:
    raise files.RecordError(
      f'NAME=FILE is for a file of one system; this one has {len(systems)}',
      path=table.path,
    )
  if 'segment' not in table.keys:
    raise files.RecordError(
      'no column says which segment a row is of (segment)', path=table.path
    )
  return scores.ScoreTable(
    table.path,
    scores.KEYS,
    [(pair, name, segment) for pair, _, segment in table.rows],
    table.lines,
    table.values,
    table.notes,
  )


def _merge(
  loaded: Sequence[scores.ScoreTable],
) -> tuple[scores.ScoreTable, list[str]]:
  # One table of all systems; a system must not come from two files.
  owners: dict[tuple[str, str], str] = {}
  for table in loaded:
    for key in {(pair, system) for pair, system, _ in table.rows}:
      if owners.setdefault(key, table.path) != table.path:
        raise files.RecordError(
          f'the system {key[1]!r} is in {owners[key]} too', path=table.path
        )
  (column,) = loaded[0].values
  return (
    scores.ScoreTable(
      ', '.join(table.path for table in loaded),
      scores.KEYS,
      [row for table in loaded for row in table.rows],
      np.concatenate([table.lines for table in loaded]),
      {column: np.concatenate([table.values[column] for table in loaded])},
    ),
    [note for table in loaded for note in table.notes],
  )


def _missing(
  args: argparse.Namespace,
  grid: scores.ScoreGrid,
  values: np.ndarray,
  complete: np.ndarray,
) -> str:
  count = int(np.count_nonzero(~complete))
  if args.intersect:
    return (
      f'{grid.language_pair or "all"}: {count} of {len(complete)} segments '
      'left out, because some system has no score there'
    )
  system, segment = np.argwhere(~np.isfinite(values))[0]
  raise files.RecordError(
    f'{count} segments have no score of some system; the first is '
    f'{grid.segments[segment]!r} of {grid.systems[system]!r}. Complete the '
    'scores, or leave such segments out (--intersect)'
  )


def _from_texts(args: argparse.Namespace) -> tuple[_Systems, list[str]]:
  given = argparse.Namespace(**vars(args))
  if not args.input:
    # These belong to score files here; `t5score score` has them for --input.
    given.columns = given.quoting = None
  segments = score_verb.read_segments(given)
  order: dict[str, dict[str, dict[str, int]]] = {}
  for index, segment in enumerate(segments):
    systems = order.setdefault(segment.language_pair or '', {})
    places = systems.setdefault(segment.system or '', {})
    name = segment.segment or str(len(places) + 1)
    if name in places:
      raise ValueError(
        f'the segment {name!r} of the system {segment.system!r} occurs twice'
      )
    places[name] = index
  chosen, notes = _align(order, args.intersect)
  options = metric_arguments.metric_options(args)
  metric = metric_arguments.load(args.model, options, args.metric)
  scored = metric.score_segments(segments)
  notes = [f'{metric.name}: {scored.signature}', *scored.notes, *notes]
  if scored.cut:
    notes.append(f'cut to the greatest length: {scored.cut}')
  return {
    pair: [as_system(name, scored, rows) for name, rows in systems.items()]
    for pair, systems in chosen.items()
  }, notes


def _align(
  order: dict[str, dict[str, dict[str, int]]], intersect: bool
) -> tuple[dict[str, dict[str, list[int]]], list[str]]:
  # Rows of each system in the order of the first one's segments.
  notes = []
  chosen: dict[str, dict[str, list[int]]] = {}
  for pair, systems in order.items():
    everything = dict.fromkeys(n for places in systems.values() for n in places)
    common = [n for n in everything if all(n in p for p in systems.values())]
    lost = len(everything) - len(common)
    if lost and not intersect:
      missing = next(n for n in everything if n not in common)
      raise ValueError(
        f'{lost} segments are not of every system; the first is {missing!r}. '
        'Complete the outputs, or leave such segments out (--intersect)'
      )
    if lost:
      notes.append(
        f'{pair or "all"}: {lost} of {len(everything)} segments left out, '
        'because some system lacks them'
      )
    chosen[pair] = {
      name: [places[n] for n in common] for name, places in systems.items()
    }
  return chosen, notes


def as_system(
  name: str, scored: base.Scores, rows: list[int]
) -> system_tests.System:
  """One system's scores, with the statistics of the metric if it has any."""
  values = np.asarray(scored.values, np.float64)[rows]
  if scored.corpus is None:
    return system_tests.of_means(name, values)
  return system_tests.System(
    name,
    values,
    np.asarray(scored.corpus.statistics, np.float64)[rows],
    scored.corpus.aggregate,
  )
