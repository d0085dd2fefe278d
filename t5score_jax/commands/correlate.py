"""`t5score correlate`: agreement of metric scores with human judgments.

Reads score files or scores texts, measures with `evaluation/`, prints a table
and draws a plot. JAX is imported only when texts are scored with a model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from t5score_jax.commands import (
  _correlate_arguments,
  _correlate_reports,
  _correlate_texts,
  _score_files,
  _text_files,
  _usage,
)
from t5score_jax.data import files
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import agreement, scores
from t5score_jax.evaluation.readers import layouts
from t5score_jax.evaluation.reports import plots, tables

SUMMARY = 'correlate metric scores with human judgments'

DESCRIPTION = _correlate_arguments.DESCRIPTION
EPILOG = _correlate_arguments.EPILOG

add_arguments = _correlate_arguments.add_arguments


def _named_files(
  args: argparse.Namespace,
) -> tuple[list[tuple[str | None, str]], list[str]]:
  """The files by name, and the metrics to measure.

  Raises:
    UsageError: A metric is named twice or is unknown, or there is no file.
  """
  scored = _correlate_texts.labels(args)
  if not (args.files or scored):
    raise UsageError('no files: give [NAME=]FILE, or -m and texts')
  named = _usage.split_files(args.files)
  # Several files may share a name, such as one for each language pair.
  given = [*scored, *dict.fromkeys(name for name, _ in named if name)]
  metrics = _usage.split_names(args.metrics) or given or ['score']
  _correlate_arguments.check_metrics(args, metrics)
  return named, metrics


def _read_grids(
  args: argparse.Namespace, also: tuple[str, ...] = ()
) -> tuple[list[scores.ScoreGrid], list[str]]:
  """Reads and joins the files of the command line.

  Args:
    args: The arguments.
    also: Further columns, which become metrics if the files have them.

  Returns:
    A grid per language pair, and notes on unused parts of the files.

  Raises:
    files.RecordError: A file is malformed.
    UsageError: The arguments contradict each other.
    InputError: The files have no such language pair.
  """
  named, metrics = _named_files(args)
  wanted = [*metrics, *([args.human] if args.human else []), *also]
  official = (
    args.level == 'system'
    and args.stat != 'soft-accuracy'
    and args.system_scores == 'official'
  )
  drawn = args.bootstrap or args.baseline or args.test == 'bootstrap'
  drawn = drawn or (args.unsupervised is not None and not args.test)
  if official and drawn:
    _refuse_to_resample(named)
  options = _score_files.layout_options(
    _correlate_texts.of_files(args), 'sys' if official else 'seg'
  )
  loaded = [
    table
    for name, path in named
    for table in layouts.read(path, wanted, options, name)
  ]
  if args.model:
    loaded.append(_correlate_texts.score(args))
  if args.loose_names:
    loaded = [scores.with_plain_systems(table) for table in loaded]
  loaded = scores.numbered(loaded)
  columns = {name for table in loaded for name in table.values}
  metrics += [name for name in also if name in columns and name not in metrics]
  grids = _score_files.of_language_pair(
    scores.join(loaded, args.human, metrics, pooled=args.by == 'none'),
    args.language_pair,
  )
  notes = [note for table in loaded for note in table.notes]
  notes += [
    f'{grid.language_pair}: {one} and {other} may be one system (--loose-names)'
    for grid in grids
    for one, other in scores.two_spellings(grid)
  ]
  return grids, notes


def _refuse_to_resample(named: list[tuple[str | None, str]]) -> None:
  """Raises UsageError for a folder: its system scores have no segments."""
  for _, path in named:
    if os.path.isdir(path):
      raise UsageError(
        f'{path}: the bootstrap draws segments, and official system scores '
        '(.sys.score) are not their means; add --system-scores means to '
        'measure the means of .seg.score, or --test permutation'
      )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit status."""
  _correlate_arguments.settle(args)
  _check_plot(args)
  named = [path for _, path in _usage.split_files(args.files)]
  read = [*named, args.pairs, *_text_files.inputs(args)]
  for flag, output in (('-o', args.output), ('--plot', args.plot)):
    if output:
      _usage.check_writable(output, read, flag)
  text, draw = _measure(args)
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  # After the table, which is written even if drawing fails.
  if args.plot:
    draw()
  return 0


def _check_plot(args: argparse.Namespace) -> None:
  """Checks the options of --plot before the work."""
  if not args.plot:
    return
  with _usage.blamed():
    plots.format_of(args.plot)
  several = len(_correlate_arguments.top_k(args)) > 1
  if several and args.plot_kind not in (None, 'curves'):
    raise UsageError(
      f'several --top-k are drawn as curves, not {args.plot_kind}'
    )
  if args.plot_kind == 'curves' and not several:
    raise UsageError('curves need several numbers: --top-k 4,6,8')
  if args.plot_kind == 'scatter' and not args.human:
    raise UsageError('a scatter plot needs human scores: --human COL')
  plots.check_available()


def _measure(args: argparse.Namespace) -> tuple[str, Callable[[], None]]:
  """The table, and a function that draws the plot."""

  def nothing() -> None:
    """Reports have no plot."""

  if args.report == 'wmt20':
    return _correlate_reports.wmt20_report(args), nothing
  if args.report == 'categories':
    columns = _correlate_reports.category_columns(args)
    grids, notes = _read_grids(args, columns)
    text = _correlate_reports.categories_report(args, grids, notes)
    return text, nothing
  config = _correlate_arguments.agreement_config(args)
  grids, notes = _read_grids(args)
  if config.pairs:
    notes += config.pairs.notes
  digits = 4 if args.digits is None else args.digits
  several = _correlate_arguments.top_k(args)
  if len(several) > 1:
    curve = agreement.measure_top(grids, config, several)
    text = tables.render_curve(curve, args.table, digits, notes)
    return text, lambda: _correlate_reports.plot_curve(args, curve)
  report = agreement.measure(grids, config)
  text = tables.render(report, args.table, digits, notes)
  return text, lambda: _correlate_reports.plot_report(args, report, grids)
