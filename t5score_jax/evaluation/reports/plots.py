"""Plots of agreement: scatter, bars with intervals, curves, sizes.

Draws measurements made elsewhere, as PNG, SVG or PDF. matplotlib (the extra
`plot`) is imported when a plot is drawn.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation.agreement import Curve, Report
from t5score_jax.evaluation.reports import plot_labels, retention, tables

KINDS = ('scatter', 'bars', 'curves')
FORMATS = ('png', 'svg', 'pdf')
MAX_PANELS = 12
# Okabe and Ito's colours, distinct also in colour-blind vision.
COLOURS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
_MARKERS = 'osD^vPX'
_GREY = plot_labels.GREY


@dataclasses.dataclass(frozen=True)
class Panel:
  """The points of one panel of a scatter plot.

  Attributes:
    title: Above the panel.
    human: Human scores, [P].
    metric: Metric scores, [P].
    names: Labels of the points; empty for none.
    note: The statistic, in the corner.
  """

  title: str
  human: np.ndarray
  metric: np.ndarray
  names: tuple[str, ...] = ()
  note: str = ''


def format_of(path: str | os.PathLike[str]) -> str:
  """A name in `FORMATS`, by the ending of a path.

  Raises:
    InputError: Another ending.
  """
  ending = os.path.splitext(os.fspath(path))[1].lower().removeprefix('.')
  if ending not in FORMATS:
    raise InputError(f'{os.fspath(path)}: a picture is .png, .svg or .pdf')
  return ending


def check_available() -> None:
  """Raises InputError if matplotlib is not installed."""
  try:
    import matplotlib  # noqa: F401
  except ImportError as error:
    raise InputError(
      "pictures need matplotlib: pip install 't5score-jax[plot]'"
    ) from error


def _figure(
  width: float, height: float, rows: int = 1, columns: int = 1
) -> Any:
  # (figure, array of axes)
  check_available()
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout='constrained')
  FigureCanvasAgg(figure)
  axes = figure.subplots(rows, columns, squeeze=False)
  for ax in axes.flat:
    for side in ('top', 'right'):
      ax.spines[side].set_visible(False)
    for side in ('left', 'bottom'):
      ax.spines[side].set_color(_GREY)
    ax.tick_params(colors=_GREY, labelsize=8)
    ax.set_axisbelow(True)
  return figure, axes


def save(figure: Any, path: str | os.PathLike[str]) -> None:
  """Writes a figure; it appears whole or not at all."""
  import matplotlib

  # Reproducible bytes: no date, and ids that do not change.
  with (
    matplotlib.rc_context({'svg.hashsalt': 't5score', 'svg.fonttype': 'none'}),
    files.write_atomically(path, 'wb') as out,
  ):
    kind = format_of(path)
    date = {'svg': 'Date', 'pdf': 'CreationDate', 'png': 'Software'}[kind]
    figure.savefig(out, format=kind, dpi=150, metadata={date: None})


def scatter(panels: Sequence[Panel], human_label: str, title: str) -> Any:
  """Human scores against each metric's, with the least-squares line.

  Raises:
    InputError: No panel, or more than `MAX_PANELS`.
  """
  if not 0 < len(panels) <= MAX_PANELS:
    raise InputError(
      f'{len(panels)} panels of scatter do not fit (at most {MAX_PANELS}): '
      'choose metrics or a language pair'
    )
  columns = min(len(panels), 3 if len(panels) != 4 else 2)
  rows = math.ceil(len(panels) / columns)
  width = 4.2 * columns + (0.8 if columns == 1 else 0)
  figure, axes = _figure(width, 3.6 * rows + 0.4, rows, columns)
  for ax, panel in zip(axes.flat, panels, strict=False):
    _draw_points(ax, panel)
    ax.set_xlabel(human_label, fontsize=9)
    ax.set_ylabel('metric score', fontsize=9)
    ax.set_title(panel.title, fontsize=10, loc='left', pad=18)
    note = panel.note
    if is_jittered(panel.human) or is_jittered(panel.metric):
      note += ', jittered'
    ax.text(0, 1.03, note, transform=ax.transAxes, fontsize=8, color=_GREY)
  for ax in axes.flat[len(panels) :]:
    ax.set_visible(False)
  figure.suptitle(title, fontsize=11)
  return figure


def _draw_points(ax: Any, panel: Panel) -> None:
  x, y = panel.human, panel.metric
  many = len(x) > 200
  ax.scatter(
    _jittered(x, 0),
    _jittered(y, 1),
    s=5 if many else 26,
    alpha=max(0.06, min(0.5, 400 / len(x))) if many else 0.9,
    color=COLOURS[0],
    linewidths=0,
    # A vector file with ten thousand circles is slow to open.
    rasterized=many,
  )
  line: list[tuple[float, float]] = []
  if len(x) > 1 and np.ptp(x) > 0:
    slope, intercept = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    line = [(end, slope * end + intercept) for end in ends.tolist()]
    ax.plot(*zip(*line, strict=True), color=COLOURS[1], linewidth=1.6)
  if panel.names:
    ax.margins(x=0.25, y=0.15)
    points = plot_labels.fractions(ax, x, y)
    taken = plot_labels.line_boxes(ax, line)
    plot_labels.put_names(ax, points, panel.names, taken, 6.5, (0.0165, 0.034))


def is_jittered(values: np.ndarray) -> bool:
  """Whether a scatter plot jitters these values: many, but few distinct."""
  distinct = len(np.unique(values))
  return len(values) > 50 and 1 < distinct <= min(101, len(values) // 4)


def _jittered(values: np.ndarray, seed: int) -> np.ndarray:
  # Moved at random by less than half the distance to the next value, so that
  # equal points do not hide each other.
  if not is_jittered(values):
    return values
  gap = np.diff(np.unique(values)).min()
  generator = np.random.default_rng(seed)
  return values + generator.uniform(-0.35, 0.35, len(values)) * gap


def bars(report: Report, title: str, ylabel: str = '') -> Any:
  """Each metric's value with its 95% interval, one panel per column.

  If there are too many columns, only the averages are drawn.

  Raises:
    InputError: Too many columns without an average.
  """
  columns = list(report.columns)
  if len(columns) > MAX_PANELS:
    columns = [c for c in columns if c.startswith('Avg')]
  if not columns:
    raise InputError('too many language pairs for a picture')
  across = min(len(columns), 4)
  down = math.ceil(len(columns) / across)
  order = sorted(
    report.metrics, key=lambda m: report.cells[m, report.columns[-1]].value
  )
  figure, axes = _figure(
    2.6 * across + 1.6, (0.34 * len(order) + 0.9) * down + 0.5, down, across
  )
  places = np.arange(len(order))
  for index, (ax, column) in enumerate(zip(axes.flat, columns, strict=False)):
    cells = [report.cells[name, column] for name in order]
    ax.grid(axis='x', color='#e3e6ea', linewidth=0.8)
    ax.barh(places, [c.value for c in cells], height=0.62, color=COLOURS[0])
    _draw_intervals(ax, places, cells)
    ax.axvline(0, color=_GREY, linewidth=0.8)
    ax.set_yticks(places, order if index % across == 0 else [''] * len(order))
    ax.tick_params(axis='y', length=0, labelcolor='black')
    ax.set_title(column or 'all', fontsize=10, loc='left')
    count = f'n = {cells[0].count} {tables.counted(report, column)}'
    count = count.replace(' 1 language pairs', ' 1 language pair')
    ax.set_xlabel(f'{ylabel}\n{count}' if ylabel else count, fontsize=9)
  shown = [report.cells[name, c] for name in order for c in columns]
  ends = [e for c in shown for e in (0.0, c.value, c.low, c.high)]
  low, high = (f(e for e in ends if e is not None) for f in (min, max))
  # One scale for all panels; room for the numbers at the bars' ends.
  room = 0.22 * ((high - low) or 1.0)
  below = any(c.value < 0 for c in shown)
  for ax in axes.flat:
    ax.locator_params(axis='x', nbins=5)
    ax.set_xlim(
      low - (room if below else 0.1 * room if low < 0 else 0), high + room
    )
  for ax in axes.flat[len(columns) :]:
    ax.set_visible(False)
  figure.suptitle(title, fontsize=11)
  if any(c.low is not None for c in shown):
    _explain(figure, f'whiskers: {_interval_text(report.config.resamples)}')
  return figure


def _interval_text(resamples: int) -> str:
  return f'95% interval, bootstrap over segments, {resamples} resamples'


def _explain(figure: Any, text: str) -> None:
  figure.supxlabel(text, fontsize=8, color=_GREY, x=0.01, ha='left')


def _draw_intervals(ax: Any, places: np.ndarray, cells: Sequence[Any]) -> None:
  given = [k for k, c in enumerate(cells) if c.low is not None]
  if given:
    low = [cells[k].value - cells[k].low for k in given]
    high = [cells[k].high - cells[k].value for k in given]
    ax.errorbar(
      [cells[k].value for k in given],
      places[given],
      # A percentile interval need not contain the value itself.
      xerr=np.maximum([low, high], 0.0),
      fmt='none',
      ecolor='black',
      elinewidth=1.1,
      capsize=2.5,
    )
  for place, cell in zip(places, cells, strict=True):
    # Beyond the ends of the bar and of its interval.
    ends = (cell.value, *(e for e in (cell.low, cell.high) if e is not None))
    negative = cell.value < 0
    label = f'{cell.value:.3f}'.replace('0.', '.', 1) + cell.mark
    ax.annotate(
      label,
      (min(ends) if negative else max(*ends, 0), place),
      (-3 if negative else 3, 0),
      textcoords='offset points',
      fontsize=7.5,
      va='center',
      ha='right' if negative else 'left',
      color=_GREY,
    )


def curves(curve: Curve, title: str, ylabel: str) -> Any:
  """The statistic by number of best systems (T5Score's Figure 6).

  Points of different metrics are shifted sideways, so that their whiskers do
  not overlap.
  """
  figure, axes = _figure(6.4, 4.0)
  ax = axes[0, 0]
  ax.grid(axis='y', color='#e3e6ea', linewidth=0.8)
  ends = []
  for k, metric in enumerate(curve.metrics):
    colour = COLOURS[k % len(COLOURS)]
    values = curve.values(metric)
    intervals = curve.intervals(metric)
    places = np.array(curve.top_k, np.float64)
    if intervals is not None:
      share = (k + 0.5) / len(curve.metrics) - 0.5
      places += 0.3 * share * np.diff(curve.top_k).min()
    ax.plot(
      places,
      values,
      color=colour,
      marker=_MARKERS[k % len(_MARKERS)],
      markersize=5,
      linewidth=1.8,
      label=metric,
    )
    if intervals is not None:
      ax.vlines(places, *intervals, color=colour, linewidth=1.1)
      resamples = curve.reports[0].config.resamples
      _explain(figure, f'whiskers: {_interval_text(resamples)}')
    ends.append(values[-1])
  ax.set_xticks(curve.top_k)
  first = curve.reports[0]
  unit = tables.counted(first, curve.column)
  count = first.cells[curve.metrics[0], curve.column].count
  over = f', mean over {count} {unit}' if unit == 'language pairs' else ''
  ax.set_xlabel(f'best systems{over}', fontsize=9)
  ax.set_ylabel(ylabel, fontsize=9)
  ax.set_title(title, fontsize=11, loc='left')
  handles, labels = ax.get_legend_handles_labels()
  # In the order of the lines' right ends, to make them easy to find.
  order = np.argsort(ends)[::-1]
  ax.legend(
    [handles[k] for k in order],
    [labels[k] for k in order],
    fontsize=8,
    frameon=False,
    loc='center left',
    bbox_to_anchor=(1.0, 0.5),
  )
  return figure


def sizes(report: retention.Report) -> Any:
  """Size against the share of the teacher's agreement that is retained.

  The parameter axis is logarithmic; metrics without a model are lines.

  Raises:
    InputError: No metric has parameters, or the teacher agrees with nobody.
  """
  rows = [row for row in report.rows if not math.isnan(row.kept)]
  sized = [row for row in rows if row.measured.parameters]
  if not sized:
    raise InputError('nothing to draw: no metric has parameters and agreement')
  figure, axes = _figure(6.4, 4.2)
  ax = axes[0, 0]
  _scale_to_counts(ax)
  ax.grid(axis='y', color='#e3e6ea', linewidth=0.8)
  ax.axhline(100, color=_GREY, linewidth=0.8)
  for k, role in enumerate(retention.ROLES):
    chosen = [row for row in sized if row.measured.role == role]
    if chosen:
      _draw_sizes(ax, chosen, role, k)
  students = sorted(
    (r.measured.parameters or 0, 100 * r.kept)
    for r in sized
    if r.measured.role == retention.STUDENT
  )
  if students:
    ax.plot(*zip(*students, strict=True), color=COLOURS[1], linewidth=1.2)
  lines = sorted(
    (100 * row.kept, row.measured.name)
    for row in rows
    if not row.measured.parameters
  )
  for height, _ in lines:
    ax.axhline(height, color=_GREY, linestyle=':', linewidth=1.1)
  ax.margins(x=0.2, y=0.15)
  _name_lines(ax, lines)
  if report.resamples:
    _explain(figure, f'whiskers: {_interval_text(report.resamples)}')
  _name_sizes(ax, sized, [100.0, *(height for height, _ in lines)], students)
  ax.set_xlabel('parameters', fontsize=9)
  ax.set_ylabel("% of the teacher's Pearson with human ratings", fontsize=9)
  ax.set_title(
    'Agreement retained from the teacher', fontsize=11, loc='left', pad=22
  )
  ax.legend(
    fontsize=8,
    frameon=False,
    loc='lower left',
    bbox_to_anchor=(0.0, 1.0),
    borderaxespad=0.1,
    ncols=len(retention.ROLES),
  )
  return figure


def _name_lines(ax: Any, lines: Sequence[tuple[float, str]]) -> None:
  # Right of the axes, in order, each as close to its line as the others allow.
  if not lines:
    return
  heights = plot_labels.fractions(
    ax, [1.0] * len(lines), [height for height, _ in lines]
  )
  for (_, name), height, place in zip(
    lines, heights[:, 1], plot_labels.spread(heights[:, 1], 0.045), strict=True
  ):
    ax.annotate(
      name,
      (1.0, height),
      (1.03, place),
      xycoords='axes fraction',
      textcoords='axes fraction',
      fontsize=8,
      va='center',
      color=_GREY,
      arrowprops={
        'arrowstyle': '-',
        'color': _GREY,
        'linewidth': 0.6,
        'shrinkA': 0,
        'shrinkB': 0,
      },
    )


def _name_sizes(
  ax: Any,
  rows: Sequence[retention.Row],
  lines: Sequence[float],
  students: Sequence[tuple[float, float]],
) -> None:
  # Beside the points, clear of the lines, the intervals and the students' line.
  def at(values: Sequence[tuple[float, float]]) -> list[list[float]]:
    return plot_labels.fractions(ax, *zip(*values, strict=True)).tolist()

  x = float(rows[0].measured.parameters or 1)
  obstacles: list[plot_labels.Box] = [
    (0.0, b - 0.008, 1.0, b + 0.008) for _, b in at([(x, h) for h in lines])
  ]
  for row in rows:
    low, high = row.interval or (row.kept, row.kept)
    size = float(row.measured.parameters or 1)
    (a, bottom), (_, top) = at([(size, 100 * low), (size, 100 * high)])
    obstacles.append((a - 0.008, bottom, a + 0.008, top))
  obstacles += plot_labels.line_boxes(ax, students)
  places = [(float(r.measured.parameters or 1), 100 * r.kept) for r in rows]
  names = [row.measured.name for row in rows]
  plot_labels.put_names(
    ax, np.array(at(places)), names, obstacles, 8, (0.0135, 0.042)
  )


def _scale_to_counts(ax: Any) -> None:
  """A logarithmic axis that says 2M and 500k."""
  from matplotlib import ticker

  def label(value: float, place: int) -> str:
    del place
    unit = next(u for u in (1e9, 1e6, 1e3, 1) if value >= u or u == 1)
    return f'{value / unit:g}' + {1e9: 'G', 1e6: 'M', 1e3: 'k', 1: ''}[unit]

  ax.set_xscale('log')
  ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  ax.xaxis.set_major_formatter(ticker.FuncFormatter(label))
  ax.xaxis.set_minor_locator(ticker.NullLocator())


def _draw_sizes(
  ax: Any, rows: Sequence[retention.Row], role: str, number: int
) -> None:
  x = [row.measured.parameters for row in rows]
  y = np.array([100 * row.kept for row in rows])
  ends = np.array(
    [100 * np.array(row.interval or (row.kept,) * 2) for row in rows]
  )
  ax.errorbar(
    x,
    y,
    yerr=np.maximum([y - ends[:, 0], ends[:, 1] - y], 0.0),
    fmt=_MARKERS[number],
    color=COLOURS[number],
    markersize=6,
    elinewidth=1.0,
    capsize=2.5,
    label=role,
  )
