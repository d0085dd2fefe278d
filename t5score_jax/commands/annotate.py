"""`t5score annotate`: shards of pairs to shards with a metric's scores.

Loads the metric as `t5score score` does and scores shard by shard. How shards
lie in a folder is in `data/pair_shards.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.data import pair_shards, records, runs
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.metrics import base

SUMMARY = 'score shards of pairs with any metric, to distil it'

# Pairs by which it is found out whether a metric is symmetric.
_TRIED = 64

_DESCRIPTION = """
Scores the pairs that `t5score pairs` made with any metric of `t5score score`
and writes them again, shard for shard, with the score in a column of its own:
the second half of FrugalScore's phase 1.

A shard appears whole or not at all. Given again, the command goes on with the
shards that are missing or damaged; a folder that was begun with another metric
(signature), other pairs or another column is an error, and is left alone.
Several machines share the work by --shard 1/4, --shard 2/4, ... into one folder
or into folders whose files are put together afterwards.

A score must not depend on what else stands in its shard: an idf is given as a
file, of which `t5score pairs` writes one (OUT/texts.txt.gz).
"""

_EXAMPLES = """
examples:
  t5score annotate pairs/ --metric moverscore -m bert-base-uncased/ \\
      --option idf=pairs/texts.txt.gz -o annotated/
  t5score annotate pairs/ --metric bertscore -m bert/ --shard 2/4 -o annotated/

exit code: 0 all shards of this command are there; 1 the run failed; 2 the
command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
    help='only every Nth shard, from the Ith on (default: all)',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='say nothing but errors'
  )


def _part(text: str) -> tuple[int, int]:
  """Reads I/N as (I - 1, N)."""
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
      'with idf=references a score depends on what else is in its shard: give '
      f'--option idf={Path(args.pairs) / "texts.txt.gz"} (or another corpus), '
      'or idf=none'
    )
  folder = pair_shards.Folder(
    args.output,
    'annotations',
    {
      'signature': signature,
      'option_files': _option_files(options),
      'rating': args.rating,
      'pairs': [shard['sha256'] for shard in shards],
    },
  )
  symmetric = _is_symmetric(metric, args.pairs, shards)
  folder.write_manifest(
    shards=len(shards),
    rows=sum(shard['rows'] for shard in shards),
    symmetric=symmetric,
  )
  wanted = range(first, len(shards), step)
  missing = [number for number in wanted if folder.done(number) is None]
  progress = _Progress(shards, missing, len(wanted) - len(missing), args.quiet)
  for number in missing:
    started = time.monotonic()
    rows = pair_shards.read_rows(args.pairs, number, shards[number]['sha256'])
    scores = metric.score_segments([_segment(row) for row in rows])
    seconds = time.monotonic() - started
    folder.write(
      number,
      _annotated(rows, scores, args.rating),
      {
        'pairs_sha256': shards[number]['sha256'],
        'signature': scores.signature,
        'truncated': scores.truncated,
        'seconds': round(seconds, 3),
      },
    )
    progress.done(number, seconds)
  return 0


def _option_files(options: dict[str, Any]) -> dict[str, str]:
  """The SHA-256 of files that options name: a signature has their names."""
  return {
    name: runs.digest(value)
    for name, value in options.items()
    if isinstance(value, str) and os.path.isfile(value)
  }


def _is_symmetric(
  metric: base.Metric, pairs: str, shards: list[dict[str, Any]]
) -> bool:
  """Whether some pairs score the same the other way round."""
  rows = pair_shards.read_rows(pairs, 0, shards[0]['sha256'])
  few = [_segment(row) for row in rows[:: len(rows) // _TRIED + 1]]
  turned = [Segment(s.references[0], references=(s.hypothesis,)) for s in few]
  one, other = (metric.score_segments(part).values for part in (few, turned))
  return bool(np.abs(one - other).max() <= 1e-4 * max(np.ptp(one), 1e-6))


def _segment(row: dict[str, Any]) -> Segment:
  return Segment(hypothesis=row['hypothesis'], references=(row['reference'],))


def _annotated(
  rows: list[dict[str, Any]], scores: base.Scores, rating: str
) -> Iterator[dict[str, Any]]:
  """The rows with their scores, in the digits that these have."""
  for row, value in zip(rows, scores.values, strict=True):
    yield {**row, rating: float(str(value))}


class _Progress:
  """Says on standard error what was done and how long the rest may take."""

  def __init__(
    self,
    shards: list[dict[str, Any]],
    missing: list[int],
    there: int,
    quiet: bool,
  ):
    self._rows = {number: shards[number]['rows'] for number in missing}
    self._left = sum(self._rows.values())
    self._finished = there
    self._all = there + len(missing)
    self._quiet = quiet
    self._pairs, self._seconds = 0, 0.0
    if there:
      self._say(f'{there} of {self._all} shards are there already')

  def done(self, number: int, seconds: float) -> None:
    """Counts a shard."""
    rows = self._rows[number]
    self._finished += 1
    self._left -= rows
    self._pairs += rows
    self._seconds += seconds
    speed = self._pairs / max(self._seconds, 1e-9)
    self._say(
      f'{pair_shards.shard_name(number)}: {rows} pairs in {seconds:.1f} s; '
      f'{self._finished} of {self._all} shards, {speed:.1f} pairs/s, '
      f'{self._left / speed / 60:.0f} min left'
    )

  def _say(self, text: str) -> None:
    if not self._quiet:
      print(text, file=sys.stderr, flush=True)
