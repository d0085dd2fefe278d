"""SVG plots of the board's page: intervals, curves, points.

Colours are CSS classes, so that plots follow the light or dark theme, which
images drawn by matplotlib (`evaluation/reports/plots.py`) would not. Each mark
has a title for pointers and screen readers. `site/plot.svg` is the template.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

SITE = Path(__file__).parent / 'site'
_WIDTH = 640
_ROW = 22
_TOP = 10
_BOTTOM = 44


@functools.cache
def environment() -> jinja2.Environment:
  """The templates; undefined names are errors."""
  return jinja2.Environment(
    loader=jinja2.FileSystemLoader(SITE),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )


@dataclasses.dataclass(frozen=True)
class Mark:
  """A value to draw.

  Attributes:
    label: The name of the value.
    value: The value; the y coordinate of a point.
    low: Lower end of the interval, if any.
    high: Upper end of the interval, if any.
    kind: The CSS class: 'plain', 'strong', 'over', 'under' or 'human'.
    x: The x coordinate of a point.
  """

  label: str
  value: float
  low: float | None = None
  high: float | None = None
  kind: str = 'plain'
  x: float = 0.0


def ticks(low: float, high: float, count: int = 6) -> list[float]:
  """About `count` round numbers that cover `low` to `high`."""
  span = high - low
  if not span > 0:
    span = abs(high) or 1.0
    low, high = low - span / 2, high + span / 2
  raw = span / count
  size = 10.0 ** math.floor(math.log10(raw))
  step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
  first, last = math.floor(low / step), math.ceil(high / step)
  return [round(n * step, 12) for n in range(first, last + 1)]


def amount(value: float | None) -> str:
  """Formats a cost: three digits, thousands as k, M, G."""
  if value is None:
    return '–'
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if abs(value) >= size:
      return f'{value / size:.3g}{unit}'
  return f'{value:.3g}'


def _tick(value: float) -> str:
  return f'{value:g}'.replace('-', '\N{MINUS SIGN}')


def _cut(text: str, length: int) -> str:
  return text if len(text) <= length else text[: length - 1] + '…'


class _Plot:
  """The elements of a plot, and the scales of its axes."""

  def __init__(
    self,
    across: Sequence[float],
    up: Sequence[float],
    height: float,
    left: float,
    right: float,
  ):
    """Makes a plot of the given ticks and size, in pixels."""
    self.left, self.height = left, height
    self._x0, self._y0 = across[0], up[0]
    self._sx = (_WIDTH - left - right) / ((across[-1] - across[0]) or 1.0)
    self._sy = (height - _TOP - _BOTTOM) / ((up[-1] - up[0]) or 1.0)
    self.lines: list[tuple[Any, ...]] = []
    self.texts: list[tuple[float, float, str, str]] = []
    self.marks: list[dict[str, Any]] = []
    self.front: list[tuple[float, float]] = []
    self.up = ''

  def x(self, value: float) -> float:
    return self.left + (value - self._x0) * self._sx

  def y(self, value: float) -> float:
    return self.height - _BOTTOM - (value - self._y0) * self._sy

  def text(self, x: float, y: float, text: str, css: str) -> None:
    self.texts.append((x, y, text, css))

  def mark(
    self, css: str, title: str, *points: tuple[float, float], **values: Any
  ) -> None:
    shape = {'row': None, 'line': None, 'curve': False, **values}
    self.marks.append({'css': css, 'title': title, 'points': points, **shape})

  def grid(
    self,
    across: Sequence[float],
    up: Sequence[float],
    labels: Sequence[str],
    axes: tuple[str, str],
  ) -> None:
    """Horizontal lines, ticks and the labels of the axes."""
    right, bottom = self.x(across[-1]), self.height - _BOTTOM
    for value in up:
      y = self.y(value)
      self.lines.append((self.left, right, y, y, 'grid'))
      self.text(self.left - 8, y + 4, _tick(value), 'label')
    for value, label in zip(across, labels, strict=True):
      self.text(self.x(value), bottom + 18, label, 'tick')
    self.text((self.left + right) / 2, bottom + 36, axes[0], 'axis')
    self.up = axes[1]

  def svg(self, title: str) -> Markup:
    return Markup(
      environment()
      .get_template('plot.svg')
      .render(width=_WIDTH, title=title, **vars(self))
    )


def intervals(marks: Sequence[Mark], title: str, axis: str) -> Markup:
  """Draws one row per mark: a point and its interval.

  Args:
    marks: The marks, from top to bottom.
    title: The plot's title for screen readers.
    axis: The label of the axis.

  Returns:
    The SVG; empty if there are no marks.
  """
  if not marks:
    return Markup('')
  ends = [x for m in marks for x in (m.value, m.low, m.high) if x is not None]
  across = ticks(min(0.0, *ends), max(0.0, *ends))
  bottom = _TOP + _ROW * len(marks)
  plot = _Plot(across, [0, 1], bottom + _BOTTOM, 190, 20)
  for value in across:
    x = plot.x(value)
    plot.lines.append((x, x, _TOP, bottom, 'grid' if value else 'zero'))
    plot.text(x, bottom + 16, _tick(value), 'tick')
  plot.text((plot.left + _WIDTH) / 2, bottom + 34, axis, 'axis')
  for n, mark in enumerate(marks):
    top, line = _TOP + _ROW * n, None
    y = top + _ROW / 2
    label = f'{mark.label}: {mark.value:.3f}'
    if mark.low is not None and mark.high is not None:
      label += f' [{mark.low:.3f}, {mark.high:.3f}]'
      line = (plot.x(mark.low), plot.x(mark.high), y, y, 'whisker')
    plot.text(plot.left - 10, y + 4, _cut(mark.label, 26), 'label')
    point = (plot.x(mark.value), y)
    plot.mark(f'mark {mark.kind}', label, point, row=top, line=line)
  return plot.svg(title)


def curves(
  lines: Mapping[str, Mapping[float, float]],
  title: str,
  axes: tuple[str, str],
) -> Markup:
  """Draws curves over small integers, each labelled at its end.

  Args:
    lines: Name -> x -> y.
    title: The plot's title for screen readers.
    axes: The labels of x and y.

  Returns:
    The SVG; empty if there are no curves.
  """
  points = [point for line in lines.values() for point in line.items()]
  if not points:
    return Markup('')
  across = sorted({x for x, _ in points})
  up = ticks(min(y for _, y in points), max(y for _, y in points), 5)
  plot = _Plot(across, up, 320, 64, 150)
  plot.grid(across, up, [f'{x:g}' for x in across], axes)
  ends = ((line[max(line)], name) for name, line in lines.items())
  before = -math.inf
  for value, name in sorted(ends, reverse=True):
    before = max(plot.y(value), before + 14)
    plot.text(_WIDTH - 140, before + 4, _cut(name, 20), 'name')
  for n, (name, line) in enumerate(lines.items()):
    label = ', '.join(f'{x:g}: {y:.3f}' for x, y in sorted(line.items()))
    at = [(plot.x(x), plot.y(y)) for x, y in sorted(line.items())]
    plot.mark(f'series s{n % 6}', f'{name} {label}', *at, curve=True)
  return plot.svg(title)


def points(
  marks: Sequence[Mark],
  title: str,
  axes: tuple[str, str],
  logarithmic: bool = False,
  named: int = 30,
) -> Markup:
  """Draws points; a line joins those of kind 'strong', a Pareto front.

  Args:
    marks: The points, with `x` and `value`.
    title: The plot's title for screen readers.
    axes: The labels of x and y.
    logarithmic: Whether the x axis is logarithmic; drops x <= 0.
    named: The most points that are labelled.

  Returns:
    The SVG; empty for fewer than two points.
  """
  if logarithmic:
    marks = [m for m in marks if m.x > 0]
  if len(marks) < 2:
    return Markup('')
  xs = [math.log10(m.x) if logarithmic else m.x for m in marks]
  across = ticks(min(xs), max(xs), 6)
  if logarithmic:
    low, high = math.floor(min(xs)), math.ceil(max(xs))
    across = [float(n) for n in range(low, max(high, low + 1) + 1)]
  up = ticks(min(m.value for m in marks), max(m.value for m in marks), 5)
  plot = _Plot(across, up, 360, 64, 110)
  labels = [amount(10.0**x) if logarithmic else _tick(x) for x in across]
  plot.grid(across, up, labels, axes)
  at = [(plot.x(x), plot.y(m.value)) for x, m in zip(xs, marks, strict=True)]
  plot.front = sorted(
    place for place, m in zip(at, marks, strict=True) if m.kind == 'strong'
  )
  # Labels that would overlap are omitted; titles have all names.
  taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
  for (x, y), mark in zip(at, marks, strict=True):
    label = f'{mark.label}: {mark.value:.3f} at {mark.x:g}'
    plot.mark(f'mark {mark.kind}', label, (x, y))
    if len(marks) <= named:
      _label(plot, x, y, _cut(mark.label, 18), taken)
  return plot.svg(title)


def _label(
  plot: _Plot,
  x: float,
  y: float,
  text: str,
  taken: list[tuple[float, float, float, float]],
) -> None:
  """Writes a label right or left of a point if there is room."""
  width = 6.4 * len(text)
  for left, anchor, css in (
    (x + 8, x + 8, 'name'),
    (x - 8 - width, x - 8, 'name left'),
  ):
    free = all(
      left >= x1 or x0 >= left + width or y - 6 >= y1 or y0 >= y + 6
      for x0, y0, x1, y1 in taken
    )
    if free and 0 <= left and left + width <= _WIDTH:
      taken.append((left, y - 6, left + width, y + 6))
      plot.text(anchor, y + 4, text, css)
      return
