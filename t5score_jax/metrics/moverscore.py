"""MoverScore: optimal transport between token states (Zhao et al. 2019).

How far the words of the hypothesis have to travel to become those of the
reference: exact earth mover's distance between contextual states of unit
length, tokens weighted by inverse document frequency. Pieces that continue a
word, punctuation and special tokens do not take part.

    version   states                              cost        score
    v2        the last layer                      L2          1 / (1 + EMD)
    v1        minimum, mean, maximum of the last  squared L2  1 - EMD
              five layers, side by side

v2 is the one that FrugalScore's teachers used (Kamal Eddine et al. 2022). Two
texts without words score the best that there is (1), one without words 0.

Not here: how texts become states (``_token_states.py``).
"""

from __future__ import annotations

import functools
import os
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base

VERSIONS = ('v2', 'v1')
_V1_LAYERS = 5
_PUNCTUATION = frozenset(string.punctuation)


class Metric(base.Metric):
  """MoverScore with one encoder.

  Attributes:
    progress: called with (pairs done, pairs in all) while scoring; None.
  """

  name = 'MoverScore'
  READS = ('encoder', 'miniature')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    version: str = 'v2',
    ngram: int = 1,
    idf: str | os.PathLike[str] = token_states.IDF_REFERENCES,
    reference_rule: str = 'max',
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    num_partitions: int = 1,
    spread: bool = False,
  ):
    """Loads the encoder.

    Args:
      model: the folder of an encoder.
      version: 'v2' or 'v1'; see the module.
      ngram: how many words in a row travel together, at least 1: their states
        averaged by their weights, with the sum of these.
      idf: 'references': references weigh by inverse document frequencies
        among references, hypotheses by those among hypotheses of the same
        call; 'none': all words weigh the same; else a file, a line a
        document, for both.
      reference_rule: 'max' or 'mean', with several references.
      max_length: tokens a text; the rest is cut. Default: the encoder's.
      batch_tokens: tokens a batch on one device; bounds memory, scores don't
        depend on it.
      dtype: of the encoder, 'float32' or 'bfloat16'.
      num_partitions: devices over which the weights are divided, for encoders
        that don't fit one.
      spread: whether all processes of ``processes.start`` score the same
        segments; each does its share and has all scores.

    Raises:
      FileNotFoundError: there is no such folder or file.
      ValueError: an option has a value that it can't have.
    """
    base.check_choice('version', version, VERSIONS)
    base.check_choice(
      'reference_rule', reference_rule, token_states.REFERENCE_RULES
    )
    if ngram < 1:
      raise OptionError(f'ngram {ngram}: at least 1')
    self._idf = token_states.check_idf(str(idf))
    bundle = token_states.load(self.name, model)
    depth = bundle.config.num_layers
    last = _V1_LAYERS if version == 'v1' else 1
    self._encoder = encoding.TextEncoder(
      bundle,
      range(max(0, depth + 1 - last), depth + 1),
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      num_partitions=num_partitions,
      spread=spread,
    )
    self.version = version
    self.ngram = ngram
    self.reference_rule = reference_rule
    self._width = bundle.config.emb_dim * len(self._encoder.layers)
    self.num_parameters = base.count_parameters(bundle.params)
    self._model = token_states.identity(bundle.name, bundle)

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: Mapping[str, object]) -> str:
    return token_states.sign(
      {
        'metric': self.name,
        **self._model,
        'variant': self.version,
        'ngram': self.ngram,
        'idf': token_states.idf_name(self._idf),
        **observed,
        'length': self._encoder.max_length,
        'dtype': self._encoder.dtype,
      }
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed = {
      'nrefs': base.require_references(segments, self.name) if segments else 0,
      'refs': self.reference_rule,
    }
    found = token_states.text_pairs(segments, self._encoder)
    idfs = (
      token_states.idf_of(
        self._idf, self._encoder, [s.hypothesis for s in segments]
      ),
      token_states.idf_of(
        self._idf, self._encoder, [r for s in segments for r in s.references]
      ),
    )
    values = np.zeros(len(found.pairs))
    owner = token_states.share(found, self._encoder)
    own = self._encoder.own(owner)
    done = 0
    told = encoding.within(self.progress, 0, len(owner), len(owner))
    for rows, states in token_states.windows(
      found, self._encoder, self._width, own
    ):
      for row in rows:
        sides = [
          self._words(found.encoded[text], states[text], idf)
          for text, idf in zip(found.pairs[row], idfs, strict=True)
        ]
        values[row] = self._score(*sides[0], *sides[1])
      done += len(rows)
      if told:
        told(done / len(own))
    values = self._encoder.exchange(values, owner)
    scores = token_states.collect(values, found.places, self.reference_rule)
    return base.Scores(
      scores.astype(np.float32),
      self._sign_with(observed),
      truncated=found.truncated,
      texts=len(found.encoded),
    )

  def _words(
    self, encoded: Encoded, states: np.ndarray, idf: token_states.Idf | None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [n, width] and weights [n] of what takes part."""
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
      states = _unit(states[-1])
    vectors = states[keep].astype(np.float64)
    weights = np.ones(len(keep))
    if idf is not None:
      weights = idf.weights(encoded)[keep]
      # Words that stand in every document weigh nothing; where all do, they
      # weigh the same.
      weights = weights if weights.sum() > 0 else np.ones(len(keep))
    if self.ngram > 1 and len(keep):
      vectors, weights = _ngrams(vectors, weights, self.ngram)
    return _unit(vectors), weights

  def _score(
    self,
    hypothesis: np.ndarray,
    hypothesis_weights: np.ndarray,
    reference: np.ndarray,
    reference_weights: np.ndarray,
  ) -> float:
    if not (len(hypothesis) and len(reference)):
      return float(len(hypothesis) == len(reference))
    ot = _optimal_transport()
    cost = np.maximum(2.0 - 2.0 * hypothesis @ reference.T, 0.0)
    if self.version == 'v2':
      cost = np.sqrt(cost)
    distance = ot.emd2(
      hypothesis_weights / hypothesis_weights.sum(),
      reference_weights / reference_weights.sum(),
      cost,
      check_marginals=False,
    )
    return 1.0 - distance if self.version == 'v1' else 1.0 / (1.0 + distance)


@functools.cache
def _optimal_transport() -> Any:
  """POT, which would load TensorFlow and PyTorch wherever they are."""
  for backend in ('TENSORFLOW', 'PYTORCH', 'JAX', 'CUPY'):
    os.environ.setdefault(f'POT_BACKEND_DISABLE_{backend}', '1')
  import ot

  return ot


def _unit(vectors: np.ndarray) -> np.ndarray:
  norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors / np.maximum(norm, 1e-30)


def _ngrams(
  vectors: np.ndarray, weights: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Weighted means over windows of ``size`` words; one where there are fewer.

  Words that have no weight at all are averaged evenly.
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
