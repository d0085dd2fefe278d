"""`t5score board add-generator`, `add-metric` and `add-human`: submissions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from t5score_jax.commands import _board_parser, _usage
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.errors import UsageError

_GENERATOR = """
Adds a generator. FILE is JSONL (an id and a text in each line: `id`,
`hypothesis`) or plain text, one output per line in the order of the inputs.
Every metric that can be run scores it; --scores gives scores of the metrics
that came as tables. Then the ensemble and the analyses are renewed.
"""

_GENERATOR_EXAMPLES = """
examples:
  t5score board add-generator mine.db outputs.txt --name 'My system'
  t5score board add-generator zh-en.db outputs.jsonl --name base \\
      --scores base.tsv --seconds 310 --parameters 6e7
"""

_METRIC = """
Adds a metric, in one of three ways:

--library NAME    a metric of this library, or a model: what `t5score score -m`
                  takes (chrf, t5score-tiny, my_run/, bertscore=bert/)
--scores FILE     a table of scores: system, id, a column of numbers; a row for
                  every output
--command FILE    an executable. It reads JSONL (id, hypothesis, references,
                  source) on standard input and prints one number per line.
                  It is kept in the board and scores later generators, too. It
                  runs in a process of its own without network, with limits
                  and an empty environment (docs/billboards.md describes what
                  is guaranteed).

Every generator is scored; if the metric fails on one, the board is unchanged.
"""

_METRIC_EXAMPLES = """
examples:
  t5score board add-metric mine.db --library chrf
  t5score board add-metric mine.db --library my_run/ --name 'my T5Score'
  t5score board add-metric mine.db --scores comet.tsv --name COMET
  t5score board add-metric mine.db --command metric.py --name mine \\
      --several own
"""

_HUMAN = """
Adds human ratings: TSV or JSONL with a system, an id and a column of ratings,
where higher is better. The first ratings of a board are its default ones.
"""

_HUMAN_EXAMPLES = """
examples:
  t5score board add-human mine.db mqm.tsv --column mqm
  t5score board add-human mine.db da.tsv --name da --choose
