"""chrF and chrF++ (Popović 2015, 2017), by sacrebleu.

`chrf` counts character n-grams up to order 6; `chrf++` adds word n-grams up to
order 2. Both range from 0 to 100, for segments and for systems (from summed
counts, as `sacrebleu -m chrf` prints it). With several references, the one with
the highest score counts. An empty hypothesis scores 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from sacrebleu.metrics import CHRF

from t5score_jax.errors import OptionError
from t5score_jax.metrics import _ngrams, _sacrebleu, _utilities

# sacrebleu's placeholder for a precision or recall without n-grams.
_EPSILON = 1e-16


class Metric(_sacrebleu.CountingMetric):
  """chrF, from 0 to 100."""

  VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
    '++': {'word_order': 2}
  }

  def __init__(
    self,
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
  ):
    """Chooses the variant.

    Args:
      char_order: The highest order of character n-grams.
      word_order: The highest order of word n-grams; 2 makes chrF++.
      beta: How much more recall weighs than precision.
      lowercase: Whether to ignore case.
      whitespace: Whether spaces are characters.
      eps_smoothing: Whether to smooth as NLTK and Moses do.

    Raises:
      OptionError: An order or beta is out of range.
    """
    if char_order < 1 or word_order < 0 or beta < 1:
      raise OptionError(
        'char_order and beta must be at least 1 and word_order at least 0,'
        f' not {char_order}, {beta} and {word_order}'
      )
    self.name = {0: 'chrF', 1: 'chrF+'}.get(word_order, 'chrF++')
    super().__init__(
      CHRF(
        char_order=char_order,
        word_order=word_order,
        beta=beta,
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
      ),
      {
        'case': 'lc' if lowercase else 'mixed',
        'eff': 'no' if eps_smoothing else 'yes',
        'nc': char_order,
        'nw': word_order,
        'beta': beta,
        'space': 'yes' if whitespace else 'no',
      },
    )

  def utilities(
    self, groups: Sequence[_utilities.Group]
  ) -> _utilities.Utilities:
    """Counts the n-grams of each text once; see `base.Metric.utilities`."""
    return _ngrams.Utilities(self, groups, self._split, self._f_scores, True)

  def _split(self, text: str) -> list[tuple[Sequence[Hashable], int]]:
    scorer = self._scorer
    assert isinstance(scorer, CHRF)
    text = scorer._preprocess_segment(text)
    characters = text if scorer.whitespace else ''.join(text.split())
    parts: list[tuple[Sequence[Hashable], int]] = [
      (characters, scorer.char_order)
    ]
    if scorer.word_order:
      parts.append((scorer._remove_punctuation(text), scorer.word_order))
    return parts

  def _f_scores(self, stats: np.ndarray) -> np.ndarray:
    """Computes chrF from many counts at once, as sacrebleu does from one.

    Args:
      stats: Hypothesis and reference n-grams and matches, [..., orders, 3].

    Returns:
      The scores, [...].
    """
    scorer = self._scorer
    assert isinstance(scorer, CHRF)
    reference = stats[..., 1]
    # As sacrebleu: no n-grams of the hypothesis where the reference has none.
    hypothesis = np.where(reference > 0, stats[..., 0], 0)
    matches = stats[..., 2]
    beta = scorer.beta**2
    precision = np.divide(
      matches,
      hypothesis,
      np.full(matches.shape, _EPSILON),
      where=hypothesis > 0,
    )
    recall = np.divide(
      matches, reference, np.full(matches.shape, _EPSILON), where=reference > 0
    )
    if scorer.eps_smoothing:
      return 100 * _f(precision, recall, beta, _EPSILON).mean(axis=-1)
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=-1), 1)
    precision, recall = (
      np.where(counted, part, 0).sum(axis=-1) / orders
      for part in (precision, recall)
    )
    return 100 * _f(precision, recall, beta, 0.0)


def _f(
  precision: np.ndarray, recall: np.ndarray, beta: float, empty: float
) -> np.ndarray:
  """(1 + beta) p r / (beta p + r), `empty` where both are 0."""
  below = beta * precision + recall
  above = (1 + beta) * precision * recall
  return np.divide(above, below, np.full(below.shape, empty), where=below > 0)
