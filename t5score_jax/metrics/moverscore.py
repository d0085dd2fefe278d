"""MoverScore: optimal transport between token states (Zhao et al. 2019).

Computes the exact earth mover's distance (EMD) between unit-length contextual
states of hypothesis and reference. Tokens are weighted by inverse document
frequency. Pieces that continue a word, punctuation and special tokens are left
out.

    version   states                              cost        score
    v2        the last layer                      L2          1 / (1 + EMD)
    v1        minimum, mean, maximum of the last  squared L2  1 - EMD
              five layers, concatenated

FrugalScore's teachers use v2 (Kamal Eddine et al. 2022). Two texts without
words score 1, the maximum; one text without words scores 0.

Not here: the states (`metrics/_token_states.py`).
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5score_jax.crosslingual import transport, words
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base

VERSIONS = ('v2', 'v1')
_V1_LAYERS = 5
_PUNCTUATION = frozenset(string.punctuation)


class Metric(token_states.PairMetric):
  """MoverScore with one encoder."""

  name = 'MoverScore'
  READS = ('encoder', 'miniature')
  HYPOTHESIS_IDF = True

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    version: str = 'v2',
    ngram: int = 1,
    idf: str | os.PathLike[str] = token_states.IDF_REFERENCES,
    **options: Any,
  ):
    """Loads the encoder.

    Args:
      model: The folder of an encoder.
      version: 'v2' or 'v1'; see the module.
      ngram: Number of adjacent words moved together, at least 1. Their states
        are averaged by weight, and their weights are summed.
      idf: 'references': references are weighted by inverse document
        frequencies among the references, and hypotheses by those among the
        hypotheses of the same call. 'none': all words have the same weight.
        Otherwise a file, one document per line, used for both.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder.
      OptionError: A value is out of range.
    """
    super().__init__(**options)
    base.check_choice('version', version, VERSIONS)
    if ngram < 1:
      raise OptionError(f'ngram {ngram}: at least 1')
    last = _V1_LAYERS if version == 'v1' else 1
    self._load(
      model, idf, lambda depth: range(max(0, depth + 1 - last), depth + 1)
    )
    self.version = version
    self.ngram = ngram

  def _settings(self) -> dict[str, object]:
    return {
      'variant': self.version,
      'ngram': self.ngram,
      'idf': self._idf_name(),
    }

  def _pair_scores(
    self,
    pairs: token_states.TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    idfs: token_states.Idfs,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for row in rows:
      sides = [
        self._words(pairs.encoded[text], states[text], idf)
        for text, idf in zip(pairs.pairs[row], idfs, strict=True)
      ]
      yield np.array([row]), np.array([[self._score(*sides[0], *sides[1])]])

  def _words(
    self, encoded: Encoded, states: np.ndarray, idf: token_states.Idf | None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [n, width] and weights [n] of the compared words."""
    keep = [
      n
      for n, (token, special) in enumerate(
        zip(encoded.tokens, encoded.special, strict=True)
      )
      if not (special or token.startswith('##') or token in _PUNCTUATION)
    ]
    if self.version == 'v1':
      states = np.concatenate(
        [states.min(0), states.mean(0), states.max(0)], axis=-1
      )
    else:
      states = words.unit(states[-1])
    vectors = states[keep].astype(np.float64)
    weights = np.ones(len(keep))
    if idf is not None:
      weights = idf.weights(encoded)[keep]
      # Words in every document have weight 0. If all do, weights are uniform.
      weights = weights if weights.sum() > 0 else np.ones(len(keep))
    if self.ngram > 1 and len(keep):
      vectors, weights = _ngrams(vectors, weights, self.ngram)
    return words.unit(vectors), weights

  def _score(
    self,
    hypothesis: np.ndarray,
    hypothesis_weights: np.ndarray,
    reference: np.ndarray,
    reference_weights: np.ndarray,
  ) -> float:
    if not (len(hypothesis) and len(reference)):
      return float(len(hypothesis) == len(reference))
    cost = transport.cost(hypothesis, reference)
    if self.version == 'v2':
      cost = np.sqrt(cost)
    distance = transport.optimal_transport().emd2(
      hypothesis_weights / hypothesis_weights.sum(),
      reference_weights / reference_weights.sum(),
      cost,
      check_marginals=False,
    )
    return 1.0 - distance if self.version == 'v1' else 1.0 / (1.0 + distance)


def _ngrams(
  vectors: np.ndarray, weights: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Weighted means over windows of `size` words, or one shorter window.

  Words without weight are averaged evenly.
  """
  size = min(size, len(vectors))
  windows = np.lib.stride_tricks.sliding_window_view
  weight = windows(weights, size)
  total = weight.sum(1)
  share = np.where(total[:, None] > 0, weight, 1.0)
  share = share / share.sum(1, keepdims=True)
  # [n, width, size] x [n, size] -> [n, width]
  means = np.einsum('nws,ns->nw', windows(vectors, size, axis=0), share)
  return means, total
