"""Measures agreement by language pair and on average, from grids of scores.

`preparation` prepares each language pair; this module averages as the papers
do and compares metrics. `scores` and `readers/` read files; `reports/tables`
prints.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import bootstrap, clusters, correlation
from t5score_jax.evaluation.config import SPECIAL, AgreementConfig
from t5score_jax.evaluation.preparation import prepare
from t5score_jax.evaluation.scores import ScoreGrid
from t5score_jax.evaluation.selection import choose_systems


@dataclasses.dataclass(frozen=True)
class Cell:
  """One number of the report.

  Attributes:
    metric: The metric.
    language_pair: The column; 'Avg-en', 'Avg-x' and 'Avg' are means over
      language pairs, 'Pooled' is the accuracy over all pairs of systems.
    value: The statistic.
    count: The number of ranked pairs, rated entries, groups or systems; for a
      mean the number of language pairs.
    low: Lower end of the 95% bootstrap interval, None without resamples.
    high: Its upper end.
    comparison: The comparison with the baseline; None for the baseline itself
      or without a baseline.
    rank: Rank of the significance cluster, from 1; None without a test.
    mark: T5Score's mark, see `clusters.marks`; '' without one.
    spread: Standard deviation over folds (n - 1 in the denominator), in a row
      that is the mean of folds; else None.
  """

  metric: str
  language_pair: str
  value: float
  count: int
  low: float | None = None
  high: float | None = None
  comparison: bootstrap.Comparison | None = None
  rank: int | None = None
  mark: str = ''
  spread: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
  """All numbers of one configuration.

  Attributes:
    metrics: The rows, in order.
    columns: Language pairs and averages, in order.
    cells: The numbers by (metric, column).
    notes: What was left out and why, one sentence each.
    config: The configuration.
    replicates: The bootstrap by column; empty without resamples.
    p_values: [M, M] by column, entry (i, j) for "metric i is better than j";
      empty without a test. The M metrics are the first rows.
  """

  metrics: tuple[str, ...]
  columns: tuple[str, ...]
  cells: dict[tuple[str, str], Cell]
  notes: tuple[str, ...]
  config: AgreementConfig
  replicates: dict[str, bootstrap.Replicates]
  p_values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def measure(grids: Sequence[ScoreGrid], config: AgreementConfig) -> Report:
  """Measures agreement for every language pair and on average.

  At the system level the human mean is over the rated segments and a metric's
  mean over all segments (T5Score; WMT), so a metric must score every segment
  of every system. At the segment level it must score every rated entry, or
  every entry of a ranked pair.

  Raises:
    InputError: No grid, an unknown baseline, too few systems or segments.
    files.RecordError: Missing entries (without `intersect`).
  """
  if not grids:
    raise InputError('no scores: the list of grids is empty')
  metrics = tuple(grids[0].metrics)
  if config.baseline is not None and config.baseline not in metrics:
    raise InputError(
      f'the baseline {config.baseline!r} is not among the metrics: '
      + ', '.join(metrics)
    )
  notes: list[str] = []
  grids = _with_judgments(grids, config, notes)
  special = config.statistic in SPECIAL
  if (
    config.level == 'system'
    and not special
    and all(len(g.segments) == 1 for g in grids)
  ):
    config = dataclasses.replace(config, swap='system-scores')
  values: dict[str, np.ndarray] = {}
  counts: dict[str, int] = {}
  replicates: dict[str, bootstrap.Replicates] = {}
  p_values: dict[str, np.ndarray] = {}
  for grid in grids:
    pair = grid.language_pair
    chosen = choose_systems(grid, config, notes)
    dropped = [s for s in grid.systems if s not in chosen.systems]
    # Constant scores are noted where each metric is measured.
    with correlation.note_constants([]):
      prepared = prepare(chosen, dropped, config, notes)
    where = grid.prefix
    values[pair] = np.empty(len(metrics))
    for k, (name, scores) in enumerate(prepared.metrics.items()):
      with correlation.note_constants(notes, name, where):
        values[pair][k] = prepared.function(scores)
    counts[pair] = prepared.count
    # Each language pair has its own seed, which does not depend on the other
    # pairs: the averages take their draws as independent.
    seed = config.seed + zlib.crc32(pair.encode())
    # What does not vary has been noted.
    with correlation.note_constants([]):
      if config.resamples:
        replicates[pair] = prepared.resample(seed)
        if few := bootstrap.few_segments(len(chosen.segments)):
          notes.append(where + few)
      tested = None
      if config.test == 'permutation' and len(metrics) > 1:
        tested = prepared.permute(seed)
    if tested is not None:
      p_values[pair] = tested.p_values
      if tested.exact:
        notes.append(
          f'{where}all {tested.resamples} swaps were made: p-values are exact'
        )
  means = averages(tuple(values))
  pooled = config.level == 'system' and config.statistic == 'accuracy'
  if pooled and len(grids) > 1:
    means['Pooled'] = tuple(values)
  for column, members in means.items():
    sizes = [counts[pair] for pair in members]
    weights: list[float] | None = None
    if column == 'Pooled':
      # Kocmi et al. (2021) count the pairs of systems of all language pairs.
      weights = [size * (size - 1) / 2 for size in sizes]
    values[column] = np.average(
      [values[pair] for pair in members], axis=0, weights=weights
    )
    counts[column] = len(members)
    if replicates:
      replicates[column] = bootstrap.average(
        [replicates[pair] for pair in members], weights
      )
  if config.test == 'bootstrap':
    p_values = {c: r.p_values() for c, r in replicates.items()}
  elif config.test == 'permutation' and len(values) > len(grids):
    notes.append(
      'averages are not tested by permutation; the bootstrap tests them'
    )
  report = Report(
    metrics,
    tuple(values),
    {},
    tuple(notes),
    config,
    replicates,
    p_values,
  )
  for column in report.columns:
    report.cells.update(_cells(report, column, values[column], counts[column]))
  return _with_folds(report)


def _with_judgments(
  grids: Sequence[ScoreGrid], config: AgreementConfig, notes: list[str]
) -> list[ScoreGrid]:
  # The language pairs with human judgments. If there are none, all of them, so
  # that the checks that follow report the error.
  if config.pairs is not None:
    named = set(config.pairs.language_pair.tolist())
    judged = [grid for grid in grids if grid.language_pair in named]
  else:
    judged = [grid for grid in grids if not np.isnan(grid.human).all()]
  if not judged:
    return list(grids)
  kept = {grid.language_pair for grid in judged}
  out = [g.language_pair for g in grids if g.language_pair not in kept]
  if out:
    notes.append(f'language pairs without human judgments: {", ".join(out)}')
  return judged


def _cells(
  report: Report, column: str, values: np.ndarray, count: int
) -> dict[tuple[str, str], Cell]:
  config, replicates = report.config, report.replicates.get(column)
  ranks: list[int | None] = [None] * len(values)
  marks = [''] * len(values)
  if column in report.p_values:
    p_values = report.p_values[column]
    ranks = list(clusters.rank_clusters(values, p_values))
    if config.unsupervised is not None:
      marks = clusters.marks(
        report.metrics, values, p_values, config.unsupervised
      )
  cells = {}
  for k, name in enumerate(report.metrics):
    low = high = comparison = None
    if replicates is not None:
      low, high = replicates.interval(name)
      if config.baseline is not None and name != config.baseline:
        comparison = replicates.compare(name, config.baseline)
    cells[name, column] = Cell(
      name,
      column,
      float(values[k]),
      count,
      low,
      high,
      comparison,
      ranks[k],
      marks[k],
    )
  return cells


def folds(metrics: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Groups the metrics called NAME@FOLD by NAME.

  >>> folds(['comes@1', 'chrF', 'comes@2'])
  {'comes': ('comes@1', 'comes@2')}
  """
  grouped: dict[str, tuple[str, ...]] = {}
  for name in metrics:
    base, at, fold = name.rpartition('@')
    if at and base and fold:
      grouped[base] = (*grouped.get(base, ()), name)
  return {base: names for base, names in grouped.items() if len(names) > 1}


