"""Prints how well models and lexical metrics agree with human judgments.

    python scripts/reproduce/measure_wmt20.py DATA MODEL [MODEL ...]

DATA is a folder with wmt20_mqm_da.{zh-en,en-de}.tsv.gz, wmt20_darr.tsv.gz,
wmt20_metrics/human/ad-sys-scores-*.csv.gz and wmt15-17_da.tsv.gz. A MODEL is
an argument of `t5score score -m`; NAME=MODEL sets the name of its row, and
options follow as in `t5score retention`: bertscore:model=minilm,layer=4.

Rows are metrics. Columns:
  zh-en tau, en-de tau   tau on WMT20's official ranked pairs, reference A,
                         a metric tie counting as discordant
  zh-en mqm, en-de mqm   segment-level Pearson with MQM, machine systems pooled
  zh-en sys, en-de sys   system-level Pearson with the official DA z-scores,
                         machine systems; a system's score is its segments'
                         mean
  wmt17                  mean segment-level Pearson over the 7 pairs to English
                         of WMT17: the validation set on which models are
                         chosen. The others are for the final report only.

Then each model is compared with each lexical metric, on WMT17 also by language
pair: the difference, its 95% interval and a one-sided p from a paired bootstrap
over segments. Lexical scores take minutes; --scores FOLDER keeps all scores by
signature, so that they are computed once.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import pathlib
import sys

import numpy as np

from t5score_jax.commands import _metric_arguments, retention
from t5score_jax.data import files, humans, numbers, records
from t5score_jax.data import tables as data_tables
from t5score_jax.evaluation import (
  agreement,
  correlation,
  darr,
  scores,
)
from t5score_jax.evaluation.config import AgreementConfig
from t5score_jax.evaluation.readers import wmt
from t5score_jax.evaluation.reports import tables
from t5score_jax.metrics import base, registry

LEXICAL = ('bleu', 'chrf')
SETS = ('zh-en', 'en-de', 'wmt17')


def read_wmt20(data: pathlib.Path, pair: str) -> list[records.Segment]:
  """All systems' outputs of one language pair, with reference A."""
  return records.read_records(
    data / f'wmt20_mqm_da.{pair}.tsv.gz',
    columns={
      'language_pair': 'lp',
      'segment': 'seg_id',
      'source': 'src',
      'reference': 'ref_A',
      'hypothesis': 'hyp',
    },
    ratings=('mqm', 'da_raw', 'da_z'),
    quoting='csv',
  )


def read_wmt17(data: pathlib.Path) -> list[records.Segment]:
  """The rated outputs of WMT17 to English."""
  everything = []
  table_name = 'wmt15-17_da.tsv.gz'
  with files.open_text(data / table_name) as lines:
    # `year` is not a field of records: the rows are read as they are.
    table = data_tables.read_table(lines, table_name, 'tsv', 'csv')
    for line, row in table.rows:
      if row['year'] == '2017' and row['lp'].endswith('-en'):
        z = numbers.read(row['da_z'], path=table_name, line=line, field='da_z')
        everything.append(
          records.Segment(
            row['hyp'],
            row['src'],
            (row['ref'],),
            system=row['system'],
            # Some segments are rated under several merged system names.
            segment=f'{row["sid"]} (line {line})',
            language_pair=row['lp'],
            ratings={'da_z': z},
          )
        )
  return everything


