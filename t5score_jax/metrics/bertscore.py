"""BERTScore: greedy matching of token states (Zhang et al. 2020).

Each token of the hypothesis is matched with the most similar token of the
reference (precision), and the reverse (recall); similarity is the cosine of
states of one encoder layer, and F is the harmonic mean. Weights are uniform or
inverse document frequencies; the encoder's special tokens may be matched but
have no weight. With several references each of P, R and F is the best, or the
mean. A text without tokens has P = R = F = 0.

Not here: how texts become states (``_token_states.py``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.data.files import RecordError, open_text
from t5score_jax.data.records import Segment
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import buckets, encoding
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base

# Similarities held at a time.
_BLOCK = 2**22
_NAMES = ('precision', 'recall', 'f')


@dataclasses.dataclass(frozen=True)
class Baseline:
  """What unrelated sentences score: x becomes (x - b) / (1 - b).

  Attributes:
    precision: b of P.
    recall: b of R.
    f: b of F.
  """

  precision: float
  recall: float
  f: float


class Metric(base.Metric):
  """BERTScore with one encoder.

  Attributes:
    progress: called with (texts done, texts in all) while scoring; None.
  """

  name = 'BERTScore'
  READS = ('encoder', 'miniature')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    layer: int = -1,
    idf: str | os.PathLike[str] = token_states.IDF_NONE,
    baseline: str | os.PathLike[str] | None = None,
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
      layer: whose states are compared: 0 the embeddings, -1 the last. The
        original package has a table of layers that agree best with people:
        9 of 12 for bert-base-uncased, 17 of 24 for roberta-large.
      idf: 'none'; 'references': inverse document frequencies of the
        references that are scored together; else a file, a line a document.
      baseline: TSV or CSV with the columns LAYER, P, R, F, as the original
        package has them; scores are rescaled by the row of the layer.
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
    base.check_choice(
      'reference_rule', reference_rule, token_states.REFERENCE_RULES
    )
    self._idf = token_states.check_idf(str(idf))
    if baseline is not None and not os.path.isfile(baseline):
      raise OptionError(
        f'baseline {os.fspath(baseline)!r}: there is no such file'
      )
    bundle = token_states.load(self.name, model)
    self._encoder = encoding.TextEncoder(
      bundle,
      (layer,),
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      num_partitions=num_partitions,
      spread=spread,
    )
    self.layer = self._encoder.layers[0]
    self.baseline = (
      None if baseline is None else read_baseline(baseline, self.layer)
    )
    self.reference_rule = reference_rule
    self._width = bundle.config.emb_dim
    self.num_parameters = base.count_parameters(bundle.params)
    self._model = token_states.identity(bundle.name, bundle)

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: Mapping[str, object]) -> str:
    b = self.baseline
    return token_states.sign(
      {
        'metric': self.name,
        **self._model,
        'layer': self.layer,
        'idf': token_states.idf_name(self._idf),
        'rescaled': f'{b.precision},{b.recall},{b.f}' if b else 'no',
        **observed,
        'length': self._encoder.max_length,
        'dtype': self._encoder.dtype,
      }
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments: F, with precision and recall as components."""
    observed = {
      'nrefs': base.require_references(segments, self.name) if segments else 0,
      'refs': self.reference_rule,
    }
    references = [r for segment in segments for r in segment.references]
    idf = token_states.idf_of(self._idf, self._encoder, references)
    found = token_states.text_pairs(segments, self._encoder)
    values = np.zeros((len(found.pairs), 3))
    owner = token_states.share(found, self._encoder)
    own = self._encoder.own(owner)
    done = 0
    told = encoding.within(self.progress, 0, len(owner), len(owner))
    for rows, states in token_states.windows(
      found, self._encoder, self._width, own
    ):
      texts = {i: _Text(found.encoded[i], s, idf) for i, s in states.items()}
      for chosen, scores in _matched(found.pairs, rows, texts):
        values[chosen] = scores
        done += len(chosen)
        if told:
          told(done / len(own))
    values = self._encoder.exchange(values, owner)
    if self.baseline:
      b = np.array([self.baseline.precision, self.baseline.recall])
      b = np.append(b, self.baseline.f)
      values = (values - b) / (1.0 - b)
    columns = {
      name: token_states.collect(
        values[:, n], found.places, self.reference_rule
      ).astype(np.float32)
      for n, name in enumerate(_NAMES)
    }
    return base.Scores(
      columns.pop('f'),
      self._sign_with(observed),
      columns,
      truncated=found.truncated,
      texts=len(found.encoded),
    )


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
      # Tokens that stand in every document weigh nothing; where all do, they
      # weigh the same.
      weights = by_idf if by_idf.sum() > 0 else weights
    self.weights = weights / max(weights.sum(), 1e-30)


def _matched(
  pairs: np.ndarray, rows: np.ndarray, texts: Mapping[int, _Text]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields rows of pairs and their P, R, F, float [n, 3]."""
  longest = np.array(
    [max(len(texts[i].states) for i in pairs[row]) for row in rows]
  )
  rungs = np.array(buckets.ladder(int(longest.max())))
  rung_of = rungs[np.searchsorted(rungs, longest)]
  for length in sorted(set(rung_of.tolist())):
    members = rows[rung_of == length]
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
  """Reads the row of a layer from a table LAYER, P, R, F.

  Raises:
    OptionError: there is no such row.
    RecordError: the table has not these columns, or no numbers.
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
        try:
          return Baseline(*(float(cell) for cell in cells[1:]))
        except (TypeError, ValueError) as error:
          raise RecordError(f'layer {layer}: {error}', path=path) from error
  raise OptionError(f'{path}: there is no row for layer {layer}')
