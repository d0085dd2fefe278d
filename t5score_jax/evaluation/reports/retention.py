"""What a distilled metric retains of its teacher: agreement, speed, size.

One row per metric (Kamal Eddine et al. 2022, Table 1): parameters, pairs per
second, segment-level Pearson correlation with human ratings by language pair
and on average, the share of the teacher's that is retained, and the correlation
with the teacher. Takes measurements; loads and times no metric.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from collections.abc import Hashable, Sequence

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import bootstrap, correlation
from t5score_jax.evaluation.reports import tables

TEACHER, STUDENT, BESIDE = ROLES = ('teacher', 'student', 'beside')


@dataclasses.dataclass(frozen=True)
class Measured:
  """Measurements of one metric on the rated pairs.

  Attributes:
    name: The metric's name.
    role: `TEACHER`, `STUDENT` or `BESIDE`.
    scores: Finite scores, higher is better, [N].
    pairs_per_second: Speed once everything is loaded and compiled.
    cold_seconds: Time to load, compile and score all N pairs.
    parameters: Parameters of its model; None without a model.
    signature: The metric's signature.
  """

  name: str
  role: str
  scores: np.ndarray
  pairs_per_second: float
  cold_seconds: float
  parameters: int | None = None
  signature: str = ''


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table.

  Attributes:
    measured: The measurements.
    smaller: The teacher's parameters divided by its own; None without a model.
    faster: Its pairs per second divided by those of the metric that speed is
      measured against.
    human: Pearson with human ratings, by language pair.
    human_mean: Their mean.
    kept: `human_mean` divided by the teacher's; NaN where the teacher's is
      not above 0.
    interval: 95% bootstrap interval of `kept`; None without bootstrap, and if
      the teacher's agreement is not above 0 in some resample.
    teacher: Pearson with the teacher's scores, by language pair.
    teacher_mean: Their mean.
  """

  measured: Measured
  smaller: float | None
  faster: float
  human: dict[str, float]
  human_mean: float
  kept: float
  interval: tuple[float, float] | None
  teacher: dict[str, float]
  teacher_mean: float


@dataclasses.dataclass(frozen=True)
class Report:
  """The table.

  Attributes:
    rows: The teacher, its students, the other metrics.
    columns: Language pairs; '' if pairs have none.
    counts: Rated pairs by language pair.
    speed_against: Name of the metric that `faster` compares with.
    resamples: Bootstrap resamples; 0 for none.
    seed: Seed of the resamples.
    notes: Scores that do not vary, whose correlations are given as 0.
  """

  rows: list[Row]
  columns: list[str]
  counts: dict[str, int]
  speed_against: str
  resamples: int
  seed: int
  notes: tuple[str, ...] = ()


def measure(
  metrics: Sequence[Measured],
  human: np.ndarray,
  groups: Sequence[str],
  segments: Sequence[Hashable],
  *,
  speed_against: str | None = None,
  resamples: int = 1000,
  seed: int = 12345,
) -> Report:
  """Compares metrics with human ratings and with the teacher.

  Args:
    metrics: The metrics, exactly one of them a teacher.
    human: Ratings, higher is better, [N].
    groups: The language pair of each rated pair, N of them.
    segments: The segment of each rated pair, N of them; a segment is drawn
      with all its pairs.
    speed_against: A metric's name; by default the teacher's.
    resamples: Resamples of the segments of each language pair, independent
      between language pairs, the same for all metrics; 0 for none.
    seed: Seed of the resamples.

  Raises:
    InputError: No or several teachers, a name twice, lengths that differ,
      values that are not finite, a language pair with fewer than two segments.
  """
  teacher = _teacher(metrics)
  by_name = {metric.name: metric for metric in metrics}
  if len(by_name) < len(metrics):
    raise InputError('two metrics have one name: ' + ', '.join(by_name))
  against = by_name.get(speed_against or teacher.name)
  if against is None:
    raise InputError(
      f'no metric {speed_against!r}; there are: {", ".join(by_name)}'
    )
  human = correlation.check_scores(human, 'human ratings')
  scores = {
    name: correlation.check_scores(metric.scores, f'scores of {name}')
    for name, metric in by_name.items()
  }
  sizes = {len(human), len(groups), len(segments), *map(len, scores.values())}
  if len(sizes) > 1:
    raise InputError(f'lengths differ: {sorted(sizes)}')
  places: dict[str, list[int]] = collections.defaultdict(list)
  for place, group in enumerate(groups):
    places[group].append(place)
  columns = sorted(places)
  rated = _correlations(human, scores, places)
  like = _correlations(scores[teacher.name], scores, places)
  notes = _constants({'human ratings': human, **scores}, places)
  draws = None
  if resamples:
    check_drawn(groups, segments)
    draws = _draws(human, scores, places, segments, resamples, seed)
  rows = []
  for metric in metrics:
    name = metric.name
    of_teacher = _mean(rated[teacher.name])
    rows.append(
      Row(
        measured=metric,
        smaller=teacher.parameters / metric.parameters
        if teacher.parameters and metric.parameters
        else None,
        faster=metric.pairs_per_second / against.pairs_per_second,
        human={c: rated[name][c] for c in columns},
        human_mean=_mean(rated[name]),
        kept=_mean(rated[name]) / of_teacher if of_teacher > 0 else math.nan,
        interval=None
        if draws is None
        else _interval(draws, name, teacher.name),
        teacher={c: like[name][c] for c in columns},
        teacher_mean=_mean(like[name]),
      )
    )
  counts = {c: len(places[c]) for c in columns}
  return Report(rows, columns, counts, against.name, resamples, seed, notes)


