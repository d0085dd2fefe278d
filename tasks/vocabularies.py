"""SeqIO vocabularies that equal those of `t5score_jax.data.vocab`.

SeqIO's own classes, created from the same specification. TensorFlow's
tokenizers thus run in the input pipeline, and T5X gets the classes that it
expects. A test compares the ids. Not here: training a vocabulary (`scripts/`).
"""

from __future__ import annotations

import os

import seqio

from t5score_jax.data import vocab


def seqio_vocabulary(
  spec: str | os.PathLike[str], extra_ids: int | None = None
) -> seqio.Vocabulary:
  """Creates the SeqIO vocabulary that equals `vocab.load_vocabulary(spec)`.

  Args:
    spec: `'bytes'`, the path of a SentencePiece model, or a model's name or
      folder.
    extra_ids: The number of sentinels; by default ByT5's 125 for bytes, and
      for SentencePiece as many as the model has.

  Returns:
    A `seqio.ByteVocabulary` or a `seqio.SentencePieceVocabulary`.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is not a suitable SentencePiece model.
  """
  ours = vocab.load_vocabulary(spec, extra_ids)
  if isinstance(ours, vocab.ByteVocabulary):
    return seqio.ByteVocabulary(extra_ids=ours.extra_ids)
  # Sentinels that the file already holds must not be added again.
  path, _ = vocab.find(spec)
  added = ours.extra_ids - vocab.load_vocabulary(path).extra_ids
  return seqio.SentencePieceVocabulary(os.fspath(path), extra_ids=added)


def sentinels(vocabulary: seqio.Vocabulary) -> int:
  """The number of sentinels of a SeqIO vocabulary, in the file or added."""
  if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return vocabulary.extra_ids
  pieces = vocabulary.tokenizer
  count, last = 0, vocabulary.vocab_size - 1
  while count <= last and (
    pieces.IdToPiece(last - count).lstrip('▁') == f'<extra_id_{count}>'
  ):
    count += 1
  return count
