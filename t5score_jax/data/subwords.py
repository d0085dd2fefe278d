"""Tokenizers of encoders: WordPiece, bytes (RoBERTa, GPT-2), SentencePiece.

Loads `tokenizer.json`, `vocab.txt`, `vocab.json` with `merges.txt`,
`sentencepiece.bpe.model` (XLM-R) or `spm.model` (DeBERTa) from a Hugging Face
folder, with the libraries
`tokenizers` and `sentencepiece`. Texts become
ids with special tokens, truncated and not padded. The spelling of a special
token in a text (`[SEP]`, `</s>`) is text, unless a tokenizer is made
`with_special_tokens`. T5's vocabularies are in `data/vocab.py`.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from t5score_jax.data import files, runs, special_tokens
from t5score_jax.data.unigram import XLMR_SPECIAL, xlmr_json
from t5score_jax.errors import InputError

TOKENIZER_FILE = 'tokenizer.json'
WORDPIECE_FILE = 'vocab.txt'
BYTE_FILES = ('vocab.json', 'merges.txt')
SENTENCEPIECE_FILE = 'sentencepiece.bpe.model'
DEBERTA_FILE = 'spm.model'
_SETTINGS_FILE = 'tokenizer_config.json'
_CONFIG_FILE = 'config.json'


@dataclasses.dataclass(frozen=True)
class Encoded:
  """An encoded text or pair of texts.

  Attributes:
    ids: Ids with special tokens, at most the maximum length.
    types: The segment of each id, 0 or 1.
    tokens: The pieces as strings; a WordPiece inside a word begins with `##`.
    special: Whether each id is a special token.
    cut: Whether the text was truncated.
  """

  ids: list[int]
  types: list[int]
  tokens: list[str]
  special: list[bool]
  cut: bool


class SubwordTokenizer(abc.ABC):
  """Encodes texts as ids; there is one subclass per library."""

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """The number of ids; the largest is `vocab_size - 1`."""

  @abc.abstractmethod
  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """Encodes texts with special tokens.

    Args:
      texts: Texts; an empty one becomes its special tokens.
      max_length: Maximum number of ids per text.
    """

  @abc.abstractmethod
  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """Encodes pairs as one sequence each, truncating the longer text first."""

  @abc.abstractmethod
  def with_offsets(self) -> JsonTokenizer:
    """A tokenizer that knows the span of each id in a text."""

  @abc.abstractmethod
  def with_special_tokens(self) -> SubwordTokenizer:
    """A tokenizer that reads spellings of special tokens as these tokens."""

  @abc.abstractmethod
  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes the files that `load_tokenizer` reads."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""


class JsonTokenizer(SubwordTokenizer):
  """A tokenizer of the `tokenizers` library."""

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    settings: dict[str, Any],
    spellings: bool = False,
  ):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    self._definition = tokenizer.to_str()
    self._settings = settings
    self._spellings = spellings
    if not spellings:
      _split_spellings(tokenizer)
    self._tokenizer = tokenizer
    self._truncation: int | None = None

  def __reduce__(self) -> tuple[Any, ...]:
    state = self._definition, self._settings, self._spellings
    return _from_definition, state

  def with_special_tokens(self) -> SubwordTokenizer:
    """See `SubwordTokenizer.with_special_tokens`."""
    return _from_definition(self._definition, self._settings, True)

  @property
  def vocab_size(self) -> int:
    """The number of ids, added tokens included."""
    return self._tokenizer.get_vocab_size(with_added_tokens=True)

  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """See `SubwordTokenizer.encode_batch`."""
    return self._encode(texts, max_length)

  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """See `SubwordTokenizer.encode_pairs`."""
    return self._encode(pairs, max_length)

  def with_offsets(self) -> JsonTokenizer:
    """Returns this tokenizer; see `SubwordTokenizer.with_offsets`."""
    return self

  def offsets(
    self, texts: Sequence[str], max_length: int
  ) -> list[list[tuple[int, int]]]:
    """The span of each id of `encode_batch` in its text.

    Returns:
      For each text the first character of each id and the one after its last,
      without spaces before it; (0, 0) for special tokens around the text.
    """
    return [list(e.offsets) for e in self._encodings(texts, max_length)]

  def _encode(self, texts: Sequence[Any], max_length: int) -> list[Encoded]:
    return [_encoded(e) for e in self._encodings(texts, max_length)]

  def _encodings(
    self, texts: Sequence[Any], max_length: int
  ) -> list[tokenizers.Encoding]:
    if self._truncation != max_length:
      self._tokenizer.enable_truncation(max_length, strategy='longest_first')
      self._truncation = max_length
    encodings: list[tokenizers.Encoding] = self._tokenizer.encode_batch(
      list(texts)
    )
    return encodings

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`."""
    with files.write_atomically(Path(folder) / TOKENIZER_FILE) as out:
      out.write(self._definition)
    runs.write_json(Path(folder) / _SETTINGS_FILE, self._settings)

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of the definition."""
    return hashlib.sha256(self._definition.encode()).hexdigest()


def _encoded(encoding: tokenizers.Encoding) -> Encoded:
  return Encoded(
    encoding.ids,
    encoding.type_ids,
    encoding.tokens,
    [bool(flag) for flag in encoding.special_tokens_mask],
    bool(encoding.overflowing),
  )


def _from_definition(
  definition: str, settings: dict[str, Any], spellings: bool
) -> JsonTokenizer:
  tokenizer = tokenizers.Tokenizer.from_str(definition)
  return JsonTokenizer(tokenizer, settings, spellings)


def _split_spellings(tokenizer: tokenizers.Tokenizer) -> None:
  """Makes a tokenizer read spellings of special tokens as text."""
  tokenizer.encode_special_tokens = True
  added = tokenizer.get_added_tokens_decoder().items()
  # A model still finds those that are among its own pieces, as XLM-R's does,
  # unless they are split.
  pieces = [
    token.content
    for number, token in added
    if token.special
    and len(token.content) > 1
    and number in tokenizer.encode(token.content, add_special_tokens=False).ids
  ]
  if pieces:
    pattern = '|'.join(
      f'(?<={re.escape(piece[:-1])}){re.escape(piece[-1])}' for piece in pieces
    )
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), 'isolated')
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = (
      split if before is None else pre_tokenizers.Sequence([before, split])
    )


class _SentencePieceTokenizer(SubwordTokenizer):
  """XLM-R's pieces: four special ids in front, `<mask>` at the end.

  The ids are those of fairseq: piece n of the model has id n + 1 for n >= 3,
  and 0, 1, 2, 3 are `<s>`, `<pad>`, `</s>`, `<unk>`.
  """

  _BOS, _EOS, _UNK = 0, 2, 3
  _SPECIAL = XLMR_SPECIAL
  _MASK = '<mask>'
  _FILE = SENTENCEPIECE_FILE
  _CLASS = 'XLMRobertaTokenizer'
  # Ends of a text between the two of a pair.
  _BETWEEN = 2

  def __init__(self, model: bytes, spellings: bool = False):
    self._model = model
    self._spellings = spellings
    self._processor = sentencepiece.SentencePieceProcessor()
    self._processor.LoadFromSerializedProto(model)

  def with_special_tokens(self) -> SubwordTokenizer:
    """See `SubwordTokenizer.with_special_tokens`."""
    return type(self)(self._model, spellings=True)

  def with_offsets(self) -> JsonTokenizer:
    """See `SubwordTokenizer.with_offsets`."""
    made = xlmr_json(self._model).decode()
    return _from_definition(made, {}, self._spellings)

  def _encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes texts without the special tokens around them."""
    if self._spellings:
      ids = {name: n for n, name in enumerate(self._SPECIAL)}
      ids[self._MASK] = self.vocab_size - 1
      return special_tokens.encode(texts, ids, self._pieces)
    return self._pieces(texts)

  def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
    return [
      [i + 1 if i > 2 else self._UNK for i in row]
      for row in self._processor.Encode(list(texts), out_type=int)
    ]

  @property
  def vocab_size(self) -> int:
    """The pieces, one additional id, and `<mask>`."""
    return self._processor.GetPieceSize() + 2

  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """See `SubwordTokenizer.encode_batch`."""
    rows = self._encode(texts)
    room = max(0, max_length - 2)
    return [self._wrap([ids[:room]], len(ids) > room) for ids in rows]

  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """See `SubwordTokenizer.encode_pairs`; all types are 0."""
    encoded = []
    for pair in pairs:
      first, second = self._encode(pair)
      room = max(0, max_length - 2 - self._BETWEEN)
      cut = len(first) + len(second) > room
      while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
      encoded.append(self._wrap([first, second], cut))
    return encoded

  def _wrap(self, parts: list[list[int]], cut: bool) -> Encoded:
    ids, special = [self._BOS], [True]
    for n, part in enumerate(parts):
      if n and self._BETWEEN > 1:
        ids.append(self._EOS)
        special.append(True)
      ids += [*part, self._EOS]
      special += [False] * len(part) + [True]
    tokens = [self._token(i) for i in ids]
    return Encoded(ids, [0] * len(ids), tokens, special, cut)

  def _token(self, i: int) -> str:
    if i < len(self._SPECIAL):
      return self._SPECIAL[i]
    return self._MASK if i == self.vocab_size - 1 else self._piece(i)

  def _piece(self, i: int) -> str:
    return self._processor.IdToPiece(i - 1)

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes the model and `tokenizer_config.json`."""
    path = Path(folder)
    with files.write_atomically(path / self._FILE, 'wb') as out:
      out.write(self._model)
    runs.write_json(path / _SETTINGS_FILE, {'tokenizer_class': self._CLASS})

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of the model."""
    name = b'xlm-r' if self._FILE == SENTENCEPIECE_FILE else b'deberta'
    return hashlib.sha256(name + self._model).hexdigest()


