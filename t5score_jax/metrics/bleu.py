"""BLEU (Papineni et al. 2002), by sacrebleu (Post 2018).

Segment scores are those of `sacrebleu --sentence-level` (with effective order,
so texts shorter than four tokens have a score); system scores are those of
`sacrebleu`. Both range from 0 to 100. With several references, the count of an
n-gram is clipped at its maximum over the references, and the closest reference
length is used. A hypothesis that is empty or shares no token with the
references scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _ngrams, _sacrebleu, _utilities

# Written without spaces between words; 13a makes one token of a whole clause.
_OWN_TOKENIZER = {
  **{'zh': 'zh', 'ja': 'ja-mecab', 'ko': 'ko-mecab'},
  **dict.fromkeys(('th', 'lo', 'my', 'km'), 'char'),
}
# Extras that sacrebleu's tokenizers need beyond the default install.
_MODEL = (
  'a SentencePiece model that sacrebleu downloads; without a network put {url} '
  'into ~/.sacrebleu/models ($SACREBLEU/models)'
)
_NEEDS = {
  'ja-mecab': "MeCab for Japanese: pip install 'sacrebleu[ja]'",
  'ko-mecab': "MeCab for Korean: pip install 'sacrebleu[ko]'",
  **{
    name: _MODEL.format(url=model['url'])
    for name, model in tokenizer_spm.SPM_MODELS.items()
  },
}


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
      smooth_method: How an order without matches is smoothed: `exp`, `floor`,
        `add-k` or `none`.
      smooth_value: The value for `floor` or `add-k`.
      max_ngram_order: The highest n-gram order.

    Raises:
      OptionError: There is no such tokenizer or smoothing.
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
    try:
      system_scorer = scorer(effective_order=False)
    except (ImportError, RuntimeError, OSError) as error:
      # No MeCab, or no network to download a tokenizer's model.
      need = _NEEDS.get(tokenize, f'a package or file ({error})')
      raise OptionError(f'tokenize {tokenize!r} needs {need}') from error
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

  def utilities(
    self, groups: Sequence[_utilities.Group]
  ) -> _utilities.Utilities:
    """Counts the n-grams of each text once; see `base.Metric.utilities`."""
    scorer = self._scorer
    assert isinstance(scorer, BLEU)
    return _ngrams.Utilities(
      self,
      groups,
      lambda text: [
        (scorer._preprocess_segment(text).split(), scorer.max_ngram_order)
      ],
      self._of_counts,
      False,
    )

  def _of_counts(self, stats: np.ndarray) -> np.ndarray:
    """Computes scores from counts, [..., orders, 3] -> [...]."""
    totals, references, matches = np.moveaxis(stats, -1, 0)
    # sacrebleu's order: lengths, matches by order, n-grams by order.
    counts = np.concatenate(
      [totals[..., :1], references[..., :1], matches, totals], axis=-1
    )
    rows, index = np.unique(
      counts.reshape(-1, counts.shape[-1]), axis=0, return_inverse=True
    )
    values = np.array([self._value(self._segment_scorer, row) for row in rows])
    return values[index].reshape(stats.shape[:-2])

  def _notes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
    if self.tokenize not in ('13a', 'intl'):
      return ()
    targets = _sacrebleu.target_languages(segments)
    return tuple(
      f'BLEU of {target!r} needs a tokenizer that splits it into words:'
      f' tokenize={_OWN_TOKENIZER[target]!r}'
      for target in sorted(targets & set(_OWN_TOKENIZER))
    )
