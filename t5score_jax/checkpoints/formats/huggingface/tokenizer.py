"""Tokenizer files of T5, mT5, ByT5 and umT5 folders, from and to vocabularies.

Written are both the SentencePiece model and `tokenizer.json`, so that
transformers needs neither sentencepiece nor protobuf. A vocabulary that its
T5Tokenizer would read differently is refused. Serialized models are taken
apart here and not by the protobuf library, whose versions conflict easily.

Known differences: transformers takes the spelling of a special token for the
token ('</s>' in the middle of a text is the end), our SentencePiece vocabulary
takes it for text, as SeqIO does. ByT5's tokenizer is told to do so as well. The
control character U+0085 is white space to transformers alone.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data.vocab import (
  ByteVocabulary,
  SentencePieceVocabulary,
  Vocabulary,
)

MODEL_FILE = 'spiece.model'
JSON_FILE = 'tokenizer.json'
CONFIG_FILE = 'tokenizer_config.json'
SPECIAL_FILE = 'special_tokens_map.json'

_UNIGRAM = 1
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SENTINEL = re.compile(r'▁?<extra_id_\d+>')
_T5_EXTRA_IDS, _BYT5_EXTRA_IDS = 100, 125
# What stands where a tokenizer has no limit of its own.
_DEFAULT_LENGTH = 1024


@dataclasses.dataclass(frozen=True)
class _Piece:
  text: str
  score: float
  kind: int


@dataclasses.dataclass(frozen=True)
class _Model:
  """A SentencePiece model, as far as transformers can have it.

  Attributes:
    pieces: In the order of their ids.
    charsmap: The compiled normalisation; b'' for none.
    differences: What its T5Tokenizer would do otherwise, a phrase each.
  """

  pieces: tuple[_Piece, ...]
  charsmap: bytes
  differences: tuple[str, ...]


def read(folder: Path, rows: int) -> tuple[Vocabulary | None, tuple[str, ...]]:
  """The vocabulary of a folder.

  Args:
    folder: Holds `spiece.model`, or a Unigram `tokenizer.json`, or says that
      its tokenizer is ByT5's.
    rows: Of the embedding; 384 without any file mean ByT5's.

  Returns:
    The vocabulary, None if nothing says which; and what was assumed.

  Raises:
    CheckpointError: A file is damaged.
  """
  said = _read_json(folder / CONFIG_FILE) or {}
  extra_ids = said.get('extra_ids')
  if not isinstance(extra_ids, int) or extra_ids < 0:
    extra_ids = None
  model: bytes | None = None
  notes: tuple[str, ...] = ()
  if (folder / MODEL_FILE).is_file():
    model = (folder / MODEL_FILE).read_bytes()
  elif found := _read_json(folder / JSON_FILE):
    try:
      model, count = _model_of_json(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      return None, (
        f'{folder / JSON_FILE}: no vocabulary of this library ({error}): '
        f'--vocabulary names the {MODEL_FILE} that the tokenizer was made of',
      )
    extra_ids = count if extra_ids is None else extra_ids
    notes = (f'vocabulary: put together from {JSON_FILE}',)
  if model is not None:
    try:
      return _with_sentinels(model, extra_ids, rows), notes
    except ValueError as error:
      raise CheckpointError(f'{folder}: {error}') from error
  byt5 = str(said.get('tokenizer_class', '')).startswith('ByT5')
  if byt5 or rows == 384:
    if not byt5:
      notes = ('vocabulary bytes: assumed, as the network has 384 rows',)
    # transformers 5 saves the number as 0, and the sentinels among the tokens.
    listed = len(set(_SENTINEL.findall(json.dumps(said, ensure_ascii=False))))
    count = _BYT5_EXTRA_IDS if extra_ids is None else max(extra_ids, listed)
    return ByteVocabulary(count), notes
  return None, ()


def _read_json(path: Path) -> dict[str, Any] | None:
  if not path.is_file():
    return None
  try:
    found = json.loads(path.read_bytes())
  except ValueError as error:
    raise CheckpointError(f'{path}: not JSON ({error})') from error
  if not isinstance(found, dict):
    raise CheckpointError(f'{path}: must hold a JSON object')
  return found


def _with_sentinels(
  model: bytes, extra_ids: int | None, rows: int
) -> SentencePieceVocabulary:
  """Adds the sentinels that transformers keeps outside of the model.

  As many as it is told, by default T5's 100 where the embedding has rows for
  them; none to a model that has them.
  """
  if b'<extra_id_0>' in model or extra_ids == 0:
    return SentencePieceVocabulary(model)
  bare = SentencePieceVocabulary(model)
  if extra_ids is None:
    fits = bare.vocab_size + _T5_EXTRA_IDS <= rows
    extra_ids = _T5_EXTRA_IDS if fits else 0
  return SentencePieceVocabulary(model, extra_ids) if extra_ids else bare


def tokenizer_class(vocabulary: Vocabulary) -> str:
  """The name of its class in transformers."""
  if isinstance(vocabulary, ByteVocabulary):
    return 'ByT5Tokenizer'
  return 'T5Tokenizer'


def files(
  vocabulary: Vocabulary, max_length: int | None = None
) -> dict[str, bytes]:
  """The tokenizer's files.

  Args:
    vocabulary: Bytes or SentencePiece.
    max_length: Tokens a text, `</s>` included.

  Returns:
    Contents by file name.

  Raises:
    CheckpointError: transformers would read texts as other ids.
  """
  said: dict[str, Any] = {
    'tokenizer_class': tokenizer_class(vocabulary),
    'model_max_length': max_length or _DEFAULT_LENGTH,
  }
  special = {'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}
  made: dict[str, bytes] = {}
  if isinstance(vocabulary, ByteVocabulary):
    said |= {
      **special,
      'extra_ids': vocabulary.extra_ids,
      'split_special_tokens': True,
    }
  elif isinstance(vocabulary, SentencePieceVocabulary):
    model_bytes = vocabulary.bare_model_bytes
    model = _parse(model_bytes)
    if model.differences:
      raise CheckpointError(
        'the vocabulary cannot be exported, as the T5Tokenizer of transformers '
        f'would read texts otherwise: {"; ".join(model.differences)}'
      )
    names = [piece.text for piece in model.pieces[:3]]
    special = dict(
      zip(('pad_token', 'eos_token', 'unk_token'), names, strict=True)
    )
    count = vocabulary.vocab_size - len(model.pieces)
    sentinels = [f'<extra_id_{i}>' for i in range(count)]
    said |= {
      **special,
      'extra_ids': count,
      'additional_special_tokens': sentinels,
      'clean_up_tokenization_spaces': False,
      # As the published T5s; said, because transformers 4 warns otherwise.
      'legacy': True,
    }
    made[MODEL_FILE] = model_bytes
    made[JSON_FILE] = _json_of_model(model, count)
  else:
    raise CheckpointError(
      f'{vocabulary!r}: transformers has no T5 tokenizer of this kind'
    )
  made[CONFIG_FILE] = _dump(said)
  made[SPECIAL_FILE] = _dump(special)
  return made


def _dump(value: Mapping[str, Any]) -> bytes:
  return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()


def _json_of_model(model: _Model, extra_ids: int) -> bytes:
  """`tokenizer.json`: the tokenizer that T5Tokenizer makes of the model."""
  vocab: list[list[Any]] = [[p.text, p.score] for p in model.pieces]
  vocab += [[f'<extra_id_{i}>', 0.0] for i in reversed(range(extra_ids))]
  end = model.pieces[1].text
  last = {'SpecialToken': {'id': end, 'type_id': 0}}
  first, second = (
    {'Sequence': {'id': name, 'type_id': 0}} for name in ('A', 'B')
  )
  metaspace = {
    'type': 'Metaspace',
    'replacement': '▁',
    'prepend_scheme': 'always',
    'split': True,
  }
  normalizer = {
    'type': 'Precompiled',
    'precompiled_charsmap': base64.b64encode(model.charsmap).decode(),
  }
  added = [0, 1, 2, *range(len(model.pieces), len(vocab))]
  made = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {
        'id': i,
        'content': vocab[i][0],
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
        'normalized': False,
        'special': True,
      }
      for i in added
    ],
    'normalizer': normalizer if model.charsmap else None,
    'pre_tokenizer': {
      'type': 'Sequence',
      'pretokenizers': [{'type': 'WhitespaceSplit'}, metaspace],
    },
    'post_processor': {
      'type': 'TemplateProcessing',
      'single': [first, last],
      'pair': [first, last, second, last],
      'special_tokens': {end: {'id': end, 'ids': [1], 'tokens': [end]}},
    },
    'decoder': metaspace,
    'model': {
      'type': 'Unigram',
      'unk_id': 2,
      'vocab': vocab,
      'byte_fallback': False,
    },
  }
  return (json.dumps(made, ensure_ascii=False) + '\n').encode()


def _model_of_json(found: Mapping[str, Any]) -> tuple[bytes, int]:
  """A serialized SentencePiece model of a Unigram `tokenizer.json`.

  Returns:
    The model, and how many sentinels the file has at its end.

  Raises:
    ValueError: A tokenizer that is none.
    KeyError, TypeError, AttributeError: Not such a file at all.
  """
  model = found['model']
  kind = model.get('type')
  if kind != 'Unigram' or model.get('byte_fallback') or model['unk_id'] != 2:
    raise ValueError(f'a {kind} model; only Unigram is, without bytes, unk 2')
  charsmap = b''
  normalizer = found.get('normalizer') or {'type': 'Sequence'}
  for step in normalizer.get('normalizers', [normalizer]):
    if step['type'] == 'Precompiled':
      charsmap = base64.b64decode(step['precompiled_charsmap'] or '')
    # Of white space, which SentencePiece strips and joins itself.
    elif step['type'] not in ('Strip', 'Replace', 'Sequence'):
      raise ValueError(f'a normalizer {step["type"]}')
  vocab = [(str(text), float(score)) for text, score in model['vocab']]
  count = 0
  while vocab and vocab[-1][0] == f'<extra_id_{count}>':
    vocab.pop()
    count += 1
  pieces = []
  for i, (text, score) in enumerate(vocab):
    kind = {0: _CONTROL, 1: _CONTROL, 2: _UNKNOWN}.get(i, _NORMAL)
    if _SENTINEL.fullmatch(text):
      kind = _USER_DEFINED
    pieces.append(_Piece(text, score, kind))
  return _serialize(pieces, charsmap), count


# What of sentencepiece_model.proto is read: field numbers of ModelProto, and
# of the messages in it, with their defaults.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _SUFFIX, _BYTES = 3, 24, 35
_CHARSMAP, _PREFIX, _REMOVE, _ESCAPE = 2, 3, 4, 5


def _parse(model: bytes) -> _Model:
  """Takes a serialized model apart."""
  pieces = []
  parts: dict[int, bytes] = {_TRAINER: b'', _NORMALIZER: b''}
  for field, value in _fields(model):
    if field == _PIECE and isinstance(value, bytes):
      said = dict(_fields(value))
      score = struct.unpack('<f', said.get(2, bytes(4)))[0]
      pieces.append(_Piece(said[1].decode(), score, said.get(3, _NORMAL)))
    elif field in parts and isinstance(value, bytes):
      parts[field] += value
  trainer = dict(_fields(parts[_TRAINER]))
  normalizer = dict(_fields(parts[_NORMALIZER]))
  own = [
    piece.text
    for piece in pieces
    if piece.kind not in (_NORMAL, _UNKNOWN, _CONTROL)
    and not _SENTINEL.fullmatch(piece.text)
  ]
  differences = {
    'it is no unigram model': trainer.get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM,
    'it falls back to bytes': trainer.get(_BYTES, 0),
    'it marks the ends of words': trainer.get(_SUFFIX, 0),
    'it adds no space before a text': not normalizer.get(_PREFIX, 1),
    'it keeps repeated spaces': not normalizer.get(_REMOVE, 1),
    'it does not mark spaces': not normalizer.get(_ESCAPE, 1),
    f'it has user-defined pieces ({" ".join(own[:5])})': own,
  }
  return _Model(
    tuple(pieces),
    normalizer.get(_CHARSMAP, b''),
    tuple(text for text, is_so in differences.items() if is_so),
  )


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
  """Yields (number, value) of a message's fields: an int, or bytes."""
  place = 0

  def varint() -> int:
    nonlocal place
    value = shift = 0
    while True:
      byte = message[place]
      place += 1
      value |= (byte & 127) << shift
      shift += 7
      if byte < 128:
        return value

  while place < len(message):
    number, kind = divmod(varint(), 8)
    if kind == 0:
      yield number, varint()
      continue
    size = {1: 8, 5: 4}.get(kind)
    if size is None:
      size = varint()
    yield number, message[place : place + size]
    place += size


