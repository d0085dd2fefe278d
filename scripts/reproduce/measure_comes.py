r"""Prints system-level Kendall's tau on SummEval or REALSumm: COMES and others.

    python scripts/reproduce/measure_comes.py summeval.jsonl.gz \
        --ratings coherence,consistency,fluency,relevance \
        --encoder all-MiniLM-L6-v2 --joined ours=summeval.comes.jsonl
    python scripts/reproduce/measure_comes.py realsumm.jsonl.gz --ratings \
        litepyramid \
        --encoder all-MiniLM-L6-v2

The records are those of scripts/prepare/summeval.py; ratings of one output are
averaged over annotators. Rows are ROUGE-1 to -4 and -L, chrF and, with an
encoder, BERTScore: F and R (called `recall`) of the best reference. Then follow
the joined predictions of `t5score crossvalidate` and, for SummEval, the rows of
the paper's Table 2 (whose ROUGE, BERTScore and chrF are from Fabbri et al.).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

LEXICAL = ('rouge1', 'rouge2', 'rouge3', 'rouge4', 'rougeL', 'chrf')
DIMENSIONS = ('coherence', 'consistency', 'fluency', 'relevance')
# Krubinski and Pecina (2022), Table 2.
PAPER = {
  'ROUGE-3': (0.2206, 0.7059, 0.5092, 0.3529),
  'ROUGE-4': (0.3088, 0.5882, 0.5535, 0.4118),
  'BERTScore': (0.2059, 0.0441, 0.2435, 0.4265),
  'chrF': (0.3971, 0.5294, 0.4649, 0.5882),
  'METEOR': (0.2353, 0.6324, 0.6126, 0.4265),
  'COMET': (0.5735, 0.2353, 0.5240, 0.6765),
  'COMES': (0.6912, 0.7206, 0.5830, 0.7206),
  'COMES_MT': (0.6471, 0.4412, 0.6273, 0.7206),
  'COMET_QE': (0.4118, 0.7206, 0.7011, 0.5441),
  'COMES_QE': (0.6618, 0.7647, 0.6126, 0.7059),
  'COMES_MT_QE': (0.6912, 0.4853, 0.6126, 0.6912),
}


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='System-level Kendall of COMES and of other metrics.'
  )
  result.add_argument('records', help='the rated records, TSV or JSONL')
  result.add_argument(
    '--ratings', required=True, help='names of the human ratings: NAME,...'
  )
  result.add_argument('--encoder', help='folder of an encoder for BERTScore')
  result.add_argument(
    '--joined',
    action='append',
    default=[],
    metavar='NAME=FILE',
    help='predictions of `t5score crossvalidate`; repeatable',
  )
  result.add_argument(
    '--table', default='text', help='text, json, latex or markdown'
  )
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.data import instances, records
  from t5score_jax.evaluation import dimensions
  from t5score_jax.evaluation.reports import tables

  ratings = args.ratings.split(',')
  try:
    segments = instances.averaged(
      records.read_records(args.records, ratings=ratings)
    )
    rows: list[tuple[str, Sequence[float] | np.ndarray]] = []
    for name, values in _scored(segments, args.encoder):
      wide = np.repeat(values[:, None], len(ratings), axis=1)
      found, _ = dimensions.system_kendall(segments, ratings, wide)
      rows.append((name, found))
      print(name, *(f'{x:.4f}' for x in found), file=sys.stderr, flush=True)
    for given in args.joined:
      name, _, path = given.rpartition('=')
      rows.append((name or path, _joined(path, ratings)))
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  if tuple(ratings) == DIMENSIONS:
    rows += [(f'{name} (paper)', found) for name, found in PAPER.items()]
  print(
    tables.render_values(
      "Kendall's tau of systems' means with people's",
      [*ratings, 'mean'],
      [name for name, _ in rows],
      [[*found, float(np.mean(found))] for _, found in rows],
      [f'{len(segments)} outputs'],
      args.table,
    )
  )
  return 0


def _scored(
  segments: list[Any], encoder: str | None
) -> Iterator[tuple[str, np.ndarray]]:
  """Returns (metric, values per segment)."""
  from t5score_jax.metrics import registry

  named: list[tuple[str, dict[str, str]]] = [(name, {}) for name in LEXICAL]
  if encoder:
    named.append(('bertscore', {'model': encoder}))
  for name, options in named:
    metric = registry.load_metric(name, **options)
    scores = metric.score_segments(segments)
    yield metric.name, scores.values
    if 'recall' in scores.components:
      yield f'{metric.name} recall', scores.components['recall']


def _joined(path: str, ratings: Sequence[str]) -> np.ndarray:
  """Kendall of a file of joined predictions."""
  from t5score_jax.data import files
  from t5score_jax.data.records import Segment
  from t5score_jax.evaluation import dimensions

  with files.open_text(path) as lines:
    found = [json.loads(line) for line in lines]
  segments = [
    Segment(
      '',
      system=row['system'],
      ratings={name: row[name] for name in ratings if name in row},
    )
    for row in found
  ]
  values = np.array(
    [[row[f'predicted_{name}'] for name in ratings] for row in found]
  )
  return dimensions.system_kendall(segments, ratings, values)[0]


if __name__ == '__main__':
  sys.exit(main())
