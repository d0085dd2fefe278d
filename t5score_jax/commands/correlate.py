"""`t5score correlate`: how far metrics' scores agree with human judgments.

Reads score files, asks `evaluation`, prints a table and draws a picture.
Scores nothing and imports no JAX.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from t5score_jax.commands import (
  _correlate_arguments,
  _correlate_reports,
  _score_files,
  _usage,
)
from t5score_jax.data import files
from t5score_jax.errors import UsageError
from t5score_jax.evaluation import agreement, scores
from t5score_jax.evaluation.readers import layouts
from t5score_jax.evaluation.reports import plots, tables

SUMMARY = 'correlate metric scores with human judgments'

add_arguments = _correlate_arguments.add_arguments


def _named_files(
  args: argparse.Namespace,
) -> tuple[list[tuple[str | None, str]], list[str]]:
  """The files by name, and the metrics asked for.

  Raises:
    UsageError: A metric is named twice or not at all, or there is no file.
  """
  if not args.files:
    raise UsageError('no files: give [NAME=]FILE')
  named = _score_files.split_files(args.files)
  metrics = _score_files.split_names(args.metrics or '')
  # A name may be given to several files, such as one for each language pair.
  given = list(dict.fromkeys(name for name, _ in named if name))
  metrics = metrics or given or ['score']
  if len(set(metrics)) != len(metrics):
    raise UsageError(f'a metric is named twice: {", ".join(metrics)}')
  _correlate_arguments.check_metrics(args, metrics)
  return named, metrics


def read_grids(
  args: argparse.Namespace, also: tuple[str, ...] = ()
) -> tuple[list[scores.ScoreGrid], list[str]]:
  """Reads and joins the files of the command line.

  Args:
    args: The arguments.
    also: Further columns, which become metrics where the files have them.

  Returns:
    A grid a language pair, and notes on what of the files was not used.

  Raises:
    files.RecordError: Something in a file is not as it must be.
    UsageError: The arguments contradict each other.
    ValueError: The files have no such language pair.
  """
  named, metrics = _named_files(args)
  wanted = [*metrics, *([args.human] if args.human else []), *also]
  # A folder has official system scores, which serve unless segments are drawn.
  drawn = args.bootstrap or args.baseline or args.test
  by_system = args.level == 'system' and args.stat != 'soft-accuracy'
  options = _score_files.layout_options(
    args, 'sys' if by_system and not drawn else 'seg'
  )
  loaded = [
    table
    for name, path in named
    for table in layouts.read(path, wanted, options, name)
  ]
  if args.loose_names:
    loaded = [scores.with_plain_systems(table) for table in loaded]
  columns = {name for table in loaded for name in table.values}
  metrics += [name for name in also if name in columns and name not in metrics]
  grids = scores.join(loaded, args.human, metrics, pooled=args.by == 'none')
  language_pair = args.language_pair
  if language_pair:
    there_are = [grid.language_pair for grid in grids]
    if language_pair in there_are:
      grids = [grids[there_are.index(language_pair)]]
    elif there_are == ['']:
      grids = [grids[0].with_language_pair(language_pair)]
    else:
      raise ValueError(
        f'no language pair {language_pair!r}; the files have '
        + ', '.join(there_are)
      )
  notes = [note for table in loaded for note in table.notes]
  notes += [
    f'{grid.language_pair}: {one} and {other} may be one system (--loose-names)'
    for grid in grids
    for one, other in scores.two_spellings(grid)
  ]
  return grids, notes


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit status."""
  _correlate_arguments.settle(args)
  _check_picture(args)
  _check_outputs(args)
  text, draw = _measure(args)
  with files.write_atomically(args.output) as out:
    out.write(text + '\n')
  # After the table, which is there even if it cannot be drawn.
  if args.plot:
    draw()
  return 0


def _check_picture(args: argparse.Namespace) -> None:
  """Finds out before the work whether there can be a picture."""
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


def _check_outputs(args: argparse.Namespace) -> None:
  """Finds out before the work whether an output would destroy an input."""
  named = [path for _, path in _score_files.split_files(args.files)]
  for flag, output in (('-o', args.output), ('--plot', args.plot)):
    if output:
      files.check_not_input(output, [*named, args.pairs], flag)


def _measure(args: argparse.Namespace) -> tuple[str, Callable[[], None]]:
  """The table, and what draws the picture."""

  def nothing() -> None:
    """Reports have no picture."""

  if args.report == 'wmt20':
    return _correlate_reports.wmt20_report(args), nothing
  if args.report == 'categories':
    columns = _correlate_reports.category_columns(args)
    grids, notes = read_grids(args, columns)
    text = _correlate_reports.categories_report(args, grids, notes)
    return text, nothing
  config = _correlate_arguments.agreement_config(args)
  grids, notes = read_grids(args)
  digits = 4 if args.digits is None else args.digits
  several = _correlate_arguments.top_k(args)
  if len(several) > 1:
    curve = agreement.measure_top(grids, config, several)
    text = tables.render_curve(curve, args.format, digits, notes)
    return text, lambda: _correlate_reports.plot_curve(args, curve)
  report = agreement.measure(grids, config)
  text = tables.render(report, args.format, digits, notes)
  return text, lambda: _correlate_reports.plot_report(args, report, grids)
