"""Places the labels of points and lines in plots.

A label is beside its point or line, clear of other labels and everything else.
All positions are fractions of the axes. Not here: what the plots show
(`plots`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

GREY = '#5f6670'
# Left, bottom, right, top.
Box = tuple[float, float, float, float]


def fractions(
  ax: Any, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray
) -> np.ndarray:
  """Data points as fractions of the axes, [P, 2], with the current limits."""
  ax.get_xlim(), ax.get_ylim()  # Applies pending autoscaling.
  drawn = ax.transData.transform(np.column_stack([x, y]).astype(float))
  return np.asarray(ax.transAxes.inverted().transform(drawn))


def line_boxes(ax: Any, corners: Sequence[tuple[float, float]]) -> list[Box]:
  """Small boxes along a line through data points."""
  if len(corners) < 2:
    return []
  boxes = []
  for first, second in itertools.pairwise(
    fractions(ax, *zip(*corners, strict=True))
  ):
    for share in np.linspace(0, 1, 80):
      a, b = (first + share * (second - first)).tolist()
      boxes.append((a - 0.006, b - 0.006, a + 0.006, b + 0.006))
  return boxes


def put_names(
  ax: Any,
  points: np.ndarray,
  names: Sequence[str],
  obstacles: Sequence[Box],
  size: float,
  letter: tuple[float, float],
) -> None:
  """Places each name beside its point, where it covers least.

  Args:
    ax: The axes.
    points: [P, 2].
    names: P of them.
    obstacles: Boxes not to cover, besides the points and other names.
    size: Font size, in points.
    letter: Width and height of a letter.
  """
  boxes: list[Box] = [
    (a - 0.012, b - 0.012, a + 0.012, b + 0.012) for a, b in points.tolist()
  ]
  boxes += obstacles
  for (a, b), name in zip(points.tolist(), names, strict=True):
    width, height = letter[0] * len(name), letter[1]
    places = [
      (a + dx * width + 0.02 * (dx + 0.5) * 2, b + dy * 1.18 * height)
      for dy in (0, 1, -1, 2, -2, 3, -3)
      for dx in ((0, -1) if dy == 0 else (-0.5, 0, -1))
    ]
    taken = [(c, d - height / 2, c + width, d + height / 2) for c, d in places]
    cost = [
      sum(overlap(box, other) for other in boxes)
      + 2 * _overlap_outside(box)
      + 1e-6 * order
      for order, box in enumerate(taken)
    ]
    best = int(np.argmin(cost))
    boxes.append(taken[best])
    x, y = places[best]
    ax.text(
      x, y, name, transform=ax.transAxes, fontsize=size, color=GREY, va='center'
    )
    if abs(y - b) > height / 2:
      # Away from its point, a name is led to it.
      end = min(max(a, x), x + width), y - np.sign(y - b) * height / 2
      ax.annotate(
        '',
        (a, b),
        end,
        xycoords='axes fraction',
        textcoords='axes fraction',
        arrowprops={
          'arrowstyle': '-',
          'color': GREY,
          'linewidth': 0.5,
          'shrinkA': 0,
          'shrinkB': 0,
        },
      )


def overlap(one: Box, other: Box) -> float:
  """The area that two boxes share."""
  width = min(one[2], other[2]) - max(one[0], other[0])
  height = min(one[3], other[3]) - max(one[1], other[1])
  return max(width, 0.0) * max(height, 0.0)


def _overlap_outside(box: Box) -> float:
  area = (box[2] - box[0]) * (box[3] - box[1])
  return area - overlap(box, (0.0, 0.0, 1.0, 1.0))


def spread(places: np.ndarray, gap: float) -> np.ndarray:
  """Moves numbers apart, as little as necessary (least squares).

  Args:
    places: [N], ascending.
    gap: The least distance between neighbours, above 0.

  Returns:
    [N], ascending.
  """
  steps = gap * np.arange(len(places))
  moved: np.ndarray = (
    scipy.optimize.isotonic_regression(places - steps).x + steps
  )
  return moved
