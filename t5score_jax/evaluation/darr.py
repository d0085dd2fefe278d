"""Relative rankings from direct assessment (DARR): human-ranked pairs.

Pairs come from a shared task's file, or from raw ratings and a minimum gap.
`correlation.darr_tau` measures a metric on them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation.scores import ScoreGrid, check_width

# WMT's threshold: raw ratings (of 100) closer than this form no ranked pair.
MIN_GAP = 25.0


@dataclasses.dataclass(frozen=True)
class RankedPairs:
  """Pairs of systems' translations of one segment, the better one first.

  Attributes:
    segments: Index of the segment, int [P].
    better: Index of the system whose translation was preferred, int [P].
    worse: Index of the other system, int [P].
  """

  segments: np.ndarray
  better: np.ndarray
  worse: np.ndarray

  def __len__(self) -> int:
    return len(self.segments)

  def entries(self, shape: tuple[int, ...]) -> np.ndarray:
    """The entries that are in a pair, bool of `shape` [S, N]."""
    mask = np.zeros(shape, bool)
    mask[self.better, self.segments] = True
    mask[self.worse, self.segments] = True
    return mask


def pairs_from_ratings(
  ratings: np.ndarray, min_gap: float = MIN_GAP
) -> RankedPairs:
  """All pairs of one segment's translations rated at least `min_gap` apart.

  WMT20's rule with raw direct assessments (0 to 100) averaged over raters.

  Args:
    ratings: Human scores [S, N], higher is better, NaN where not rated.
    min_gap: The least difference of a pair that counts, above 0.

  Returns:
    The pairs, ordered by segment.

  Raises:
    InputError: A gap that is not above 0 (equal ratings form no pair).
  """
  if not min_gap > 0:
    raise InputError(f'the minimum gap must be above 0, not {min_gap}')
  ratings = np.asarray(ratings, np.float64)
  parts = []
  for system in range(len(ratings)):
    # [S, N]: how much better this system's translation is than the others'.
    # NaN compares as false, so unrated entries make no pair.
    other, segment = np.nonzero(ratings[system] - ratings >= min_gap)
    parts.append((segment, np.full(len(segment), system), other))
  segments, better, worse = (
    np.concatenate([part[k] for part in parts])
    if parts
    else np.zeros(0, np.int64)
    for k in range(3)
  )
  order = np.argsort(segments, kind='stable')
  return RankedPairs(segments[order], better[order], worse[order])


@dataclasses.dataclass(frozen=True)
class NamedPairs:
  """The pairs of a published file, by name; arrays of str, all [P].

  Attributes:
    language_pair: The language pair of each pair, as the file writes it.
    segment: The segment's id.
    better: The preferred system of each pair.
    worse: The other system.
    path: The file that they were read from.
  """

  language_pair: np.ndarray
  segment: np.ndarray
  better: np.ndarray
  worse: np.ndarray
  path: str

  @functools.cached_property
  def notes(self) -> tuple[str, ...]:
    """Doubtful rows of the file, one sentence per kind."""
    seen: set[tuple[str, ...]] = set()
    doubtful: dict[str, list[int]] = {}
    columns = (self.language_pair, self.segment, self.better, self.worse)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    # The first line is the header.
    for line, row in enumerate(rows, 2):
      if row in seen:
        doubtful.setdefault('repeat earlier ones', []).append(line)
      if (*row[:2], row[3], row[2]) in seen:
        doubtful.setdefault('contradict earlier ones', []).append(line)
      seen.add(row)
    return tuple(
      f'{self.path}: {len(lines)} ranked pairs {what}, the first in line '
      f'{lines[0]}; every row counts'
      for what, lines in doubtful.items()
    )


_COLUMNS = ('lp', 'sid', 'better', 'worse')


def read_pairs(path: str | os.PathLike[str]) -> NamedPairs:
  """Reads a file of ranked pairs: a TSV with the header lp sid better worse.

  Further columns are allowed and ignored; the file may be gzipped.

  Raises:
    files.RecordError: A column is missing, a line has another number of
      fields, or a system is paired with itself.
  """
  path = os.fspath(path)
  columns: list[list[str]] = [[] for _ in _COLUMNS]
  with files.open_text(path) as lines:
    header = next(lines, '').split('\t')
    for name in _COLUMNS:
      if name not in header:
        raise files.RecordError(
          f'no column {name!r} in the header {header}: ranked pairs need '
          'the columns ' + ', '.join(_COLUMNS),
          path=path,
          line=1,
          field=name,
        )
    places = [header.index(name) for name in _COLUMNS]
    for number, line in enumerate(lines, 2):
      fields = line.split('\t')
      check_width(fields, header, path, number)
      row = tuple(fields[place] for place in places)
      for column, cell in zip(columns, row, strict=True):
        column.append(cell)
      if fields[places[2]] == fields[places[3]]:
        raise files.RecordError(
          f'{fields[places[2]]!r} is paired with itself',
          path=path,
          line=number,
          field='worse',
        )
  language_pair, segment, better, worse = (
    np.array(column, dtype=str) for column in columns
  )
  return NamedPairs(language_pair, segment, better, worse, path)


def with_plain_systems(named: NamedPairs) -> NamedPairs:
  """The same pairs, with systems renamed by `scores.plain_system`."""
  return dataclasses.replace(
    named,
    better=np.char.replace(named.better, '_', '-'),
    worse=np.char.replace(named.worse, '_', '-'),
  )


def place_pairs(
  grid: ScoreGrid,
  named: NamedPairs,
  dropped: Sequence[str] = (),
  *,
  intersect: bool = False,
) -> tuple[RankedPairs, int]:
  """Locates the pairs of a published file in a grid.

  Args:
    grid: The scores of one language pair.
    named: The pairs of the file, of any language pairs.
    dropped: The excluded systems; pairs with them may be absent.
    intersect: Whether to leave out pairs without scores instead of raising.

  Returns:
    The pairs with scores, and the number of pairs left out.

  Raises:
    files.RecordError: The file has no pair for the language pair, or a pair is
      not in the grid (without `intersect`).
  """
  in_pair = named.language_pair == grid.language_pair
  if not in_pair.any():
    raise files.RecordError(
      f'no pairs for the language pair {grid.language_pair!r}; the file has '
      + ', '.join(sorted(set(named.language_pair.tolist())))
      + '. Give the language pair of the scores (--language-pair)',
      path=named.path,
    )
  systems = {name: i for i, name in enumerate(grid.systems)}
  segments = {name: i for i, name in enumerate(grid.segments)}
  better_names, worse_names = named.better[in_pair], named.worse[in_pair]
  better = np.array([systems.get(name, -1) for name in better_names])
  worse = np.array([systems.get(name, -1) for name in worse_names])
  place = np.array([segments.get(name, -1) for name in named.segment[in_pair]])
  known = (better >= 0) & (worse >= 0) & (place >= 0)
  on_purpose = np.isin(better_names, dropped) | np.isin(worse_names, dropped)
  missed = np.flatnonzero(~known & ~on_purpose)
  if missed.size and not intersect:
    first = missed[0]
    raise files.RecordError(
      f'{missed.size} pairs have no scores; the first is segment '
      f"'{named.segment[in_pair][first]}', '{better_names[first]}' against "
      f"'{worse_names[first]}'. Complete the scores, or ask for the "
      'intersection (--intersect)',
      path=named.path,
    )
  pairs = RankedPairs(place[known], better[known], worse[known])
  return pairs, int(np.count_nonzero(~known))
