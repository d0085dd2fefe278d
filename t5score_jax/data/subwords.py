"""Tokenisers of the BERT family: WordPiece, RoBERTa's bytes, XLM-R's pieces.

They work on what a Hugging Face folder holds: ``tokenizer.json``, or
``vocab.txt``, or ``sentencepiece.bpe.model``, through the libraries
`tokenizers` and `sentencepiece`. Texts come back as ids with special tokens,
cut to a length, and never padded. Not here: T5's vocabularies (``vocab.py``).
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from t5score_jax.data import files

TOKENIZER_FILE = 'tokenizer.json'
WORDPIECE_FILE = 'vocab.txt'
SENTENCEPIECE_FILE = 'sentencepiece.bpe.model'
_SETTINGS_FILE = 'tokenizer_config.json'


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A text, or two, as ids.

  Attributes:
    ids: with special tokens, at most the length that was asked for.
    types: the segment of each id, 0 or 1.
    tokens: the pieces as strings; a WordPiece that goes on begins with ``##``.
    special: whether each id is a special token.
    cut: whether something was cut off.
  """

  ids: list[int]
  types: list[int]
  tokens: list[str]
  special: list[bool]
  cut: bool


class SubwordTokenizer(abc.ABC):
  """Text to ids; one subclass a library."""

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """The number of ids; the largest is ``vocab_size - 1``."""

  @abc.abstractmethod
  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """Encodes texts, special tokens around each.

    Args:
      texts: N texts; an empty one is its special tokens.
      max_length: the most ids a text; the end is cut.
    """

  @abc.abstractmethod
  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """Encodes two texts as one sequence, the longer cut first."""

  @abc.abstractmethod
  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes the files from which ``load_tokenizer`` makes the same."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of what defines the ids."""


class _JsonTokenizer(SubwordTokenizer):
  """What the `tokenizers` library runs."""

  def __init__(self, tokenizer: tokenizers.Tokenizer, settings: dict[str, Any]):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    self._definition = tokenizer.to_str()
    self._settings = settings
    self._tokenizer = tokenizer
    self._truncation: int | None = None

  def __reduce__(self) -> tuple[Any, ...]:
    return _from_definition, (self._definition, self._settings)

  @property
  def vocab_size(self) -> int:
    """The number of ids, added tokens included."""
    return self._tokenizer.get_vocab_size(with_added_tokens=True)

  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """See ``SubwordTokenizer.encode_batch``."""
    self._truncate(max_length)
    return [_encoded(e) for e in self._tokenizer.encode_batch(list(texts))]

  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """See ``SubwordTokenizer.encode_pairs``."""
    self._truncate(max_length)
    return [_encoded(e) for e in self._tokenizer.encode_batch(list(pairs))]

  def _truncate(self, max_length: int) -> None:
    if self._truncation != max_length:
      self._tokenizer.enable_truncation(max_length, strategy='longest_first')
      self._truncation = max_length

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``."""
    with files.write_atomically(Path(folder) / TOKENIZER_FILE) as out:
      out.write(self._definition)
    with files.write_atomically(Path(folder) / _SETTINGS_FILE) as out:
      json.dump(self._settings, out, indent=2)
      out.write('\n')

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of the definition."""
    return hashlib.sha256(self._definition.encode()).hexdigest()


def _encoded(found: tokenizers.Encoding) -> Encoded:
  return Encoded(
    found.ids,
    found.type_ids,
    found.tokens,
    [bool(flag) for flag in found.special_tokens_mask],
    bool(found.overflowing),
  )


def _from_definition(definition: str, settings: dict[str, Any]) -> Any:
  return _JsonTokenizer(tokenizers.Tokenizer.from_str(definition), settings)


