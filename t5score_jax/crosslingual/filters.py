"""Filters sentences and pairs for mining.

Follows UScore's program (Belouadi and Eger 2023, appendix B). It keeps
sentences of 3 to 30 tokens in the expected language, each once, and pairs whose
texts overlap by at most half, since near copies teach nothing. Needs the extra
`mining`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein

from t5score_jax.errors import OptionError

#: Tokens are separated by spaces; in languages without spaces, a token is a
#: character.
SHORTEST, LONGEST = 3, 30
#: The maximum similarity of two texts; see `overlap`.
MOST_OVERLAP = 0.5

_WITHOUT_SPACES = frozenset(('ja', 'km', 'lo', 'my', 'th', 'zh'))


@dataclasses.dataclass(frozen=True)
class Filtered:
  """A filtered corpus.

  Attributes:
    lines: The indices of the kept sentences, in ascending order.
    dropped: Number of dropped sentences by reason.
  """

  lines: list[int]
  dropped: dict[str, int]


def sentences(
  texts: Iterable[str],
  language: str = '',
  shortest: int = SHORTEST,
  longest: int = LONGEST,
) -> Filtered:
  """Filters the sentences of one language.

  Args:
    texts: N sentences.
    language: ISO 639-1 code; sentences that are identified as another language
      are dropped. '' keeps all languages.
    shortest: Minimum number of tokens.
    longest: Maximum number of tokens.

  Raises:
    OptionError: The language cannot be identified.
    ImportError: py3langid is needed and not installed.
  """
  identify = _identifier(language) if language else None
  lines: list[int] = []
  dropped: collections.Counter[str] = collections.Counter()
  seen: set[str] = set()
  for line, text in enumerate(texts):
    reason = ''
    count = length(text, language)
    if count < shortest:
      reason = 'too short'
    elif count > longest:
      reason = 'too long'
    elif text in seen:
      reason = 'duplicate'
    elif identify is not None and identify(text) != language:
      reason = 'other language'
    if reason:
      dropped[reason] += 1
      continue
    seen.add(text)
    lines.append(line)
  return Filtered(lines, dict(dropped))


def length(text: str, language: str = '') -> int:
  """The number of tokens of a sentence; see `SHORTEST`."""
  if language in _WITHOUT_SPACES:
    return sum(not character.isspace() for character in text)
  return len(text.split())


def overlap(first: str, second: str) -> float:
  """Similarity by edit distance, 0 to 1: 1 - distance / longer length."""
  return float(Levenshtein.normalized_similarity(first, second))


def pairs(
  sources: Sequence[str],
  targets: Sequence[str],
  most_overlap: float = MOST_OVERLAP,
) -> list[int]:
  """The indices of the pairs that overlap by at most `most_overlap`."""
  if most_overlap >= 1:
    return list(range(len(sources)))
  return [
    n
    for n, (source, target) in enumerate(zip(sources, targets, strict=True))
    if overlap(source, target) <= most_overlap
  ]


@functools.lru_cache(maxsize=2)
def _identifier(language: str) -> Callable[[str], str]:
  from py3langid.langid import MODEL_FILE, LanguageIdentifier

  identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE)
  known = sorted(identifier.labels)
  if language not in known:
    raise OptionError(
      f'language {language!r}: cannot be identified; use one of '
      f'{", ".join(known)}, or none to keep all sentences'
    )
  return lambda text: str(identifier.classify(text)[0])
