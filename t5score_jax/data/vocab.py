"""Vocabularies: text to ids and back, without TensorFlow.

The interface is that of `seqio.Vocabulary` (`encode`, `decode`, `vocab_size`,
`pad_id`, ...) and the ids are those of SeqIO's classes of the same names, so
that a model trained through SeqIO is scored with the same ids, by a program
that starts without TensorFlow. The bytes are ByT5's: byte b has id b + 3.

Not for training a vocabulary (`scripts/`), nor for batches (`features`).
"""

from __future__ import annotations

import abc
import hashlib
import os
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

#: Loading a model is not thread-safe in the sentencepiece library.
_LOADING = threading.Lock()
# SentencePiece's type of a piece that is matched as a whole.
_USER_DEFINED = 4


class Vocabulary(abc.ABC):
  """A mapping between text and ids; ids 0, 1, 2 are padding, `</s>`, unknown.

  Equal vocabularies (`==`, and equal `fingerprint`) give every text the same
  ids.
  """

  pad_id: int = 0
  bos_id: int | None = None
  eos_id: int = 1
  unk_id: int = 2

  def __init__(self, extra_ids: int = 0):
    """Reserves sentinel ids.

    Args:
      extra_ids: How many ids to add at the end, for span corruption.

    Raises:
      ValueError: The number is negative.
    """
    if extra_ids < 0:
      raise ValueError(f'extra_ids is {extra_ids}; it must be 0 or more')
    self._extra_ids = extra_ids

  @property
  def extra_ids(self) -> int:
    """How many sentinel ids stand at the end."""
    return self._extra_ids

  @property
  @abc.abstractmethod
  def base_vocab_size(self) -> int:
    """The number of ids without the sentinels, special ids included."""

  @property
  def vocab_size(self) -> int:
    """The number of ids; the largest is `vocab_size - 1`."""
    return self.base_vocab_size + self.extra_ids

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Encodes a text as ids, without `</s>`.

    Args:
      text: The text.

    Returns:
      Ids from 0 to `vocab_size - 1`; none for an empty text.

    Raises:
      TypeError: Not a string.
    """

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes many texts: the same ids as `encode` on each, but faster."""
    return [self.encode(text) for text in texts]

  def decode(self, ids: Iterable[int]) -> str:
    """Decodes ids up to the first `</s>`.

    Args:
      ids: Integers, a list or an array. One that is no id of this vocabulary
        is taken for `unk_id`.

    Returns:
      The text; padding and `</s>` are not part of it.
    """
    clean = []
    for i in ids:
      i = int(i)
      if i == self.eos_id:
        break
      clean.append(i if 0 <= i < self.vocab_size else self.unk_id)
    return self._decode(clean)

  @abc.abstractmethod
  def _decode(self, ids: list[int]) -> str:
    """Decodes ids of this vocabulary; none of them is `</s>`."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, Vocabulary):
      return NotImplemented
    return self.fingerprint() == other.fingerprint()

  def __hash__(self) -> int:
    return hash(self.fingerprint())

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self.base_vocab_size} + {self.extra_ids} ids,'
      f' {self.fingerprint()[:8]})'
    )


class ByteVocabulary(Vocabulary):
  """UTF-8 bytes: byte b has id b + 3 (ByT5, arXiv 2105.13626, section 3.1).

  The text of a sentinel (`<extra_id_0>`) is encoded as its bytes, as in SeqIO.
  """

  def __init__(self, extra_ids: int = 125):
    """Reserves sentinel ids.

    Args:
      extra_ids: How many. ByT5's own number makes 3 + 256 + 125 = 384 ids;
        SeqIO's default is 0.
    """
    super().__init__(extra_ids)

  @property
  def base_vocab_size(self) -> int:
    """3 special ids and 256 bytes."""
    return 259

  def encode(self, text: str) -> list[int]:
    """Encodes a text as ids, without `</s>`; see `Vocabulary.encode`."""
    return [byte + 3 for byte in _checked(text).encode('utf-8')]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes many texts: the same ids as `encode` on each, but faster."""
    rows = [_checked(text).encode('utf-8') for text in texts]
    ids = (
      np.frombuffer(b''.join(rows), np.uint8).astype(np.int64) + 3
    ).tolist()
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64).tolist()
    return [
      ids[start:end] for start, end in zip([0, *ends], ends, strict=False)
    ]

  def _decode(self, ids: list[int]) -> str:
    """Special ids, sentinels and bytes that are not UTF-8 are left out."""
    data = bytes(i - 3 for i in ids if 3 <= i < 259)
    return data.decode('utf-8', errors='ignore')

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""
    return hashlib.sha256(f'bytes+{self.extra_ids}'.encode()).hexdigest()