class _SentencePieceTokenizer(SubwordTokenizer):
  """XLM-R's pieces: four special ids in front, ``<mask>`` at the end.

  The ids are those of fairseq: piece n of the model has id n + 1 from n = 3
  on, and 0, 1, 2, 3 are ``<s>``, ``<pad>``, ``</s>``, ``<unk>``.
  """

  _BOS, _EOS, _UNK = 0, 2, 3

  def __init__(self, path: Path):
    self._model = path.read_bytes()
    self._processor = sentencepiece.SentencePieceProcessor()
    self._processor.LoadFromSerializedProto(self._model)

  @property
  def vocab_size(self) -> int:
    """The pieces, one id more, and ``<mask>``."""
    return self._processor.GetPieceSize() + 2

  def encode_batch(
    self, texts: Sequence[str], max_length: int
  ) -> list[Encoded]:
    """See ``SubwordTokenizer.encode_batch``."""
    rows = self._processor.Encode(list(texts), out_type=int)
    room = max(0, max_length - 2)
    return [self._wrap([ids[:room]], len(ids) > room) for ids in rows]

  def encode_pairs(
    self, pairs: Sequence[tuple[str, str]], max_length: int
  ) -> list[Encoded]:
    """See ``SubwordTokenizer.encode_pairs``; types are all 0, as in XLM-R."""
    found = []
    for pair in pairs:
      first, second = self._processor.Encode(list(pair), out_type=int)
      room = max(0, max_length - 4)
      cut = len(first) + len(second) > room
      while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
      found.append(self._wrap([first, second], cut))
    return found

  def _wrap(self, parts: list[list[int]], cut: bool) -> Encoded:
    ids, tokens, special = [self._BOS], ['<s>'], [True]
    for n, part in enumerate(parts):
      if n:
        ids, tokens = [*ids, self._EOS], [*tokens, '</s>']
        special.append(True)
      ids += [i + 1 if i > 2 else self._UNK for i in part]
      tokens += [self._processor.IdToPiece(i) for i in part]
      special += [False] * len(part)
      ids, tokens = [*ids, self._EOS], [*tokens, '</s>']
      special.append(True)
    return Encoded(ids, [0] * len(ids), tokens, special, cut)

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes the model and ``tokenizer_config.json``."""
    path = Path(folder)
    with files.write_atomically(path / SENTENCEPIECE_FILE, 'wb') as out:
      out.write(self._model)
    with files.write_atomically(path / _SETTINGS_FILE) as out:
      json.dump({'tokenizer_class': 'XLMRobertaTokenizer'}, out, indent=2)
      out.write('\n')

  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of the model."""
    return hashlib.sha256(b'xlm-r' + self._model).hexdigest()


def load_tokenizer(folder: str | os.PathLike[str]) -> SubwordTokenizer:
  """Loads the tokenizer of a Hugging Face folder.

  Truncation and padding that ``tokenizer.json`` may ask for are not used: how
  long a text may be is the caller's to say.

  Raises:
    FileNotFoundError: none of the files is there.
    ValueError: a file is damaged.
  """
  path = Path(folder)
  settings = _settings(path)
  try:
    if (path / TOKENIZER_FILE).is_file():
      found = tokenizers.Tokenizer.from_file(str(path / TOKENIZER_FILE))
      return _JsonTokenizer(found, settings)
    if (path / WORDPIECE_FILE).is_file():
      return _wordpiece(path / WORDPIECE_FILE, settings)
    if (path / SENTENCEPIECE_FILE).is_file():
      return _SentencePieceTokenizer(path / SENTENCEPIECE_FILE)
  except FileNotFoundError:
    raise
  # The library raises plain exceptions.
  except Exception as error:
    raise ValueError(f'{path}: damaged tokenizer ({error})') from error
  raise FileNotFoundError(
    f'{path}: no tokenizer; there must be {TOKENIZER_FILE}, {WORDPIECE_FILE} '
    f'or {SENTENCEPIECE_FILE}'
  )


def _settings(path: Path) -> dict[str, Any]:
  file = path / _SETTINGS_FILE
  if not file.is_file():
    return {}
  found = json.loads(file.read_text('utf-8'))
  if not isinstance(found, dict):
    raise ValueError(f'{file}: not an object')
  return found


def _wordpiece(path: Path, settings: dict[str, Any]) -> SubwordTokenizer:
  """BERT's tokenizer from its list of pieces."""
  pieces = path.read_text('utf-8').splitlines()
  ids = {piece: n for n, piece in enumerate(pieces)}
  missing = [p for p in ('[UNK]', '[CLS]', '[SEP]', '[PAD]') if p not in ids]
  if missing:
    raise ValueError(f'{path}: there is no piece {", ".join(missing)}')
  found = tokenizers.Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
  found.normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=settings.get('tokenize_chinese_chars', True),
    strip_accents=settings.get('strip_accents'),
    lowercase=settings.get('do_lower_case', True),
  )
  found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  found.post_processor = processors.BertProcessing(
    ('[SEP]', ids['[SEP]']), ('[CLS]', ids['[CLS]'])
  )
  found.add_special_tokens(['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]'])
  return _JsonTokenizer(found, settings)
