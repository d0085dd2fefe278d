"""BERTScore: greedy matching of token states (Zhang et al. 2020).

Each token of the hypothesis is matched with the most similar token of the
reference (precision), and the reverse (recall). Similarity is the cosine of
states of one encoder layer, and F is the harmonic mean. Weights are uniform or
inverse document frequencies. The encoder's special tokens may be matched but
have no weight. With several references, P, R and F are each the best or the
mean. A text without tokens has P = R = F = 0.

Not here: the states (`metrics/_token_states.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints import kinds, packaged
from t5score_jax.data import numbers
from t5score_jax.data.files import RecordError, open_text
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import buckets
from t5score_jax.metrics import _bertscore_layers
from t5score_jax.metrics import _token_states as token_states

# Maximum similarities in memory at a time.
_BLOCK = 2**22


@dataclasses.dataclass(frozen=True)
class Baseline:
  """Baselines b, the scores of unrelated sentences; x -> (x - b) / (1 - b).

  Attributes:
    precision: b for P.
    recall: b for R.
    f: b for F.
  """

  precision: float
  recall: float
  f: float


class Metric(token_states.PairMetric):
  """BERTScore with one encoder."""

  name = 'BERTScore'
  READS = ('encoder', 'miniature')
  COLUMNS = ('precision', 'recall', 'f')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    layer: int | None = None,
    idf: str | os.PathLike[str] = token_states.IDF_NONE,
    baseline: str | os.PathLike[str] | None = None,
    **options: Any,
  ):
    """Loads the encoder.

    Args:
      model: The folder of an encoder.
      layer: The layer whose states are compared; 0 is the embeddings, -1 the
        last layer. Default: the one that the original package recommends for
        an encoder of this name, such as 9 of 12 for bert-base-uncased and 17
        of 24 for roberta-large, else the last.
      idf: 'none'; 'references', for inverse document frequencies in the
        references scored together; or a file, one document per line.
      baseline: TSV or CSV with the columns LAYER, P, R, F, as in the original
        package; scores are rescaled with the row of the layer.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder.
      OptionError: A value is out of range.
    """
    super().__init__(**options)
    if baseline is not None and not os.path.isfile(baseline):
      raise OptionError(
        f'baseline {os.fspath(baseline)!r}: there is no such file'
      )

    def layers(depth: int) -> tuple[int]:
      if layer is not None or not model:
        return (-1 if layer is None else layer,)
      name = packaged.name_of(kinds.folder(model))
      return (_bertscore_layers.recommended(name, depth),)

    self._load(model, idf, layers)
    self.layer = self._encoder.layers[0]
    self.baseline = (
      None if baseline is None else read_baseline(baseline, self.layer)
    )

  def _settings(self) -> dict[str, object]:
    b = self.baseline
    return {
      'layer': self.layer,
      'idf': self._idf_name(),
      'rescaled': f'{b.precision},{b.recall},{b.f}' if b else 'no',
    }

  def _pair_scores(
    self,
    pairs: token_states.TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    idfs: token_states.Idfs,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    texts = {i: _Text(pairs.encoded[i], s, idfs[0]) for i, s in states.items()}
    b = np.zeros(3)
    if self.baseline:
      b = np.array(dataclasses.astuple(self.baseline))
    for chosen, scores in _matched(pairs.pairs, rows, texts):
      yield chosen, (scores - b) / (1.0 - b)


class _Text:
  """A text's normalised states and weights."""

  def __init__(
    self,
    encoded: Encoded,
    states: np.ndarray,
    idf: token_states.Idf | None,
  ):
    x = states[0]
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    self.states = x / np.maximum(norm, 1e-30)
    counted = ~np.array(encoded.special)
    self.empty = not counted.any()
    weights = counted.astype(np.float32)
    if idf is not None:
      by_idf = weights * idf.weights(encoded)
      # Tokens in every document have weight 0. If all do, weights are uniform.
      weights = by_idf if by_idf.sum() > 0 else weights
    self.weights = weights / max(weights.sum(), 1e-30)


