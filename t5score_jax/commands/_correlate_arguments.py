"""The arguments of `t5score correlate`, and the configuration they define.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from t5score_jax.commands import _correlate_texts, _score_files, _usage
from t5score_jax.data import humans
from t5score_jax.data import tables as data_tables
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import config, correlation, darr, permutation
from t5score_jax.evaluation.readers import layouts, mqm
from t5score_jax.evaluation.reports import plots

REPORTS = ('wmt20', 'categories')
# The parser leaves these at None, so that `settle` sees which were given.
_DEFAULTS = {
  'level': 'segment',
  'system_scores': 'official',
  'stat': 'pearson',
  'group': 'none',
  'constant_groups': 'skip',
  'by': 'lp',
  'min_gap': darr.MIN_GAP,
  'ties': 'discordant',
  'exclude_systems': humans.HUMAN_SYSTEMS,
  'unit': 'segment',
  'permutations': 1000,
  'swap': 'both',
  'normalise': 'z',
}
# Options that concern neither report.
_NOT_OF_ANY_REPORT = (
  *('level', 'stat', 'system_scores', 'group', 'constant_groups', 'pairs'),
  *('min_gap', 'ties', 'exclude_outliers'),
  *('top_k', 'unit', 'baseline', 'test', 'permutations', 'swap'),
  *('no_early_stop', 'plot', 'plot_kind'),
)
_NOT_OF_REPORTS = {
  'wmt20': (
    *_NOT_OF_ANY_REPORT,
    *('human', 'by', 'exclude_systems', 'loose_names', 'normalise'),
    *('model', 'hypotheses', 'references', 'source', 'input'),
  ),
  'categories': (
    *_NOT_OF_ANY_REPORT,
    'data',
    'bootstrap',
    'unsupervised',
    'intersect',
  ),
}

DESCRIPTION = f"""
Correlates metric scores with human judgments, by language pair and on average.

FILE is what `t5score score` writes (JSONL or TSV), or has one of these layouts,
gzipped or not:
{layouts.LAYOUTS}

Files are joined on the columns language_pair (or lp), system and segment (or
seg_id, sid); --columns names them otherwise. NAME=FILE gives the one column of
scores the name NAME. A bad row is an error that names it; an entry that some
metric lacks is one too, unless --intersect leaves it out; then it is counted.
Or texts (-t, -r, -s, --input as for `t5score score`) are scored with every -m;
the human scores are then in a FILE, or in a column of --input.

Metrics called NAME@1, NAME@2, ... are folds: a row has their mean and standard
deviation.
"""

EPILOG = """
examples:
  t5score correlate --input rated.jsonl --human rating -m chrf -m t5score-tiny
  t5score correlate human.tsv bleu=bleu.jsonl ours=ours.jsonl \\
      --human mqm --metrics bleu,ours --stat pearson
  t5score correlate bleu=bleu.jsonl ours=ours.jsonl --metrics bleu,ours \\
      --stat darr --pairs darr.tsv.gz --bootstrap 1000 --baseline bleu
  t5score correlate da.tsv ours=ours.jsonl --human z --metrics ours \\
      --level system --stat pearson --table markdown
  t5score correlate mqm.tsv bleu=bleu.jsonl ours=ours.jsonl --human mqm \\
      --stat calibrated-accuracy --group item --test permutation
  t5score correlate wmt23/ --language-pair en-de --human mqm \\
      --metrics BLEU,COMET --level system --stat soft-accuracy
  t5score correlate da.tsv ours=ours.jsonl --human z --level system \\
      --exclude-systems '' --top-k 4,6,8,10 --plot curves.png
  t5score correlate --report wmt20 --data DATA ours=zh-en.jsonl \\
      ours=en-de.jsonl --metrics sentBLEU,chrF,COMET,ours

