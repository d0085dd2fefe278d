"""Times the statistics of meta-evaluation beside plain loops.

    python benchmarks/evaluation.py [--data DIR] [--reference CHECKOUT]

Three tasks, as large as WMT's:
  tau        tau over the 275,897 ranked pairs of WMT20 for 13 metrics
  bootstrap  1,000 resamples of all 18 language pairs, every metric compared
             with every other one
  wmt24      soft pairwise accuracy and tie-calibrated accuracy of 20 metrics,
             15 systems and 2,000 segments, each with a permutation test of all
             pairs of metrics, 1,000 swaps

Each is done by this library, by a plain loop in NumPy, and by the code of
mt-metrics-eval (Apache-2.0) where CHECKOUT is a checkout of
github.com/google-research/mt-metrics-eval; never install the package of that
name, which is a different one. A loop that would take hours is timed on a part
and extrapolated; the part is printed. Scores are random, which affects only the
early stop of the soft accuracy's test; it is timed with and without. DIR is a
folder with wmt20_darr.tsv.gz; without it pairs of the same number are made up.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from t5score_jax.evaluation import (
  bootstrap,
  correlation,
  darr,
  pair_bootstrap,
  soft_accuracy,
  swap_tests,
  tie_calibration,
)
from t5score_jax.evaluation.reports import tables

PAIRS, METRICS, LANGUAGE_PAIRS = 275_897, 13, 18
RESAMPLES = 1000


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
  """Times one call; returns its seconds and its result.

  Prints seconds of the clock and of the processor (all threads) to standard
  error; they differ on a busy machine.
  """
  start, used = time.perf_counter(), time.process_time()
  result = function()
  clock, used = time.perf_counter() - start, time.process_time() - used
  print(f'({clock:.2f} s, {used:.2f} s of processors)', file=sys.stderr)
  return clock, result


class Rows:
  """The table that is printed at the end."""

  def __init__(self) -> None:
    """Begins with the header."""
    self._rows = [['task', 'by', 'seconds', 'times ours', 'measured']]

  def add(
    self, task: str, by: str, seconds: float, ours: float, part: str = 'whole'
  ) -> None:
    """Adds a row and prints it at once."""
    row = [task, by, f'{seconds:.2f}', f'{seconds / ours:.1f}', part]
    self._rows.append(row)
    print('  '.join(row), file=sys.stderr, flush=True)

  def text(self) -> str:
    """All rows, aligned."""
    return tables.lay_out(self._rows, 'markdown')


def wmt20_grids(
  data: pathlib.Path | None, generator: np.random.Generator
) -> list[tuple[darr.RankedPairs, dict[str, np.ndarray]]]:
  """Ranked pairs and 13 metrics' random scores, by language pair."""
  if data is None:
    sizes = np.full(LANGUAGE_PAIRS, PAIRS // LANGUAGE_PAIRS)
    sizes[0] += PAIRS - sizes.sum()
    found = []
    for size in sizes:
      better = generator.integers(0, 14, size)
      worse = (better + generator.integers(1, 14, size)) % 14
      segments = np.sort(generator.integers(0, 1500, size))
      found.append(darr.RankedPairs(segments, better, worse))
  else:
    named = darr.read_pairs(data / 'wmt20_darr.tsv.gz')
    found = []
    for pair in np.unique(named.language_pair):
      ours = named.language_pair == pair
      _, segments = np.unique(named.segment[ours], return_inverse=True)
      both = np.concatenate([named.better[ours], named.worse[ours]])
      _, systems = np.unique(both, return_inverse=True)
      half = len(segments)
      found.append(darr.RankedPairs(segments, systems[:half], systems[half:]))
  grids = []
  for pairs in found:
    systems = 1 + max(pairs.better.max(), pairs.worse.max())
    shape = (int(systems), int(pairs.segments.max()) + 1)
    scores = {f'm{k}': generator.normal(size=shape) for k in range(METRICS)}
    grids.append((pairs, scores))
  return grids


def time_tau(rows: Rows, grids: Any, reference: Any) -> None:
  """Tau of every metric on every language pair."""

  def ours() -> list[float]:
    return [
      correlation.darr_tau(
        scores[pairs.better, pairs.segments],
        scores[pairs.worse, pairs.segments],
      )
      for pairs, metrics in grids
      for scores in metrics.values()
    ]

  def loop() -> list[float]:
    found = []
    for pairs, metrics in grids:
      for scores in metrics.values():
        agree = 0
        for n, i, j in zip(
          pairs.segments, pairs.better, pairs.worse, strict=True
        ):
          agree += 1 if scores[i, n] > scores[j, n] else -1
        found.append(agree / len(pairs))
    return found

  seconds, values = timed(ours)
  rows.add('tau', 'this library', seconds, seconds)
  slow, expected = timed(loop)
  np.testing.assert_allclose(values, expected)
  rows.add('tau', 'plain loop', slow, seconds)
  if reference:
    theirs = _reference_tau(reference, grids)
    rows.add('tau', 'mt-metrics-eval', theirs, seconds, '1 metric x 13')


def _reference_tau(reference: Any, grids: Any) -> float:
  # Their function takes ratings, not pairs: 30 points apart for a pair's two
  # systems is what it needs to find the same number of pairs.
  seconds = 0.0
  generator = np.random.default_rng(0)
  for pairs, metrics in grids:
    scores = next(iter(metrics.values()))
    human = generator.uniform(0, 100, size=scores.shape)
    # Leave out ratings until about as many pairs are 25 apart.
    possible = len(darr.pairs_from_ratings(human, 25))
    keep = min(1.0, np.sqrt(len(pairs) / possible))
    human[generator.random(human.shape) > keep] = np.nan
    gold = [None if np.isnan(h) else h for h in human.ravel().tolist()]
    stats = reference.Correlation(len(scores), gold, scores.ravel().tolist())
    seconds += timed(stats.KendallLike)[0]
  return seconds * METRICS


def time_bootstrap(rows: Rows, grids: Any) -> None:
  """All comparisons of metrics on all language pairs."""

  def ours() -> list[np.ndarray]:
    return [
      pair_bootstrap.bootstrap_darr(
        pairs, metrics, resamples=RESAMPLES, seed=1
      ).p_values()
      for pairs, metrics in grids
    ]

  part = 5

  def loop() -> None:
    for pairs, metrics in grids:
      present, place = np.unique(pairs.segments, return_inverse=True)
      order = np.argsort(place, kind='stable')
      bounds = np.searchsorted(place[order], np.arange(len(present) + 1))
      groups = [
        order[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)
      ]
      for counts in bootstrap.segment_draws(len(present), part, 1):
        for row in counts.astype(int):
          drawn = np.repeat(np.arange(len(present)), row)
          taken = np.concatenate([groups[n] for n in drawn])
          for scores in metrics.values():
            np.mean(
              scores[pairs.better[taken], pairs.segments[taken]]
              > scores[pairs.worse[taken], pairs.segments[taken]]
            )

  seconds, _ = timed(ours)
  rows.add('bootstrap', 'this library', seconds, seconds)
  slow = timed(loop)[0] * RESAMPLES / part
  rows.add(
    'bootstrap', 'plain loop', slow, seconds, f'{part} of {RESAMPLES} resamples'
  )


def wmt24_scores(
  generator: np.random.Generator,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Human scores with ties [15, 2000], and 20 metrics related to them."""
  shape = (15, 2000)
  quality = 0.3 * generator.normal(size=(15, 1))
  human = np.round(2 * (generator.normal(size=shape) + quality)) / 2
  metrics = {
    f'm{k}': human + (1.5 + 0.1 * k) * generator.normal(size=shape)
    for k in range(20)
  }
  return human, metrics


def time_wmt24(rows: Rows, reference: Any) -> None:
  """Soft and tie-calibrated accuracy with their permutation tests."""
  human, metrics = wmt24_scores(np.random.default_rng(2))
  count = len(metrics) * (len(metrics) - 1) // 2

  def ours_ties() -> None:
    pairs = tie_calibration.rated_pairs(human)
    correct = {}
    for name, scores in metrics.items():
      found = tie_calibration.calibrate(human, scores, pairs=pairs)
      correct[name] = tie_calibration.correct_pairs(
        scores, pairs, found.threshold
      )
    swap_tests.permute_correct_pairs(
      correct, pairs.weights, resamples=RESAMPLES
    )

  def ours_soft(early_stop: bool) -> Any:
    return swap_tests.permute_soft_accuracy(
      human, metrics, resamples=RESAMPLES, early_stop=early_stop
    )

  ties = timed(ours_ties)[0]
  rows.add('ties + test', 'this library', ties, ties)
  soft, found = timed(lambda: ours_soft(True))
  draws = int(np.triu(found.draws, 1).sum())
  rows.add('soft + test, early stop', 'this library', soft, soft)
  whole = timed(lambda: ours_soft(False))[0]
  rows.add('soft + test, all swaps', 'this library', whole, whole)
  rows.add('wmt24', 'this library', ties + soft, ties + soft)
  one, loop = _loops(human, metrics)
  part = f'1 swap of {RESAMPLES}, 1 of {count} pairs'
  rows.add('ties + test', 'plain loop', loop * RESAMPLES * count, ties, part)
  rows.add('soft + test, early stop', 'plain loop', one * draws, soft, part)
  rows.add(
    'soft + test, all swaps', 'plain loop', one * RESAMPLES * count, whole, part
  )
  if reference:
    fit, pairs_draw, soft_draw = _reference_wmt24(reference, human, metrics)
    by = 'mt-metrics-eval'
    part = f'1 metric, 2 swaps of {RESAMPLES}, 1 of {count} pairs'
    theirs = fit * len(metrics) + pairs_draw * RESAMPLES * count
    rows.add('ties + test', by, theirs, ties, part)
    rows.add('soft + test, early stop', by, soft_draw * draws, soft, part)
    rows.add(
      'soft + test, all swaps', by, soft_draw * RESAMPLES * count, whole, part
    )


def _loops(
  human: np.ndarray, metrics: dict[str, np.ndarray]
) -> tuple[float, float]:
  # Seconds of one swap of one pair of metrics: soft accuracy of both sides by
  # NumPy from its definition, and tie-aware accuracy segment by segment.
  generator = np.random.default_rng(3)
  a, b = list(metrics.values())[:2]
  bits = generator.integers(0, 2, size=human.shape).astype(bool)
  gold = soft_accuracy.p_values(
    soft_accuracy.system_pairs(human).contrasts(human)
  )

  def soft() -> None:
    for scores in (np.where(bits, a, b), np.where(bits, b, a)):
      signs = generator.integers(0, 2, size=(1000, scores.shape[1])) * 2.0 - 1
      null = signs @ scores.T
      seen = scores.sum(axis=1)
      p_values = [
        np.mean(null[:, i] - null[:, j] >= seen[i] - seen[j])
        for i in range(len(scores))
        for j in range(i + 1, len(scores))
      ]
      np.abs(gold - p_values).mean()

  def ties() -> None:
    for scores in (np.where(bits, a, b), np.where(bits, b, a)):
      for n in range(scores.shape[1]):
        correlation.pairwise_accuracy(human[:, n], scores[:, n])

  return timed(soft)[0], timed(ties)[0]


def _reference_wmt24(
  reference: Any, human: np.ndarray, metrics: dict[str, np.ndarray]
) -> tuple[float, float, float]:
  # Seconds: calibrating one metric; one swap of pairs; one swap of scores.
  gold = human.ravel().tolist()
  one, other = (
    reference.Correlation(len(human), gold, scores.ravel().tolist())
    for scores in list(metrics.values())[:2]
  )
  fit = timed(lambda: one.KendallWithTiesOpt('item', sample_rate=1.0))[0]
  swaps = 2
  pairs = timed(
    lambda: reference.PairwisePermutationSigDiff(
      one, other, average_by='item', k=swaps, epsilon1=0.1, epsilon2=0.1
    )
  )[0]

  def accuracy(left: Any, right: Any) -> Any:
    return reference.PairwiseConfidenceError(left, right, len(human))

  soft = timed(
    lambda: reference.PermutationSigDiff(one, other, accuracy, k=swaps)
  )[0]
  # Each also computes the statistic of the data once.
  return fit, pairs / (swaps + 1), soft / (swaps + 1)


def load_reference(folder: pathlib.Path | None) -> Any:
  """Loads mt-metrics-eval's statistics from a checkout; None without one."""
  if folder is None:
    return None
  if not (folder / 'mt_metrics_eval' / 'stats.py').is_file():
    raise SystemExit(f'{folder}: no checkout of mt-metrics-eval')
  sys.path.insert(0, str(folder))
  import importlib

  return importlib.import_module('mt_metrics_eval.stats')


def main() -> int:
  """Runs the script."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--data',
    type=pathlib.Path,
    metavar='DIR',
    help='folder with the WMT20 data',
  )
  parser.add_argument(
    '--reference',
    type=pathlib.Path,
    metavar='CHECKOUT',
    help='a checkout of mt-metrics-eval',
  )
  args = parser.parse_args()
  reference = load_reference(args.reference)
  rows = Rows()
  grids = wmt20_grids(args.data, np.random.default_rng(1))
  time_tau(rows, grids, reference)
  time_bootstrap(rows, grids)
  time_wmt24(rows, reference)
  print(rows.text())
  return 0


if __name__ == '__main__':
  sys.exit(main())
