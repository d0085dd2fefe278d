"""Word pairs that are likely translations, from an encoder alone.

Follows awesome-align without fine-tuning (Dou and Neubig 2021), from which
UScore takes its word pairs. Dot products of source and target states in one
middle layer are normalized by a softmax over targets and by one over sources.
Two words are aligned if both probabilities exceed a threshold.
"""

from __future__ import annotations

import numpy as np

#: The threshold of the published program.
THRESHOLD = 1e-3


def align(
  sources: np.ndarray, targets: np.ndarray, threshold: float = THRESHOLD
) -> np.ndarray:
  """Aligns the words of two sentences.

  Args:
    sources: States of the source's words, not normalised, float [n, width].
    targets: States of the target's words, float [m, width].
    threshold: Minimum probability in both directions, in [0, 1).

  Returns:
    Pairs of a source and a target word, int [pairs, 2], in ascending order.
  """
  if not (len(sources) and len(targets)):
    return np.zeros((0, 2), np.int64)
  products = sources.astype(np.float64) @ targets.astype(np.float64).T
  forward = _softmax(products, 1)
  backward = _softmax(products, 0)
  return np.argwhere((forward > threshold) & (backward > threshold))


def default_layer(depth: int) -> int:
  """The middle layer to align by: 8 of 12, as published for mBERT."""
  return max(1, round(depth * 2 / 3))


def _softmax(values: np.ndarray, axis: int) -> np.ndarray:
  shifted = np.exp(values - values.max(axis, keepdims=True))
  return np.asarray(shifted / shifted.sum(axis, keepdims=True))
