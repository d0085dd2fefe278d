"""Batches of pairs or groups from a file of rated records, by gin.

For the user's own records: a TSV or JSONL file (`data/records.py`) with any
number of systems, held in memory, without TensorFlow or intermediate files.
Part of the documents is held out for validation. Published corpora with their
own layouts, or too large for memory, are SeqIO tasks (`tasks/`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from t5score_jax.data import instances, judgments, records, vocab
from t5score_jax.inputs import datasets, shuffling
from t5score_jax.runtime import validation

KINDS = ('pair', 'group')


@dataclasses.dataclass(frozen=True)
class Parts:
  """Records to train on and records to validate on.

  Attributes:
    train: The records to train on.
    validation: The records to validate on.
    path: The file of the training records.
    note: The number of records of each, in words.
  """

  train: Sequence[records.Segment]
  validation: Sequence[records.Segment]
  path: str
  note: str


def read_parts(
  path: validation.Text | os.PathLike[str],
  rating: validation.Text,
  columns: Mapping[str, str] | None = None,
  quoting: str = 'none',
  validation_path: str | os.PathLike[str] | None = None,
  validation_share: float = 0.1,
  by: str | None = None,
  seed: int = 0,
) -> Parts:
  """Reads rated records and holds some of them out for validation.

  Args:
    path: TSV or JSONL records to train on.
    rating: Name of the rating; higher is better. Records may lack it.
    columns: Column of each field or rating whose name differs.
    quoting: Quoting of TSV cells, 'none' or 'csv'.
    validation_path: Records to validate on, with the same columns; None takes
      them from `path`.
    validation_share: The share of the documents that is held out.
    by: The field whose records stay together, see `instances.KEYS`; by default
      `instances.default_key`.
    seed: Seed of the choice, which is the same on every machine.

  Raises:
    RecordError: A file is invalid, or no record has the rating.
    UsageError: The share is out of range, or there is nothing to divide.
    OSError: A file cannot be read.
  """

  def read(name: str | os.PathLike[str]) -> list[records.Segment]:
    segments = records.read_records(
      name, columns=columns, ratings=(rating,), quoting=quoting
    )
    instances.check_rated(segments, (rating,), os.fspath(name))
    return segments

  segments = read(path)
  name = os.fspath(path)
  if validation_path is not None:
    kept = read(validation_path)
    note = (
      f'{name}: {len(segments):,} records; validation on {len(kept):,} of '
      f'{os.fspath(validation_path)}'
    )
    return Parts(segments, kept, name, note)
  by = by or instances.default_key(segments)
  keys = instances.keys(segments, by)
  chosen = instances.held_out(keys, validation_share, seed)
  rows = list(zip(keys, segments, strict=True))
  train = [segment for key, segment in rows if key not in chosen]
  kept = [segment for key, segment in rows if key in chosen]
  note = (
    f'{name}: {len(train):,} records to train on, {len(kept):,} for validation '
    f'(divided by {by})'
  )
  return Parts(train, kept, name, note)


def validation_segments(parts: Parts) -> Sequence[records.Segment]:
  """The records to validate on, for evaluators in gin files."""
  return parts.validation


def direction(shared: str) -> str:
  """The scoring direction of a model trained on pairs that share this text.

  Args:
    shared: 'reference' or 'source'.

  Returns:
    'f' or 'source'.
  """
  return 'source' if shared == 'source' else 'f'


class RecordsDataset(shuffling.ShuffledDataset):
  """Pairs or groups (T5Score, equation 3) of rated records.

  An example of kind 'pair' is a pair of hypotheses with the same shared text
  and different ratings, in one direction: both directions of every pair are
  examples. An example of kind 'group' is a shared text with all its
  hypotheses; groups larger than the length of `ratings` are divided into
  parts, once. The keys of batches are those of
  `inputs/feature_converters.py`, and texts are padded to the longest one.

  Attributes:
    notes: What was read, in words, for the report of the run.
  """

  def __init__(
    self,
    parts: Parts,
    rating: str,
    vocabulary: vocab.Vocabulary,
    task_feature_lengths: Mapping[str, int],
    batch_size: int,
    kind: str,
    shared: str = 'reference',
    min_gap: float = 0.0,
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Selects and encodes the texts.

    Args:
      parts: The records; those to train on are read.
      rating: Name of the rating; higher is better.
      vocabulary: The vocabulary of the network.
      task_feature_lengths: Maximum number of tokens of `inputs` and `targets`,
        `</s>` included (longer texts are cut), and as `ratings` the maximum
        number of hypotheses of a group.
      batch_size: Examples per batch over all processes.
      kind: 'pair' or 'group'.
      shared: What hypotheses are compared with: 'reference', the first one, or
        'source'.
      min_gap: Difference that the ratings of a pair must exceed. For groups the
        objective decides this.
      seed: Seed of the order and of the parts of large groups.
      shuffle: Whether to shuffle.

    Raises:
      DatasetError: No two hypotheses form a pair, or an argument is invalid.
      ValueError: An unknown kind of shared text.
    """
    validation.check(
      validation.Positive, datasets.DatasetError, batch_size=batch_size
    )
    if kind not in KINDS:
      raise datasets.DatasetError(f'kind {kind!r}: use one of {list(KINDS)}')
    groups, selection = judgments.groups(parts.train, rating, shared=shared)
    self._lengths = _checked(task_feature_lengths, kind)
    self._texts = instances.Texts()
    self._kind = kind
    if kind == 'pair':
      self._rows = _pairs(groups, self._texts, min_gap)
    else:
      self._rows = _groups(groups, self._texts, self._lengths['ratings'], seed)
    if not len(self._rows):
      raise datasets.DatasetError(_why(parts.path, selection, shared, min_gap))
    count = len(self._rows) * (2 if kind == 'pair' else 1)
    super().__init__(count, batch_size, seed, shuffle)
    self._tables: dict[int, np.ndarray] = {}
    cut = 0
    for length in {self._lengths['inputs'], self._lengths['targets']}:
      self._tables[length], cut_here = _encode(self._texts, vocabulary, length)
      cut = max(cut, cut_here)
    what = 'pairs, each in both directions' if kind == 'pair' else 'groups'
    self.notes = [
      parts.note,
      f'training data: {selection}; {len(self._rows):,} {what}: '
      f'{count / batch_size:,.1f} steps of {batch_size} are an epoch',
    ]
    if cut:
      self.notes.append(
        f'{cut} of {len(self._texts)} texts are cut to '
        f'{min(self._tables)} tokens (TASK_FEATURE_LENGTHS)'
      )

  def _gather(self, rows: np.ndarray | slice) -> shuffling.Batch:
    numbers = np.arange(self.num_examples)[rows]
    if self._kind == 'group':
      return self._group_batch(self._rows[numbers])
    return self._pair_batch(self._rows[numbers // 2], numbers % 2 == 0)

  def _pair_batch(
    self, rows: np.ndarray, precision: np.ndarray
  ) -> shuffling.Batch:
    """A batch of pairs; precision, bool [B], is from shared to hypothesis."""
    hypotheses = rows['texts']
    shared = np.broadcast_to(rows['shared'][:, None], hypotheses.shape)
    side = precision[:, None]
    inputs = np.where(side, shared, hypotheses)
    targets = np.where(side, hypotheses, shared)
    batch = {
      'encoder_input_tokens': self._tokens(inputs, 'inputs'),
      'decoder_target_tokens': self._tokens(targets, 'targets'),
      'ratings': np.asarray(rows['ratings'], np.float32),
    }
    return {**batch, **datasets.derived(batch)}

  def _group_batch(self, rows: np.ndarray) -> shuffling.Batch:
    mask = rows['texts'] >= 0
    tokens = self._tokens(np.maximum(rows['texts'], 0), 'targets')
    return {
      'shared_tokens': self._tokens(rows['shared'], 'inputs'),
      'hypothesis_tokens': tokens * mask[..., None],
      'ratings': np.asarray(rows['ratings'], np.float32),
      'group_mask': mask.astype(np.float32),
    }

  def _tokens(self, numbers: np.ndarray, feature: str) -> np.ndarray:
    """Ids of texts: int [...] -> int32 [..., length]."""
    return self._tables[self._lengths[feature]][numbers]


def _checked(lengths: Mapping[str, int], kind: str) -> dict[str, int]:
  """Checks the lengths of a kind of example; the group size is in 'ratings'."""
  wanted = ('inputs', 'targets', *(['ratings'] if kind == 'group' else []))
  for name in wanted:
    length = lengths.get(name)
    if not isinstance(length, int) or length < 2:
      raise datasets.DatasetError(
        f'TASK_FEATURE_LENGTHS = {dict(lengths)}: {name!r} must be an integer '
        'of 2 or more'
      )
  return {name: lengths[name] for name in wanted}


def _row_type(size: int) -> np.dtype:
  return np.dtype(
    [
      ('shared', np.int32),
      ('texts', np.int32, (size,)),
      ('ratings', np.float32, (size,)),
    ]
  )


def _pairs(
  groups: Sequence[judgments.Group], texts: instances.Texts, min_gap: float
) -> np.ndarray:
  """All pairs, the better hypothesis first."""
  rows = []
  for group in groups:
    shared = texts.number(group.shared)
    numbers = [texts.number(text) for text in group.hypotheses]
    for pair in judgments.pairs(group.ratings, min_gap):
      ratings = tuple(group.ratings[i] for i in pair)
      rows.append((shared, tuple(numbers[i] for i in pair), ratings))
  return np.array(rows, _row_type(2))


def _groups(
  groups: Sequence[judgments.Group],
  texts: instances.Texts,
  size: int,
  seed: int,
) -> np.ndarray:
  """Groups of at most `size`; larger ones are divided into parts."""
  generator = np.random.default_rng(seed)
  rows = []
  for group in groups:
    shared = texts.number(group.shared)
    order = np.arange(len(group.hypotheses))
    parts = -(-len(order) // size)
    if parts > 1:
      order = generator.permutation(len(order))
    for chosen in np.array_split(order, parts):
      numbers = np.full(size, -1, np.int32)
      ratings = np.zeros(size, np.float32)
      numbers[: len(chosen)] = [
        texts.number(group.hypotheses[i]) for i in chosen
      ]
      ratings[: len(chosen)] = [group.ratings[i] for i in chosen]
      rows.append((shared, numbers, ratings))
  return np.array(rows, _row_type(size))


def _encode(
  texts: instances.Texts, vocabulary: vocab.Vocabulary, length: int
) -> tuple[np.ndarray, int]:
  """Ids int32 [texts, longest], padded with 0; and how many were cut."""
  rows, cut = vocab.encode_batch_for_model(list(texts), vocabulary, length)
  table = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for number, row in enumerate(rows):
    table[number, : len(row)] = row
  return table, sum(cut)


def _why(
  path: str, selection: judgments.Selection, shared: str, min_gap: float
) -> str:
  """Explains why there is no pair."""
  gap = f' by more than {min_gap:g}' if min_gap else ''
  return (
    f'{path}: no two hypotheses form a pair, which takes the same {shared} '
    f'(and segment, document and language pair), and ratings that differ{gap}. '
    f'{selection}. For records with one hypothesis per segment fit a regressor '
    '(t5score fit)'
  )
