"""System-level values, with bootstrap intervals and paired tests.

Not a metric; the tests are in `evaluation/paired_tests.py`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.evaluation import bootstrap, paired_tests
from t5score_jax.evaluation import scores as score_files
from t5score_jax.metrics import base

#: sacrebleu's bootstrap settings.
DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345


@dataclasses.dataclass(frozen=True)
class SystemScore:
  """One system's value on one language pair, with a bootstrap interval.

  Attributes:
    system: The system's name; None where the segments have none.
    language_pair: The language pair; None where the segments have none.
    value: The value; higher is better.
    low: Lower end of the 95% interval; None unless requested.
    high: Upper end of the 95% interval; None unless requested.
    segments: Number of segments.
    difference: The value minus the baseline's; None unless compared.
    p_value: Two-sided p-value of the paired bootstrap against the baseline;
      None unless compared.
  """

  system: str | None
  language_pair: str | None
  value: float
  low: float | None
  high: float | None
  segments: int
  difference: float | None = None
  p_value: float | None = None


def system_scores(
  segments: Sequence[Segment],
  scores: base.Scores,
  resamples: int = DEFAULT_RESAMPLES,
  seed: int = DEFAULT_SEED,
) -> list[SystemScore]:
  """Computes the value of every system, with a bootstrap interval.

  The value is computed by `Scores.corpus` if present, else it is the mean. The
  interval covers the middle 95% of values over bootstrap samples of the
  system's segments, drawn with replacement (Koehn 2004, section 3). Each
  system's draws start from the seed, so its interval does not depend on other
  systems.

  Args:
    segments: N segments.
    scores: Their scores.
    resamples: Number of bootstrap samples; 0 for no intervals.
    seed: The random seed.

  Returns:
    One entry per system and language pair, in order of first occurrence.

  Raises:
    InputError: The numbers of scores and segments differ.
  """
  if len(segments) != len(scores):
    raise InputError(f'{len(segments)} segments but {len(scores)} scores')
  corpus = scores.corpus or base.Corpus(
    np.stack([scores.values, np.ones(len(scores))], axis=1, dtype=np.float64),
    lambda sums: sums[0] / sums[1],
  )
  members = collections.defaultdict(list)
  for index, segment in enumerate(segments):
    members[segment.system, segment.language_pair].append(index)
  values = []
  for (system, language_pair), rows in members.items():
    statistics = np.asarray(corpus.statistics, np.float64)[rows]
    low, high = None, None
    if resamples:
      low, high = (
        float(bound)
        for bound in np.percentile(
          [
            corpus.aggregate(sums)
            for counts in bootstrap.segment_draws(
              len(rows), resamples, seed, least=1
            )
            for sums in counts @ statistics
          ],
          [2.5, 97.5],
        )
      )
    values.append(
      SystemScore(
        system=system,
        language_pair=language_pair,
        value=float(corpus.aggregate(statistics.sum(axis=0))),
        low=low,
        high=high,
        segments=len(rows),
      )
    )
  return values


def keys(segments: Sequence[Segment]) -> list[tuple[str, str, str]]:
  """Language pair, system and id of each segment; '' where absent.

  A segment without an id counts as the next one of its system.
  """
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  found = []
  for segment in segments:
    pair, system = segment.language_pair or '', segment.system or ''
    counts[pair, system] += 1
    found.append((pair, system, segment.segment or str(counts[pair, system])))
  return found


def grids(
  segments: Sequence[Segment], name: str
) -> list[score_files.ScoreGrid]:
  """Aligns the segments of systems by `keys`, as their scores would be.

  Args:
    segments: N segments.
    name: Where they come from, for error messages.

  Returns:
    A grid per language pair. Its metric 'index' holds indices into `segments`,
    NaN where a system lacks a segment.

  Raises:
    RecordError: A system has a segment twice.
  """
  indices = np.arange(len(segments))
  table = score_files.ScoreTable(
    name,
    score_files.KEYS,
    keys(segments),
    indices + 1,
    {'index': indices.astype(np.float64)},
  )
  return score_files.join([table], None, ['index'])


def as_system(
  name: str, scores: base.Scores, rows: Sequence[int] | np.ndarray
) -> paired_tests.System:
  """One system's scores, with the metric's sufficient statistics if any."""
  values = np.asarray(scores.values, np.float64)[rows]
  if scores.corpus is None:
    return paired_tests.of_means(name, values)
  return paired_tests.System(
    name,
    values,
    np.asarray(scores.corpus.statistics, np.float64)[rows],
    scores.corpus.aggregate,
  )


def compare(
  segments: Sequence[Segment],
  scores: Mapping[str, base.Scores],
  baseline: str | None = None,
  resamples: int = DEFAULT_RESAMPLES,
  seed: int = DEFAULT_SEED,
) -> tuple[dict[str, list[SystemScore]], list[str]]:
  """Computes every system's value under every metric, and paired tests.

  Args:
    segments: N segments.
    scores: Their scores, by metric.
    baseline: The system that the others are compared with; by default the
      first.
    resamples: Number of bootstrap samples; 0 for no intervals and tests.
    seed: The random seed, the same for all metrics.

  Returns:
    By metric, the entries of `system_scores`, with `difference` and `p_value`
    for all systems but the baseline; and notes on what could not be compared.

  Raises:
    InputError: There is no such baseline.
    RecordError: A system has a segment twice.
  """
  values = {
    name: system_scores(segments, one, resamples, seed)
    for name, one in scores.items()
  }
  aligned = grids(segments, 'the texts')
  names = dict.fromkeys(name for grid in aligned for name in grid.systems)
  if baseline is None:
    baseline = next(iter(names), None)
  elif baseline not in names:
    raise InputError(
      f'no system {baseline!r} to compare with; there are {", ".join(names)}'
    )
  notes: list[str] = []
  tested: dict[tuple[str, str, str], paired_tests.Compared] = {}
  for grid in aligned if resamples else ():
    few = bootstrap.few_segments(len(grid.segments))
    if few and few not in notes:
      notes.append(few)
    if len(grid.systems) < 2 or len(grid.segments) < 2:
      continue
    rows = grid.metrics['index']
    if baseline not in grid.systems or not np.isfinite(rows).all():
      notes.append(
        f'{grid.prefix}not compared with {baseline}: not every system has '
        'every segment'
      )
      continue
    one = grid.systems.index(baseline)
    for name, score in scores.items():
      comparison = paired_tests.compare(
        [
          as_system(system, score, row.astype(np.int64))
          for system, row in zip(grid.systems, rows, strict=True)
        ],
        [(k, one) for k in range(len(grid.systems)) if k != one],
        resamples=resamples,
        randomisations=0,
        seed=seed,
      )
      for row in comparison.rows:
        tested[name, grid.language_pair, row.first] = row
  for name, entries in values.items():
    for n, entry in enumerate(entries):
      test = tested.get((name, entry.language_pair or '', entry.system or ''))
      if test:
        entries[n] = dataclasses.replace(
          entry, difference=test.difference, p_value=test.bootstrap_p
        )
  return values, notes
