"""`t5score annotate`: adds a metric's scores to shards of pairs.

The format of folders of shards is in `data/pair_shards.py`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _usage
from t5score_jax.data import pair_shards, records, runs
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.metrics import base

SUMMARY = 'score shards of pairs with any metric, to distil it'

# Number of pairs on which the metric's symmetry is tested.
_TRIED = 64

DESCRIPTION = """
Scores the pairs that `t5score pairs` made with any metric of `t5score score`
and writes them, shard by shard, with the score in an additional column: the
second half of FrugalScore's phase 1.

A shard is written whole or not at all. The same command resumes with the shards
that are missing or damaged. A folder with scores of another metric (signature),
other pairs or another column is an error and stays unchanged. Several machines
share the work by --shard 1/4, --shard 2/4, ..., into one folder or into folders
whose files are merged afterwards.

A score must not depend on the other pairs of its shard: an idf needs a corpus,
which `t5score pairs` writes (OUT/texts.txt.gz).
"""

EPILOG = """
examples:
  t5score annotate pairs/ --metric moverscore -m bert-base-uncased/ \\
      --option idf=pairs/texts.txt.gz -o annotated/
  t5score annotate pairs/ --metric bertscore -m bert/ --shard 2/4 -o annotated/

exit code: 0 all shards of this command are written; 1 the run failed; 2 the
command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument('pairs', metavar='PAIRS', help='folder of pairs')
  metric_arguments.add_choice(parser, required=True)
  metric_arguments.add_model_options(parser, tokens=False)
  parser.add_argument(
    '-o', '--output', required=True, metavar='OUT', help='the folder'
  )
  parser.add_argument(
    '--rating',
    default='score',
    metavar='NAME',
    help='the column of the scores (default: %(default)s)',
  )
  parser.add_argument(
    '--shard',
    default='1/1',
    metavar='I/N',
    help='only every Nth shard, starting with the Ith (default: all)',
  )
  parser.add_argument('--quiet', action='store_true', help='print errors only')


def _part(text: str) -> tuple[int, int]:
  """Parses I/N as (I - 1, N)."""
  first, slash, count = text.partition('/')
  if not (slash and first.isdecimal() and count.isdecimal()):
    raise UsageError(f'--shard takes I/N as in 1/4, not {text!r}')
  if not 1 <= int(first) <= int(count):
    raise UsageError(f'--shard {text}: I is from 1 to N')
  return int(first) - 1, int(count)


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  first, step = _part(args.shard)
  options = metric_arguments.metric_options(args)
  if not args.rating.strip():
    raise UsageError('--rating is empty; name the column of the scores')
  if args.rating in (*records.FIELDS, 'origin'):
    raise UsageError(f'--rating {args.rating}: pairs have such a column')
  shards = pair_shards.complete(args.pairs, 'pairs')
  if os.path.realpath(args.pairs) == os.path.realpath(args.output):
    raise UsageError('-o is the folder of the pairs; choose another one')
  metric = metric_arguments.load(args.model, options, args.metric)
  signature = metric.signature()
  if '|idf:references|' in signature:
    raise UsageError(
      'with idf=references a score depends on the other pairs of its shard: '
      f'give --option idf={Path(args.pairs) / "texts.txt.gz"} (or another '
      'corpus), or idf=none'
    )
  identity = {
    'signature': signature,
    # A signature has only the names of files.
    'option_files': {
      name: runs.digest(value)
      for name, value in options.items()
      if isinstance(value, str) and os.path.isfile(value)
    },
    'rating': args.rating,
    'pairs': [shard['sha256'] for shard in shards],
  }
  folder = pair_shards.Folder(args.output, 'annotations', identity)
  symmetric = _is_symmetric(metric, args.pairs, shards)
  rows = sum(shard['rows'] for shard in shards)
  folder.write_manifest(shards=len(shards), rows=rows, symmetric=symmetric)
  _annotate(args, metric, folder, shards, range(first, len(shards), step))
  return 0


def _annotate(
  args: argparse.Namespace,
  metric: base.Metric,
  folder: pair_shards.Folder,
  shards: Sequence[dict[str, Any]],
  wanted: Sequence[int],
) -> None:
  """Scores the requested shards that are not done, and reports progress."""
  say = _usage.printer(args.quiet)
  missing = [number for number in wanted if folder.done(number) is None]
  if len(missing) < len(wanted):
    there = len(wanted) - len(missing)
    say(f'{there} of {len(wanted)} shards are there already')
  left = sum(shards[number]['rows'] for number in missing)
  scored, seconds = 0, 0.0
  for done, number in enumerate(missing, len(wanted) - len(missing) + 1):
    started = time.monotonic()
    sha256 = shards[number]['sha256']
    rows = pair_shards.read_rows(args.pairs, number, sha256)
    scores = metric.score_segments([_segment(row) for row in rows])
    took = time.monotonic() - started
    info = {
      'pairs_sha256': sha256,
      'signature': scores.signature,
      'truncated': scores.truncated,
      'seconds': round(took, 3),
    }
    folder.write(number, _annotated(rows, scores, args.rating), info)
    scored, seconds, left = scored + len(rows), seconds + took, left - len(rows)
    speed = scored / max(seconds, 1e-9)
    say(
      f'{pair_shards.shard_name(number)}: {len(rows)} pairs in {took:.1f} s; '
      f'{done} of {len(wanted)} shards, {speed:.1f} pairs/s, '
      f'{left / speed / 60:.0f} min left'
    )


def _is_symmetric(
  metric: base.Metric, pairs: str, shards: Sequence[dict[str, Any]]
) -> bool:
  """Whether swapping hypothesis and reference changes no score of a sample."""
  rows = pair_shards.read_rows(pairs, 0, shards[0]['sha256'])
  sample = [_segment(row) for row in rows[:: len(rows) // _TRIED + 1]]
  swapped = [
    Segment(s.references[0], references=(s.hypothesis,)) for s in sample
  ]
  one, other = (
    metric.score_segments(part).values for part in (sample, swapped)
  )
  return bool(np.abs(one - other).max() <= 1e-4 * max(np.ptp(one), 1e-6))


def _segment(row: dict[str, Any]) -> Segment:
  return Segment(hypothesis=row['hypothesis'], references=(row['reference'],))


def _annotated(
  rows: Sequence[dict[str, Any]], scores: base.Scores, rating: str
) -> Iterator[dict[str, Any]]:
  """Yields the rows with their scores, at the precision of the scores."""
  for row, value in zip(rows, scores.values, strict=True):
    yield {**row, rating: float(str(value))}
