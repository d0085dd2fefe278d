"""Converts tokenizer files of T5, mT5, ByT5 and umT5 from and to vocabularies.

Writes both the SentencePiece model and `tokenizer.json`, so that transformers
needs neither sentencepiece nor protobuf. Rejects a vocabulary that its
T5Tokenizer would read differently.

Known differences: transformers reads the spelling of a special token as the
token ('</s>' in the middle of a text is the end). Our SentencePiece vocabulary
reads it as text, like SeqIO (but see `data/special_tokens.py`); ByT5's
tokenizer is configured to do so as well. Only transformers treats the control
character U+0085 as white space.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from t5score_jax.checkpoints.weights import CheckpointError, read_json
from t5score_jax.data.unigram import unigram_json
from t5score_jax.data.vocab import (
  ByteVocabulary,
  SentencePieceVocabulary,
  Vocabulary,
)

MODEL_FILE = 'spiece.model'
JSON_FILE = 'tokenizer.json'
CONFIG_FILE = 'tokenizer_config.json'
SPECIAL_FILE = 'special_tokens_map.json'

# Type checkers do not see the names that protobuf adds to the module.
_PROTO: Any = sentencepiece_model_pb2
_ModelProto, _Piece = _PROTO.ModelProto, _PROTO.ModelProto.SentencePiece
_UNIGRAM = _PROTO.TrainerSpec.UNIGRAM
_SENTINEL = re.compile(r'▁?<extra_id_\d+>')
_T5_EXTRA_IDS, _BYT5_EXTRA_IDS = 100, 125
# The value in the file of a tokenizer without a limit.
_DEFAULT_LENGTH = 1024


def read(folder: Path, rows: int) -> tuple[Vocabulary | None, tuple[str, ...]]:
  """The vocabulary of a folder.

  Args:
    folder: Holds `spiece.model`, or a Unigram `tokenizer.json`, or says that
      its tokenizer is ByT5's.
    rows: Rows of the embedding; 384 without any file mean ByT5.

  Returns:
    The vocabulary, None if it is unknown; and what was assumed.

  Raises:
    CheckpointError: A file is damaged.
  """
  settings = _read_json(folder / CONFIG_FILE) or {}
  extra_ids = settings.get('extra_ids')
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
  byt5 = str(settings.get('tokenizer_class', '')).startswith('ByT5')
  if byt5 or rows == 384:
    if not byt5:
      notes = ('vocabulary bytes: assumed, as the network has 384 rows',)
    # transformers 5 saves the number as 0, and the sentinels among the tokens.
    listed = len(
      set(_SENTINEL.findall(json.dumps(settings, ensure_ascii=False)))
    )
    count = _BYT5_EXTRA_IDS if extra_ids is None else max(extra_ids, listed)
    return ByteVocabulary(count), notes
  return None, ()


def _read_json(path: Path) -> dict[str, Any] | None:
  return read_json(path) if path.is_file() else None


def _with_sentinels(
  model: bytes, extra_ids: int | None, rows: int
) -> SentencePieceVocabulary:
  """Adds the sentinels that transformers keeps outside of the model.

  `extra_ids` of them, by default T5's 100 if the embedding has rows for them;
  none if the model has them.
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
    max_length: Tokens per text, `</s>` included.

  Returns:
    Contents by file name.

  Raises:
    CheckpointError: transformers would encode texts as other ids.
  """
  settings: dict[str, Any] = {
    'tokenizer_class': tokenizer_class(vocabulary),
    'model_max_length': max_length or _DEFAULT_LENGTH,
  }
  special = {'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}
  made: dict[str, bytes] = {}
  if isinstance(vocabulary, ByteVocabulary):
    settings |= {
      **special,
      'extra_ids': vocabulary.extra_ids,
      'split_special_tokens': True,
    }
  elif isinstance(vocabulary, SentencePieceVocabulary):
    model_bytes = vocabulary.bare_model_bytes
    model = _ModelProto.FromString(model_bytes)
    if differences := _differences(model):
      raise CheckpointError(
        'the vocabulary cannot be exported, as the T5Tokenizer of transformers '
        f'would encode texts differently: {"; ".join(differences)}'
      )
    names = [p.piece for p in model.pieces[:3]]
    special = dict(
      zip(('pad_token', 'eos_token', 'unk_token'), names, strict=True)
    )
    count = vocabulary.vocab_size - len(model.pieces)
    sentinels = [f'<extra_id_{i}>' for i in range(count)]
    settings |= {
      **special,
      'extra_ids': count,
      'additional_special_tokens': sentinels,
      'clean_up_tokenization_spaces': False,
      # As in the published T5s; without it, transformers 4 warns.
      'legacy': True,
    }
    made[MODEL_FILE] = model_bytes
    made[JSON_FILE] = _json_of_model(model, count)
  else:
    raise CheckpointError(
      f'{vocabulary!r}: transformers has no T5 tokenizer of this kind'
    )
  made[CONFIG_FILE] = _dump(settings)
  made[SPECIAL_FILE] = _dump(special)
  return made


def _dump(value: Mapping[str, Any]) -> bytes:
  return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()


def _json_of_model(model: Any, extra_ids: int) -> bytes:
  """`tokenizer.json` as T5Tokenizer builds it from the model."""
  vocab: list[list[Any]] = [[p.piece, p.score] for p in model.pieces]
  vocab += [[f'<extra_id_{i}>', 0.0] for i in reversed(range(extra_ids))]
  special = [0, 1, 2, *range(len(model.pieces), len(vocab))]
  end = model.pieces[1].piece
  return unigram_json(vocab, 2, special, model, f'A {end}', f'A {end} B {end}')


def _model_of_json(found: Mapping[str, Any]) -> tuple[bytes, int]:
  """A serialized SentencePiece model of a Unigram `tokenizer.json`.

  Returns:
    The model, and the number of sentinels at the end of the file.

  Raises:
    ValueError: It is not a suitable Unigram tokenizer.
    KeyError, TypeError, AttributeError: The file has another structure.
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
    # These are for white space, which SentencePiece strips and joins itself.
    elif step['type'] not in ('Strip', 'Replace', 'Sequence'):
      raise ValueError(f'a normalizer {step["type"]}')
  vocab = [(str(text), float(score)) for text, score in model['vocab']]
  count = 0
  while vocab and vocab[-1][0] == f'<extra_id_{count}>':
    vocab.pop()
    count += 1
  return _serialize(vocab, charsmap), count


