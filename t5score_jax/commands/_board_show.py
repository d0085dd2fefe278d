"""`t5score board rank`, `ensemble` and `overrating`: analyses of a board."""

from __future__ import annotations

import argparse
from typing import Any

from t5score_jax.commands import _board_parser, _usage
from t5score_jax.errors import InputError, UsageError

_RANK = """
Ranks metrics by their correlation with human ratings, and generators by the
metric that correlates best; fits the ensemble; measures how much each metric
overrates machines. The defaults are the paper's; each alternative that it
discusses is an option (M.1 --direction, M.2 --statistic, --level,
--without-outliers, M.3 --references, --several). Intervals are 95%, from 1,000
draws of examples. An ensemble that equals no version on the board is marked as
not stored; its signature, version 0, suffices to compute it.
"""

_RANK_EXAMPLES = """
examples:
  t5score board rank zh-en.db
  t5score board rank zh-en.db --format json
  t5score board rank zh-en.db --statistic kendall --level system
  t5score board rank mine.db --references A --costs
"""

_ENSEMBLE = """
Shows the ensemble: weights, leave-one-generator-out correlation, ablations,
signature, all versions. With --input, scores new texts with any version: with
the members' scores from a table (--scores-table), or by running those members
that are metrics of this library or executables on the board.
"""

_ENSEMBLE_EXAMPLES = """
examples:
  t5score board ensemble zh-en.db
  t5score board ensemble zh-en.db --version 1 --format json
  t5score board ensemble mine.db --input new.jsonl -o scores.jsonl
  t5score board ensemble zh-en.db --version 1 --scores-table new.tsv
"""

_OVERRATING = """
How much metrics overrate machines compared with humans: beta_0 of the
mixed-effects model score ~ machine + human + (1 | example), REML, with its 90%
interval (Wald); above 0 is overrating. Human roles define which human texts
count as generated and which references they face; --set-role makes one, for
example with the roles swapped.
"""

_OVERRATING_EXAMPLES = """
examples:
  t5score board overrating cnndm.db
  t5score board overrating zh-en.db --set-role default=Human-B:A
  t5score board overrating zh-en.db --set-role swapped=Human-A:B
  t5score board overrating zh-en.db --role swapped --format json
  t5score board overrating zh-en.db --number-of-references
"""


def add_subcommands(subparsers: Any) -> None:
  """Declares `rank`, `ensemble` and `overrating`."""
  parser = _board_parser.subcommand(
    subparsers,
    'rank',
    _rank,
    'rank metrics and generators',
    _RANK,
    _RANK_EXAMPLES,
  )
  _board_parser.add_format(parser)
  _add_rule(parser)
  parser.add_argument(
    '--intervals',
    action='store_true',
    help='with --format json: intervals of values and ranks as well',
  )
  parser.add_argument(
    '--costs',
    action='store_true',
    help='seconds and parameters, and the Pareto front of each',
  )

  parser = _board_parser.subcommand(
    subparsers,
    'ensemble',
    _ensemble,
    'show the ensemble, or score with it',
    _ENSEMBLE,
    _ENSEMBLE_EXAMPLES,
  )
  _board_parser.add_format(parser, None)
  parser.add_argument(
    '--version',
    type=_usage.positive,
    metavar='N',
    help='(default: the newest)',
  )
  parser.add_argument(
    '--input', metavar='FILE', help='texts to score: TSV or JSONL'
  )
  parser.add_argument(
    '--scores-table',
    metavar='FILE',
    help='TSV with a column of scores for each member',
  )
  parser.add_argument(
    '-o', '--output', metavar='OUT', help='where scores go (default: -)'
  )

  parser = _board_parser.subcommand(
    subparsers,
    'overrating',
    _overrating,
    'how much metrics overrate machines',
    _OVERRATING,
    _OVERRATING_EXAMPLES,
  )
  _board_parser.add_format(parser)
  parser.add_argument(
    '--role', metavar='NAME', help='a human role (default: all)'
  )
  parser.add_argument(
    '--set-role',
    metavar='NAME=GENERATOR,...:REFERENCES',
    help='make or change a human role; REFERENCES are labels joined by +',
  )
  parser.add_argument(
    '--number-of-references',
    action='store_true',
    help='instead: correlation by the number of references (figure 3)',
  )


