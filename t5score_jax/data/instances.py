"""What an estimator learns from: rows of numbers of texts, with ratings.

A record with several references becomes several instances, and one that
several people rated stands in a file several times: every reference and every
judgment is an instance (COMES, section 4.1), while each text is kept once. And
folds by document, for cross-validation. In plain Python and NumPy. Not here:
what becomes of the texts (`fitting/crossvalidation.py`), nor batches
(`inputs/texts.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from t5score_jax.data.records import RecordError, Segment

#: Fields by which a corpus may be divided.
KEYS = ('document', 'segment', 'system', 'language_pair', 'source')


class Texts:
  """Distinct texts, numbered from 0 in the order in which they came."""

  def __init__(self, texts: Iterable[str] = ()):
    """Numbers texts.

    Args:
      texts: The first ones.
    """
    self._numbers: dict[str, int] = {}
    for text in texts:
      self.number(text)

  def number(self, text: str) -> int:
    """The number of a text, a new one where it is new."""
    return self._numbers.setdefault(text, len(self._numbers))

  def __len__(self) -> int:
    return len(self._numbers)

  def __iter__(self) -> Iterator[str]:
    return iter(self._numbers)

  def digest(self) -> str:
    """A name for these texts in this order, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for text in self:
      encoded = text.encode('utf-8', 'surrogatepass')
      digest.update(len(encoded).to_bytes(8, 'big') + encoded)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Instances:
  """N instances.

  Attributes:
    hypothesis: Numbers of texts, int32 [N].
    source: Likewise.
    reference: Likewise; None where none is read.
    ratings: float32 [N, D], NaN where a dimension was not rated.
    record: The record that each comes from, int32 [N], ascending.
    system: Numbers of the systems in the order of their names, int32 [N]; None
      where a record has none.
  """

  hypothesis: np.ndarray
  source: np.ndarray
  reference: np.ndarray | None
  ratings: np.ndarray
  record: np.ndarray
  system: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.hypothesis)

  def of_records(self, chosen: np.ndarray) -> Instances:
    """The instances of some records.

    Args:
      chosen: Whether a record is meant, bool [records].
    """
    return self._rows(chosen[self.record])

  def rated(self) -> Instances:
    """The instances with a rating in any dimension; others teach nothing."""
    return self._rows(~np.isnan(self.ratings).all(axis=1))

  def arrays(self) -> dict[str, np.ndarray]:
    """What `training.texts.TextsDataset` reads, by the file's name."""
    found = {
      'hypothesis': self.hypothesis,
      'source': self.source,
      'ratings': self.ratings,
    }
    if self.reference is not None:
      found['reference'] = self.reference
    if self.system is not None:
      found['system'] = self.system
    return found

  def _rows(self, rows: np.ndarray) -> Instances:
    return Instances(
      self.hypothesis[rows],
      self.source[rows],
      None if self.reference is None else self.reference[rows],
      self.ratings[rows],
      self.record[rows],
      None if self.system is None else self.system[rows],
    )


def build(
  segments: Sequence[Segment],
  ratings: Sequence[str],
  texts: Texts,
  reference: bool = True,
) -> Instances:
  """Makes instances of records, in their order.

  Args:
    segments: The records, each with a source.
    ratings: The dimensions, D names; a record may lack any of them.
    texts: Numbers the texts; new ones are added.
    reference: Whether references are read. Then each of a record's references
      is an instance, and one at least is needed; otherwise a record is one.

  Returns:
    The instances.

  Raises:
    RecordError: A record lacks a source or a reference.
  """
  rows: list[tuple[int, int, int, int]] = []
  values: list[list[float]] = []
  for n, segment in enumerate(segments):
    if segment.source is None:
      raise RecordError(f'{_place(segment, n)}: there is no source')
    if reference and not segment.references:
      raise RecordError(
        f'{_place(segment, n)}: there is no reference; an estimator without '
        'one has REFERENCE = False'
      )
    hypothesis = texts.number(segment.hypothesis)
    source = texts.number(segment.source)
    found = [segment.ratings.get(name, np.nan) for name in ratings]
    for one in segment.references if reference else ('',):
      number = texts.number(one) if reference else 0
      rows.append((hypothesis, source, number, n))
      values.append(found)
  columns = np.array(rows, np.int32).reshape(-1, 4).T
  systems = None
  if all(segment.system is not None for segment in segments):
    names = np.array([str(segment.system) for segment in segments], object)
    numbers = np.unique(names, return_inverse=True)[1].astype(np.int32)
    systems = numbers[columns[3]]
  return Instances(
    columns[0],
    columns[1],
    columns[2] if reference else None,
    np.array(values, np.float32).reshape(len(values), len(ratings)),
    columns[3],
    systems,
  )


