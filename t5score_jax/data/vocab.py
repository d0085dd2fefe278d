"""Vocabularies: text to ids and back, without TensorFlow.

The interface is that of `seqio.Vocabulary` (`encode`, `decode`, `vocab_size`,
`pad_id`, ...), and the ids equal those of SeqIO's classes of the same names, so
that scoring uses the ids of training without importing TensorFlow.
`scripts/prepare/train_vocabulary.py` trains vocabularies.
"""

from __future__ import annotations

import abc
import codecs
import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t5score_jax.errors import InputError, OptionError

if TYPE_CHECKING:
  import sentencepiece

#: The folder of the embedded models.
PRETRAINED = Path(__file__).resolve().parent.parent / 'pretrained'

# Of this library's folders, and of Hugging Face's.
_FILES = ('vocabulary.model', 'spiece.model')
#: Loading a model is not thread-safe in the sentencepiece library.
_LOADING = threading.Lock()


class Vocabulary(abc.ABC):
  """A mapping between text and ids; ids 0, 1, 2 are padding, `</s>`, unknown.

  Vocabularies are equal (`==`) if their fingerprints are; equal vocabularies
  encode every text alike.
  """

  pad_id: int = 0
  bos_id: int | None = None
  eos_id: int = 1
  unk_id: int = 2

  def __init__(self, extra_ids: int = 0):
    """Reserves sentinel ids.

    Args:
      extra_ids: Number of ids to add at the end, for span corruption.

    Raises:
      OptionError: The number is negative.
    """
    if extra_ids < 0:
      raise OptionError(f'extra_ids is {extra_ids}; it must be 0 or more')
    self._extra_ids = extra_ids

  @property
  def extra_ids(self) -> int:
    """The number of sentinel ids at the end."""
    return self._extra_ids

  @property
  @abc.abstractmethod
  def base_vocab_size(self) -> int:
    """The number of ids without the sentinels, special ids included."""

  @property
  def vocab_size(self) -> int:
    """The number of ids; the largest is `vocab_size - 1`."""
    return self.base_vocab_size + self.extra_ids

  @property
  def special_pieces(self) -> tuple[str, ...]:
    """How padding, `</s>` and unknown are spelled."""
    return ('<pad>', '</s>', '<unk>')

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
      ids: Integers, a list or an array. Those outside the vocabulary count as
        `unk_id`.

    Returns:
      The text, without padding and `</s>`.
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

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The text of each id; joined, they are the text that a model reads.

    Args:
      ids: Ids of this vocabulary.

    Returns:
      A string for each: with its space before a word, `</s>` spelled out, and
      '' for a byte that does not complete a character.
    """
    decoder = codecs.getincrementaldecoder('utf-8')('ignore')
    pieces = []
    for i in ids:
      piece = self._piece(i)
      pieces.append(piece if isinstance(piece, str) else decoder.decode(piece))
    return pieces

  @abc.abstractmethod
  def _piece(self, i: int) -> str | bytes:
    """The text of an id; bytes if it may be a part of a character."""

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
      extra_ids: Number of sentinels. ByT5's makes 3 + 256 + 125 = 384 ids;
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

  def _piece(self, i: int) -> str | bytes:
    if i < 3:
      return self.special_pieces[i]
    return bytes([i - 3]) if i < 259 else f'<extra_id_{i - 259}>'

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""
    return hashlib.sha256(f'bytes+{self.extra_ids}'.encode()).hexdigest()


class SentencePieceVocabulary(Vocabulary):
  """The pieces of a SentencePiece model, such as T5's and mT5's.

  Sentinels are pieces at the end, in descending order: `<extra_id_0>` has the
  last id. They are recognised in texts at the start of words. A model that ends
  in sentinels is recognised too, so that a saved vocabulary needs no
  `extra_ids`.

  Attributes:
    model_bytes: The serialized model with its sentinels; saved as
      `vocabulary.model`.
  """

  def __init__(
    self, model: str | os.PathLike[str] | bytes, extra_ids: int | None = None
  ):
    """Loads the model.

    Args:
      model: The file's path, or its content.
      extra_ids: Number of sentinels; by default the model's, which is 0 after
        training.

    Raises:
      FileNotFoundError: The file does not exist.
      InputError: The content is not a SentencePiece model, its ids of padding,
        `</s>` and unknown are not 0, 1, 2, or it has another number of
        sentinels.
    """
    name = 'the model given as bytes'
    if not isinstance(model, bytes):
      name = os.fspath(model)
      with open(model, 'rb') as file:
        model = file.read()
    processor = _load_processor(model, name)
    present = _count_sentinels(processor)
    if present and extra_ids not in (None, present):
      raise InputError(
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
    # Copies and pickles hold the model, not the path, which may be gone.
    return SentencePieceVocabulary, (self.model_bytes,)

  @property
  def base_vocab_size(self) -> int:
    """The number of pieces without the sentinels."""
    return self._processor.GetPieceSize() - self.extra_ids

  @property
  def special_pieces(self) -> tuple[str, ...]:
    """How padding, `</s>` and unknown are spelled."""
    return tuple(self._processor.IdToPiece(i) for i in range(3))

  @property
  def bare_model_bytes(self) -> bytes:
    """The model without appended sentinels; mT5's own ones remain."""
    return self.model_bytes.removesuffix(_sentinel_pieces(self.extra_ids))

  def encode(self, text: str) -> list[int]:
    """Encodes a text as ids, without `</s>`; see `Vocabulary.encode`."""
    return self._processor.Encode(_checked(text), out_type=int)

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes many texts: the same ids as `encode` on each, but faster."""
    return self._processor.Encode([_checked(t) for t in texts], out_type=int)

  def _decode(self, ids: list[int]) -> str:
    return self._processor.Decode(ids)

  def _piece(self, i: int) -> str | bytes:
    piece = self._processor.IdToPiece(i)
    if self._processor.IsByte(i):
      return bytes([int(piece[1:-1], 16)])
    return piece.replace('\u2581', ' ')

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""
    return self._fingerprint


def _checked(text: str) -> str:
  """Raises a clearer error than the libraries if a text is not a string."""
  if not isinstance(text, str):
    raise TypeError(
      f'a text must be a str, not {type(text).__name__}: {text!r}'
    )
  return text


def _load_processor(
  model: bytes, name: str
) -> sentencepiece.SentencePieceProcessor:
  """Loads a serialized model and checks its special ids."""
  # Here, because metrics without a model import this module too.
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  try:
    if not model:
      raise RuntimeError('the file is empty')
    with _LOADING:
      processor.LoadFromSerializedProto(model)
  except RuntimeError as error:
    raise InputError(
      f'{name}: not a SentencePiece model ({error}); give the .model file that'
      ' SentencePiece wrote'
    ) from error
  ids = (processor.pad_id(), processor.eos_id(), processor.unk_id())
  if ids != (0, 1, 2):
    raise InputError(
      f'{name}: padding, </s> and unknown have the ids {ids}, not (0, 1, 2);'
      ' train the model with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1'
    )
  return processor


def _count_sentinels(processor: sentencepiece.SentencePieceProcessor) -> int:
  """Counts the pieces `<extra_id_N>` at the end, the last of them N = 0."""
  size = processor.GetPieceSize()
  count = 0
  while count < size and (
    processor.IdToPiece(size - 1 - count).lstrip('▁') == f'<extra_id_{count}>'
  ):
    count += 1
  return count


def _sentinel_pieces(count: int) -> bytes:
  """The serialized pieces of sentinels, to be appended to a serialized model.

  Bytes appended to a serialized protocol buffer add to its repeated fields.
  """
  # Here, because vocabularies without sentinels need no protobuf.
  from sentencepiece import sentencepiece_model_pb2

  proto: Any = sentencepiece_model_pb2
  kind = proto.ModelProto.SentencePiece.USER_DEFINED
  model = proto.ModelProto()
  for n in reversed(range(count)):
    model.pieces.add(piece=f'▁<extra_id_{n}>', score=0.0, type=kind)
  return bytes(model.SerializeToString())


def load_vocabulary(
  spec: str | os.PathLike[str], extra_ids: int | None = None
) -> Vocabulary:
  """Loads a vocabulary, which may be a model's.

  Args:
    spec: See `find`.
    extra_ids: Number of sentinels; by default the model's own, and ByT5's 125
      for bytes.

  Raises:
    FileNotFoundError: There is no such file or model, or it has no vocabulary.
    InputError: The file is not a suitable SentencePiece model.
  """
  path, own = find(spec)
  extra_ids = own if extra_ids is None else extra_ids
  if path == 'bytes':
    return ByteVocabulary(*([] if extra_ids is None else [extra_ids]))
  return SentencePieceVocabulary(path, extra_ids)


def find(
  spec: str | os.PathLike[str],
) -> tuple[str | os.PathLike[str], int | None]:
  """Finds the file of a vocabulary.

  Args:
    spec: `'bytes'`, the path of a SentencePiece model, or a T5 model: the name
      of an embedded one, a folder, or a `checkpoint_N` of a run.

  Returns:
    `'bytes'` or the path of a SentencePiece model, and the number of sentinels
    of a model that reads bytes; None for the default.

  Raises:
    FileNotFoundError: There is no such file or model, or it has no vocabulary.
  """
  if spec == 'bytes' or os.path.isfile(spec):
    return spec, None
  embedded = {path.parent.name for path in PRETRAINED.glob(f'*/{_FILES[0]}')}
  folder = PRETRAINED / spec if spec in embedded else Path(spec)
  if not folder.is_dir():
    raise FileNotFoundError(
      f"no vocabulary {os.fspath(spec)!r}: give 'bytes', the path of a"
      ' SentencePiece model, or a model that has one: its folder, or a name'
      f' ({", ".join(sorted(embedded))})'
    )
  if re.fullmatch(r'checkpoint_\d+', folder.name):
    folder = folder.parent
  for name in _FILES:
    if (folder / name).is_file():
      return folder / name, None
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    description = json.loads((folder / 'config.json').read_bytes())
    if description['vocabulary'] == 'bytes':
      return 'bytes', description['extra_ids']
  raise FileNotFoundError(
    f'{folder}: has no vocabulary ({" or ".join(_FILES)})'
  )


def encode_batch_for_model(
  texts: Sequence[str], vocabulary: Vocabulary, max_length: int
) -> tuple[list[list[int]], list[bool]]:
  """Encodes texts as model inputs: truncated, with `</s>` at the end.

  Args:
    texts: The texts.
    vocabulary: The vocabulary.
    max_length: Maximum number of ids per text, `</s>` included; at least 1.

  Returns:
    The ids of each text, the last of which is `</s>`, and whether each text was
    truncated.

  Raises:
    OptionError: `max_length` is less than 1.
    TypeError: A text is not a string.
  """
  if max_length < 1:
    raise OptionError(f'max_length is {max_length}; it must be at least 1')
  rows = vocabulary.encode_batch(texts)
  truncated = [len(ids) > max_length - 1 for ids in rows]
  return [
    [*ids[: max_length - 1], vocabulary.eos_id] for ids in rows
  ], truncated
