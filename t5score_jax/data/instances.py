"""Training instances of a regressor: indices of texts, with ratings.

Every reference of a record and every judgment is an instance (COMES, section
4.1), while each distinct text is stored once. Also divides documents into
folds for cross-validation. Plain Python and NumPy. Not here: encoding the texts
(`fitting/text_cache.py`) and batches (`inputs/texts.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError

#: Fields by which a corpus can be divided.
KEYS = (
  'document',
  'segment',
  'system',
  'language_pair',
  'source',
  'reference',
)


class Texts:
  """Distinct texts, numbered from 0 in order of first occurrence."""

  def __init__(self, texts: Iterable[str] = ()):
    """Initializes the numbering.

    Args:
      texts: The first texts.
    """
    self._numbers: dict[str, int] = {}
    for text in texts:
      self.number(text)

  def number(self, text: str) -> int:
    """Returns the number of a text, adding the text if it is new."""
    return self._numbers.setdefault(text, len(self._numbers))

  def __len__(self) -> int:
    return len(self._numbers)

  def __iter__(self) -> Iterator[str]:
    return iter(self._numbers)

  def digest(self) -> str:
    """Returns the SHA-256 of these texts in this order, in hexadecimal."""
    digest = hashlib.sha256()
    for text in self:
      encoded = text.encode('utf-8', 'surrogatepass')
      digest.update(len(encoded).to_bytes(8, 'big') + encoded)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Instances:
  """N instances.

  Attributes:
    hypothesis: Indices of the hypotheses in the texts, int32 [N].
    source: Indices of the sources, int32 [N].
    reference: Indices of the references, int32 [N]; None if none are read.
    ratings: Ratings, float32 [N, D]; NaN where a dimension was not rated.
    record: Index of the record of each instance, int32 [N], ascending.
    system: Index of the system among the sorted system names, int32 [N]; None
      if a record has no system.
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
    """Selects the instances of some records.

    Args:
      chosen: Mask of the records, bool [records].
    """
    return self._rows(chosen[self.record])

  def rated(self) -> Instances:
    """Selects the instances with a rating in at least one dimension."""
    return self._rows(~np.isnan(self.ratings).all(axis=1))

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns what `inputs.texts.TextsDataset` reads, by file name."""
    arrays = {
      'hypothesis': self.hypothesis,
      'source': self.source,
      'ratings': self.ratings,
    }
    if self.reference is not None:
      arrays['reference'] = self.reference
    if self.system is not None:
      arrays['system'] = self.system
    return arrays

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
  """Builds instances from records, in order.

  Args:
    segments: The records, each with a source.
    ratings: The D names of the dimensions; a record may lack any of them.
    texts: The numbering of texts, to which new texts are added.
    reference: Whether references are read. If so, each record needs at least
      one, and each reference makes an instance; otherwise each record makes
      one.

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
        f'{_place(segment, n)}: no reference; name its column '
        '(reference=COLUMN, also if another field has the same one), or set '
        'REFERENCE = False for a regressor that reads none'
      )
    hypothesis = texts.number(segment.hypothesis)
    source = texts.number(segment.source)
    given = [segment.ratings.get(name, np.nan) for name in ratings]
    for one in segment.references if reference else ('',):
      number = texts.number(one) if reference else 0
      rows.append((hypothesis, source, number, n))
      values.append(given)
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
  """Averages the judgments of one output by several annotators.

  Args:
    segments: Records; those that differ only in ratings are one output.

  Returns:
    One record for each output, in order of first occurrence, with the mean of
    each rating over the annotators who gave it.
  """
  outputs: dict[Segment, list[Segment]] = {}
  for segment in segments:
    unrated = dataclasses.replace(segment, ratings={})
    outputs.setdefault(unrated, []).append(segment)
  return [
    dataclasses.replace(
      members[0],
      ratings={
        name: float(np.mean([m.ratings[name] for m in rating]))
        for name in dict.fromkeys(n for m in members for n in m.ratings)
        if (rating := [m for m in members if name in m.ratings])
      },
    )
    for members in outputs.values()
  ]


@dataclasses.dataclass(frozen=True)
class Fold:
  """Sorted keys of the documents to train, validate and test on."""

  train: tuple[str, ...]
  validation: tuple[str, ...]
  test: tuple[str, ...]


