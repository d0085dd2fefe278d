"""`t5score mine`: mines sentence pairs from two monolingual corpora."""

from __future__ import annotations

import argparse
from pathlib import Path

from t5score_jax.commands import _mining, _usage
from t5score_jax.errors import UsageError

SUMMARY = 'mine sentence pairs that are likely translations from two corpora'

DESCRIPTION = """
Finds sentences of two monolingual files that are likely translations of each
other, without parallel data (UScore, section 3). Two methods:

  margin     sentence vectors (means of hidden states) and the ratio margin of
             Artetxe and Schwenk: equation 5, cosines in both directions
  distance   words' vectors: the K nearest sentences by centroid, and the exact
             word mover's distance among them; --map maps the source's words

Sentences of 3 to 30 tokens are mined, each text once, and each is in one pair
at most; pairs that overlap by more than half are dropped. The output has one
JSON object per pair, the best first: source, target, score, source_line,
target_line.

Encoded sentences are kept in a work folder, shard by shard, so that the same
command resumes. On disk, margin needs 4 bytes per number of a sentence's
vector, distance 2 bytes per number of each word's.
"""

EPILOG = """
examples:
  t5score mine --sources news.de.gz --source-language de \\
      --targets news.en.gz --target-language en -m e5-small \\
      --best 100000 -o pairs.jsonl.gz
  t5score mine --sources de.txt --targets en.txt -m e5-small \\
      --method distance --map de-en.map --share 0.05 -o words.jsonl

exit code: 0 the pairs are written, even if there are none; 1 the run failed;
2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _mining.add_corpora(parser)
  _mining.add_encoder(parser)
  group = parser.add_argument_group('mining')
  group.add_argument(
    '--method',
    choices=('margin', 'distance'),
    default='margin',
    help='(default: %(default)s)',
  )
  group.add_argument(
    '-k',
    '--neighbours',
    type=_usage.positive,
    metavar='K',
    help='nearest sentences (default: 5 for margin, 20 for distance)',
  )
  group.add_argument(
    '--map',
    metavar='FILE',
    help='a map of `t5score remap` for the source; for --method distance',
  )
  best = group.add_mutually_exclusive_group()
  best.add_argument(
    '--best',
    type=_usage.positive,
    metavar='N',
    help='keep the N best pairs (default: all)',
  )
  best.add_argument(
    '--share',
    type=_usage.fraction,
    metavar='SHARE',
    help='keep this share of the source sentences, 0 to 1 (paper: 0.05)',
  )
  _mining.add_output(parser, '.jsonl or .jsonl.gz')


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  if args.map and args.method != 'distance':
    raise UsageError('--map is for --method distance: sentences are not mapped')
  _usage.check_writable(args.output, (args.sources, args.targets))
  from t5score_jax.crosslingual import mining, remap, runs

  say = _usage.printer(args.quiet)
  chosen_map = remap.load(args.map) if args.map else None
  sources, targets = _mining.read_corpora(args, say)
  encoder, _, checkpoint = _mining.load_encoder(args, lambda _: [args.layer])
  (layer,) = encoder.layers
  if chosen_map is not None:
    remap.check(chosen_map, checkpoint, layer, args.map)
  k = args.neighbours or (
    mining.MARGIN_NEIGHBOURS
    if args.method == 'margin'
    else mining.DISTANCE_NEIGHBOURS
  )
  identity = {
    **_mining.identity(args, checkpoint, layer),
    'method': args.method,
    'k': k,
    'map': chosen_map.digest() if chosen_map else None,
  }
  work = Path(args.work or f'{args.output}.work')
  with _mining.work_folder(work, identity, keep=bool(args.work)) as folder:
    texts = sources.texts, targets.texts
    report = _mining.Reporter(say)
    if args.method == 'margin':
      mined = runs.by_margin(folder, *texts, encoder, k, args.backend, report)
    else:
      mined = runs.by_distance(
        folder, *texts, encoder, k, chosen_map, args.backend, report
      )
    pairs = runs.without_copies(mined, *texts, args.max_overlap)
    copies = len(mined) - len(pairs)
    best = args.best
    if args.share is not None:
      best = round(args.share * len(sources.texts))
    pairs = pairs.first(len(pairs) if best is None else best)
    _mining.write_pairs(args.output, pairs, sources, targets)
  if not len(pairs):
    say('no pairs: the corpora have no sentences that match')
  say(
    f'{args.output}: {len(pairs)} of {len(mined)} pairs'
    + (f', {copies} dropped as near copies' if copies else '')
  )
  return 0
