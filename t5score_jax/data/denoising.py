"""Perturbed texts: text infilling and sentence permutation (Lewis et al. 2019).

FrugalScore (Kamal Eddine et al. 2022, section 3.1) pairs a text with what a
denoiser makes of such a perturbed version. For the perturbation alone: spans
of tokens disappear behind a mask (or altogether), some come back as random
tokens, and sentences change places. Not here: which texts (`pairs`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

# A character of a script that is written without spaces is a token by itself.
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
  """How much of a text is perturbed.

  Attributes:
    mask_share: of the tokens that spans cover, 0 to 1 (the paper: .5).
    mean_span: tokens a span, the mean of a Poisson distribution, from .5 (3).
    random_share: of the spans, 0 to 1, that become random tokens (.2).
    mask_token: what any other span becomes; '' removes it.
    permute: whether sentences change places.
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
        raise ValueError(f'{name} {value}: a share is from 0 to 1')
    if not 0.5 <= self.mean_span <= 1000:
      raise ValueError(f'mean_span {self.mean_span}: from .5 to 1000')


@dataclasses.dataclass(frozen=True)
class Token:
  """A piece of a text.

  Attributes:
    text: without white space.
    spaced: whether white space stands before it.
    sentence: which sentence it is of, from 0.
  """

  text: str
  spaced: bool
  sentence: int


def tokens_of(text: str) -> list[Token]:
  """Splits at white space; characters of unspaced scripts stand alone.

  A sentence ends at `.`, `!`, `?` or the like, with closing quotation marks
  after it, where a space or an unspaced character follows.
  """
  found: list[Token] = []
  sentence, ended = 0, False
  for match in _TOKEN.finditer(text):
    spaced = match.start() > 0 and text[match.start() - 1].isspace()
    closing = _CLOSING.fullmatch(match[0]) is not None
    if ended and not closing:
      sentence, ended = sentence + 1, False
    found.append(Token(match[0], spaced, sentence))
    ended = ended or _SENTENCE_END.search(match[0]) is not None
  return found


def sample_spans(
  count: int, noise: Noise, rng: np.random.Generator
) -> list[tuple[int, int]]:
  """Draws the spans that are masked.

  Args:
    count: tokens of the text.
    noise: how much.
    rng: the source of chance.

  Returns:
    (start, length) in order, without overlap, and with a token between any two
    as long as there are enough of these. The lengths are Poisson; the last one
    drawn is cut so that `mask_share` of the tokens are covered (in the mean:
    the number is rounded up or down by chance). A length may be 0, which is a
    place where something is put in.
  """
  wanted = min(count, int(noise.mask_share * count + rng.random()))
  lengths: list[int] = []
  while (left := wanted - sum(lengths)) > 0:
    lengths.append(min(int(rng.poisson(noise.mean_span)), left))
  # Spans stand in the gaps between the tokens that are kept.
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
  """Masks spans, then puts the sentences into another order.

  Args:
    text: what to perturb.
    noise: how much.
    vocabulary: where random tokens are drawn from, evenly: a sample of the
      corpus's running tokens gives them their frequencies.
    rng: the source of chance.

  Returns:
    The perturbed text; '' where nothing is left of it.

  Raises:
    ValueError: random tokens are wanted and the vocabulary is empty.
  """
  if noise.random_share and not len(vocabulary):
    raise ValueError('no vocabulary to draw random tokens from')
  tokens = tokens_of(text)
  kept: list[Token] = []
  end = 0
  for start, length in sample_spans(len(tokens), noise, rng):
    kept += tokens[end:start]
    end = start + length
    # An insertion at the end of the text has no token to take the place of.
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
  """The sentences in a random order."""
  sentences: dict[int, list[Token]] = {}
  for token in tokens:
    sentences.setdefault(token.sentence, []).append(token)
  parts = list(sentences.values())
  return [token for i in rng.permutation(len(parts)) for token in parts[i]]


def _joined(tokens: list[Token]) -> str:
  """The text; between unspaced characters stays what the original had."""
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
  """An even sample of the running tokens of a corpus, of bounded size.

  Args:
    size: the most tokens that are kept.
    seed: of the draws.
  """

  def __init__(self, size: int = 65_536, seed: int = 0):
    self._size = size
    self._rng = np.random.default_rng([seed, 0x70])
    self._seen = 0
    self.tokens: list[str] = []

  def add(self, texts: Iterable[str]) -> None:
    """Takes the tokens of further texts into account (Vitter 1985, R)."""
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
