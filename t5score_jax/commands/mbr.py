"""`t5score mbr`: chooses the best of several candidates by a metric.

Reads the command line; decoding is in `mbr/`, shards and resuming in
`inference/shards.py`. JAX is imported only when a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _usage
from t5score_jax.errors import UsageError
from t5score_jax.inference import balance, shards
from t5score_jax.mbr import candidates, decoding, pruning
from t5score_jax.metrics import base
from t5score_jax.runtime import processes

SUMMARY = 'choose among candidates: minimum Bayes risk decoding, reranking'

# Segments in a shard.
SHARD = 64

DESCRIPTION = """
Chooses the best of the candidates of each segment, such as samples of a
translation model. Minimum Bayes risk: the candidate with the highest mean score
of a metric against all candidates as references (--method mbr). Reranking: the
candidate that a metric without references scores best (--method rerank).

Candidates are parallel text (-t): one file per candidate, or files with several
lines per segment (-n). Or --input: JSONL with `candidates`, a list of texts,
or the `predictions` of `t5score infer`, with `source`, and optionally
`references`, `weights` or `log_probs`.

The output has `prediction`, `score` and `index` (from 0) of each segment, with
--top several of these. Finished shards are kept in OUT.parts, from which the
same command resumes an interrupted run.
"""

EPILOG = """
examples:
  t5score mbr -m chrf -t samples.txt -n 32 -o best.txt
  t5score infer -m model/ --inputs src.txt --temperature 1 --outputs 32 \\
      -o samples.jsonl
  t5score mbr -m wmt22-comet-da/ --input samples.jsonl -o best.jsonl
  t5score mbr -m wmt22-comet-da/ --input samples.jsonl -o best.jsonl \\
      --method pruned --top 3
  t5score mbr -m t5score-tiny --direction source --method rerank \\
      -s src.txt -t a.txt b.txt c.txt -o best.txt --format text

exit code: 0 done; 1 the run failed; 2 the command line is wrong; 130
interrupted (finished shards are kept)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  metric_arguments.add_choice(parser)
  _add_input(parser.add_argument_group('input'))
  _add_method(parser.add_argument_group('method'))
  metric_arguments.add_model_options(parser, tokens=False)
  processes.add_arguments(parser)
  group = parser.add_argument_group('output')
  group.add_argument(
    '-o',
    '--output',
    metavar='OUT',
    default='-',
    help='written whole or not at all; .gz is compressed (default: standard '
    'output, which does not resume)',
  )
  group.add_argument(
    '--format',
    choices=shards.FORMATS,
    help='text: the chosen texts alone (default: text for OUT.txt, else jsonl)',
  )
  group.add_argument(
    '--shard-size',
    type=_usage.positive,
    default=SHARD,
    metavar='N',
    help='segments in memory, which an interrupted run loses (%(default)s)',
  )
  group.add_argument(
    '--restart',
    action='store_true',
    help='discard what an earlier run left in OUT.parts',
  )
  group.add_argument('--quiet', action='store_true', help='print errors only')


def _add_input(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '-t',
    '--candidates',
    nargs='+',
    action='extend',
    default=[],
    metavar='FILE',
    help='candidates; all lines of a segment in all files',
  )
  group.add_argument(
    '-n',
    '--num-candidates',
    type=_usage.positive,
    metavar='N',
    help='consecutive lines per segment in each file of -t (default: by the '
    'lines of -s, else 1)',
  )
  group.add_argument(
    '-s', '--source', action=_usage.Once, metavar='SRC', help='sources'
  )
  group.add_argument(
    '-r',
    '--references',
    nargs='+',
    action='extend',
    default=[],
    metavar='FILE',
    help='pseudo-references, as many lines for each segment (default: the '
    'candidates)',
  )
  group.add_argument(
    '--input',
    action=_usage.Once,
    metavar='FILE',
    help='JSONL; - is standard input',
  )
  group.add_argument(
    '--weights',
    choices=candidates.WEIGHTS,
    help='of pseudo-references: a field of --input with a number for each; '
    'log_probs are exponentiated (default: uniform)',
  )


def _add_method(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--method',
    choices=decoding.METHODS,
    default='mbr',
    help='mbr: all pairs; pruned: drop candidates that hardly can win (Cheng '
    'and Vlachos 2023); aggregate: the mean of the references as arrays, for '
    'COMET, chrF; rerank: a metric that reads no references (%(default)s)',
  )
  group.add_argument(
    '--top',
    type=_usage.positive,
    default=1,
    metavar='K',
    help='candidates to return (%(default)s)',
  )
  group.add_argument(
    '--exclude-self',
    action='store_true',
    help='of mbr: a candidate is not its own reference, as in comet-mbr',
  )
  defaults = pruning.Settings()
  for name, kind, help in (
    (
      'confidence',
      _usage.fraction,
      'drop what wins in at most 1 - N of the resamples',
    ),
    ('first', _usage.positive, 'references of the first round, then doubled'),
    ('resamples', _usage.positive, 'of a round'),
    ('seed', _usage.count, 'of the resamples'),
  ):
    group.add_argument(
      f'--{name}',
      type=kind,
      metavar='N',
      help=f'of pruned: {help} ({getattr(defaults, name)})',
    )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  return processes.together(
    'mbr', args, lambda: _run(args), advice='The same command resumes it'
  )