def metric_scores(
  metric: base.Metric,
  segments: list[records.Segment],
  name: str,
  keep: pathlib.Path | None,
) -> np.ndarray:
  """The metric's segment scores, read from `keep` if they are there."""
  path = None
  if keep is not None:
    key = json.dumps([metric.signature(), name, len(segments)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = keep / f'{name}.{digest}.npy'
    if path.exists():
      return np.load(path)
  print(f'scoring {name}: {metric.signature()}', file=sys.stderr, flush=True)
  values = np.asarray(metric.score_segments(segments).values, np.float64)
  if path is not None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.write_atomically(path, 'wb') as out:
      np.save(out, values)
  return values


def to_grids(
  segments: list[records.Segment],
  values: dict[str, np.ndarray],
  rating: str,
) -> list[scores.ScoreGrid]:
  """Segments and their scores as grids by language pair."""
  table = scores.ScoreTable(
    'the data',
    scores.KEYS,
    [
      (s.language_pair or '', s.system or '', s.segment or '') for s in segments
    ],
    np.arange(1, len(segments) + 1),
    {
      'human': np.array([s.ratings.get(rating, np.nan) for s in segments]),
      **values,
    },
  )
  return scores.join([table], 'human', list(values))


def official_systems(
  data: pathlib.Path, grid: scores.ScoreGrid
) -> dict[str, float]:
  """System-level Pearson with the task's own z-scores."""
  table = wmt.read_wmt_da(
    data / f'wmt20_metrics/human/ad-sys-scores-{grid.language_pair}.csv.gz'
  )
  z = {
    system: value
    for (_, system, _), value in zip(table.rows, table.values['z'], strict=True)
    if not humans.is_human(system)
  }
  grid = grid.with_systems(list(z))
  if len(grid.systems) < len(z):
    raise ValueError(
      f'{grid.language_pair}: no outputs of '
      + ', '.join(sorted(set(z) - set(grid.systems)))
    )
  gold = [z[name] for name in grid.systems]
  return {
    name: correlation.pearson(gold, correlation.system_means(m))
    for name, m in grid.metrics.items()
  }


@dataclasses.dataclass(frozen=True)
class Measured:
  """A column of the table."""

  title: str
  values: dict[str, float]
  report: agreement.Report | None = None
  on: str = ''
  parts: tuple[str, ...] = ()


def measure(
  data: pathlib.Path,
  metrics: dict[str, base.Metric],
  sets: tuple[str, ...],
  baselines: tuple[str, ...],
  resamples: int,
  keep: pathlib.Path | None,
) -> tuple[list[Measured], list[list[str]]]:
  """Measures all columns and the comparisons with each baseline."""
  columns: list[Measured] = []
  pairs = None
  for name in sets:
    if name == 'wmt17':
      segments = read_wmt17(data)
    else:
      segments = read_wmt20(data, name)
      pairs = pairs or darr.read_pairs(data / 'wmt20_darr.tsv.gz')
    values = {
      row: metric_scores(metric, segments, f'{row}.{name}', keep)
      for row, metric in metrics.items()
    }
    if name == 'wmt17':
      grids = to_grids(segments, values, 'da_z')
      # Z-scores of single outputs: systems are unknown, nothing is left out.
      config = AgreementConfig(exclude='', resamples=resamples)
      columns.append(column('wmt17', grids, config, 'Avg'))
      continue
    config = AgreementConfig(statistic='darr', pairs=pairs, resamples=resamples)
    (grid,) = to_grids(segments, values, 'da_raw')
    columns.append(column(f'{name} tau', [grid], config, name))
    config = AgreementConfig(resamples=resamples)
    (rated,) = to_grids(segments, values, 'mqm')
    columns.append(column(f'{name} mqm', [rated], config, name))
    columns.append(Measured(f'{name} sys', official_systems(data, grid)))
  return columns, comparisons(columns, baselines)


def column(
  title: str,
  grids: list[scores.ScoreGrid],
  config: AgreementConfig,
  on: str,
) -> Measured:
  """Measures one column, the value `on` of a report."""
  report = agreement.measure(grids, config)
  values = {name: report.cells[name, on].value for name in report.metrics}
  parts = tuple(c for c in report.columns if not c.startswith('Avg'))
  return Measured(title, values, report, on, parts if on == 'Avg' else ())


def comparisons(
  columns: list[Measured], baselines: tuple[str, ...]
) -> list[list[str]]:
  """Rows: column, metric, against, difference, interval, p."""
  rows = [['on', 'metric', 'against', 'difference', '95% interval', 'p']]
  for measured in columns:
    if measured.report is None or not measured.report.config.resamples:
      continue
    for on, name, baseline in itertools.product(
      (measured.on, *measured.parts), measured.report.metrics, baselines
    ):
      if name not in baselines and baseline in measured.values:
        found = measured.report.replicates[on].compare(name, baseline)
        title = measured.title if on == measured.on else f'wmt17 {on}'
        rows.append(
          [
            title,
            name,
            baseline,
            f'{found.difference:+.4f}',
            f'[{found.low:+.4f}, {found.high:+.4f}]',
            f'{found.p_value:.3g}',
          ]
        )
  return rows


def main() -> int:
  """Runs the script."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('data', type=pathlib.Path, help='folder with the data')
  parser.add_argument(
    'models',
    nargs='*',
    metavar='[NAME=]MODEL',
    help='what `t5score score -m` takes, with the name of its row',
  )
  parser.add_argument(
    '--lexical',
    default=','.join(LEXICAL),
    help='lexical metrics to compare with (default: %(default)s)',
  )
  parser.add_argument(
    '--sets',
    default=','.join(SETS),
    help='which of %(default)s to measure; wmt17 alone to choose a model',
  )
  parser.add_argument(
    '--bootstrap',
    type=int,
    default=1000,
    metavar='N',
    help='samples of a comparison (default: %(default)s)',
  )
  parser.add_argument(
    '--scores',
    type=pathlib.Path,
    metavar='FOLDER',
    help='folder that keeps scores',
  )
  parser.add_argument(
    '--table',
    choices=('text', 'markdown', 'latex', 'json'),
    default='text',
    help='(default: %(default)s)',
  )
  args = parser.parse_intermixed_args()
  sets = tuple(args.sets.split(','))
  unknown = set(sets) - set(SETS)
  if unknown:
    parser.error(f'no such set: {", ".join(unknown)}; there are {SETS}')
  baselines = tuple(name for name in args.lexical.split(',') if name)
  metrics = {name: registry.load_metric(name) for name in baselines}
  for model in args.models:
    spec = retention.parse_spec(model, 'student')
    name = pathlib.PurePath(spec.name).name
    metrics[name] = _metric_arguments.load(spec.metric, spec.options)
  columns, rows = measure(
    args.data, metrics, sets, baselines, args.bootstrap, args.scores
  )
  if args.table == 'json':
    found = {c.title: c.values for c in columns}
    print(json.dumps({'values': found, 'comparisons': rows}, indent=2))
    return 0
  table = [['metric', *(c.title for c in columns)]] + [
    [name, *(f'{c.values[name]:.4f}' for c in columns)] for name in metrics
  ]
  print(tables.lay_out(table, args.table))
  if len(rows) > 1:
    print(f'\nPaired bootstrap over segments, {args.bootstrap} resamples:\n')
    print(tables.lay_out(rows, args.table))
  return 0


if __name__ == '__main__':
  sys.exit(main())