exit code: 0 measured; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _add_files(parser)
  _correlate_texts.add_arguments(parser)
  _add_statistic(parser.add_argument_group('statistic'))
  _add_tests(parser.add_argument_group('significance'))
  _add_reports(parser.add_argument_group('reports and pictures'))
  _score_files.add_output(
    parser.add_argument_group('output'),
    None,
    'decimals (default: 4; 1 in --report wmt20, which is times 100)',
  )


def _add_files(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    'files', nargs='*', metavar='[NAME=]FILE', help='score files'
  )
  group = parser.add_argument_group('files')
  group.add_argument(
    '--human',
    metavar='COL',
    help='column with the human scores, higher is better (raw ratings for '
    '--stat darr without --pairs); of MQM: mqm, mqm-accuracy, mqm-fluency, ...',
  )
  group.add_argument(
    '--metrics',
    metavar='COL,...',
    help='columns with metric scores (default: every NAME given as NAME=FILE, '
    'else the column score)',
  )
  group.add_argument(
    '--pairs',
    metavar='FILE',
    help='ranked pairs for --stat darr: TSV with the columns lp, sid, '
    'better, worse',
  )
  _score_files.add_layout_arguments(group)


def _add_statistic(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--level',
    choices=config.LEVELS,
    help='level of the correlation (default: segment)',
  )
  group.add_argument(
    '--stat',
    choices=config.STATISTICS,
    help='darr: the tau of WMT20 over ranked pairs; kendall: tau-b; accuracy: '
    'the share of pairs ordered alike; calibrated-accuracy: the same after tie '
    'calibration (WMT23, with --group item); soft-accuracy: of systems '
    '(WMT24) (default: pearson)',
  )
  group.add_argument(
    '--system-scores',
    choices=('official', 'means'),
    help="systems' scores of a folder of mt-metrics-eval: its .sys.score "
    'files, or the means of its .seg.score files, which can be resampled '
    '(default: official)',
  )
  group.add_argument(
    '--group',
    choices=correlation.GROUPINGS,
    help='segment level: pool all entries, or average over items (segments) '
    'or systems (default: none)',
  )
  group.add_argument(
    '--constant-groups',
    choices=correlation.CONSTANT_RULES,
    help='with --group: leave out items or systems in which human or metric '
    "scores do not vary, mt-metrics-eval's default, or count them as 0, its "
    'other rule (default: skip)',
  )
  group.add_argument(
    '--by',
    choices=('lp', 'none'),
    help='one column a language pair with averages (Avg-en, Avg-x, Avg), or '
    'the whole as one (default: lp)',
  )
  group.add_argument(
    '--min-gap',
    type=float,
    metavar='X',
    help='least difference of raw ratings that ranks a pair, where --pairs '
    f'is not given (default: {darr.MIN_GAP:g})',
  )
  group.add_argument(
    '--ties',
    choices=sorted(correlation.TIE_RULES),
    help='what a metric that ties a ranked pair gets: discordant is the rule '
    'of WMT20 and T5Score, neutral of WMT14, excluded of WMT13 '
    '(default: discordant)',
  )
  group.add_argument(
    '--exclude-systems',
    metavar='RE',
    help='regular expression of systems to leave out (default: '
    f'{humans.HUMAN_SYSTEMS}: '
    "human translations; '' keeps all)",
  )
  group.add_argument(
    '--exclude-outliers',
    nargs='?',
    type=float,
    const=2.5,
    metavar='X',
    help='leave out systems whose human mean is more than X robust standard '
    'deviations (1.483 MAD) from the median; X is 2.5 if not given (Mathur et '
    'al. 2020)',
  )
  group.add_argument(
    '--top-k',
    metavar='N[,N...]',
    help='only the N systems with the best human mean, by language pair; '
    "several numbers give a row each (T5Score's Figure 6)",
  )