def check_drawn(groups: Sequence[str], segments: Sequence[Hashable]) -> None:
  """Raises InputError if a language pair has fewer than two segments.

  Args:
    groups: The language pair of each rated pair, N of them.
    segments: The segment of each, N of them.
  """
  by_group: dict[str, set[Hashable]] = {}
  for group, segment in zip(groups, segments, strict=True):
    by_group.setdefault(group, set()).add(segment)
  for group, drawn in by_group.items():
    if len(drawn) < 2:
      raise InputError(
        f'{f"{group}: " if group else ""}one rated segment only, and intervals '
        'need two: leave it out, or ask for none (--bootstrap 0)'
      )


def _correlations(
  wanted: np.ndarray,
  scores: dict[str, np.ndarray],
  places: dict[str, list[int]],
) -> dict[str, dict[str, float]]:
  """Pearson with given numbers, by metric and language pair; 0 if constant."""
  with warnings.catch_warnings():
    # `_constants` reports it.
    warnings.simplefilter('ignore', correlation.ConstantInputWarning)
    return {
      name: {c: correlation.pearson(wanted[p], x[p]) for c, p in places.items()}
      for name, x in scores.items()
    }


def _constants(
  columns: dict[str, np.ndarray], places: dict[str, list[int]]
) -> tuple[str, ...]:
  return tuple(
    f'{name}{f" of {c}" if c else ""}: the same everywhere, so that '
    'correlations are given as 0'
    for c, rows in sorted(places.items())
    for name, values in columns.items()
    if len(rows) < 2 or np.ptp(values[rows]) == 0
  )


def _teacher(metrics: Sequence[Measured]) -> Measured:
  teachers = [metric for metric in metrics if metric.role == TEACHER]
  if len(teachers) != 1:
    raise InputError(f'{len(teachers)} teachers; there must be one')
  return teachers[0]


def _mean(values: dict[str, float]) -> float:
  return float(np.mean(list(values.values())))


def _draws(
  human: np.ndarray,
  scores: dict[str, np.ndarray],
  places: dict[str, list[int]],
  segments: Sequence[Hashable],
  resamples: int,
  seed: int,
) -> bootstrap.Replicates:
  """The mean correlation with human ratings on resampled segments."""
  parts = []
  for number, group in enumerate(sorted(places)):
    # A segment's rated pairs are one column.
    columns: dict[Hashable, int] = {}
    depth: collections.Counter[int] = collections.Counter()
    cells = []
    for place in places[group]:
      column = columns.setdefault(segments[place], len(columns))
      cells.append((depth[column], column))
      depth[column] += 1
    at = tuple(np.array(cells).T)
    shape = max(depth.values()), len(columns)

    def grid(
      values: np.ndarray,
      at: tuple[np.ndarray, ...] = at,
      shape: tuple[int, int] = shape,
      rows: list[int] = places[group],
    ) -> np.ndarray:
      filled = np.full(shape, np.nan)
      filled[at] = values[rows]
      return filled

    parts.append(
      bootstrap.bootstrap_pearson(
        grid(human),
        {name: grid(x) for name, x in scores.items()},
        resamples=resamples,
        seed=seed + number,
      )
    )
  return bootstrap.average(parts)


def _interval(
  draws: bootstrap.Replicates, name: str, teacher: str
) -> tuple[float, float] | None:
  """95% interval of the share retained; None if undefined in a resample."""
  own, of_teacher = (
    draws.draws[:, draws.names.index(n)] for n in (name, teacher)
  )
  if not (of_teacher > 0).all():
    return None
  low, high = np.quantile(own / of_teacher, [0.025, 0.975])
  return float(low), float(high)


