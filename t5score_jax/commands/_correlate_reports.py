"""The reports and pictures of `t5score correlate`.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from t5score_jax.commands import _correlate_arguments, _score_files, _usage
from t5score_jax.errors import InputError, UsageError
from t5score_jax.evaluation import (
  agreement,
  correlation,
  scores,
  selection,
)
from t5score_jax.evaluation.config import AgreementConfig
from t5score_jax.evaluation.readers import layouts, mqm
from t5score_jax.evaluation.reports import (
  plots,
  tables,
  wmt20,
  wmt20_data,
  wmt20_tables,
)


def wmt20_report(args: argparse.Namespace) -> str:
  """T5Score's tables on WMT20.

  Raises:
    UsageError: The arguments contradict each other.
    files.RecordError: A file is malformed.
  """
  if not args.data:
    raise UsageError('--report wmt20 needs --data DIR')
  own: dict[str, list[scores.ScoreTable]] = {}
  options = _score_files.layout_options(args)
  for name, path in _usage.split_files(args.files):
    if name is None:
      raise UsageError(f'--report wmt20 takes NAME=FILE, not {path!r}')
    own.setdefault(name, []).extend(layouts.read(path, [name], options, name))
  metrics = _usage.split_names(args.metrics)
  metrics = metrics or [*wmt20.DEFAULT_METRICS, *own]
  _correlate_arguments.check_metrics(args, metrics)
  unsupervised = [
    m for m in metrics if m not in wmt20.SUPERVISED and m not in own
  ]
  if args.unsupervised is not None:
    unsupervised = _usage.split_names(args.unsupervised)
  settings = wmt20.Settings(
    tuple(metrics),
    tuple(unsupervised),
    1000 if args.bootstrap is None else args.bootstrap,
    args.seed,
    args.intersect,
  )
  blocks, notes = wmt20.report(wmt20_data.Data(args.data, own), settings)
  return wmt20_tables.render_blocks(
    blocks,
    settings,
    notes,
    args.table,
    1 if args.digits is None else args.digits,
  )


def category_columns(args: argparse.Namespace) -> tuple[str, ...]:
  """The columns of error categories that a report looks for."""
  human = args.human or 'mqm'
  args.human = human
  names = (*mqm.CATEGORIES, 'non-translation', 'other', 'source-error')
  return tuple(f'{human}-{name}' for name in names)


def categories_report(
  args: argparse.Namespace,
  grids: Sequence[scores.ScoreGrid],
  notes: Sequence[str],
) -> str:
  """Errors by category, for each language pair and on average."""
  prefix = f'{args.human}-'
  metrics = [m for m in grids[0].metrics if not m.startswith(prefix)]
  categories = [m for m in grids[0].metrics if m.startswith(prefix)]
  notes = list(notes)
  errors: dict[tuple[str, str], list[float]] = {}
  for grid in grids:
    config = AgreementConfig(exclude=args.exclude_systems)
    chosen = selection.choose_systems(grid, config, notes)
    where = grid.prefix
    for category in ('', *categories):
      gold = chosen.metrics[category] if category else chosen.human
      if not np.any(gold[~np.isnan(gold)]):
        what = category.removeprefix(prefix) or 'any kind'
        notes.append(f'{grid.language_pair}: no error of {what}')
        continue
      for metric in metrics:
        with correlation.note_constants(notes, metric, where):
          value = mqm.category_error(
            gold, chosen.metrics[metric], args.normalise
          )
        errors.setdefault((metric, category), []).append(value)
  columns = [c for c in ('', *categories) if (metrics[0], c) in errors]
  title = (
    f'Root mean squared error after normalisation ({args.normalise}); lower is '
    f'better; mean over {", ".join(g.language_pair or "all" for g in grids)}'
  )
  return tables.render_values(
    title,
    ['overall' if not c else c.removeprefix(prefix) for c in columns],
    metrics,
    [[float(np.mean(errors[m, c])) for c in columns] for m in metrics],
    notes,
    args.table,
    4 if args.digits is None else args.digits,
  )


_STATISTIC_NAMES = {
  'darr': 'tau on ranked pairs',
  'pearson': 'Pearson',
  'spearman': 'Spearman',
  'kendall': 'Kendall tau-b',
  'kendall-c': 'Kendall tau-c',
  'accuracy': 'pairwise accuracy',
  'calibrated-accuracy': 'tie-calibrated accuracy',
  'soft-accuracy': 'soft pairwise accuracy',
}


def _label(args: argparse.Namespace) -> str:
  group = '' if args.group == 'none' else f' by {args.group}'
  return f'{args.level}-level {_STATISTIC_NAMES[args.stat]}{group}'


def plot_curve(args: argparse.Namespace, curve: agreement.Curve) -> None:
  """Draws curves over the number of systems."""
  where = curve.column or 'all segments'
  figure = plots.curves(curve, f'The best systems only, {where}', _label(args))
  plots.save(figure, args.plot)


def plot_report(
  args: argparse.Namespace,
  report: agreement.Report,
  grids: Sequence[scores.ScoreGrid],
) -> None:
  """Draws a report as bars, or its points."""
  kind = args.plot_kind or ('bars' if len(report.metrics) > 1 else 'scatter')
  if kind == 'bars':
    title = f'Agreement with {args.human or "ranked pairs"}'
    figure = plots.bars(report, title, _label(args))
  else:
    figure = plots.scatter(
      _panels(report, grids),
      f'human score ({args.human})',
      f'Metric scores against {args.human}, {args.level}s',
    )
  plots.save(figure, args.plot)


def _panels(
  report: agreement.Report, grids: Sequence[scores.ScoreGrid]
) -> list[plots.Panel]:
  config = report.config
  panels = []
  for grid in grids:
    if grid.language_pair not in report.columns:
      continue  # It has no human judgments.
    chosen = selection.choose_systems(grid, config, [])
    if np.isnan(chosen.human).all():
      raise InputError('a scatter plot needs human scores: --human COL')
    for name, values in chosen.metrics.items():
      cell = report.cells[name, grid.language_pair]
      both = ~np.isnan(chosen.human) & np.isfinite(values)
      x, y = chosen.human[both], values[both]
      names: tuple[str, ...] = ()
      if config.level == 'system':
        x = correlation.system_means(chosen.human)
        y = correlation.system_means(values)
        names = chosen.systems
      where = f', {grid.language_pair}' if grid.language_pair else ''
      what = _STATISTIC_NAMES[config.statistic]
      note = f'{what} {cell.value:.3f}, {len(x)} points'
      panels.append(plots.Panel(f'{name}{where}', x, y, names, note))
  return panels
