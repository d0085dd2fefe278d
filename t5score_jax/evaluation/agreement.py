"""From score grids to the numbers of a table: which entries count, and how.

Applies the rules around the statistics: which systems are left out, what must
be complete, how language pairs are averaged, what is compared with what. The
statistics are in `correlation`, the tests in `significance`, reading in
`scores` and printing in `tables`.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from t5score_jax.data import files
from t5score_jax.evaluation import correlation, significance
from t5score_jax.evaluation.darr import (
  MIN_GAP,
  NamedPairs,
  RankedPairs,
  pairs_from_ratings,
  place_pairs,
)
from t5score_jax.evaluation.scores import ScoreGrid

# Human translations entered as systems: T5Score leaves these names out.
HUMAN_SYSTEMS = r'^(Human|HUMAN|ref)'


def is_human(system: str) -> bool:
  """Whether a system's name says that people translated."""
  return re.search(HUMAN_SYSTEMS, system) is not None


LEVELS = ('segment', 'system')
STATISTICS = ('darr', *correlation.STATISTICS)


@dataclasses.dataclass(frozen=True)
class Question:
  """What is to be measured.

  Attributes:
    level: 'segment' or 'system'.
    statistic: 'darr' (segment level only) or a name in
      `correlation.STATISTICS`.
    group: How segment-level entries are grouped, see `correlation.grouped`.
    ties: The tie rule of 'darr'.
    min_gap: The least difference of raw ratings that ranks a pair ('darr'
      without published pairs).
    pairs: Published ranked pairs; then 'darr' needs no human scores.
    exclude: Regular expression (searched) of systems to leave out; '' keeps
      all.
    top_k: Only the k systems with the best human mean, by language pair.
    resamples: Bootstrap draws for intervals and comparisons; 0 for none.
    unit: What is drawn for 'darr': 'segment' or 'pair'.
    seed: Of the draws.
    baseline: The metric that the others are compared with, or None.
    intersect: Leave out entries that some metric lacks (and count them)
      instead of raising.
  """

  level: str = 'segment'
  statistic: str = 'pearson'
  group: str = 'none'
  ties: str = 'discordant'
  min_gap: float = MIN_GAP
  pairs: NamedPairs | None = None
  exclude: str = HUMAN_SYSTEMS
  top_k: int | None = None
  resamples: int = 0
  unit: str = 'segment'
  seed: int = 12345
  baseline: str | None = None
  intersect: bool = False

  def __post_init__(self) -> None:
    if self.level not in LEVELS:
      raise ValueError(f'unknown level {self.level!r}; {" or ".join(LEVELS)}')
    if self.statistic not in STATISTICS:
      raise ValueError(
        f'unknown statistic {self.statistic!r}; there are '
        + ', '.join(STATISTICS)
      )
    if self.statistic == 'darr' and self.level != 'segment':
      raise ValueError('darr ranks segments: it has no system level')
    if self.pairs is not None and self.statistic != 'darr':
      raise ValueError('ranked pairs serve the statistic darr only')
    if self.top_k is not None and self.top_k < 2:
      raise ValueError(f'top_k must be 2 or more, not {self.top_k}')
    if self.resamples < 0:
      raise ValueError(f'resamples must be 0 or more, not {self.resamples}')
    if self.baseline is not None and not self.resamples:
      raise ValueError('a comparison with a baseline needs resamples above 0')
    try:
      re.compile(self.exclude)
    except re.error as error:
      raise ValueError(
        f'{self.exclude!r} is not a regular expression: {error}'
      ) from error


@dataclasses.dataclass(frozen=True)
class Cell:
  """One number of the report.

  Attributes:
    metric: Whose.
    language_pair: On what; 'Avg-en', 'Avg-x' and 'Avg' are means over pairs.
    value: The statistic.
    count: How many things it rests on: ranked pairs, rated entries, groups or
      systems; for a mean the number of language pairs.
    low: Lower end of the 95% bootstrap interval, None without resamples.
    high: Its upper end.
    comparison: With the baseline; None for the baseline itself or without one.
  """

  metric: str
  language_pair: str
  value: float
  count: int
  low: float | None = None
  high: float | None = None
  comparison: significance.Comparison | None = None


@dataclasses.dataclass(frozen=True)
class Report:
  """All numbers of one question.

  Attributes:
    metrics: The rows, in the order asked for.
    columns: Language pairs and averages, in order.
    cells: By (metric, column).
    notes: What was left out and why, one sentence each.
    question: What was asked.
    replicates: The bootstrap by column; empty without resamples.
  """

  metrics: tuple[str, ...]
  columns: tuple[str, ...]
  cells: dict[tuple[str, str], Cell]
  notes: tuple[str, ...]
  question: Question
  replicates: dict[str, significance.Replicates]


