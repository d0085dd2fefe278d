"""SVG plots of the board's page: intervals, curves, points.

Colours are CSS classes, so that plots follow the light or dark theme, which
images drawn by matplotlib (`evaluation/reports/plots.py`) would not. Each mark
has a title for pointers and screen readers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import markupsafe
from markupsafe import Markup

_WIDTH = 640
_LEFT = 190
_ROW = 22
_TOP = 10
_BOTTOM = 44


@dataclasses.dataclass(frozen=True)
class Mark:
  """A value to draw.

  Attributes:
    label: The name of the value.
    value: The value; the y coordinate of a point.
    low: Lower end of the interval, if any.
    high: Upper end of the interval, if any.
    kind: The CSS class: 'plain', 'strong', 'over', 'under' or 'people'.
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


def _tick(value: float) -> str:
  return f'{value:g}'.replace('-', '\N{MINUS SIGN}')


def _text(x: float, y: float, text: str, css: str = '') -> str:
  return (
    f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">'
    f'{markupsafe.escape(text)}</text>'
  )


def _cut(text: str, length: int = 26) -> str:
  return text if len(text) <= length else text[: length - 1] + '…'


def _svg(height: float, title: str, parts: Sequence[str]) -> Markup:
  return Markup(
    f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
    f' height="{height:.0f}" role="img"'
    f' aria-label="{markupsafe.escape(title)}">{"".join(parts)}</svg>'
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
  grid = ticks(min(0.0, *ends), max(0.0, *ends))
  scale = (_WIDTH - _LEFT - 20) / (grid[-1] - grid[0])

  def at(value: float) -> float:
    return _LEFT + (value - grid[0]) * scale

  bottom = _TOP + _ROW * len(marks)
  parts = []
  for value in grid:
    css = 'zero' if value == 0 else 'grid'
    parts.append(
      f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{_TOP}"'
      f' y2="{bottom}" class="{css}"/>'
    )
    parts.append(_text(at(value), bottom + 16, _tick(value), 'tick'))
  parts.append(_text((_LEFT + _WIDTH) / 2, bottom + 34, axis, 'axis'))
  for n, mark in enumerate(marks):
    y = _TOP + _ROW * (n + 0.5)
    label = f'{mark.label}: {mark.value:.3f}'
    line = ''
    if mark.low is not None and mark.high is not None:
      label += f' [{mark.low:.3f}, {mark.high:.3f}]'
      line = (
        f'<line x1="{at(mark.low):.1f}" x2="{at(mark.high):.1f}"'
        f' y1="{y}" y2="{y}" class="whisker"/>'
      )
    parts.append(_text(_LEFT - 10, y + 4, _cut(mark.label), 'label'))
    parts.append(
      f'<g class="mark {mark.kind}"><title>{markupsafe.escape(label)}</title>'
      f'<rect x="{_LEFT}" y="{y - _ROW / 2}" width="{_WIDTH - _LEFT}"'
      f' height="{_ROW}" class="target"/>{line}'
      f'<circle cx="{at(mark.value):.1f}" cy="{y}" r="4.5"/></g>'
    )
  return _svg(bottom + _BOTTOM, title, parts)


def _frame(
  across: Sequence[float],
  up: Sequence[float],
  labels: Sequence[str],
  axes: tuple[str, str],
  height: float,
  left: float,
  right: float,
) -> tuple[list[str], float, float]:
  """Draws the grid; returns it with the scales of x and y."""
  sx = (_WIDTH - left - right) / ((across[-1] - across[0]) or 1.0)
  sy = (height - _TOP - _BOTTOM) / ((up[-1] - up[0]) or 1.0)
  bottom = height - _BOTTOM
  parts = []
  for value in up:
    y = bottom - (value - up[0]) * sy
    parts.append(
      f'<line x1="{left}" x2="{_WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"'
      ' class="grid"/>'
    )
    parts.append(_text(left - 8, y + 4, _tick(value), 'label'))
  for value, label in zip(across, labels, strict=True):
    x = left + (value - across[0]) * sx
    parts.append(_text(x, bottom + 18, label, 'tick'))
  middle = (left + _WIDTH - right) / 2
  parts.append(_text(middle, bottom + 36, axes[0], 'axis'))
  parts.append(
    f'<text transform="translate(14 {bottom / 2:.0f}) rotate(-90)"'
    f' class="axis">{markupsafe.escape(axes[1])}</text>'
  )
  return parts, sx, sy


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
  points = [(x, y) for line in lines.values() for x, y in line.items()]
  if not points:
    return Markup('')
  across = sorted({x for x, _ in points})
  up = ticks(min(y for _, y in points), max(y for _, y in points), 5)
  height, left, right = 320.0, 64.0, 150.0
  labels = [f'{x:g}' for x in across]
  parts, sx, sy = _frame(across, up, labels, axes, height, left, right)
  ends = sorted(
    ((line[max(line)], name) for name, line in lines.items()), reverse=True
  )
  place, before = {}, -math.inf
  for value, name in ends:
    y = height - _BOTTOM - (value - up[0]) * sy
    before = max(y, before + 14)
    place[name] = before
  for n, (name, line) in enumerate(lines.items()):
    at = [
      (
        left + (x - across[0]) * sx,
        height - _BOTTOM - (y - up[0]) * sy,
      )
      for x, y in sorted(line.items())
    ]
    path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in at)
    label = ', '.join(f'{x:g}: {y:.3f}' for x, y in sorted(line.items()))
    parts.append(
      f'<g class="series s{n % 6}"><title>{markupsafe.escape(name)} {label}'
      f'</title><polyline points="{path}"/>'
      + ''.join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in at)
      + '</g>'
    )
    end = _WIDTH - right + 10
    parts.append(_text(end, place[name] + 4, _cut(name, 20), 'name'))
  return _svg(height, title, parts)


