"""chrF and chrF++ (Popović 2015, 2017), by sacrebleu.

`chrf` counts characters up to 6-grams; `chrf++` adds words up to 2-grams. Both
go from 0 to 100, for a segment and for a system (from the sums of counts, as
`sacrebleu -m chrf` prints it). Of several references the one with the highest
score counts. An empty hypothesis scores 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sacrebleu.metrics import CHRF

from t5score_jax.errors import OptionError
from t5score_jax.metrics import _sacrebleu


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
      char_order: The longest character n-grams.
      word_order: The longest word n-grams; 2 makes chrF++.
      beta: How much more recall weighs than precision.
      lowercase: Whether to ignore case.
      whitespace: Whether spaces are characters.
      eps_smoothing: Smoothing as in NLTK and Moses.

    Raises:
      ValueError: An order or beta is out of range.
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