def keys(segments: Sequence[Segment], by: str) -> list[str]:
  """Returns the key of each record.

  Args:
    segments: The records.
    by: One of `KEYS`.

  Raises:
    RecordError: A record has no such field.
    UsageError: No such field.
  """
  if by not in KEYS:
    raise UsageError(f'by {by!r}: use one of {", ".join(KEYS)}')
  names = []
  for n, segment in enumerate(segments):
    key = _key(segment, by)
    if key is None:
      there = [name for name in KEYS if _key(segment, name) is not None]
      raise RecordError(
        f'{_place(segment, n)}: there is no {by} to divide by; divide by '
        f'another field (--by), of {", ".join(there) or "which it has none"}'
      )
    names.append(key)
  return names


def default_key(segments: Sequence[Segment]) -> str:
  """Returns the field by which to divide records into parts.

  It is the document, or else the text that several hypotheses of a segment
  share, so that no part has seen another's texts.

  Args:
    segments: The records.

  Returns:
    'document' if all records have one, else 'source', else 'reference'.
  """
  for by in ('document', 'source'):
    if all(_key(segment, by) is not None for segment in segments):
      return by
  return 'reference'


def _key(segment: Segment, by: str) -> str | None:
  if by == 'reference':
    return segment.references[0] if segment.references else None
  key: str | None = getattr(segment, by)
  return key


def folds(names: Iterable[str], count: int, seed: int = 0) -> list[Fold]:
  """Divides documents into folds, identically on any machine.

  The documents are sorted by a digest of seed and name and dealt into `count`
  parts, whose sizes differ by at most one. Fold i is tested on part i,
  validated on the next part and trained on the rest: of 100 documents in ten
  folds 80, 10 and 10 (COMES, section 4.1).

  Args:
    names: Keys of documents; duplicates count once.
    count: Number of folds, at least 3.
    seed: Seed of the division.

  Raises:
    UsageError: Fewer than three folds, or fewer documents than folds.

  >>> folds('abcde', 5)[0].train == folds('edcba', 5)[0].train
  True
  """
  ordered = _ordered(names, seed)
  if count < 3:
    raise UsageError(f'{count} folds: at least 3 are needed')
  if len(ordered) < count:
    raise UsageError(f'{count} folds of {len(ordered)} documents: too few')
  parts = [ordered[n::count] for n in range(count)]
  divided = []
  for n in range(count):
    after = (n + 1) % count
    rest = [p for m, p in enumerate(parts) if m not in (n, after)]
    divided.append(
      Fold(
        tuple(sorted(sum(rest, []))),
        tuple(sorted(parts[after])),
        tuple(sorted(parts[n])),
      )
    )
  return divided


def held_out(names: Iterable[str], share: float, seed: int = 0) -> set[str]:
  """Chooses validation documents, identically on any machine.

  Args:
    names: Keys of documents; duplicates count once.
    share: Share of the documents, between 0 and 1. At least one document is
      chosen and one left.
    seed: Seed of the choice.

  Raises:
    UsageError: A share out of range, or fewer than two documents.
  """
  if not 0 < share < 1:
    raise UsageError(f'validation share {share:g}: must lie between 0 and 1')
  ordered = _ordered(names, seed)
  if len(ordered) < 2:
    raise UsageError(
      f'{len(ordered)} document to train and validate on: at least 2 are needed'
    )
  count = min(max(round(share * len(ordered)), 1), len(ordered) - 1)
  return set(ordered[:count])


def _ordered(names: Iterable[str], seed: int) -> list[str]:
  """Sorts distinct names by a digest of seed and name."""

  def rank(name: str) -> str:
    text = f'{seed}:{name}'.encode('utf-8', 'surrogatepass')
    return hashlib.sha256(text).hexdigest()

  return sorted(sorted(set(names)), key=rank)


def check_rated(
  segments: Iterable[Segment], ratings: Iterable[str], path: str
) -> None:
  """Raises RecordError if no record is rated in one of the dimensions."""
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
  """Checks that every fold has rated records to train and validate on.

  Args:
    divided: The folds.
    names: The key of each of N records.
    segments: The N records.
    ratings: The dimensions.

  Raises:
    UsageError: A fold has none.
  """
  rated = {
    name
    for name, segment in zip(names, segments, strict=True)
    if not segment.ratings.keys().isdisjoint(ratings)
  }
  for number, fold in enumerate(divided, 1):
    for part in ('train', 'validation'):
      if rated.isdisjoint(getattr(fold, part)):
        raise UsageError(
          f'fold {number}: no rated record for {part}; give fewer --folds'
        )


def _place(segment: Segment, number: int) -> str:
  ids = [
    f'{name} {value}'
    for name in ('system', 'document', 'segment')
    if (value := getattr(segment, name)) is not None
  ]
  return f'record {number + 1}' + (f' ({", ".join(ids)})' if ids else '')
