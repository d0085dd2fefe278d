"""Human judgments as groups and pairs, the training data of equation 3.

A group is one shared text (a reference or a source) with all its rated
hypotheses; a pair is two of them with different ratings. This module selects
training data, in plain Python and NumPy. It does not read files
(`data/records.py`, `tasks/`) or build batches (`inputs/feature_converters.py`).

The defaults follow T5Score (Qin et al. 2022, section 3.3): all pairs with a
rating gap above 0, human translations left out, the first reference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from t5score_jax.data.humans import is_human
from t5score_jax.data.records import Segment

SHARED = ('reference', 'source')

# What a group has in common: language pair, document, segment, shared text.
_Key = tuple[str | None, str | None, str | None, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
  """One shared text with its rated hypotheses.

  Attributes:
    shared: The text that all hypotheses are compared with.
    hypotheses: The rated texts, at least one.
    ratings: One finite number each, larger is better.
    systems: The system that produced each hypothesis; None if unknown.
    language_pair: For example `zh-en`.
    document: The document's id.
    segment: The segment's id.
  """

  shared: str
  hypotheses: tuple[str, ...]
  ratings: tuple[float, ...]
  systems: tuple[str | None, ...]
  language_pair: str | None = None
  document: str | None = None
  segment: str | None = None


@dataclasses.dataclass
class Selection:
  """How many segments became part of a group, and why the others did not.

  Attributes:
    segments: All segments given.
    used: Segments in a group.
    groups: Groups kept.
    human: Left out: written by humans.
    unrated: Left out: no rating of the requested name.
    without_shared: Left out: no reference or source, or an empty one.
    without_pair: Left out: their group is too small, or its ratings are all
      equal, so that it has no pair.
    merged: Hypotheses merged with an identical one of their group.
  """

  segments: int = 0
  used: int = 0
  groups: int = 0
  human: int = 0
  unrated: int = 0
  without_shared: int = 0
  without_pair: int = 0
  merged: int = 0

  def __str__(self) -> str:
    reasons = {
      'by humans': self.human,
      'unrated': self.unrated,
      'without the shared text': self.without_shared,
      'in groups without a pair': self.without_pair,
      'merged with an identical one': self.merged,
    }
    left_out = ', '.join(f'{n} {why}' for why, n in reasons.items() if n)
    return (
      f'{self.segments} segments: {self.used} used in {self.groups} groups;'
      f' left out: {left_out or "none"}'
    )


def groups(
  segments: Iterable[Segment],
  rating: str,
  *,
  shared: str = 'reference',
  leave_out: Callable[[str | None], bool] | None = is_human,
  min_size: int = 2,
  merge_identical: bool = False,
) -> tuple[list[Group], Selection]:
  """Groups the segments that share a text.

  Segments belong together if their language pair, document, segment id and
  shared text are equal, as far as they have them.

  Args:
    segments: Segments with ratings, in any order.
    rating: The name of the rating.
    shared: `'reference'`, the first one, or `'source'`.
    leave_out: Predicate on a system's name; hypotheses for which it is true are
      left out. None keeps all.
    min_size: The smallest group to keep. From 2 on, a group also needs at least
      two different ratings: without a pair there is nothing to learn.
    merge_identical: Whether identical hypotheses of a group are merged, with
      the mean of their ratings and the system of the first.

  Returns:
    The groups in the order of their first segments, their hypotheses in input
    order, and the counts of segments used and left out.

  Raises:
    ValueError: An unknown kind of shared text, or segments but not one of them
      has the rating (a misspelt name).
  """
  if shared not in SHARED:
    raise ValueError(f'shared must be one of {SHARED}, not {shared!r}')
  count = Selection()
  gathered: dict[_Key, list[Segment]] = {}
  other_names: set[str] = set()
  for segment in segments:
    count.segments += 1
    text = _shared_text(segment, shared)
    value = segment.ratings.get(rating)
    if leave_out is not None and leave_out(segment.system):
      count.human += 1
    elif value is None or not math.isfinite(value):
      count.unrated += 1
      other_names.update(segment.ratings)
    elif not text:
      count.without_shared += 1
    else:
      key = (segment.language_pair, segment.document, segment.segment, text)
      gathered.setdefault(key, []).append(segment)
  if count.unrated and count.unrated == count.segments - count.human:
    raise ValueError(
      f'no segment has a rating {rating!r};'
      f' there are: {", ".join(sorted(other_names)) or "none"}'
    )
  kept = []
  for key, members in gathered.items():
    group = _group(key, members, rating)
    if merge_identical:
      merged = _merge(group)
      count.merged += len(members) - len(merged.hypotheses)
      group = merged
    size = len(group.hypotheses)
    if size < min_size or (min_size > 1 and len(set(group.ratings)) < 2):
      count.without_pair += size
    else:
      count.used += size
      kept.append(group)
  count.groups = len(kept)
  return kept, count


def _shared_text(segment: Segment, shared: str) -> str | None:
  if shared == 'source':
    return segment.source
  return segment.references[0] if segment.references else None


def _group(key: _Key, members: Sequence[Segment], rating: str) -> Group:
  language_pair, document, identity, text = key
  return Group(
    shared=text,
    hypotheses=tuple(member.hypothesis for member in members),
    ratings=tuple(float(member.ratings[rating]) for member in members),
    systems=tuple(member.system for member in members),
    language_pair=language_pair,
    document=document,
    segment=identity,
  )


def _merge(group: Group) -> Group:
  """Merges identical hypotheses and averages their ratings."""
  members: dict[str, list[int]] = {}
  for index, hypothesis in enumerate(group.hypotheses):
    members.setdefault(hypothesis, []).append(index)
  return dataclasses.replace(
    group,
    hypotheses=tuple(members),
    ratings=tuple(
      math.fsum(group.ratings[i] for i in indices) / len(indices)
      for indices in members.values()
    ),
    systems=tuple(group.systems[indices[0]] for indices in members.values()),
  )


def pairs(ratings: Sequence[float], min_gap: float = 0.0) -> np.ndarray:
  """Returns all pairs of a group, the better hypothesis first.

  >>> pairs([0.5, 2.0, 0.5]).tolist()
  [[1, 0], [1, 2]]

  Args:
    ratings: The hypotheses' ratings, [n].
    min_gap: The gap that a pair's ratings must exceed.

  Returns:
    int32 [pairs, 2]: indices into the group, sorted; empty without pairs.

  Raises:
    ValueError: A negative gap, which would count every pair twice.
  """
  if min_gap < 0:
    raise ValueError(f'min_gap is {min_gap}; it must be 0 or more')
  values = np.asarray(ratings, np.float32)
  gap = values[:, None] - values[None, :]
  return np.argwhere(gap > min_gap).astype(np.int32)