def _matched(
  pairs: np.ndarray, rows: np.ndarray, texts: Mapping[int, _Text]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields rows of pairs and their P, R, F, float [n, 3]."""
  longest = np.array(
    [max(len(texts[i].states) for i in pairs[row]) for row in rows]
  )
  length_of = buckets.round_up(longest, buckets.boundaries(int(longest.max())))
  for length in sorted(set(length_of.tolist())):
    members = rows[length_of == length]
    width = next(iter(texts.values())).states.shape[1]
    size = max(1, _BLOCK // (length * (length + 2 * width)))
    if len(members) < size:
      size = -(-len(members) // buckets.SMALL_ROWS) * buckets.SMALL_ROWS
    for start in range(0, len(members), size):
      chosen = members[start : start + size]
      sides = [
        _stacked([texts[i] for i in pairs[chosen, side]], size, length)
        for side in (0, 1)
      ]
      scores = np.asarray(_greedy(*sides[0], *sides[1]))[: len(chosen)]
      empty = np.array(
        [any(texts[i].empty for i in pairs[row]) for row in chosen]
      )
      yield chosen, np.where(empty[:, None], 0.0, scores)


def _stacked(
  texts: Sequence[_Text], rows: int, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """States [rows, length, width], mask and weights [rows, length]."""
  states = np.zeros((rows, length, texts[0].states.shape[1]), np.float32)
  mask = np.zeros((rows, length), bool)
  weights = np.zeros((rows, length), np.float32)
  for row, text in enumerate(texts):
    count = len(text.states)
    states[row, :count] = text.states
    mask[row, :count] = True
    weights[row, :count] = text.weights
  return states, mask, weights


@jax.jit
def _greedy(
  hyp: Any,
  hyp_mask: Any,
  hyp_weights: Any,
  ref: Any,
  ref_mask: Any,
  ref_weights: Any,
) -> Any:
  """P, R, F of each pair: [rows, length, width] twice -> [rows, 3]."""
  # [rows, hypothesis tokens, reference tokens]
  similarity = jnp.einsum('rid,rjd->rij', hyp, ref, precision='highest')
  # A padded token is never the most similar one.
  by_hyp = jnp.max(similarity, axis=2, initial=-2.0, where=ref_mask[:, None])
  by_ref = jnp.max(similarity, axis=1, initial=-2.0, where=hyp_mask[:, :, None])
  precision = jnp.sum(by_hyp * hyp_weights, axis=1)
  recall = jnp.sum(by_ref * ref_weights, axis=1)
  total = precision + recall
  f = jnp.where(total == 0, 0.0, 2 * precision * recall / total)
  return jnp.stack([precision, recall, f], axis=1)


def read_baseline(path: str | os.PathLike[str], layer: int) -> Baseline:
  """Reads a layer's row from a table with columns LAYER, P, R, F.

  Raises:
    OptionError: There is no such row.
    RecordError: The table lacks these columns, or a cell is not a number.
  """
  with open_text(path) as lines:
    first = next(iter(lines), '')
    separator = ',' if ',' in first else '\t'
    header = first.strip().split(separator)
    if header != ['LAYER', 'P', 'R', 'F']:
      raise RecordError(
        f'the columns must be LAYER, P, R, F, not {", ".join(header)}',
        path=path,
      )
    for line in lines:
      cells = line.strip().split(separator)
      if cells[0] == str(layer):
        values = [numbers.parse(cell) for cell in cells[1:]]
        scores = [value for value in values if value is not None]
        if len(values) != 3 or len(scores) != 3:
          raise RecordError(f'layer {layer}: not three numbers', path=path)
        return Baseline(*scores)
  raise OptionError(f'{path}: there is no row for layer {layer}')
