r"""Gives the pairs of minilm_da_pairs.py the mean score of several metrics.

    python scripts/reproduce/minilm_da_teach.py pairs.jsonl \
        --teacher minilm-da --teacher bertscore:model=e5-small -o taught.jsonl

Metrics with different errors are better together than alone. The target of a
pair is the mean of the teachers' scores, each standardised over all pairs. The
output has one JSON record per line, with hypothesis, reference and target.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from t5score_jax.commands import _metric_arguments, retention
from t5score_jax.data import files


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    'pairs',
    type=pathlib.Path,
    metavar='PAIRS',
    help='JSONL of hypothesis and reference',
  )
  parser.add_argument(
    '--teacher',
    action='append',
    required=True,
    metavar='METRIC[:OPTION=VALUE,...]',
    help='a metric, as for `t5score retention`; may be given several times',
  )
  parser.add_argument(
    '-o',
    '--output',
    type=pathlib.Path,
    required=True,
    help='JSONL of the pairs with their targets',
  )
  args = parser.parse_args(arguments)
  try:
    _run(args.pairs, args.teacher, args.output)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _run(
  pairs: pathlib.Path, teachers: Sequence[str], output: pathlib.Path
) -> None:
  lines = pairs.read_text(encoding='utf-8').splitlines()
  records = [json.loads(line) for line in lines]
  hypotheses = [record['hypothesis'] for record in records]
  references = [[record['reference']] for record in records]
  scores = []
  for text in teachers:
    spec = retention.parse_spec(text, 'teacher')
    metric = _metric_arguments.load(spec.metric, spec.options)
    found = np.asarray(metric.score(hypotheses, references).values)
    if not found.std() > 0:
      raise ValueError(f'{text} gives all pairs of {pairs} one score, or NaN')
    scores.append(found)
    print(f'{text}: {len(records)} pairs', flush=True)
  with files.write_atomically(output) as out:
    for record, target in zip(records, mean(scores), strict=True):
      new = {name: record[name] for name in ('hypothesis', 'reference')}
      print(json.dumps({**new, 'target': target}, ensure_ascii=False), file=out)


def mean(scores: Sequence[np.ndarray]) -> list[float]:
  """The mean over metrics of their standardised scores, [metrics, pairs]."""
  table = np.array(scores, np.float64)
  table -= table.mean(axis=1, keepdims=True)
  table /= table.std(axis=1, keepdims=True)
  return table.mean(axis=0).tolist()


if __name__ == '__main__':
  sys.exit(main())