def _run(args: argparse.Namespace) -> int:
  options = _options(args)
  format = _format(args)
  metric_options = metric_arguments.metric_options(args)
  read = [*args.candidates, *args.references, args.source, args.input]
  _usage.check_writable(args.output, [*read, args.model])
  items = _items(args)
  metric = metric_arguments.load(args.model, metric_options, args.metric)
  decoding.check(metric, options)
  say = _usage.printer(args.quiet or not processes.is_first())
  totals = shards.run(
    items,
    Work(metric, options),
    args.output,
    {'verb': 'mbr'},
    format=format,
    shard_size=args.shard_size,
    restart=args.restart,
    progress=_usage.Progress(say),
  )
  say(f'{totals.examples} segments')
  if totals.cut:
    say(f'cut: {base.share(totals.cut, 0)} longer than the model reads')
  say(f'signature: {metric.signature()}')
  return 0


def _options(args: argparse.Namespace) -> decoding.Options:
  names = [field.name for field in dataclasses.fields(pruning.Settings)]
  if args.method != 'pruned':
    _usage.refuse(args, names, 'is for --method pruned')
  given = {n: v for n in names if (v := getattr(args, n)) is not None}
  if args.weights and not args.input:
    raise UsageError('--weights is for --input')
  with _usage.blamed():
    return decoding.Options(
      args.method,
      args.top,
      args.weights or 'uniform',
      args.exclude_self,
      pruning.Settings(**given),
    )


def _format(args: argparse.Namespace) -> str:
  if args.format:
    return str(args.format)
  _usage.check_ending(args.output, shards.FORMATS, '-o')
  name = args.output.lower().removesuffix('.gz')
  return 'text' if name.endswith('.txt') else 'jsonl'


def _items(args: argparse.Namespace) -> Iterable[candidates.Item]:
  flags = {
    'candidates': '-t',
    'references': '-r',
    'source': '-s',
    'num_candidates': '-n',
  }
  if args.input:
    _usage.refuse(args, flags, 'is for parallel files, not --input', flags)
    return candidates.read_jsonl(args.input, args.weights or 'uniform')
  if not args.candidates:
    raise UsageError('no candidates: give -t FILE..., or --input FILE')
  if args.exclude_self and args.references:
    raise UsageError('--exclude-self: -r names other references')
  return candidates.read_texts(
    args.candidates, args.source, args.references, args.num_candidates
  )


class Work:
  """Decodes shards of segments; each process takes a share of every shard."""

  #: Results do not depend on the shapes of batches beyond float32's digits.
  shapes: tuple[tuple[int, ...], ...] = ()

  def __init__(self, metric: base.Metric, options: decoding.Options):
    self._metric = metric
    self._options = options

  def identity(self) -> dict[str, Any]:
    """The settings on which the results depend."""
    return {
      'metric': self._metric.signature(),
      **dataclasses.asdict(self._options),
    }

  def expect(self, shapes: Iterable[Any]) -> None:
    """Nothing to do; see `shards.Work`."""

  def rows(
    self, examples: Sequence[candidates.Item]
  ) -> tuple[list[dict[str, Any]], shards.Totals]:
    """The output row of each segment."""
    owner = balance.owners(
      [len(e.candidates) for e in examples], processes.count()
    )
    own = [n for n, who in enumerate(owner) if who == processes.index()]
    rows: dict[int, dict[str, Any]] = {}
    cut = 0
    if own:
      chosen, cut = decoding.decode(
        self._metric, [examples[n] for n in own], self._options
      )
      for n, choices in zip(own, chosen, strict=True):
        rows[n] = _row(examples[n], choices, self._options.top > 1)
    if processes.count() > 1:
      parts = balance.gather(json.dumps([rows, cut]).encode())
      rows, cut = {}, 0
      for part in parts:
        theirs, their_cut = json.loads(part)
        rows |= {int(n): row for n, row in theirs.items()}
        cut += their_cut
    return (
      [rows[n] for n in range(len(examples))],
      shards.Totals(len(examples), cut),
    )


def _row(
  item: candidates.Item, choices: Sequence[decoding.Choice], several: bool
) -> dict[str, Any]:
  columns = [
    {'prediction': one.text, 'score': one.score, 'index': one.index}
    for one in choices
  ]
  return {
    **item.shown,
    **({} if item.source is None else {'source': item.source}),
    **({'predictions': columns} if several else columns[0]),
  }