class _DebertaTokenizer(_SentencePieceTokenizer):
  """DeBERTa-v2's and -v3's pieces: the model's own ids, `[MASK]` at the end."""

  _BOS, _EOS, _UNK = 1, 2, 3
  _SPECIAL = ('[PAD]', '[CLS]', '[SEP]', '[UNK]')
  _MASK = '[MASK]'
  _FILE = DEBERTA_FILE
  _CLASS = 'DebertaV2Tokenizer'
  _BETWEEN = 1

  def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
    return [list(row) for row in self._processor.Encode(list(texts))]

  def with_offsets(self) -> JsonTokenizer:
    """Not for this tokenizer; raises InputError."""
    raise InputError(
      f'{DEBERTA_FILE} does not say where pieces stand in a text: give a '
      f'folder with {TOKENIZER_FILE}'
    )

  @property
  def vocab_size(self) -> int:
    """The pieces and `[MASK]`."""
    return self._processor.GetPieceSize() + 1

  def _piece(self, i: int) -> str:
    return self._processor.IdToPiece(i)


def load_tokenizer(folder: str | os.PathLike[str]) -> SubwordTokenizer:
  """Loads the tokenizer of a Hugging Face folder.

  Truncation and padding in `tokenizer.json` are ignored.

  Raises:
    FileNotFoundError: The folder has no tokenizer.
    InputError: A file is damaged.
  """
  path = Path(folder)
  settings = _settings(path)
  try:
    if (path / TOKENIZER_FILE).is_file():
      loaded = tokenizers.Tokenizer.from_file(str(path / TOKENIZER_FILE))
      return JsonTokenizer(loaded, settings)
    if (path / WORDPIECE_FILE).is_file():
      return _wordpiece(path / WORDPIECE_FILE, settings)
    if all((path / name).is_file() for name in BYTE_FILES):
      return _bytes(path, settings)
    if (path / SENTENCEPIECE_FILE).is_file():
      return _SentencePieceTokenizer((path / SENTENCEPIECE_FILE).read_bytes())
    if (path / DEBERTA_FILE).is_file():
      return _DebertaTokenizer((path / DEBERTA_FILE).read_bytes())
  except FileNotFoundError:
    raise
  # The library raises plain exceptions.
  except Exception as error:
    raise InputError(f'{path}: damaged tokenizer ({error})') from error
  raise FileNotFoundError(
    f'{path}: has no tokenizer ({TOKENIZER_FILE}, {WORDPIECE_FILE}, '
    f'{" with ".join(BYTE_FILES)}, {SENTENCEPIECE_FILE} or {DEBERTA_FILE})'
  )