def _with_folds(report: Report) -> Report:
  """Adds a row with mean and standard deviation for each metric with folds.

  COMES reports cross-validated models this way (appendix A.2).
  """
  rows = list(report.metrics)
  for whole, names in folds(report.metrics).items():
    label = f'{whole} ({len(names)} folds)'
    rows.append(label)
    for column in report.columns:
      each = np.array([report.cells[name, column].value for name in names])
      report.cells[label, column] = Cell(
        label,
        column,
        float(each.mean()),
        report.cells[names[0], column].count,
        spread=float(each.std(ddof=1)),
      )
  return dataclasses.replace(report, metrics=tuple(rows))


@dataclasses.dataclass(frozen=True)
class Curve:
  """One statistic on the best systems only (T5Score's Figure 6).

  Attributes:
    top_k: The numbers of systems, K of them.
    reports: One report for each number.
    column: The column that the curve shows.
  """

  top_k: tuple[int, ...]
  reports: tuple[Report, ...]
  column: str

  @property
  def metrics(self) -> tuple[str, ...]:
    """The metrics."""
    return self.reports[0].metrics

  def values(self, metric: str) -> np.ndarray:
    """The statistic of one metric by number of systems, [K]."""
    return np.array([r.cells[metric, self.column].value for r in self.reports])

  def intervals(self, metric: str) -> np.ndarray | None:
    """Lower and upper ends of the 95% intervals, [2, K]; None without."""
    cells = [r.cells[metric, self.column] for r in self.reports]
    ends = [(c.low, c.high) for c in cells if c.low is not None]
    return np.array(ends, np.float64).T if len(ends) == len(cells) else None


def measure_top(
  grids: Sequence[ScoreGrid], config: AgreementConfig, top_k: Sequence[int]
) -> Curve:
  """Measures agreement on the k best systems, for several k.

  Raises:
    InputError: No k, a repeated k, or more than the systems; as `measure`.
  """
  wanted = tuple(sorted(top_k))
  if not wanted or len(set(wanted)) != len(wanted):
    raise InputError(f'top-k needs different numbers, not {list(top_k)}')
  reports = []
  for k in wanted:
    for grid in grids:
      systems = choose_systems(grid, config, [])
      if k > len(systems.systems):
        raise InputError(
          f'{grid.language_pair}: the top {k} of {len(systems.systems)} systems'
        )
    reports.append(measure(grids, dataclasses.replace(config, top_k=k)))
  # 'Avg', or the only language pair.
  return Curve(wanted, tuple(reports), reports[0].columns[-1])


def averages(language_pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Returns the papers' averages and the language pairs of each.

  >>> averages(['cs-en', 'de-en', 'en-cs'])['Avg-en']
  ('cs-en', 'de-en')
  >>> averages(['zh-en'])
  {}
  """
  into = tuple(p for p in language_pairs if p.endswith('-en'))
  out_of = tuple(p for p in language_pairs if p.startswith('en-'))
  columns: dict[str, tuple[str, ...]] = {}
  if into and out_of:
    columns['Avg-en'] = into
    columns['Avg-x'] = out_of
  if len(language_pairs) > 1:
    columns['Avg'] = tuple(language_pairs)
  return columns