def _differences(model: Any) -> list[str]:
  """What transformers' T5Tokenizer would do differently, as phrases."""
  trainer, normalizer = model.trainer_spec, model.normalizer_spec
  known = (_Piece.NORMAL, _Piece.UNKNOWN, _Piece.CONTROL)
  own = [
    piece.piece
    for piece in model.pieces
    if piece.type not in known and not _SENTINEL.fullmatch(piece.piece)
  ]
  differences = {
    'it is no unigram model': trainer.model_type != _UNIGRAM,
    'it falls back to bytes': trainer.byte_fallback,
    'it marks the ends of words': trainer.treat_whitespace_as_suffix,
    'it adds no space before a text': not normalizer.add_dummy_prefix,
    'it keeps repeated spaces': not normalizer.remove_extra_whitespaces,
    'it does not mark spaces': not normalizer.escape_whitespaces,
    f'it has user-defined pieces ({" ".join(own[:5])})': own,
  }
  return [text for text, holds in differences.items() if holds]


def _serialize(vocab: list[tuple[str, float]], charsmap: bytes) -> bytes:
  """A serialized SentencePiece model with T5's special ids."""
  model = _ModelProto()
  special = {0: _Piece.CONTROL, 1: _Piece.CONTROL, 2: _Piece.UNKNOWN}
  for i, (text, score) in enumerate(vocab):
    kind = special.get(i, _Piece.NORMAL)
    if _SENTINEL.fullmatch(text):
      kind = _Piece.USER_DEFINED
    model.pieces.add(piece=text, score=score, type=kind)
  trainer = model.trainer_spec
  trainer.model_type, trainer.vocab_size = _UNIGRAM, len(vocab)
  trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 2, -1, 1, 0
  trainer.pad_piece, trainer.eos_piece, trainer.unk_piece = (
    text for text, _ in vocab[:3]
  )
  normalizer = model.normalizer_spec
  normalizer.precompiled_charsmap = charsmap
  normalizer.add_dummy_prefix = True
  normalizer.remove_extra_whitespaces = True
  normalizer.escape_whitespaces = True
  return bytes(model.SerializeToString())