"""

# Options of one way of adding a metric.
_OF_WAYS = {
  'library': ('option',),
  'scores': ('column',),
  'command': ('referenceless', 'several', 'limit', 'no_isolation'),
}


def add_subcommands(subparsers: Any) -> None:
  """Declares the three subcommands."""
  parser = _board_parser.subcommand(
    subparsers,
    'add-generator',
    _add_generator,
    'add a generator: its outputs',
    _GENERATOR,
    _GENERATOR_EXAMPLES,
  )
  parser.add_argument('file', metavar='FILE', help='the outputs')
  parser.add_argument('--name', help="its name (default: the file's)")
  parser.add_argument(
    '--people', action='store_true', help='humans wrote these texts'
  )
  parser.add_argument(
    '--scores', metavar='FILE', help='scores by metrics that came as tables'
  )
  _add_description(parser, 'of generating the outputs')

  parser = _board_parser.subcommand(
    subparsers,
    'add-metric',
    _add_metric,
    'add a metric',
    _METRIC,
    _METRIC_EXAMPLES,
  )
  way = parser.add_mutually_exclusive_group(required=True)
  way.add_argument('--library', metavar='NAME', help='a metric or a model')
  way.add_argument('--scores', metavar='FILE', help='a table of scores')
  way.add_argument('--command', metavar='FILE', help='an executable')
  parser.add_argument('--name', help='its name on the board')
  parser.add_argument(
    '--option',
    metavar='NAME=VALUE',
    action='append',
    default=[],
    help='with --library: an option of the metric',
  )
  parser.add_argument(
    '--column', metavar='COL', help='with --scores: the column of scores'
  )
  parser.add_argument(
    '--negate', action='store_true', help='lower is better: negate'
  )
  parser.add_argument(
    '--referenceless',
    action='store_true',
    help='with --command: it uses no references',
  )
  parser.add_argument(
    '--several',
    choices=('own', 'max', 'mean'),
    help='with --command: it takes several references itself, or is run with'
    ' each, and the greatest score or the mean counts (default: max)',
  )
  parser.add_argument(
    '--limit',
    metavar='NAME=VALUE',
    action='append',
    default=[],
    help='with --command: seconds, memory, output, processes or scratch (bytes)'
    ' for one generator',
  )
  parser.add_argument(
    '--no-isolation',
    action='store_true',
    help='with --command: trust the program; it keeps its limits, but sees the'
    ' network and files',
  )
  _add_description(parser, 'for one generator (default: measured)')

  parser = _board_parser.subcommand(
    subparsers,
    'add-human',
    _add_human,
    'add human ratings',
    _HUMAN,
    _HUMAN_EXAMPLES,
  )
  parser.add_argument('file', metavar='FILE', help='the ratings')
  parser.add_argument(
    '--name', help="what they are called (default: the board's ratings)"
  )
  parser.add_argument('--column', metavar='COL', help='the column of ratings')
  parser.add_argument(
    '--replace', action='store_true', help='replace ratings of that name'
  )
  parser.add_argument(
    '--choose',
    action='store_true',
    help='make them the default ratings of the board',
  )


def _add_description(parser: argparse.ArgumentParser, seconds: str) -> None:
  parser.add_argument('--description', default='', help='a paper, a link')
  parser.add_argument(
    '--seconds', type=float, metavar='S', help=f'cost: seconds {seconds}'
  )
  parser.add_argument(
    '--parameters', type=float, metavar='N', help='cost: number of parameters'
  )


def _stem(path: str) -> str:
  return Path(path).name.removesuffix('.gz').rpartition('.')[0] or path


def _add_generator(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import entries, renewal, store, submissions

  generator = entries.Generator(
    name=args.name or _stem(args.file),
    human=args.people,
    description=args.description,
    seconds=args.seconds,
    parameters=args.parameters,
  )
  with store.Store(args.board) as board:
    value = submissions.add_generator(board, generator, args.file, args.scores)
    place = renewal.placed(value['generators'], generator.name)
    _board_parser.say(f'{generator.name}: {place}')
    for failure in board.failures_of(generator.name):
      _board_parser.say(failure)


def _add_metric(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import entries, renewal, store, submissions

  for way, names in _OF_WAYS.items():
    if getattr(args, way) is None:
      _usage.refuse(args, names, f'is for --{way}')
  described = {
    'negated': args.negate,
    'description': args.description,
    'seconds': args.seconds,
    'parameters': args.parameters,
  }
  with store.Store(args.board) as board:
    if args.library:
      label, name, options = metric_arguments.named(
        args.library, _options(args)
      )
      metric = submissions.library_metric(
        name, options, args.name or label, **described
      )
      value = submissions.add_metric(board, metric)
    elif args.scores:
      metric = entries.Metric(
        args.name or args.column or _stem(args.scores), 'column', **described
      )
      value = submissions.add_score_file(
        board, metric, args.scores, args.column
      )
    else:
      program = Path(args.command).read_bytes()
      metric = submissions.command_metric(
        args.name or _stem(args.command),
        program,
        references=not args.referenceless,
        several=args.several or 'max',
        limits=dict(_limit(text) for text in args.limit),
        isolation='none' if args.no_isolation else 'required',
        **described,
      )
      value = submissions.add_metric(board, metric, program)
  entry = next(m for m in value['metrics'] if m['name'] == metric.name)
  if entry['correlation'] is None:
    text = 'no correlation: there are no human ratings to compare with'
    if value['board']['rated']:
      text = 'no correlation: its scores or the ratings are constant'
  else:
    text = renewal.placed(value['metrics'], metric.name)
    text += f', correlation {entry["correlation"]:.4f}'
  _board_parser.say(f'{metric.name}: {text}')


def _options(args: argparse.Namespace) -> dict[str, Any]:
  """The options of a metric of this library."""
  pairs = [_usage.assignment(text, '--option') for text in args.option]
  return {name: metric_arguments.literal(value) for name, value in pairs}


def _limit(text: str) -> tuple[str, float]:
  from t5score_jax.leaderboard.web import sandbox

  name, _, value = text.partition('=')
  known = sandbox.Limits.__dataclass_fields__
  try:
    number = float(value)
    if name not in known or not 0 < number < 1e15:
      raise ValueError(text)
  except ValueError:
    raise UsageError(
      f'--limit {text}: write NAME=VALUE, with one of {", ".join(known)} and a'
      ' number above 0'
    ) from None
  return name, number if name == 'seconds' else int(number)


def _add_human(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import store, submissions

  with store.Store(args.board) as board:
    value = submissions.add_human(
      board, args.file, args.name, args.column, args.replace, args.choose
    )
  best = f'the best metric is {value["best"]}'
  if value['best'] is None:
    best = 'no metric can be ranked yet: add one with `add-metric`'
    if value['metrics']:
      best = 'no metric correlates: scores or ratings are missing or constant'
  _board_parser.say(
    f'{value["board"]["rated"]} outputs have ratings'
    f' {value["board"]["human"]!r}; {best}'
  )