def _add_tests(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--bootstrap',
    type=_usage.resamples,
    metavar='N',
    help='resamples of the segments for 95%% intervals and comparisons '
    '(default: none, or 1000 with --baseline and --test bootstrap)',
  )
  group.add_argument(
    '--unit',
    choices=('segment', 'pair'),
    help='unit of resampling for darr: segments with all their pairs, or '
    'single pairs as in WMT (default: segment)',
  )
  group.add_argument(
    '--baseline',
    metavar='METRIC',
    help='compare the other metrics with this one (paired bootstrap)',
  )
  group.add_argument(
    '--test',
    choices=config.TESTS,
    help='compare all metrics with each other, and print the rank of each '
    "one's significance cluster (p <= .05), as WMT does",
  )
  group.add_argument(
    '--permutations',
    type=_usage.positive,
    metavar='N',
    help='swaps of --test permutation, and permutations within each p-value '
    'of soft-accuracy (default: 1000)',
  )
  group.add_argument(
    '--swap',
    choices=permutation.UNITS,
    help='what --test permutation swaps: both is PERM-BOTH, each entry by '
    'itself; systems: the segment scores of whole systems; whole segments; '
    "system-scores: one score per system, standardised over systems: WMT's "
    'test at the system level (default: both; system-scores without segments). '
    'calibrated-accuracy swaps pairs of translations instead, as WMT24 did',
  )
  group.add_argument(
    '--no-early-stop',
    action='store_true',
    help='make all swaps where a test is slow, even if it is decided (p < .02 '
    'or > .50 after a hundred)',
  )
  group.add_argument(
    '--unsupervised',
    metavar='METRIC,...',
    help="print T5Score's marks: a double dagger for metrics that no other "
    'significantly outperforms (p < .05), a dagger for those of this list that '
    'no other one of it does',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=12345,
    help='of all draws (%(default)s)',
  )


def _add_reports(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--report',
    choices=REPORTS,
    help="wmt20: T5Score's Tables 1, 2 and 7 to 11 for --metrics, published "
    'ones and your own; categories: errors by MQM category (Figure 5)',
  )
  group.add_argument(
    '--data',
    metavar='DIR',
    help='for --report wmt20: wmt20_darr.tsv, wmt20_metrics/{human,scores}/, '
    'wmt20_mqm_da.LP.tsv',
  )
  group.add_argument(
    '--normalise',
    choices=mqm.NORMALISATIONS,
    help='of scores in --report categories: mean 0 and variance 1, or 0 to 1 '
    '(default: z)',
  )
  group.add_argument(
    '--plot',
    metavar='FILE',
    help='draw to FILE.png, .svg or .pdf (needs matplotlib)',
  )
  group.add_argument(
    '--plot-kind',
    choices=plots.KINDS,
    help='human against metric scores with a fit; values with intervals; '
    'curves over --top-k (default: curves with several --top-k, bars with '
    'several metrics, else scatter)',
  )


def settle(args: argparse.Namespace) -> None:
  """Refuses options without effect, and fills in the defaults.

  Raises:
    UsageError: An option was given that has no effect beside the others.
  """
  if args.report:
    _usage.refuse(
      args, _NOT_OF_REPORTS[args.report], f'is not for --report {args.report}'
    )
  ranked = args.stat == 'darr'
  swapped = args.test == 'permutation'
  drawn = args.bootstrap or args.baseline or args.unsupervised is not None
  drawn = drawn or args.test == 'bootstrap'
  for name, used, what in (
    ('data', args.report == 'wmt20', '--report wmt20'),
    ('normalise', args.report == 'categories', '--report categories'),
    ('plot_kind', args.plot, '--plot'),
    (
      'constant_groups',
      args.group not in (None, 'none')
      and args.stat not in ('accuracy', *config.SPECIAL),
      'correlations with --group item or system',
    ),
    (
      'system_scores',
      args.level == 'system' and args.stat not in config.SPECIAL,
      "correlations with --level system in mt-metrics-eval's folder",
    ),
    ('pairs', ranked, '--stat darr'),
    ('ties', ranked, '--stat darr'),
    ('min_gap', ranked and not args.pairs, '--stat darr without --pairs'),
    ('unit', ranked and drawn, '--stat darr with resamples (--bootstrap N)'),
    (
      'permutations',
      swapped or args.stat == 'soft-accuracy',
      '--test permutation and --stat soft-accuracy',
    ),
    (
      'swap',
      swapped and args.stat != 'calibrated-accuracy',
      '--test permutation, and not for --stat calibrated-accuracy',
    ),
    ('no_early_stop', swapped, '--test permutation'),
  ):
    if not used:
      _usage.refuse(args, [name], f'is for {what}')
  _usage.fill(args, _DEFAULTS)