def _add_rule(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--statistic',
    choices=('pearson', 'spearman', 'kendall'),
    default='pearson',
    help='of agreement with human ratings (default: %(default)s)',
  )
  parser.add_argument(
    '--level',
    choices=('instance', 'system'),
    default='instance',
    help="over outputs, or over generators' means (default: %(default)s)",
  )
  parser.add_argument(
    '--direction',
    choices=('higher', 'either'),
    default='higher',
    help='whether a strong negative correlation counts as well',
  )
  parser.add_argument(
    '--without-outliers',
    action='store_true',
    help='leave out generators whose mean rating is 2.5 scaled median absolute'
    ' deviations from the median',
  )
  parser.add_argument(
    '--references',
    metavar='A+B',
    help="labels of the references to use (default: the board's)",
  )
  parser.add_argument(
    '--several',
    choices=('own', 'max', 'mean'),
    default='own',
    help="several references: the metric's own way, or the greatest or mean of"
    ' scores with one each (default: %(default)s)',
  )
  parser.add_argument('--human', metavar='NAME', help='other ratings')


def _rank(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import analysis, ranking, renewal, store

  if args.format != 'json':
    _usage.refuse(args, ['intervals'], 'is for --format json')
  request = analysis.Request(
    ranking.Rule(
      args.statistic, args.level, args.direction, not args.without_outliers
    ),
    args.references,
    args.several,
    args.human,
  )
  with store.Store(args.board) as board:
    if request == analysis.Request():
      value = renewal.current(board)
    else:
      value = analysis.analyse(board, request)
  if args.format == 'json':
    document = renewal.rank_document(value, args.intervals, args.costs)
    _board_parser.say_json(document)
  else:
    _board_parser.say(_rank_tables(value, args.costs))


def _number(value: float | None, digits: int = 4) -> str:
  return '-' if value is None else f'{value:.{digits}f}'


def _interval(entry: dict[str, Any], digits: int = 4) -> list[str]:
  interval = entry['interval']
  if interval is None:
    return ['-', '-']
  return [
    f'[{interval["low"]:.{digits}f}, {interval["high"]:.{digits}f}]',
    f'{interval["rank_low"]}-{interval["rank_high"]}',
  ]


def _beta(fit: dict[str, Any] | None) -> str:
  if fit is None:
    return '-'
  mark = {1: '+', -1: '-', 0: ' '}[fit['significance']]
  return f'{fit["beta"]:.2f} ±{fit["ci90"]:.2f} {mark}'


def _cost(entry: dict[str, Any]) -> list[str]:
  return [
    ('-' if entry[cost] is None else format(entry[cost], shown))
    + ('*' if entry[f'pareto_{cost}'] else '')
    for cost, shown in (('seconds', '.3f'), ('parameters', ',.12g'))
  ]


def _rank_tables(value: dict[str, Any], costs: bool) -> str:
  from t5score_jax.leaderboard import renewal

  rule = value['board']['rule']
  titles = ['seconds', 'parameters'] if costs else []
  agreement = f'{rule["level"]} {rule["statistic"]}'
  metrics = [['', 'metric', agreement, '95%', 'ranks', 'overrates', *titles]]
  metrics += [
    [
      '' if m['rank'] is None else str(m['rank']),
      m['name'] + (' (published)' if m['kind'] == 'ensemble' else ''),
      _number(m['correlation']),
      *_interval(m),
      _beta(m['overrating']),
      *(_cost(m) if costs else []),
    ]
    for m in value['metrics']
  ]
  best = value['best'] or 'score'
  generators = [['', 'generator', best, '95%', 'ranks', 'rating', *titles]]
  generators += [
    [
      '' if g['rank'] is None else str(g['rank']),
      g['name'],
      _number(g['score']),
      *_interval(g),
      _number(g['rating'], 2),
      *(_cost(g) if costs else []),
    ]
    for g in value['generators']
  ]
  lines = []
  for rows, missing in (
    (metrics, 'no metrics: `t5score board add-metric` adds one'),
    (generators, 'no generators: `t5score board add-generator` adds one'),
  ):
    lines += [_board_parser.lay_out(rows) if len(rows) > 1 else missing, '']
  if not value['board']['rated']:
    lines += ['no human ratings: `t5score board add-human` adds them', '']
  del lines[-1]
  fitted = value['ensemble']
  if fitted:
    lines += ['', *_ensemble_lines(fitted)]
  lines += [f'warning: {warning}' for warning in renewal.warnings(value)]
  lines += [f'note: {note}' for note in value['notes']]
  return '\n'.join(lines)


def _ensemble_lines(fitted: dict[str, Any]) -> list[str]:
  terms = ' + '.join(f'{w:.4g} {n}' for n, w in fitted['weights'].items())
  without = ', '.join(
    f'without {n} {_number(v)}' for n, v in fitted['ablation'].items()
  )
  version = fitted['version']
  which = f'version {version}' if version else 'of this ranking, not stored'
  return [
    f'ensemble {which}: {terms} (standardised)',
    f'leave-one-generator-out {_number(fitted["leave_one_out"])}; {without}',
    f'signature: {fitted["signature"]}',
  ]


def _ensemble(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import renewal, reuse, store

  new = args.input or args.scores_table
  if args.input and args.scores_table:
    raise UsageError('give --input or --scores-table')
  if new:
    _usage.refuse(args, ['format'], 'is not for scores, which are JSONL')
  else:
    _usage.refuse(args, ['output'], 'is for --input and --scores-table')
  output = args.output or '-'
  _usage.check_writable(output, [new])
  with store.Store(args.board) as board:
    value = renewal.current(board)
    versions = board.versions()
    if not versions:
      raise InputError(
        f'{args.board}: no ensemble: {"; ".join(value["notes"])}'
      )
    number = args.version or versions[-1].version
    chosen = next((v for v in versions if v.version == number), None)
    if chosen is None:
      raise InputError(
        f'{args.board}: no version {number} of the ensemble; there are 1 to'
        f' {versions[-1].version}'
      )
    if new:
      reuse.score_with(board, chosen, args.input, args.scores_table, output)
      return
  fitted = value['ensemble']
  current = fitted is not None and fitted['version'] == number
  if args.format == 'json':
    document = {
      **chosen.to_json(),
      'leave_one_out': fitted['leave_one_out'] if current else None,
      'ablation': fitted['ablation'] if current else None,
      'versions': [
        {n: x for n, x in v.to_json().items() if n != 'ensemble'}
        for v in versions
      ],
    }
    _board_parser.say_json(document)
    return
  if current:
    _board_parser.say('\n'.join(_ensemble_lines(fitted)))
  else:
    _board_parser.say(
      f'ensemble version {number}\nsignature: {chosen.signature}'
    )
  _board_parser.say('\nversions:')
  for v in versions:
    _board_parser.say(f'  {v.version}  {v.created}  {v.cause}')


def _overrating(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import changes, renewal, store

  if args.number_of_references:
    _usage.refuse(args, ['role'], 'is not for --number-of-references')
  name, _, rest = (args.set_role or '').partition('=')
  people, _, references = rest.rpartition(':')
  if args.set_role is not None and not (name and people and references):
    raise UsageError(
      f'--set-role {args.set_role}: write NAME=GENERATOR,...:REFERENCES'
    )
  with store.Store(args.board) as board:
    if args.set_role:
      changes.set_role(board, name, people.split(','), references)
      from t5score_jax.leaderboard import submissions

      submissions.complete(board)
      renewal.renew(board, f'human role {name}')
    value = renewal.current(board)
  if args.number_of_references:
    _references(value, args.format)
    return
  roles = value['overrating']
  if args.role and args.role not in roles:
    raise InputError(
      f'{args.board}: no human role {args.role!r}; there are:'
      f' {", ".join(roles) or "none"}'
    )
  chosen = {args.role: roles[args.role]} if args.role else roles
  if args.format == 'json':
    _board_parser.say_json(chosen)
    return
  if not chosen:
    raise InputError(f'{args.board}: no generator of human texts is rated')
  for role, fits in chosen.items():
    ordered = sorted(fits.items(), key=lambda item: item[1]['beta'])
    rows = [[str(fit['rows']), name, _beta(fit)] for name, fit in ordered]
    _board_parser.say_table([['outputs', f'role {role}', 'beta_0 90%'], *rows])


def _references(value: dict[str, Any], format: str) -> None:
  curves = value['references']
  if format == 'json':
    _board_parser.say_json(curves)
    return
  if not curves:
    raise InputError(
      'no metric was run with each of several references: this board has'
      ' scores without references'
    )
  sizes = sorted({int(n) for curve in curves.values() for n in curve})
  rows = [
    ['', name, *(_number(curve.get(str(n))) for n in sizes)]
    for name, curve in curves.items()
  ]
  _board_parser.say_table([['', 'references', *map(str, sizes)], *rows])