def _settings(path: Path) -> dict[str, Any]:
  file = path / _SETTINGS_FILE
  return runs.read_json(file) if file.is_file() else {}


def _bytes(path: Path, settings: dict[str, Any]) -> SubwordTokenizer:
  """Builds GPT-2's or RoBERTa's tokenizer from its pieces and merges."""
  vocabulary, merges = (str(path / name) for name in BYTE_FILES)
  tokenizer = tokenizers.Tokenizer(models.BPE.from_file(vocabulary, merges))
  space = bool(settings.get('add_prefix_space', False))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(space)
  tokenizer.decoder = decoders.ByteLevel()
  special = ['<|endoftext|>']
  config = path / _CONFIG_FILE
  described = runs.read_json(config) if config.is_file() else {}
  if described.get('model_type') != 'gpt2':
    special = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
    begin, end = (tokenizer.token_to_id(name) for name in ('<s>', '</s>'))
    if begin is None or end is None:
      raise InputError(f'{path}: {BYTE_FILES[0]} lacks the pieces <s> and </s>')
    tokenizer.post_processor = processors.RobertaProcessing(
      ('</s>', end), ('<s>', begin), add_prefix_space=space
    )
  # A piece that the vocabulary lacks would become one more id.
  known = [name for name in special if tokenizer.token_to_id(name) is not None]
  tokenizer.add_special_tokens(known)
  return JsonTokenizer(tokenizer, settings)


def _wordpiece(path: Path, settings: dict[str, Any]) -> SubwordTokenizer:
  """Builds BERT's tokenizer from its list of pieces."""
  pieces = path.read_text('utf-8').splitlines()
  ids = {piece: n for n, piece in enumerate(pieces)}
  missing = [p for p in ('[UNK]', '[CLS]', '[SEP]', '[PAD]') if p not in ids]
  if missing:
    raise InputError(f'{path}: lacks the piece {", ".join(missing)}')
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
  tokenizer.normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=settings.get('tokenize_chinese_chars', True),
    strip_accents=settings.get('strip_accents'),
    lowercase=settings.get('do_lower_case', True),
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.BertProcessing(
    ('[SEP]', ids['[SEP]']), ('[CLS]', ids['[CLS]'])
  )
  tokenizer.add_special_tokens(['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]'])
  return JsonTokenizer(tokenizer, settings)