def render(
  report: Report,
  style: str = 'text',
  digits: int = 3,
  notes: Sequence[str] = (),
) -> str:
  """The report as text, without a final newline.

  Args:
    report: The report.
    style: A name in `tables.FORMATS`; JSON also holds the signatures.
    digits: Decimals of correlations.
    notes: Sentences to append.
  """
  tables.check_style(style)
  if style == 'json':
    notes = [*report.notes, *notes]
    return tables.to_json({**_as_json(report), 'notes': notes})
  blocks = [tables.lay_out(_main_rows(report, digits), style)]
  if len(report.columns) > 1:
    blocks.append(tables.lay_out(_pair_rows(report, digits), style))
  notes = [*_legend(report), *report.notes, *notes]
  return tables.assemble(blocks, notes, style)


def _main_rows(report: Report, digits: int) -> list[list[str]]:
  head = ['metric', 'role', 'parameters', 'smaller', 'pairs/s', 'faster']
  head += [
    'cold s',
    'human r',
    'kept %',
    *(['95%'] if report.resamples else []),
  ]
  rows = [[*head, 'teacher r']]
  for row in report.rows:
    m = row.measured
    cells = [
      m.name,
      m.role,
      '-' if m.parameters is None else f'{m.parameters:,}',
      '-' if row.smaller is None else f'{row.smaller:.1f}',
      _speed(m.pairs_per_second),
      f'{row.faster:.1f}' if row.faster < 100 else f'{row.faster:.0f}',
      f'{m.cold_seconds:.1f}',
      f'{row.human_mean:.{digits}f}',
      '-' if math.isnan(row.kept) else f'{100 * row.kept:.1f}',
    ]
    if row.interval:
      low, high = (100 * end for end in row.interval)
      cells.append(f'[{low:.1f}, {high:.1f}]')
    elif report.resamples:
      cells.append('-')
    rows.append([*cells, f'{row.teacher_mean:.{digits}f}'])
  return rows


def _speed(value: float) -> str:
  return f'{value:.1f}' if value < 100 else f'{value:,.0f}'


def _pair_rows(report: Report, digits: int) -> list[list[str]]:
  """Human and teacher correlation of each language pair."""
  rows = [['metric', 'with', *report.columns, 'mean']]
  for row in report.rows:
    for what, values, mean in (
      ('human', row.human, row.human_mean),
      ('teacher', row.teacher, row.teacher_mean),
    ):
      if what == 'teacher' and row.measured.role == TEACHER:
        continue
      cells = [f'{values[c]:.{digits}f}' for c in report.columns]
      rows.append([row.measured.name, what, *cells, f'{mean:.{digits}f}'])
  total = sum(report.counts.values())
  counts = [str(report.counts[c]) for c in report.columns]
  return [*rows, ['n', '', *counts, str(total)]]


def _legend(report: Report) -> list[str]:
  pairs = sum(report.counts.values())
  mean = ' (mean over language pairs)' * (len(report.columns) > 1)
  lines = [
    f'human r, teacher r: segment-level Pearson{mean} with human ratings and '
    "with the teacher's scores; kept: human r over the teacher's",
    'pairs/s: warm, after loading and compilation; cold s: loading, compiling '
    f'and scoring {pairs} pairs; faster: pairs/s over those of '
    f'{report.speed_against}; smaller: parameters of the teacher over its own',
  ]
  if report.resamples:
    lines.append(
      f'95%: paired bootstrap over segments, {report.resamples} resamples, '
      f'seed {report.seed}'
    )
  return lines


def _as_json(report: Report) -> dict[str, object]:
  return {
    'language_pairs': report.counts,
    'speed_against': report.speed_against,
    'resamples': report.resamples,
    'seed': report.seed,
    'metrics': [
      {
        'metric': row.measured.name,
        'role': row.measured.role,
        'parameters': row.measured.parameters,
        'smaller': row.smaller,
        'pairs_per_second': row.measured.pairs_per_second,
        'faster': row.faster,
        'cold_seconds': row.measured.cold_seconds,
        'human': row.human,
        'human_mean': row.human_mean,
        'kept': None if math.isnan(row.kept) else row.kept,
        'interval': row.interval,
        'teacher': row.teacher,
        'teacher_mean': row.teacher_mean,
        'signature': row.measured.signature,
      }
      for row in report.rows
    ],
  }
