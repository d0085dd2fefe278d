"""Represents a text by its word vectors, for the word mover's distance.

The vectors are hidden states of one encoder layer, scaled to unit length.
Special tokens, WordPieces that continue a word (`##`) and punctuation are left
out, as in the program of Belouadi and Eger (2023). Pieces of XLM-R's vocabulary
are all used: in many languages they do not show where a word begins.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from t5score_jax.data.subwords import Encoded
from t5score_jax.inference import encoding

# Marks the beginning of a word in SentencePiece vocabularies.
_MARK = '▁'
# RoBERTa writes a space as this character.
_BYTE_SPACE = 'Ġ'


def places(encoded: Encoded) -> list[int]:
  """The positions of a text's tokens that are used."""
  return [
    n
    for n, (token, special) in enumerate(
      zip(encoded.tokens, encoded.special, strict=True)
    )
    if not special and not token.startswith('##') and _is_word(token)
  ]


def _is_word(token: str) -> bool:
  """Whether a token holds more than punctuation and space markers."""
  return any(
    character not in (_MARK, _BYTE_SPACE)
    and unicodedata.category(character)[0] not in 'PZ'
    # ASCII symbols such as $ and + count as punctuation, as in Python.
    and not (character.isascii() and unicodedata.category(character)[0] == 'S')
    for character in token
  )


def unit(vectors: np.ndarray) -> np.ndarray:
  """Vectors [..., width] scaled to length 1; zeros stay zeros."""
  norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return np.asarray(vectors / np.maximum(norms, 1e-30))


def vectors(encoded: Encoded, states: np.ndarray) -> np.ndarray:
  """Unit vectors of a text's words, float32 [words, width].

  Args:
    encoded: The text's tokens.
    states: Their states in one layer, float32 [tokens, width].
  """
  return unit(states[places(encoded)])


def encode(
  encoder: encoding.TextEncoder, texts: Sequence[str]
) -> Iterator[tuple[int, Encoded, np.ndarray]]:
  """Yields each text's index, tokens and states, the longest texts first.

  Args:
    encoder: Returns the layers.
    texts: N texts.

  Yields:
    The index, the tokens, and float32 [layers, tokens, width].
  """
  encoded = encoder.tokenize(texts)
  for chosen, batch in encoder.run([text.ids for text in encoded]):
    for column, index in enumerate(chosen):
      length = len(encoded[index].ids)
      yield int(index), encoded[index], batch[:, column, :length]
