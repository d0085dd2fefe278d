"""ROUGE (Lin 2004), by rouge-score: `rouge-1`, `-2`, `-3`, `-4`, `rouge-l`.

The score is the F-measure of n-grams or of the longest common subsequence, from
0 to 1, with precision and recall as components. With several references, the
one with the highest F counts. A system's value is the mean over its segments. A
hypothesis that is empty or shorter than n tokens scores 0.

ROUGE's own tokenizer keeps only the letters a to z and digits, and finds no
words in other scripts. For these, set `tokenize` to one of sacrebleu's
tokenizers (`zh`, `char`, `intl`, ...).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from rouge_score import rouge_scorer, tokenizers
from sacrebleu.metrics import BLEU

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import base


class Metric(base.Metric):
  """ROUGE, from 0 to 1."""

  VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
    '1': {'variant': '1'},
    '2': {'variant': '2'},
    '3': {'variant': '3'},
    '4': {'variant': '4'},
    'l': {'variant': 'L'},
  }

  def __init__(
    self, variant: str = 'L', stemmer: bool = False, tokenize: str = 'rouge'
  ):
    """Chooses the variant.

    Args:
      variant: `'1'`, `'2'`, `'3'`, `'4'` for n-grams, `'L'` for the longest
        common subsequence.
      stemmer: Whether to compare the stems of English words (Porter).
      tokenize: `'rouge'`, or one of sacrebleu's tokenizers, whose tokens are
        compared in lower case.

    Raises:
      OptionError: There is no such variant or tokenizer, or a stemmer is
        combined with a sacrebleu tokenizer.
    """
    if str(variant).lower() not in self.VARIANTS:
      raise OptionError(f'variant {variant!r} does not exist: 1, 2, 3, 4 or L')
    if tokenize == 'rouge':
      self._tokenizer = tokenizers.DefaultTokenizer(stemmer)
    elif tokenize not in BLEU.TOKENIZERS:
      raise OptionError(
        f'tokenize {tokenize!r} does not exist; there are: rouge,'
        f' {", ".join(sorted(BLEU.TOKENIZERS))}'
      )
    elif stemmer:
      raise OptionError("the stemmer works with tokenize='rouge' only")
    else:
      self._tokenizer = _SacrebleuTokenizer(BLEU(tokenize=tokenize).tokenizer)
    self._type = f'rouge{str(variant).upper()}'
    self.name = f'ROUGE-{str(variant).upper()}'
    self._stemmer = stemmer
    self.tokenize = tokenize

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return base.format_signature(
      {
        'metric': self.name,
        **observed,
        'case': 'lc',
        'tok': self.tokenize,
        'stem': 'porter' if self._stemmer else 'no',
        'rouge-score': importlib.metadata.version('rouge-score'),
      }
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    nrefs = base.require_references(segments, self.name)
    # Every text is tokenized once, however many systems share a reference.
    tokens = _CachedTokenizer(self._tokenizer.tokenize)
    scorer = rouge_scorer.RougeScorer([self._type], tokenizer=tokens)
    # [N, 3]: precision, recall, F
    columns = np.array(
      [
        scorer.score_multi(segment.references, segment.hypothesis)[self._type]
        for segment in segments
      ],
      np.float64,
    ).reshape(len(segments), 3)
    blank = sum(
      bool(s.hypothesis.strip()) and not tokens.tokenize(s.hypothesis)
      for s in segments
    )
    notes: tuple[str, ...] = ()
    if blank:
      notes = (
        f'{blank} of {len(segments)} hypotheses score 0 because the tokenizer'
        f' {self.tokenize!r} finds no words in them; for scripts other than'
        " Latin choose another, for example tokenize='zh' or 'char'",
      )
    return base.Scores(
      values=columns[:, 2],
      signature=self.signature(nrefs=nrefs),
      components={'precision': columns[:, 0], 'recall': columns[:, 1]},
      notes=notes,
    )


class _SacrebleuTokenizer(tokenizers.Tokenizer):
  """One of sacrebleu's tokenizers with rouge-score's interface; lower case."""

  def __init__(self, tokenize: Callable[[str], str]):
    self._tokenize = tokenize

  def tokenize(self, text: str) -> list[str]:
    return self._tokenize(text.lower().rstrip()).split()


class _CachedTokenizer(tokenizers.Tokenizer):
  """Keeps the tokens of every text."""

  def __init__(self, tokenize: Callable[[str], list[str]]):
    self._tokenize = tokenize
    self._seen: dict[str, list[str]] = {}

  def tokenize(self, text: str) -> list[str]:
    if text not in self._seen:
      self._seen[text] = self._tokenize(text)
    return self._seen[text]
