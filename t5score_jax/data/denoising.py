"""Perturbs texts by text infilling and sentence permutation.

The noise is BART's (Lewis et al. 2019): spans of tokens are replaced by a mask,
by random tokens or by nothing, and sentences are permuted. FrugalScore (Kamal
Eddine et al. 2022, section 3.1) pairs texts with a denoiser's reconstructions
of them; `data/pairs.py` pairs them with the perturbed texts as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from t5score_jax.errors import OptionError

# Each character of a script without spaces is a token.
_UNSPACED = (
  '\u0e00-\u0eff\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff'
  '\U00020000-\U0003ffff'
)
_TOKEN = re.compile(rf'[{_UNSPACED}]|[^\s{_UNSPACED}]+')
_UNSPACED_TOKEN = re.compile(f'[{_UNSPACED}]')
_CLOSING = re.compile(r'[.!?…。！？"\')\]”’»」』]+')
_SENTENCE_END = re.compile(r'[.!?…。！？]["\')\]”’»」』]*$')


@dataclasses.dataclass(frozen=True)
class Noise:
  """The amount of noise.

  Attributes:
    mask_share: Share of the tokens in masked spans, 0 to 1 (paper: .5).
    mean_span: Mean of the Poisson distribution of span lengths in tokens, at
      least .5 (paper: 3).
    random_share: Share of the spans that become random tokens, 0 to 1 (.2).
    mask_token: Replacement of the other spans; '' removes them.
    permute: Whether sentences are permuted.
  """

  mask_share: float = 0.5
  mean_span: float = 3.0
  random_share: float = 0.2
  mask_token: str = ''
  permute: bool = True

  def __post_init__(self) -> None:
    for name in ('mask_share', 'random_share'):
      value = getattr(self, name)
      if not 0 <= value <= 1:
        raise OptionError(f'{name} {value}: must be from 0 to 1')
    if not 0.5 <= self.mean_span <= 1000:
      raise OptionError(f'mean_span {self.mean_span}: must be from .5 to 1000')


@dataclasses.dataclass(frozen=True)
class Token:
  """A token of a text.

  Attributes:
    text: The token, without white space.
    spaced: Whether white space precedes it.
    sentence: Index of its sentence.
  """

  text: str
  spaced: bool
  sentence: int


def tokens_of(text: str) -> list[Token]:
  """Splits a text at white space and around characters of unspaced scripts.

  A sentence ends at `.`, `!`, `?` or the like, with closing quotation marks, if
  a space or an unspaced character follows.
  """
  tokens: list[Token] = []
  sentence, ended = 0, False
  for match in _TOKEN.finditer(text):
    spaced = match.start() > 0 and text[match.start() - 1].isspace()
    closing = _CLOSING.fullmatch(match[0]) is not None
    if ended and not closing:
      sentence, ended = sentence + 1, False
    tokens.append(Token(match[0], spaced, sentence))
    ended = ended or _SENTENCE_END.search(match[0]) is not None
  return tokens


def sample_spans(
  count: int, noise: Noise, rng: np.random.Generator
) -> list[tuple[int, int]]:
  """Draws the masked spans.

  Args:
    count: Number of tokens of the text.
    noise: The amount of noise.
    rng: The random generator.

  Returns:
    (start, length) of each span, in order, without overlap, and separated by at
    least one token as long as there are enough. The lengths are Poisson; the
    last one drawn is cut so that `mask_share` of the tokens are covered (on
    average: the number is rounded up or down at random). A span of length 0 is
    an insertion.
  """
  wanted = min(count, int(noise.mask_share * count + rng.random()))
  lengths: list[int] = []
  while (left := wanted - sum(lengths)) > 0:
    lengths.append(min(int(rng.poisson(noise.mean_span)), left))
  # Spans lie in the gaps between the tokens that are kept.
  gaps = count - wanted + 1
  chosen = np.sort(
    rng.choice(gaps, size=len(lengths), replace=len(lengths) > gaps)
  )
  order = rng.permutation(len(lengths))
  spans, covered = [], 0
  for gap, which in zip(chosen, order, strict=True):
    spans.append((int(gap) + covered, lengths[which]))
    covered += lengths[which]
  return spans


def perturb(
  text: str,
  noise: Noise,
  vocabulary: Sequence[str],
  rng: np.random.Generator,
) -> str:
  """Masks spans, then permutes the sentences.

  Args:
    text: The text.
    noise: The amount of noise.
    vocabulary: Tokens from which random ones are drawn uniformly; running
      tokens of the corpus give them their frequencies.
    rng: The random generator.

  Returns:
    The perturbed text, which may be empty.

  Raises:
    OptionError: Random tokens are wanted and the vocabulary is empty.
  """
  if noise.random_share and not len(vocabulary):
    raise OptionError('no vocabulary to draw random tokens from')
  tokens = tokens_of(text)
  kept: list[Token] = []
  end = 0
  for start, length in sample_spans(len(tokens), noise, rng):
    kept += tokens[end:start]
    end = start + length
    # An insertion at the end of the text replaces no token.
    place = tokens[min(start, len(tokens) - 1)]
    if rng.random() < noise.random_share:
      drawn = rng.integers(len(vocabulary), size=max(length, 1))
      words = [vocabulary[i] for i in drawn]
    else:
      words = [noise.mask_token] if noise.mask_token else []
    kept += [Token(w, not _is_unspaced(w), place.sentence) for w in words]
  kept += tokens[end:]
  return _joined(_permuted(kept, rng) if noise.permute else kept)


def _permuted(tokens: list[Token], rng: np.random.Generator) -> list[Token]:
  """Permutes the sentences."""
  sentences: dict[int, list[Token]] = {}
  for token in tokens:
    sentences.setdefault(token.sentence, []).append(token)
  parts = list(sentences.values())
  return [token for i in rng.permutation(len(parts)) for token in parts[i]]


def _joined(tokens: list[Token]) -> str:
  """Joins tokens; unspaced characters keep their original spacing."""
  text, before = '', None
  for token in tokens:
    tight = not token.spaced and (
      _is_unspaced(token.text)
      or (before is not None and _is_unspaced(before.text))
    )
    text += token.text if tight or before is None else f' {token.text}'
    before = token
  return text


def _is_unspaced(token: str) -> bool:
  return _UNSPACED_TOKEN.fullmatch(token) is not None


class TokenSample:
  """A uniform sample, of bounded size, of the running tokens of a corpus.

  Args:
    size: Maximum number of tokens.
    seed: Seed of the draws.
  """

  def __init__(self, size: int = 65_536, seed: int = 0):
    self._size = size
    self._rng = np.random.default_rng([seed, 0x70])
    self._seen = 0
    self.tokens: list[str] = []

  def add(self, texts: Iterable[str]) -> None:
    """Adds the tokens of further texts (Vitter 1985, algorithm R)."""
    for text in texts:
      words = _TOKEN.findall(text)
      room = max(0, self._size - len(self.tokens))
      self.tokens += words[:room]
      self._seen += min(room, len(words))
      rest = words[room:]
      if rest:
        counts = self._seen + 1 + np.arange(len(rest))
        places = (self._rng.random(len(rest)) * counts).astype(np.int64)
        for word, place in zip(rest, places, strict=True):
          if place < self._size:
            self.tokens[place] = word
        self._seen += len(rest)