def _varint(value: int) -> bytes:
  value &= (1 << 64) - 1
  made = bytearray()
  while value > 127:
    made.append(value & 127 | 128)
    value >>= 7
  return bytes([*made, value])


def _field(number: int, value: int | bytes) -> bytes:
  if isinstance(value, int):
    return _varint(number << 3) + _varint(value)
  return _varint(number << 3 | 2) + _varint(len(value)) + value


def _serialize(pieces: list[_Piece], charsmap: bytes) -> bytes:
  """A model with T5's special ids."""
  parts = []
  for piece in pieces:
    part = _field(1, piece.text.encode())
    part += _varint(2 << 3 | 5) + struct.pack('<f', piece.score)
    if piece.kind != _NORMAL:
      part += _field(3, piece.kind)
    parts.append(_field(_PIECE, part))
  made = b''.join(parts)
  # unk_id, bos_id, eos_id, pad_id, and how they are written.
  trainer = {_MODEL_TYPE: _UNIGRAM, 4: len(pieces), 40: 2, 41: -1, 42: 1, 43: 0}
  names = {45: 2, 47: 1, 48: 0}
  made += _field(
    _TRAINER,
    b''.join(_field(number, value) for number, value in trainer.items())
    + b''.join(_field(n, pieces[i].text.encode()) for n, i in names.items()),
  )
  normalizer: dict[int, int | bytes] = {
    _CHARSMAP: charsmap,
    _PREFIX: 1,
    _REMOVE: 1,
    _ESCAPE: 1,
  }
  return made + _field(
    _NORMALIZER,
    b''.join(_field(number, value) for number, value in normalizer.items()),
  )
