"""T5Score's tables on WMT20, for any metrics: Tables 1, 2 and 7 to 11.

Reads the shared task's files from one folder, and scores of further metrics
from files written by `t5score score`. Segment level: tau on the official ranked
pairs, where a metric tie counts as discordant. System level: the official mean
z-scores. MQM: means and all pairs of different scores. Human translations are
excluded. '_' in system names is replaced by '-', because the files spell the
systems of three language pairs differently.

Missing values are not estimated: the cell is '-', and a note gives the reason.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection

import numpy as np

from t5score_jax.data import humans
from t5score_jax.errors import InputError
from t5score_jax.evaluation import (
  bootstrap,
  clusters,
  correlation,
  darr,
  pair_bootstrap,
  scores,
)
from t5score_jax.evaluation.readers import wmt
from t5score_jax.evaluation.reports import wmt20_data

INTO = ('cs', 'de', 'iu', 'ja', 'km', 'pl', 'ps', 'ru', 'ta', 'zh')
OUT_OF = ('cs', 'de', 'iu', 'ja', 'pl', 'ru', 'ta', 'zh')
MQM_PAIRS = ('en-de', 'zh-en')
# Default rows: the metrics of T5Score's tables published here, and chrF.
DEFAULT_METRICS = ('sentBLEU', 'chrF', 'prism', 'BLEURT', 'COMET')
# The published metrics that were trained on human judgments.
SUPERVISED = (
  'BERT-base-L2',
  'BERT-large-L2',
  'BLEURT',
  'BLEURT-extended',
  'COMET',
  'COMET-2R',
  'COMET-HTER',
  'COMET-MQM',
  'COMET-QE',
  'COMET-Rank',
  'OpenKiwi-Bert',
  'OpenKiwi-XLMR',
  'esim',
)


@dataclasses.dataclass(frozen=True)
class Block:
  """One table.

  Attributes:
    title: What it shows.
    columns: Language pairs and averages.
    metrics: The rows.
    values: The values by (metric, column); missing ones have no entry.
    marks: '‡' or '†' by (metric, column), if there is one.
  """

  title: str
  columns: tuple[str, ...]
  metrics: tuple[str, ...]
  values: dict[tuple[str, str], float]
  marks: dict[tuple[str, str], str]


@dataclasses.dataclass(frozen=True)
class Settings:
  """The configuration of the report.

  Attributes:
    metrics: The rows.
    unsupervised: The metrics that were not trained on human judgments.
    resamples: Bootstrap draws for the marks; 0 for none.
    seed: Of the draws.
    intersect: Whether to measure a metric that lacks systems on those it has.
  """

  metrics: tuple[str, ...]
  unsupervised: Collection[str]
  resamples: int = 1000
  seed: int = 12345
  intersect: bool = False


def report(
  data: wmt20_data.Data, settings: Settings
) -> tuple[list[Block], list[str]]:
  """All tables that the data allow, and notes on what is missing.

  Raises:
    files.RecordError: A file is malformed.
    InputError: No metric, or a metric without any score.
  """
  if not settings.metrics:
    raise InputError('the report needs a metric')
  for metric in settings.metrics:
    agreed = np.isfinite(data.agreement(metric)).any()
    if not agreed and not data.system_scores(metric):
      raise InputError(
        f'there are no scores of {metric!r}: give NAME=FILE, or the name of a '
        'published metric'
      )
  notes: list[str] = []
  blocks = [*_segment_tables(data, settings, notes)]
  blocks += _system_tables(data, settings, notes)
  blocks += _mqm_table(data, settings, notes)
  if any(
    (metric, column) not in block.values
    for block in blocks
    for metric in block.metrics
    for column in block.columns
    if column.startswith('Avg')
  ):
    notes.append('an average without a value of all its language pairs is -')
  return blocks, list(dict.fromkeys(notes))


def _segment_tables(
  data: wmt20_data.Data, settings: Settings, notes: list[str]
) -> list[Block]:
  agreed = np.stack([data.agreement(metric) for metric in settings.metrics])
  values: dict[tuple[str, str], float] = {}
  marks: dict[tuple[str, str], str] = {}
  absent: dict[str, list[str]] = {}
  for pair in (*_into(), *_out_of()):
    ours = np.flatnonzero(data.pairs.language_pair == pair)
    known = np.isfinite(agreed[:, ours])
    if settings.intersect and known.any():
      some = known.any(axis=1)
      common = known[some].all(axis=0)
      if not common.all():
        notes.append(
          f'{pair}: {np.count_nonzero(~common)} of {len(ours)} ranked pairs '
          'left out, because some metric has no scores there'
        )
      ours, known = ours[common], known[:, common]
    for metric, row in zip(settings.metrics, known, strict=True):
      if not row.any():
        absent.setdefault(metric, []).append(pair)
      elif not row.all():
        notes.append(
          f'{pair}: {metric} has {np.count_nonzero(row)} of {len(row)} ranked '
          'pairs; --intersect measures all on the common ones'
        )
    complete = [k for k in range(len(known)) if len(ours) and known[k].all()]
    names = [settings.metrics[k] for k in complete]
    for k in complete:
      values[settings.metrics[k], pair] = float(agreed[k, ours].mean())
    if len(names) > 1 and settings.resamples:
      replicates = pair_bootstrap.bootstrap_agreement(
        data.pairs.segment[ours],
        dict(zip(names, agreed[complete][:, ours], strict=True)),
        resamples=settings.resamples,
        seed=settings.seed + zlib.crc32(pair.encode()),
      )
      marks.update(_marks(names, pair, values, replicates, settings))
  notes += _absent('segment scores of ranked pairs', absent)
  return _two_blocks(
    'Segment-level Kendall tau on DARR', values, marks, settings
  )


def _absent(what: str, absent: dict[str, list[str]]) -> list[str]:
  return [
    f'{metric} has no {what} in {", ".join(pairs)}'
    for metric, pairs in absent.items()
  ]


def _marks(
  names: list[str],
  column: str,
  values: dict[tuple[str, str], float],
  replicates: bootstrap.Replicates,
  settings: Settings,
) -> dict[tuple[str, str], str]:
  each = clusters.marks(
    names,
    [values[name, column] for name in names],
    replicates.p_values(),
    settings.unsupervised,
  )
  return {
    (name, column): mark for name, mark in zip(names, each, strict=True) if mark
  }


def _into() -> tuple[str, ...]:
  return tuple(f'{language}-en' for language in INTO)


def _out_of() -> tuple[str, ...]:
  return tuple(f'en-{language}' for language in OUT_OF)


def _two_blocks(
  title: str,
  values: dict[tuple[str, str], float],
  marks: dict[tuple[str, str], str],
  settings: Settings,
) -> list[Block]:
  # To English with all averages, and from English, as Tables 1 and 7.
  into, out_of = _into(), _out_of()
  for metric in settings.metrics:
    for name, members in (
      ('Avg-en', into),
      ('Avg-x', out_of),
      ('Avg', into + out_of),
    ):
      each = [values.get((metric, pair)) for pair in members]
      if None not in each:
        values[metric, name] = float(np.mean(np.array(each, np.float64)))
  return [
    Block(
      f'{title}, to English',
      (*into, 'Avg-en', 'Avg-x', 'Avg'),
      settings.metrics,
      values,
      marks,
    ),
    Block(
      f'{title}, from English',
      (*out_of, 'Avg-x'),
      settings.metrics,
      values,
      marks,
    ),
  ]


def _system_tables(
  data: wmt20_data.Data, settings: Settings, notes: list[str]
) -> list[Block]:
  system_scores = {
    metric: data.system_scores(metric) for metric in settings.metrics
  }
  results: dict[str, dict[tuple[str, str], float]] = {'p': {}, 'k': {}}
  absent: dict[str, list[str]] = {}
  for pair in (*_into(), *_out_of()):
    table = wmt.read_wmt_da(
      data.find(f'wmt20_metrics/human/ad-sys-scores-{pair}.csv'), pair
    )
    human = {
      scores.plain_system(system): z
      for (_, system, _), z in zip(
        table.rows, table.values['z'].tolist(), strict=True
      )
      if not humans.is_human(system)
    }
    for metric, scores_of_systems in system_scores.items():
      common = [
        system for system in human if (pair, system) in scores_of_systems
      ]
      if not common:
        absent.setdefault(metric, []).append(pair)
        continue
      if len(common) < len(human):
        lacking = ', '.join(sorted(set(human) - set(common)))
        what = 'measured without them' if settings.intersect else 'not measured'
        notes.append(f'{pair}: {metric} has no score of {lacking}: {what}')
        if not settings.intersect or len(common) < 2:
          continue
      x = [human[system] for system in common]
      y = [scores_of_systems[pair, system] for system in common]
      with correlation.note_constants(notes, metric, f'{pair}: '):
        results['p'][metric, pair] = correlation.pearson(x, y)
        results['k'][metric, pair] = correlation.kendall(x, y)
  notes += _absent('system scores', absent)
  return [
    *_two_blocks('System-level Pearson with DA', results['p'], {}, settings),
    *_two_blocks('System-level Kendall with DA', results['k'], {}, settings),
  ]


def _mqm_table(
  data: wmt20_data.Data, settings: Settings, notes: list[str]
) -> list[Block]:
  values: dict[tuple[str, str], float] = {}
  marks: dict[tuple[str, str], str] = {}
  pairs = [p for p in MQM_PAIRS if data.has(f'wmt20_mqm_da.{p}.tsv')]
  for pair in pairs:
    grid = _mqm_grid(data, pair)
    means = correlation.system_means(grid.human)
    ranked = darr.pairs_from_ratings(grid.human, np.finfo(float).tiny)
    agreed = {}
    for metric in settings.metrics:
      systems = data.system_scores(metric)
      y = [systems.get((pair, s), np.nan) for s in grid.systems]
      if np.isfinite(y).all():
        with correlation.note_constants(notes, metric, f'{pair}: '):
          values[metric, f'{pair} sys-p'] = correlation.pearson(means, y)
          values[metric, f'{pair} sys-k'] = correlation.kendall(means, y)
      else:
        some = 'lacks' if np.isfinite(y).any() else 'has no'
        notes.append(f'{pair}: {metric} {some} systems that have MQM scores')
      given = data.segment_scores(metric)
      matrix = np.array(
        [
          [given.get((pair, s, n), np.nan) for n in grid.segments]
          for s in grid.systems
        ]
      )
      if np.isfinite(matrix[~np.isnan(grid.human)]).all():
        better = matrix[ranked.better, ranked.segments]
        worse = matrix[ranked.worse, ranked.segments]
        agreed[metric] = np.where(better > worse, 1.0, -1.0)
        values[metric, f'{pair} seg-k'] = float(agreed[metric].mean())
      else:
        notes.append(f'{pair}: {metric} lacks segments that have MQM scores')
    if len(agreed) > 1 and settings.resamples:
      replicates = pair_bootstrap.bootstrap_agreement(
        ranked.segments,
        agreed,
        resamples=settings.resamples,
        seed=settings.seed + zlib.crc32(f'mqm {pair}'.encode()),
      )
      column = f'{pair} seg-k'
      marks.update(_marks(list(agreed), column, values, replicates, settings))
  if not pairs:
    notes.append('no wmt20_mqm_da.LP.tsv: no table of MQM')
    return []
  columns = tuple(
    f'{pair} {statistic}'
    for pair in pairs
    for statistic in ('sys-p', 'sys-k', 'seg-k')
  )
  return [Block('MQM 2020', columns, settings.metrics, values, marks)]


def _mqm_grid(data: wmt20_data.Data, pair: str) -> scores.ScoreGrid:
  # The machine systems that were rated.
  table = scores.read_table(
    data.find(f'wmt20_mqm_da.{pair}.tsv'), ['mqm'], quoting='csv'
  )
  (grid,) = scores.join([scores.with_plain_systems(table)], 'mqm', [])
  rated = ~np.isnan(grid.human).all(axis=1)
  return grid.with_systems(
    [
      name
      for name, keep in zip(grid.systems, rated, strict=True)
      if keep and not humans.is_human(name)
    ]
  )