def measure(grids: Sequence[ScoreGrid], question: Question) -> Report:
  """Answers a question for every language pair, and on average.

  At the system level a human mean is over the rated segments and a metric's
  over all segments (T5Score; WMT), so a metric must have every segment of
  every system. At the segment level it must have every rated entry, or every
  entry of a ranked pair.

  Raises:
    ValueError: No grid, an unknown baseline, too few systems or segments.
    files.RecordError: Missing entries (without `intersect`).
  """
  if not grids:
    raise ValueError('there are no scores to measure')
  metrics = tuple(grids[0].metrics)
  if question.baseline is not None and question.baseline not in metrics:
    raise ValueError(
      f'the baseline {question.baseline!r} is not among the metrics: '
      + ', '.join(metrics)
    )
  notes: list[str] = []
  cells: dict[tuple[str, str], Cell] = {}
  values: dict[str, dict[str, float]] = {}
  replicates: dict[str, significance.Replicates] = {}
  for grid in grids:
    everything = grid
    grid = _choose_systems(grid, question, notes)
    dropped = [s for s in everything.systems if s not in grid.systems]
    part = _prepare(grid, dropped, question, notes)
    values[grid.language_pair] = {
      name: part.function(scores) for name, scores in part.metrics.items()
    }
    if question.resamples:
      # Another seed for every language pair, and the same one whatever the
      # other language pairs are: their draws are averaged as independent.
      seed = question.seed + zlib.crc32(grid.language_pair.encode())
      replicates[grid.language_pair] = part.bootstrap(seed)
    for name in metrics:
      cells[name, grid.language_pair] = _cell(
        name,
        grid.language_pair,
        values[grid.language_pair][name],
        part.count,
        replicates.get(grid.language_pair),
        question.baseline,
      )
  columns = tuple(values)
  for column, members in averages(columns).items():
    if replicates:
      replicates[column] = significance.average(
        [replicates[pair] for pair in members]
      )
    for name in metrics:
      mean = float(np.mean([values[pair][name] for pair in members]))
      cells[name, column] = _cell(
        name,
        column,
        mean,
        len(members),
        replicates.get(column),
        question.baseline,
      )
    columns += (column,)
  return Report(metrics, columns, cells, tuple(notes), question, replicates)


