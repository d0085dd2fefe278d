"""Reads the spellings of special tokens in texts as these tokens.

This library's vocabularies, like SeqIO's, read `</s>` in a text as text;
transformers reads it as the token. For parity, `SpellingVocabulary` and
`subwords.SubwordTokenizer.with_special_tokens` follow transformers: the parts
between the spellings are encoded separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from t5score_jax.data import vocab


def encode(
  texts: Sequence[str],
  ids: Mapping[str, int],
  encode_batch: Callable[[list[str]], list[list[int]]],
) -> list[list[int]]:
  """Encodes texts in which certain spellings are single ids.

  Args:
    texts: The texts.
    ids: Id by spelling.
    encode_batch: Encodes the parts between spellings.

  Returns:
    The ids of each text.
  """
  pattern = re.compile(f'({"|".join(map(re.escape, ids))})')
  split = [pattern.split(text) for text in texts]
  encoded = iter(encode_batch([part for parts in split for part in parts[::2]]))
  rows = []
  for parts in split:
    row: list[int] = []
    for n, part in enumerate(parts):
      row += [ids[part]] if n % 2 else next(encoded)
    rows.append(row)
  return rows


class SpellingVocabulary(vocab.Vocabulary):
  """A vocabulary that reads spellings of its special tokens as these tokens.

  It has the ids, sentinels and fingerprint of the vocabulary that it wraps.
  """

  def __init__(self, vocabulary: vocab.Vocabulary):
    """Wraps a vocabulary."""
    super().__init__(vocabulary.extra_ids)
    self._vocabulary = vocabulary
    size, extra_ids = vocabulary.vocab_size, vocabulary.extra_ids
    first, step = size - 1, -1
    if isinstance(vocabulary, vocab.ByteVocabulary):
      # transformers numbers ByT5's sentinels upwards.
      first, step = size - extra_ids, 1
    self._ids = {
      **{piece: n for n, piece in enumerate(vocabulary.special_pieces)},
      **{f'<extra_id_{n}>': first + step * n for n in range(extra_ids)},
    }

  @property
  def base_vocab_size(self) -> int:
    """See `Vocabulary`."""
    return self._vocabulary.base_vocab_size

  def encode(self, text: str) -> list[int]:
    """See `Vocabulary.encode`."""
    (ids,) = self.encode_batch([text])
    return ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """See `Vocabulary.encode_batch`."""
    return encode(texts, self._ids, self._vocabulary.encode_batch)

  def _decode(self, ids: list[int]) -> str:
    return self._vocabulary.decode(ids)

  def _piece(self, i: int) -> str | bytes:
    return self._vocabulary._piece(i)

  def fingerprint(self) -> str:
    """See `Vocabulary`."""
    return self._vocabulary.fingerprint()