class SentencePieceVocabulary(Vocabulary):
  """The pieces of a SentencePiece model, T5's and mT5's among them.

  Sentinels are pieces of their own, added at the end in falling order:
  `<extra_id_0>` is the last id. Encoding finds them in a text at the starts of
  words. `model_bytes` holds them, and a model that already ends in them is
  recognised, so that a saved vocabulary is loaded without saying how many
  there are.

  Attributes:
    model_bytes: The serialized model, sentinels included; to be saved as
      `vocabulary.model`.
  """

  def __init__(
    self, model: str | os.PathLike[str] | bytes, extra_ids: int | None = None
  ):
    """Loads the model.

    Args:
      model: The file's path, or its content.
      extra_ids: How many sentinels the vocabulary has. By default as many as
        the model ends in: none, if it is fresh from training.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The content is not a SentencePiece model, its ids of
        padding, `</s>` and unknown are not 0, 1, 2, or it holds another
        number of sentinels.
    """
    name = 'the model given as bytes'
    if not isinstance(model, bytes):
      name = os.fspath(model)
      with open(model, 'rb') as file:
        model = file.read()
    processor = _load_processor(model, name)
    present = _count_sentinels(processor)
    if present and extra_ids not in (None, present):
      raise ValueError(
        f'{name}: the model already has {present} sentinels (<extra_id_N>),'
        f' not {extra_ids}; leave extra_ids out'
      )
    super().__init__(present or extra_ids or 0)
    if self.extra_ids > present:
      model += _sentinel_pieces(self.extra_ids)
      processor = _load_processor(model, name)
    self.model_bytes = model
    self._processor = processor
    self._fingerprint = hashlib.sha256(b'sentencepiece' + model).hexdigest()

  def __reduce__(self) -> tuple[type[SentencePieceVocabulary], tuple[bytes]]:
    # Copies and pickles carry the model, not the path: it may be gone.
    return SentencePieceVocabulary, (self.model_bytes,)

  @property
  def base_vocab_size(self) -> int:
    """The number of pieces without the sentinels.

    SeqIO's private `_base_vocab_size` counts the sentinels here as well.
    """
    return self._processor.GetPieceSize() - self.extra_ids

  @property
  def bare_model_bytes(self) -> bytes:
    """The model without sentinels, if these were appended to it.

    A model whose training made them, as mT5's, stays as it is.
    """
    return self.model_bytes.removesuffix(_sentinel_pieces(self.extra_ids))

  def encode(self, text: str) -> list[int]:
    """Encodes a text as ids, without `</s>`; see `Vocabulary.encode`."""
    return self._processor.Encode(_checked(text), out_type=int)

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes many texts: the same ids as `encode` on each, but faster."""
    return self._processor.Encode([_checked(t) for t in texts], out_type=int)

  def _decode(self, ids: list[int]) -> str:
    return self._processor.Decode(ids)

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""
    return self._fingerprint


def _checked(text: str) -> str:
  """A plain string; the libraries below are less clear about other types."""
  if not isinstance(text, str):
    raise TypeError(
      f'a text must be a str, not {type(text).__name__}: {text!r}'
    )
  return text


def _load_processor(
  model: bytes, name: str
) -> sentencepiece.SentencePieceProcessor:
  """Loads a serialized model and checks its special ids."""
  processor = sentencepiece.SentencePieceProcessor()
  try:
    if not model:
      raise RuntimeError('it is empty')
    with _LOADING:
      processor.LoadFromSerializedProto(model)
  except RuntimeError as error:
    raise ValueError(
      f'{name}: not a SentencePiece model ({error}); give the .model file that'
      ' SentencePiece wrote'
    ) from error
  ids = (processor.pad_id(), processor.eos_id(), processor.unk_id())
  if ids != (0, 1, 2):
    raise ValueError(
      f'{name}: padding, </s> and unknown have the ids {ids}, not (0, 1, 2);'
      ' train the model with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1'
    )
  return processor


def _count_sentinels(processor: sentencepiece.SentencePieceProcessor) -> int:
  """How many pieces at the end are `<extra_id_N>`, the last of them 0."""
  size = processor.GetPieceSize()
  count = 0
  while count < size and (
    processor.IdToPiece(size - 1 - count).lstrip('▁') == f'<extra_id_{count}>'
  ):
    count += 1
  return count


def _sentinel_pieces(count: int) -> bytes:
  """The sentinels as serialized pieces, to be appended to a serialized model.

  Serialized protocol buffers concatenate: what is appended to a message adds
  to its repeated fields. So this needs no protobuf library, whose versions
  conflict easily. Field 1 of a model is a piece, whose fields are 1 the text,
  2 the score (a float), 3 the type.
  """
  pieces = []
  for n in reversed(range(count)):
    text = f'▁<extra_id_{n}>'.encode()
    piece = (
      bytes([0x0A, len(text)])
      + text
      + bytes([0x15, 0, 0, 0, 0])
      + bytes([0x18, _USER_DEFINED])
    )
    pieces.append(bytes([0x0A, len(piece)]) + piece)
  return b''.join(pieces)


def load_vocabulary(
  spec: str | os.PathLike[str], extra_ids: int | None = None
) -> Vocabulary:
  """Loads the vocabulary that a word or a path names.

  Args:
    spec: `'bytes'`, or the path of a SentencePiece model.
    extra_ids: The number of sentinels. By default ByT5's 125 for bytes, and
      for SentencePiece as many as the model has.

  Returns:
    The vocabulary.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is not a fitting SentencePiece model.
  """
  if spec == 'bytes':
    return ByteVocabulary(*([] if extra_ids is None else [extra_ids]))
  if not os.path.exists(spec):
    raise FileNotFoundError(
      f"no vocabulary {os.fspath(spec)!r}: give 'bytes' or the path of a"
      ' SentencePiece model'
    )
  return SentencePieceVocabulary(spec, extra_ids)


def encode_for_model(
  text: str, vocabulary: Vocabulary, max_length: int
) -> tuple[list[int], bool]:
  """Encodes a text as the model takes it: truncated, with `</s>` at the end.

  Args:
    text: The text.
    vocabulary: Its vocabulary.
    max_length: The most ids to give, `</s>` among them; at least 1.

  Returns:
    The ids, of which the last is always `</s>`, and whether some were cut off.

  Raises:
    ValueError: `max_length` is less than 1.
    TypeError: Not a string.
  """
  ids, truncated = encode_batch_for_model([text], vocabulary, max_length)
  return ids[0], truncated[0]


def encode_batch_for_model(
  texts: Sequence[str], vocabulary: Vocabulary, max_length: int
) -> tuple[list[list[int]], list[bool]]:
  """Encodes many texts; `encode_for_model` on each, but faster."""
  if max_length < 1:
    raise ValueError(f'max_length is {max_length}; it must be at least 1')
  rows = vocabulary.encode_batch(texts)
  truncated = [len(ids) > max_length - 1 for ids in rows]
  return [
    [*ids[: max_length - 1], vocabulary.eos_id] for ids in rows
  ], truncated