def averages(language_pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Which language pairs the papers' averages are over.

  >>> averages(['cs-en', 'de-en', 'en-cs'])['Avg-en']
  ('cs-en', 'de-en')
  >>> averages(['zh-en'])
  {}
  """
  into = tuple(p for p in language_pairs if p.endswith('-en'))
  out_of = tuple(p for p in language_pairs if p.startswith('en-'))
  found: dict[str, tuple[str, ...]] = {}
  if into and out_of:
    found['Avg-en'] = into
    found['Avg-x'] = out_of
  if len(language_pairs) > 1:
    found['Avg'] = tuple(language_pairs)
  return found


def _cell(
  metric: str,
  column: str,
  value: float,
  count: int,
  replicates: significance.Replicates | None,
  baseline: str | None,
) -> Cell:
  if replicates is None:
    return Cell(metric, column, value, count)
  low, high = replicates.interval(metric)
  comparison = None
  if baseline is not None and metric != baseline:
    comparison = replicates.compare(metric, baseline)
  return Cell(metric, column, value, count, low, high, comparison)


def _named(grid: ScoreGrid) -> str:
  return f'{grid.language_pair}: ' if grid.language_pair else ''


def _choose_systems(
  grid: ScoreGrid, question: Question, notes: list[str]
) -> ScoreGrid:
  if question.exclude:
    out = [s for s in grid.systems if re.search(question.exclude, s)]
    if out:
      notes.append(
        f'{_named(grid)}left out by --exclude-systems: {", ".join(out)}'
      )
      grid = grid.with_systems([s for s in grid.systems if s not in out])
  means = correlation.system_means(grid.human)
  if question.pairs is None:
    unrated = [
      s for s, m in zip(grid.systems, means, strict=True) if np.isnan(m)
    ]
    if unrated:
      notes.append(
        f'{_named(grid)}left out, no human rating: {", ".join(unrated)}'
      )
      grid = grid.with_systems([s for s in grid.systems if s not in unrated])
      means = means[~np.isnan(means)]
  if question.top_k is not None:
    if np.isnan(means).any():
      raise ValueError(
        f'{_named(grid)}top-k needs a human score of every system; '
        'name the column with the human scores'
      )
    # A stable sort of the negated means: equal means keep the file's order.
    best = np.argsort(-means, kind='stable')[: question.top_k]
    grid = grid.with_systems([grid.systems[i] for i in best])
  return grid


@dataclasses.dataclass(frozen=True)
class _Part:
  # One language pair, ready to be measured.
  metrics: dict[str, np.ndarray]
  count: int
  function: Callable[[np.ndarray], float]
  bootstrap: Callable[[int], significance.Replicates]


def _prepare(
  grid: ScoreGrid, dropped: list[str], question: Question, notes: list[str]
) -> _Part:
  if question.statistic == 'darr':
    return _prepare_darr(grid, dropped, question, notes)
  if question.level == 'system':
    return _prepare_systems(grid, question, notes)
  rated = ~np.isnan(grid.human)
  if not rated.any():
    raise ValueError(f'{_named(grid)}no system and segment has a human score')
  given = _given(grid)
  _check_complete(grid, rated & ~given, question, notes)
  human = np.where(given, grid.human, np.nan)
  group, statistic = question.group, question.statistic

  def function(scores: np.ndarray) -> float:
    return correlation.grouped(human, scores, statistic, group).value

  def bootstrap(seed: int) -> significance.Replicates:
    options = {'resamples': question.resamples, 'seed': seed}
    if group == 'none' and statistic == 'pearson':
      return significance.bootstrap_pearson(human, grid.metrics, **options)
    if group == 'item':
      return significance.bootstrap_items(
        human, grid.metrics, statistic, **options
      )
    return significance.bootstrap_any(
      human,
      grid.metrics,
      lambda h, m: correlation.grouped(h, m, statistic, group).value,
      **options,
    )

  count = int(np.count_nonzero(~np.isnan(human)))
  if group != 'none':
    first = next(iter(grid.metrics.values()))
    whole = correlation.grouped(human, first, statistic, group)
    count = whole.groups
    if whole.left_out:
      notes.append(
        f'{_named(grid)}{whole.left_out} {group} groups left out: human '
        'scores of fewer than two entries, or all alike'
      )
  return _Part(grid.metrics, count, function, bootstrap)


def _given(grid: ScoreGrid) -> np.ndarray:
  # [S, N]: every metric has a score.
  return np.isfinite(np.stack(list(grid.metrics.values()))).all(axis=0)


def _check_complete(
  grid: ScoreGrid, missing: np.ndarray, question: Question, notes: list[str]
) -> None:
  count = int(np.count_nonzero(missing))
  if not count:
    return
  if question.intersect:
    notes.append(
      f'{_named(grid)}{count} (system, segment) entries left out, because '
      'some metric has no score there'
    )
    return
  system, segment = np.argwhere(missing)[0]
  without = [
    name
    for name, scores in grid.metrics.items()
    if not np.isfinite(scores[system, segment])
  ]
  raise files.RecordError(
    f'{_named(grid)}{count} (system, segment) entries have no score; the '
    f'first is {grid.systems[system]!r}, {grid.segments[segment]!r} under '
    f'{", ".join(without)}. Complete the scores, or ask for the intersection '
    '(--intersect)'
  )


def _prepare_systems(
  grid: ScoreGrid, question: Question, notes: list[str]
) -> _Part:
  given = _given(grid)
  missing = ~given
  if missing.any():
    _check_complete(grid, missing, question, notes)
    # The systems must be compared on the same segments.
    grid = grid.with_segments(np.all(given, axis=0))
  if len(grid.systems) < 2 or not grid.segments:
    raise ValueError(
      f'{_named(grid)}{len(grid.systems)} system(s) on {len(grid.segments)} '
      'segment(s): a system-level correlation needs two systems'
    )
  human = correlation.system_means(grid.human)
  if np.isnan(human).any():
    raise ValueError(
      f'{_named(grid)}no rated segment is left of '
      f'{grid.systems[int(np.flatnonzero(np.isnan(human))[0])]}'
    )
  statistic = correlation.STATISTICS[question.statistic]
  return _Part(
    grid.metrics,
    len(grid.systems),
    lambda scores: statistic(human, correlation.system_means(scores)),
    lambda seed: significance.bootstrap_systems(
      grid.human,
      grid.metrics,
      question.statistic,
      resamples=question.resamples,
      seed=seed,
    ),
  )


def _prepare_darr(
  grid: ScoreGrid, dropped: list[str], question: Question, notes: list[str]
) -> _Part:
  if question.pairs is None:
    pairs = pairs_from_ratings(grid.human, question.min_gap)
  else:
    pairs, lost = place_pairs(
      grid, question.pairs, dropped, intersect=question.intersect
    )
    if lost:
      notes.append(
        f'{_named(grid)}{lost} of {lost + len(pairs)} ranked pairs left out: '
        'a system or segment of theirs is not among those measured'
      )
  missing = np.zeros(grid.human.shape, bool)
  missing[pairs.better, pairs.segments] = True
  missing[pairs.worse, pairs.segments] = True
  missing &= ~_given(grid)
  _check_complete(grid, missing, question, notes)
  keep = ~(
    missing[pairs.better, pairs.segments] | missing[pairs.worse, pairs.segments]
  )
  pairs = RankedPairs(
    pairs.segments[keep], pairs.better[keep], pairs.worse[keep]
  )
  if not len(pairs):
    raise ValueError(
      f'{_named(grid)}no ranked pair is left; are the human scores raw '
      f'ratings, and is a gap of {question.min_gap:g} right for their scale?'
    )

  def function(scores: np.ndarray) -> float:
    return correlation.darr_tau(
      scores[pairs.better, pairs.segments],
      scores[pairs.worse, pairs.segments],
      question.ties,
    )

  return _Part(
    grid.metrics,
    len(pairs),
    function,
    lambda seed: significance.bootstrap_darr(
      pairs,
      grid.metrics,
      resamples=question.resamples,
      seed=seed,
      ties=question.ties,
      unit=question.unit,
    ),
  )
