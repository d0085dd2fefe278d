"""XCOMET: translation scores, and the error spans that contribute to them.

The network is UnifiedMetric's with word tags (Guerreiro et al. 2024). The score
combines the scores of the three inputs with a score of the detected errors,
counted as an MQM annotator would. Not here: the network (`nn/unified.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from t5score_jax.metrics import _spans, unified

# Weights of the parts of a score, from section 3 of the paper.
WEIGHTS = {'source': 0.12, 'reference': 0.33, 'unified': 0.33, 'mqm': 0.22}


class Metric(unified.Metric):
  """XCOMET with one model; options are those of `unified.Metric`."""

  name = 'XCOMET'
  MODELS: ClassVar[tuple[str, ...]] = ('xcomet', 'comet-xcomet')
  READS: ClassVar[tuple[str, ...]] = ('unified', 'comet-unified')
  _needs_tags = True

  def _combined(
    self,
    parts: dict[str, np.ndarray],
    spans: Sequence[tuple[_spans.ErrorSpan, ...]] | None,
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The mix; the weights of absent inputs go to the one that is read."""
    assert spans is not None
    if self.output != unified.MEAN:
      return super()._combined(parts, spans)
    mqm = np.array([_spans.mqm(found) for found in spans])
    share = 1 - WEIGHTS['mqm']
    weights = {name: WEIGHTS[name] for name in parts}
    if len(parts) == 1:
      weights = dict.fromkeys(parts, share)
    score = WEIGHTS['mqm'] * mqm
    for name, values in parts.items():
      score = score + weights[name] * np.minimum(values.astype(np.float64), 1)
    return score, {**parts, 'mqm': mqm}
