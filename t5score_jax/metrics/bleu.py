"""BLEU (Papineni et al. 2002), by sacrebleu (Post 2018).

A segment's score is `sacrebleu --sentence-level`'s (effective order, so that
texts shorter than four tokens have a score); a system's is `sacrebleu`'s. Both
go from 0 to 100. With several references an n-gram counts as often as the
reference that has it most often, and the closest length is taken. An empty
hypothesis, and one that shares no token with the references, scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _sacrebleu

# Written without spaces between words: 13a makes a clause one token.
_OWN_TOKENIZER = {'zh': 'zh', 'ja': 'ja-mecab', 'ko': 'ko-mecab'}


class Metric(_sacrebleu.CountingMetric):
  """BLEU, from 0 to 100."""

  name = 'BLEU'

  def __init__(
    self,
    tokenize: str = '13a',
    lowercase: bool = False,
    smooth_method: str = 'exp',
    smooth_value: float | None = None,
    max_ngram_order: int = 4,
  ):
    """Chooses the variant.

    Args:
      tokenize: One of sacrebleu's tokenizers: `13a`, `intl`, `zh`, `char`,
        `none`, ... (`ja-mecab` and `ko-mecab` need sacrebleu's extras).
      lowercase: Whether to ignore case.
      smooth_method: `exp`, `floor`, `add-k` or `none`; what an order without
        matches counts as.
      smooth_value: The value of `floor` or `add-k`.
      max_ngram_order: The longest n-grams.

    Raises:
      ValueError: There is no such tokenizer or smoothing.
    """
    for option, value, choices in (
      ('tokenize', tokenize, BLEU.TOKENIZERS),
      ('smooth_method', smooth_method, BLEU.SMOOTH_DEFAULTS),
    ):
      if value not in choices:
        raise OptionError(
          f'{option} {value!r} does not exist; there are:'
          f' {", ".join(sorted(choices))}'
        )
    if max_ngram_order < 1:
      raise OptionError(f'max_ngram_order is {max_ngram_order}; at least 1')

    def scorer(effective_order: bool) -> BLEU:
      return BLEU(
        tokenize=tokenize,
        lowercase=lowercase,
        smooth_method=smooth_method,
        smooth_value=smooth_value,
        max_ngram_order=max_ngram_order,
        effective_order=effective_order,
        force=True,
      )

    self.tokenize = tokenize
    system_scorer = scorer(effective_order=False)
    super().__init__(
      system_scorer,
      {
        'case': 'lc' if lowercase else 'mixed',
        'eff': 'yes',
        'systemeff': 'no',
        'tok': system_scorer.tokenizer_signature,
        'smooth': smooth_method
        + ('' if smooth_value is None else f'[{smooth_value}]'),
        'order': max_ngram_order,
      },
      segment_scorer=scorer(effective_order=True),
    )

  def _notes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
    if self.tokenize not in ('13a', 'intl'):
      return ()
    targets = {(s.language_pair or '').split('-')[-1] for s in segments}
    return tuple(
      f'BLEU of {target!r} needs a tokenizer that splits it into words:'
      f' tokenize={_OWN_TOKENIZER[target]!r}'
      for target in sorted(targets & set(_OWN_TOKENIZER))
    )
