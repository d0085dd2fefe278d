"""Translation edit rate (Snover et al. 2006), by sacrebleu, negated.

TER is the number of edits per reference word, in percent; lower is better. The
scores here are minus TER, so that higher is better as for every metric: 0 for a
hypothesis that needs no edits, -100 for as many edits as the reference has
words, with no lower bound. The signature says `sign:negated`. With several
references, the fewest edits to any of them are divided by their average length.
An empty hypothesis scores -100, or 0 if the reference is empty too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import TER

from t5score_jax.data.records import Segment
from t5score_jax.metrics import _sacrebleu


class Metric(_sacrebleu.CountingMetric):
  """Minus TER, 0 at best."""

  name = 'TER'

  def __init__(
    self,
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
  ):
    """Chooses the variant, as in Tercom.

    Args:
      normalized: Whether to split off punctuation.
      no_punct: Whether to remove punctuation.
      asian_support: Whether `normalized` splits Chinese and Japanese into
        characters, and `no_punct` removes their punctuation.
      case_sensitive: Whether case matters.
    """
    super().__init__(
      TER(
        normalized=normalized,
        no_punct=no_punct,
        asian_support=asian_support,
        case_sensitive=case_sensitive,
      ),
      {
        'sign': 'negated',
        'case': 'mixed' if case_sensitive else 'lc',
        'tok': 'tercom',
        'norm': 'yes' if normalized else 'no',
        'punct': 'no' if no_punct else 'yes',
        'asian': 'yes' if asian_support else 'no',
      },
      sign=-1.0,
    )
    self._splits = normalized and asian_support

  def _notes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
    if self._splits:
      return ()
    return tuple(
      f'TER of {target!r} needs characters as words: normalized=True, '
      'asian_support=True'
      for target in sorted(_sacrebleu.target_languages(segments) & {'zh', 'ja'})
    )
