"""`t5score correlate`: how far metrics' scores agree with human judgments.

Reads score files, asks `evaluation.agreement`, prints a table. Scores nothing
and imports no JAX.
"""

from __future__ import annotations

import argparse
import sys

from t5score_jax.data import files
from t5score_jax.data import tables as data_tables
from t5score_jax.evaluation import (
  agreement,
  correlation,
  darr,
  questions,
  scores,
  tables,
)

SUMMARY = 'correlate metric scores with human judgments'

_DESCRIPTION = """
Correlates metric scores with human judgments, by language pair and on average.

FILE is what `t5score score` writes (JSONL or TSV) or any TSV, CSV or JSONL
file with a header, gzipped or not. Files are joined on the columns
language_pair (or lp), system and segment (or seg_id, sid); --columns names
them otherwise. NAME=FILE gives the column `score` of FILE the name NAME.
"""

_EXAMPLES = """
examples:
  t5score correlate human.tsv bleu=bleu.jsonl ours=ours.jsonl \\
      --human mqm --metrics bleu,ours --stat pearson
  t5score correlate bleu=bleu.jsonl ours=ours.jsonl --metrics bleu,ours \\
      --stat darr --pairs darr.tsv.gz --bootstrap 1000 --baseline bleu
  t5score correlate da.tsv ours=ours.jsonl --human z --metrics ours \\
      --level system --stat pearson --format markdown
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument(
    'files', nargs='+', metavar='[NAME=]FILE', help='score files'
  )
  parser.add_argument(
    '--human',
    metavar='COL',
    help='column with the human scores, higher is better (raw ratings for '
    '--stat darr without --pairs)',
  )
  parser.add_argument(
    '--metrics',
    metavar='COL,...',
    help='columns with metric scores (default: every NAME given as NAME=FILE, '
    'else the column score)',
  )
  parser.add_argument(
    '--columns',
    metavar='NAME=COL,...',
    default='',
    help='what the files call language_pair, system, segment or a metric',
  )
  parser.add_argument(
    '--quoting',
    choices=data_tables.QUOTING,
    default='none',
    help='of TSV cells: none, or csv where texts stand in double quotes '
    '(default: %(default)s)',
  )
  parser.add_argument(
    '--level',
    choices=questions.LEVELS,
    default='segment',
    help='what is correlated (default: %(default)s)',
  )
  parser.add_argument(
    '--stat',
    choices=questions.STATISTICS,
    default='pearson',
    help='the statistic; darr is the tau of WMT20 over ranked pairs, kendall '
    'is tau-b, accuracy the share of pairs ordered alike '
    '(default: %(default)s)',
  )
  parser.add_argument(
    '--group',
    choices=correlation.GROUPINGS,
    default='none',
    help='segment level: pool all entries, or average over items (segments) '
    'or systems (default: %(default)s)',
  )
  parser.add_argument(
    '--by',
    choices=('lp', 'none'),
    default='lp',
    help='one column a language pair with averages, or the whole as one '
    '(default: %(default)s)',
  )
  parser.add_argument(
    '--language-pair',
    metavar='LP',
    help='the language pair of files that have no column for it',
  )
  parser.add_argument(
    '--pairs',
    metavar='FILE',
    help='ranked pairs for --stat darr: TSV with the columns lp, sid, '
    'better, worse',
  )
  parser.add_argument(
    '--min-gap',
    type=float,
    metavar='X',
    default=darr.MIN_GAP,
    help='least difference of raw ratings that ranks a pair, where --pairs '
    'is not given (default: %(default)g)',
  )
  parser.add_argument(
    '--ties',
    choices=sorted(correlation.TIE_RULES),
    default='discordant',
    help='what a metric that ties a ranked pair gets: discordant is the rule '
    'of WMT20 and T5Score, neutral of WMT14, excluded of WMT13 '
    '(default: %(default)s)',
  )
  parser.add_argument(
    '--exclude-systems',
    metavar='RE',
    default=questions.HUMAN_SYSTEMS,
    help='regular expression of systems to leave out (default: %(default)s: '
    "human translations; '' keeps all)",
  )
  parser.add_argument(
    '--top-k',
    type=int,
    metavar='N',
    help='only the N systems that people like best, by language pair',
  )
  parser.add_argument(
    '--bootstrap',
    type=int,
    metavar='N',
    help='resamples of the segments for 95%% intervals and comparisons '
    '(default: none, or 1000 with --baseline)',
  )
  parser.add_argument(
    '--unit',
    choices=('segment', 'pair'),
    default='segment',
    help='what is drawn for darr: segments with all their pairs, or pairs as '
    'WMT did (default: %(default)s)',
  )
  parser.add_argument(
    '--baseline',
    metavar='METRIC',
    help='compare the other metrics with this one (paired bootstrap)',
  )
  parser.add_argument(
    '--seed', type=int, default=12345, help='of the resamples (%(default)s)'
  )
  parser.add_argument(
    '--intersect',
    action='store_true',
    help='leave out entries that some metric lacks, and say how many, instead '
    'of stopping',
  )
  parser.add_argument(
    '--format',
    choices=tables.FORMATS,
    default='table',
    help='how to print (default: %(default)s)',
  )
  parser.add_argument(
    '--digits',
    type=int,
    default=4,
    metavar='N',
    help='decimals (default: %(default)s)',
  )
  parser.add_argument(
    '-o', '--output', metavar='FILE', default='-', help='where to write'
  )


def _split_names(text: str) -> list[str]:
  return [name.strip() for name in text.split(',') if name.strip()]


def _renames(text: str) -> dict[str, str]:
  found = {}
  for part in _split_names(text):
    name, equals, column = part.partition('=')
    if not (name and equals and column):
      raise ValueError(f'--columns takes NAME=COLUMN, not {part!r}')
    found[name] = column
  return found


def read_grids(args: argparse.Namespace) -> list[scores.ScoreGrid]:
  """Reads and joins the files of the command line.

  Raises:
    files.RecordError: Something in a file is not as it must be.
    ValueError: The arguments contradict each other.
  """
  named: list[tuple[str | None, str]] = []
  for argument in args.files:
    name, equals, path = argument.partition('=')
    # A path that holds '=' is still a path where its left side has a '/'.
    if equals and path and '/' not in name:
      named.append((name, path))
    else:
      named.append((None, argument))
  metrics = _split_names(args.metrics or '') or [n for n, _ in named if n]
  metrics = metrics or ['score']
  if len(set(metrics)) != len(metrics):
    raise ValueError(f'a metric is named twice: {", ".join(metrics)}')
  wanted = [*metrics, *([args.human] if args.human else [])]
  renames = _renames(args.columns)
  loaded = [
    scores.read_table(
      path,
      wanted,
      columns=renames,
      score_name=name,
      quoting=args.quoting,
    )
    for name, path in named
  ]
  grids = scores.join(loaded, args.human, metrics, pooled=args.by == 'none')
  if args.language_pair:
    if len(grids) > 1 or grids[0].language_pair:
      raise ValueError(
        '--language-pair is for files without a column for it; these have '
        + ', '.join(grid.language_pair for grid in grids)
      )
    grids = [grids[0].with_language_pair(args.language_pair)]
  return grids


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit status."""
  try:
    if args.stat == 'darr' and not (args.pairs or args.human):
      raise ValueError(
        '--stat darr needs --pairs FILE or --human COL with raw ratings'
      )
    if args.stat != 'darr' and not args.human:
      raise ValueError('--human COL says which column holds human scores')
    resamples = args.bootstrap
    if resamples is None:
      resamples = 1000 if args.baseline else 0
    if args.by == 'none' and args.pairs:
      raise ValueError(
        '--by none pools human scores; ranked pairs are measured --by lp'
      )
    question = questions.Question(
      level=args.level,
      statistic=args.stat,
      group=args.group,
      ties=args.ties,
      min_gap=args.min_gap,
      pairs=darr.read_pairs(args.pairs) if args.pairs else None,
      exclude=args.exclude_systems,
      top_k=args.top_k,
      resamples=resamples,
      unit=args.unit,
      seed=args.seed,
      baseline=args.baseline,
      intersect=args.intersect,
    )
    report = agreement.measure(read_grids(args), question)
    text = tables.render(report, args.format, args.digits)
    with files.write_atomically(args.output) as out:
      out.write(text + '\n')
  except (ValueError, OSError) as error:
    print(f't5score correlate: {error}', file=sys.stderr)
    return 1
  return 0
