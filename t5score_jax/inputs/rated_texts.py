"""Rated records as inputs of MetricX with error scores as labels.

One example per record and form of the input (`data/prompts.py`), held in
memory, without TensorFlow. `datasets.MixtureDataset` mixes it with others. Not
here: pairs and groups of hypotheses (`inputs/rated_records.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.data import prompts, vocab
from t5score_jax.data.records import Segment
from t5score_jax.inputs import datasets, rated_records, shuffling
from t5score_jax.runtime import validation


class RatedTextsDataset(shuffling.ShuffledDataset):
  """Inputs of MetricX: 'encoder_input_tokens' and 'ratings'.

  A label is `offset + slope * rating`, clipped to [0, 25]: an error score; 0 is
  perfect. MQM penalties (higher is better) need slope -1. Z-scores of direct
  assessment need slope -12.5 and offset 12.5, so that -1 is the worst and 1 is
  perfect.

  Attributes:
    path: The file of the records.
    notes: What was read, in words, for the report of the run.
  """

  def __init__(
    self,
    parts: rated_records.Parts,
    rating: str,
    vocabulary: vocab.Vocabulary,
    task_feature_lengths: dict[str, int],
    batch_size: int,
    version: int = 24,
    forms: Sequence[str] = prompts.FORMS,
    slope: float = -1.0,
    offset: float = 0.0,
    part: str = 'train',
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Selects and encodes the texts.

    Args:
      parts: The records.
      rating: Name of the rating; higher is better.
      vocabulary: The vocabulary of the network.
      task_feature_lengths: 'inputs' is the maximum number of tokens per input,
        including the removed `</s>`; longer inputs are truncated.
      batch_size: Examples per batch over all processes.
      version: 23 or 24, the version of the inputs.
      forms: Names in `prompts.FORMS`; each record is an example in each form. A
        record that lacks a text of a form has no example in it.
      slope: See the class.
      offset: See the class.
      part: 'train' or 'validation'.
      seed: Seed of the order.
      shuffle: Whether to shuffle.

    Raises:
      DatasetError: There are no examples, or an argument is invalid.
    """
    validation.check(
      validation.Positive, datasets.DatasetError, batch_size=batch_size
    )
    length = task_feature_lengths.get('inputs', 0)
    for name, value, known in (
      ('version', version, tuple(prompts.METRICX_LENGTHS)),
      ('part', part, ('train', 'validation')),
      *(('forms', form, _forms(version)) for form in forms),
    ):
      if value not in known:
        raise datasets.DatasetError(
          f'{name} = {value!r}: use one of {list(known)}'
        )
    if not isinstance(length, int) or length < 2:
      raise datasets.DatasetError(
        f"TASK_FEATURE_LENGTHS = {task_feature_lengths}: 'inputs' must be an "
        'integer of 2 or more'
      )
    self.path = Path(parts.path)
    segments = parts.train if part == 'train' else parts.validation
    texts, labels = [], []
    for segment in segments:
      if rating not in segment.ratings:
        continue
      for form in forms:
        if _has(segment, form):
          reference = segment.references[0] if segment.references else None
          texts.append(
            prompts.metricx(
              version, form, segment.hypothesis, segment.source, reference
            )
          )
          labels.append(offset + slope * segment.ratings[rating])
    if not texts:
      raise datasets.DatasetError(
        f'{parts.path}: no record with the rating {rating!r} has the texts of '
        f'{" or ".join(forms)}'
      )
    super().__init__(len(texts), batch_size, seed, shuffle)
    self._labels = np.clip(labels, *prompts.METRICX_RANGE)[:, None]
    rows, cut = prompts.encode_metricx(texts, vocabulary, length)
    self._tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for number, row in enumerate(rows):
      self._tokens[number, : len(row)] = row
    self.notes = [
      parts.note,
      f'{part}: {len(texts):,} inputs of MetricX-{version} '
      f'({", ".join(forms)}), labels {self._labels.min():g} to '
      f'{self._labels.max():g}, mean {self._labels.mean():.3g}'
      + (f'; {sum(cut):,} are cut to {length} tokens' if any(cut) else ''),
    ]

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """See `datasets.ArrayDataset.token_arrays`."""
    yield self.path, self._tokens

  def _gather(self, rows: np.ndarray | slice) -> shuffling.Batch:
    return {
      'encoder_input_tokens': self._tokens[rows],
      'ratings': np.asarray(self._labels[rows], np.float32),
    }


def _forms(version: int) -> tuple[str, ...]:
  return prompts.FORMS[:2] if version == 23 else prompts.FORMS


def _has(segment: Segment, form: str) -> bool:
  """Whether a segment has the texts of a form."""
  return ('source' not in form or segment.source is not None) and (
    'reference' not in form or bool(segment.references)
  )