def averaged(segments: Sequence[Segment]) -> list[Segment]:
  """Joins the judgments of one output by several people.

  Args:
    segments: Records; those that differ in nothing but ratings are one.

  Returns:
    One record each, in order of their first, with the mean of each rating over
    those who gave it.
  """
  found: dict[Segment, list[Segment]] = {}
  for segment in segments:
    unrated = dataclasses.replace(segment, ratings={})
    found.setdefault(unrated, []).append(segment)
  return [
    dataclasses.replace(
      members[0],
      ratings={
        name: float(np.mean([m.ratings[name] for m in rating]))
        for name in dict.fromkeys(n for m in members for n in m.ratings)
        if (rating := [m for m in members if name in m.ratings])
      },
    )
    for members in found.values()
  ]


@dataclasses.dataclass(frozen=True)
class Fold:
  """Keys of documents, sorted: what is learned from, chosen by, tested on."""

  train: tuple[str, ...]
  validation: tuple[str, ...]
  test: tuple[str, ...]


def keys(segments: Sequence[Segment], by: str) -> list[str]:
  """The key of each record.

  Args:
    segments: The records.
    by: One of `KEYS`.

  Raises:
    RecordError: A record without one.
    ValueError: No such field.
  """
  if by not in KEYS:
    raise ValueError(f'by {by!r}: use one of {", ".join(KEYS)}')
  found = []
  for n, segment in enumerate(segments):
    key = getattr(segment, by)
    if key is None:
      raise RecordError(f'{_place(segment, n)}: there is no {by} to divide by')
    found.append(key)
  return found


def folds(names: Iterable[str], count: int, seed: int = 0) -> list[Fold]:
  """Divides documents into folds, in the same way on any machine.

  The documents are ordered by a digest of seed and name and dealt into `count`
  parts, whose sizes differ by one at most. Fold i is tested on part i,
  validated on the part after it and trained on the rest: with ten 80, 10 and
  10 of 100 documents (COMES, section 4.1).

  Args:
    names: Keys of documents; each counts once.
    count: Folds, at least 3.
    seed: Another one, another division.

  Raises:
    ValueError: Fewer than three folds, or fewer documents than folds.

  >>> folds('abcde', 5)[0].train == folds('edcba', 5)[0].train
  True
  """
  ordered = _ordered(names, seed)
  if count < 3:
    raise ValueError(f'{count} folds: at least 3, for three different parts')
  if len(ordered) < count:
    raise ValueError(f'{count} folds of {len(ordered)} documents: too few')
  parts = [ordered[n::count] for n in range(count)]
  found = []
  for n in range(count):
    after = (n + 1) % count
    rest = [p for m, p in enumerate(parts) if m not in (n, after)]
    found.append(
      Fold(
        tuple(sorted(sum(rest, []))),
        tuple(sorted(parts[after])),
        tuple(sorted(parts[n])),
      )
    )
  return found


def held_out(names: Iterable[str], share: float, seed: int = 0) -> set[str]:
  """Chooses documents to validate by, in the same way on any machine.

  Args:
    names: Keys of documents; each counts once.
    share: Of the documents, between 0 and 1; one at least is chosen, and one
      left.
    seed: Another one, another choice.

  Raises:
    ValueError: A share of another size, or fewer than two documents.
  """
  if not 0 < share < 1:
    raise ValueError(f'share {share:g}: must lie between 0 and 1')
  ordered = _ordered(names, seed)
  if len(ordered) < 2:
    raise ValueError(
      f'{len(ordered)} document to learn from and to choose by: at least 2'
    )
  count = min(max(round(share * len(ordered)), 1), len(ordered) - 1)
  return set(ordered[:count])


def _ordered(names: Iterable[str], seed: int) -> list[str]:
  """Distinct names by a digest of seed and name."""

  def rank(name: str) -> str:
    text = f'{seed}:{name}'.encode('utf-8', 'surrogatepass')
    return hashlib.sha256(text).hexdigest()

  return sorted(sorted(set(names)), key=rank)


def check_rated(
  segments: Iterable[Segment], ratings: Iterable[str], path: str
) -> None:
  """Raises RecordError for a dimension that no record has a rating of."""
  there = {name for segment in segments for name in segment.ratings}
  for name in ratings:
    if name not in there:
      raise RecordError(
        'no record has a rating; leave it out of the ratings, or give another '
        'column',
        path=path,
        field=name,
      )


def check_folds(
  divided: Sequence[Fold],
  names: Sequence[str],
  segments: Sequence[Segment],
  ratings: Sequence[str],
) -> None:
  """Finds out before training what would end it.

  Args:
    divided: The folds.
    names: The key of each record, N.
    segments: The records, N.
    ratings: The dimensions.

  Raises:
    ValueError: A fold has nothing rated to learn from, or to choose by.
  """
  rated = {
    name
    for name, segment in zip(names, segments, strict=True)
    if not segment.ratings.keys().isdisjoint(ratings)
  }
  for number, fold in enumerate(divided, 1):
    for part in ('train', 'validation'):
      if rated.isdisjoint(getattr(fold, part)):
        raise ValueError(
          f'fold {number}: no rated record for {part}; give fewer --folds'
        )


def _place(segment: Segment, number: int) -> str:
  told = [
    f'{name} {value}'
    for name in ('system', 'document', 'segment')
    if (value := getattr(segment, name)) is not None
  ]
  said = f' ({", ".join(told)})' if told else ''
  return f'record {number + 1}{said}'
