"""SeqIO's view of the vocabularies of `t5score_jax.data.vocab`.

SeqIO's own classes, made from the same specification, so that TensorFlow's
tokenizers run inside the input pipeline and T5X gets what it expects. A test
holds that the ids agree. Not for training a vocabulary (`scripts/`).
"""

from __future__ import annotations

import os

import seqio

from t5score_jax.data import vocab


def seqio_vocabulary(
  spec: str | os.PathLike[str], extra_ids: int | None = None
) -> seqio.Vocabulary:
  """Makes the SeqIO vocabulary that equals `vocab.load_vocabulary(spec)`.

  Args:
    spec: `'bytes'`, or the path of a SentencePiece model.
    extra_ids: The number of sentinels; by default ByT5's 125 for bytes, and
      for SentencePiece as many as the model has.

  Returns:
    A `seqio.ByteVocabulary` or a `seqio.SentencePieceVocabulary`.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is not a fitting SentencePiece model.
  """
  ours = vocab.load_vocabulary(spec, extra_ids)
  if isinstance(ours, vocab.ByteVocabulary):
    return seqio.ByteVocabulary(extra_ids=ours.extra_ids)
  # Sentinels that the file already holds must not be added again.
  added = ours.extra_ids - vocab.load_vocabulary(spec).extra_ids
  return seqio.SentencePieceVocabulary(os.fspath(spec), extra_ids=added)


def sentinels(vocabulary: seqio.Vocabulary) -> int:
  """How many sentinels end a SeqIO vocabulary, in the file or added to it."""
  if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return vocabulary.extra_ids
  pieces = vocabulary.tokenizer
  count, last = 0, vocabulary.vocab_size - 1
  while count <= last and (
    pieces.IdToPiece(last - count).lstrip('▁') == f'<extra_id_{count}>'
  ):
    count += 1
  return count