def _beside(
  x: float, y: float, text: str, taken: list[tuple[float, float, float, float]]
) -> list[str]:
  """Writes a label right or left of a point if there is room."""
  width = 6.4 * len(text)
  for left, css in ((x + 8, 'name'), (x - 8 - width, 'name left')):
    box = (left, y - 6.0, left + width, y + 6.0)
    if box[2] > _WIDTH or box[0] < 0:
      continue
    if any(
      box[0] < other[2]
      and other[0] < box[2]
      and box[1] < other[3]
      and other[1] < box[3]
      for other in taken
    ):
      continue
    taken.append(box)
    return [_text(x + 8 if css == 'name' else x - 8, y + 4, text, css)]
  return []


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

  def across_of(x: float) -> float:
    return math.log10(x) if logarithmic else x

  xs = [across_of(m.x) for m in marks]
  up = ticks(min(m.value for m in marks), max(m.value for m in marks), 5)
  if logarithmic:
    low, high = math.floor(min(xs)), math.ceil(max(xs))
    across = [float(n) for n in range(low, max(high, low + 1) + 1)]
    labels = [f'{10.0**n:g}' for n in across]
  else:
    across = ticks(min(xs), max(xs), 6)
    labels = [_tick(x) for x in across]
  height, left, right = 360.0, 64.0, 110.0
  parts, sx, sy = _frame(across, up, labels, axes, height, left, right)

  def place(mark: Mark) -> tuple[float, float]:
    return (
      left + (across_of(mark.x) - across[0]) * sx,
      height - _BOTTOM - (mark.value - up[0]) * sy,
    )

  front = sorted(place(m) for m in marks if m.kind == 'strong')
  if len(front) > 1:
    path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in front)
    parts.append(f'<polyline points="{path}" class="front"/>')
  # Labels that would overlap are omitted; titles have all names.
  taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in map(place, marks)]
  for mark in marks:
    x, y = place(mark)
    label = f'{mark.label}: {mark.value:.3f} at {mark.x:g}'
    parts.append(
      f'<g class="mark {mark.kind}"><title>{markupsafe.escape(label)}</title>'
      f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/></g>'
    )
    if len(marks) <= named:
      parts += _beside(x, y, _cut(mark.label, 18), taken)
  return _svg(height, title, parts)