def top_k(args: argparse.Namespace) -> list[int]:
  """The numbers of --top-k.

  Raises:
    UsageError: One is not a number of 2 or more, or is repeated.
  """
  if args.top_k is None:
    return []
  numbers = []
  for text in _usage.split_names(args.top_k) or ['']:
    if not text.isdecimal() or int(text) < 2:
      raise UsageError(
        f'--top-k takes numbers, not {text!r}: 2 or more, commas between'
      )
    numbers.append(int(text))
  if len(set(numbers)) < len(numbers):
    raise UsageError(f'--top-k {args.top_k}: a number comes twice')
  return numbers


def check_metrics(args: argparse.Namespace, metrics: Sequence[str]) -> None:
  """Raises UsageError for a metric that is repeated or not measured."""
  if len(set(metrics)) != len(metrics):
    raise UsageError(f'a metric is named twice: {", ".join(metrics)}')
  for flag, names in (
    ('--baseline', [args.baseline] if args.baseline is not None else []),
    ('--unsupervised', _usage.split_names(args.unsupervised)),
  ):
    for name in names:
      if name not in metrics:
        raise UsageError(
          f'{flag} {name}: is not among the metrics;'
          + data_tables.suggest(name, metrics)
        )


def agreement_config(args: argparse.Namespace) -> config.AgreementConfig:
  """The configuration of the report.

  Raises:
    UsageError: The arguments contradict each other.
    files.RecordError: The file of ranked pairs is malformed.
  """
  if args.stat == 'darr' and not (args.pairs or args.human):
    raise UsageError(
      '--stat darr needs --pairs FILE or --human COL with raw ratings'
    )
  if args.stat != 'darr' and not args.human:
    raise UsageError('no human scores: name their column with --human COL')
  if args.by == 'none' and args.pairs:
    raise UsageError(
      '--by none pools human scores; ranked pairs are measured --by lp'
    )
  test = args.test
  if test is None and args.unsupervised is not None:
    test = 'bootstrap'
  resamples = args.bootstrap
  if resamples is None:
    resamples = 1000 if args.baseline or test == 'bootstrap' else 0
  chosen = top_k(args)
  with _usage.blamed():
    result = config.AgreementConfig(
      level=args.level,
      statistic=args.stat,
      group=args.group,
      constant=args.constant_groups,
      ties=args.ties,
      min_gap=args.min_gap,
      exclude=args.exclude_systems,
      outliers=args.exclude_outliers,
      top_k=chosen[0] if len(chosen) == 1 else None,
      resamples=resamples,
      unit=args.unit,
      seed=args.seed,
      baseline=args.baseline,
      test=test,
      permutations=args.permutations,
      swap=args.swap,
      early_stop=not args.no_early_stop,
      unsupervised=None
      if args.unsupervised is None
      else tuple(_usage.split_names(args.unsupervised)),
      intersect=args.intersect,
    )
  if not args.pairs:
    return result
  # An error in the file is not an error of the command line.
  pairs = darr.read_pairs(args.pairs)
  if args.loose_names:
    pairs = darr.with_plain_systems(pairs)
  return dataclasses.replace(result, pairs=pairs)
