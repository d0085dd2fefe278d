"""Metrics that compare the token states of a hypothesis and a reference.

BERTScore and MoverScore derive from `PairMetric`. It encodes each distinct text
once per window that fits in memory and computes inverse document frequencies.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from t5score_jax.checkpoints import kinds, packaged
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import files
from t5score_jax.data.records import Segment
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.metrics import _models, _utilities, base

# Maximum bytes of states in memory at a time.
_WINDOW_BYTES = 2**29

IDF_NONE, IDF_REFERENCES = 'none', 'references'


class Idf:
  """Inverse document frequencies of tokens: log((N + 1) / (df + 1)).

  Args:
    corpus: N encoded documents; special tokens count like others.
  """

  def __init__(self, corpus: Iterable[Encoded]):
    counts: collections.Counter[int] = collections.Counter()
    self.documents = 0
    for text in corpus:
      counts.update(set(text.ids))
      self.documents += 1
    self._unseen = math.log(self.documents + 1)
    self._values = {
      token: math.log((self.documents + 1) / (count + 1))
      for token, count in counts.items()
    }

  def weights(self, text: Encoded) -> np.ndarray:
    """Token weights, float64 [tokens]; unseen tokens have the largest."""
    return np.array([self._values.get(i, self._unseen) for i in text.ids])


# Weights of hypothesis and reference; None means uniform weights.
Idfs = tuple[Idf | None, Idf | None]


@dataclasses.dataclass(frozen=True)
class TextPairs:
  """Distinct (hypothesis, reference) pairs of some segments.

  Attributes:
    encoded: The tokens of every distinct text.
    pairs: Indices of a hypothesis and a reference, int [P, 2].
    index: The pair of each reference of a segment; see
      `_models.distinct_pairs`.
  """

  encoded: list[Encoded]
  pairs: np.ndarray
  index: np.ndarray

  @property
  def cut(self) -> int:
    """The number of texts that were truncated."""
    return sum(text.cut for text in self.encoded)


class PairMetric(_models.ModelMetric):
  """A metric on the token states of text pairs under one encoder.

  Subclasses call `_load` in their constructors and define `_pair_scores` and
  `_settings`.
  """

  #: Columns of `_pair_scores`; the last is the score, the others components.
  COLUMNS: ClassVar[tuple[str, ...]] = ('score',)
  #: Whether hypotheses are weighted by frequencies among hypotheses.
  HYPOTHESIS_IDF: ClassVar[bool] = False

  def _load(
    self,
    model: str | os.PathLike[str] | None,
    idf: str | os.PathLike[str],
    layers: Callable[[int], Sequence[int]],
  ) -> None:
    """Loads the encoder.

    Args:
      model: Its folder.
      idf: 'none', 'references' or a file with one document per line.
      layers: Returns the layers to compare, given their number.

    Raises:
      OptionError: No model is named, or an option is out of range.
      FileNotFoundError: There is no such folder.
    """
    self._idf = str(idf)
    self.independent = self._idf != IDF_REFERENCES
    if self._idf not in (IDF_NONE, IDF_REFERENCES) and not Path(idf).is_file():
      raise OptionError(
        f'idf {self._idf!r}: use {IDF_NONE}, {IDF_REFERENCES}, or a file with '
        'one document per line'
      )
    if not model:
      raise OptionError(
        f'{self.name} needs an encoder: give the folder of one (BERT, RoBERTa, '
        'XLM-R, as Hugging Face saves them) as the model (-m), or the name of '
        f'an installed one: {", ".join(packaged.NAMES)}'
      )
    bundle = self._reading(encoders.load_encoder(kinds.folder(model)))
    self._encoder = encoding.TextEncoder(
      bundle,
      layers(bundle.config.num_layers),
      max_length=self._max_length,
      **self._placing,
    )
    self._width = bundle.config.emb_dim * len(self._encoder.layers)
    # A corpus in a file is read once, not in every call.
    self._corpora: dict[str, Idf] = {}
    self._identify(bundle.name, bundle, bundle.tokenizer)

  @abc.abstractmethod
  def _settings(self) -> dict[str, object]:
    """The metric's own settings, for signatures."""

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      **self._settings(),
      **observed,
      length=self._encoder.max_length,
      dtype=self._encoder.dtype,
    )

  def utilities(
    self, groups: Sequence[_utilities.Group]
  ) -> _utilities.Utilities:
    """See `base.Metric.utilities`."""
    if self._idf == IDF_REFERENCES:
      raise OptionError(
        f'idf {IDF_REFERENCES!r}: utilities would depend on other segments; '
        f'use idf={IDF_NONE} (--option), or a file of documents'
      )
    return super().utilities(groups)

  @abc.abstractmethod
  def _pair_scores(
    self,
    pairs: TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    idfs: Idfs,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores some pairs.

    Args:
      pairs: All pairs.
      rows: Those to score, int [n].
      states: States of their texts, float32 [layers, tokens, emb_dim].
      idfs: Weights of hypotheses and of references.

    Yields:
      Rows [m], and their `COLUMNS`, float [m, columns].
    """

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed = self._references(segments)
    pairs, values = self._pair_values(segments)
    columns = [
      _models.over_references(column, pairs.index, self.reference_rule)
      for column in values.T
    ]
    return base.Scores(
      columns.pop(),
      self.signature(**observed),
      dict(zip(self.COLUMNS, columns, strict=False)),
      truncated=pairs.cut,
      texts=len(pairs.encoded),
    )

  def _pair_values(
    self, segments: Sequence[Segment]
  ) -> tuple[TextPairs, np.ndarray]:
    """Returns the segments' pairs and their `COLUMNS`, float64 [P, columns]."""
    pairs = text_pairs(segments, self._encoder)
    idfs = self._idfs(segments)
    values = np.zeros((len(pairs.pairs), len(self.COLUMNS)))
    owner = self._share(pairs)
    own = self._encoder.own(owner)
    done = 0
    report = encoding.within(self.progress, 0, len(owner), len(owner))
    for rows, states in self._windows(pairs, own):
      for chosen, scores in self._pair_scores(pairs, rows, states, idfs):
        values[chosen] = scores
        done += len(chosen)
        if report:
          report(done / len(own))
    return pairs, self._encoder.exchange(values, owner)

  def _idfs(self, segments: Sequence[Segment]) -> Idfs:
    idf = self._idf_of([r for s in segments for r in s.references])
    if not self.HYPOTHESIS_IDF:
      return idf, idf
    return self._idf_of([s.hypothesis for s in segments]), idf

  def _idf_of(self, texts: Sequence[str]) -> Idf | None:
    """Frequencies in the file that the option names, else in the texts."""
    if self._idf == IDF_NONE:
      return None
    if self._idf == IDF_REFERENCES:
      return Idf(self._encoder.tokenize(texts))
    if self._idf not in self._corpora:
      lines = files.read_lines(self._idf)
      self._corpora[self._idf] = Idf(self._encoder.tokenize(lines))
    return self._corpora[self._idf]

  def _idf_name(self) -> str:
    """Formats the option `idf` for a signature.

    Returns:
      The word; for a file, its name and twelve digits of a SHA-256 of its
      lines, as in 'corpus.txt.gz@1b4f0e985197'. Compression does not change
      the digits.
    """
    if self._idf in (IDF_NONE, IDF_REFERENCES):
      return self._idf
    state = os.stat(self._idf)
    digest = _lines_digest(self._idf, state.st_size, state.st_mtime_ns)
    return f'{Path(self._idf).name}@{digest}'

  def _share(self, pairs: TextPairs) -> np.ndarray:
    """Assigns pairs to processes: int [P], the process of each.

    All pairs with the same reference go to one process, which encodes it once.
    """
    lengths = np.array([len(text.ids) for text in pairs.encoded], np.int64)
    references, group = np.unique(pairs.pairs[:, 1], return_inverse=True)
    costs = lengths[references] + np.bincount(
      group, lengths[pairs.pairs[:, 0]], len(references)
    )
    identity = [*(text.ids for text in pairs.encoded), pairs.pairs.tolist()]
    return self._encoder.share(costs, identity)[group]

  def _windows(
    self, pairs: TextPairs, rows: np.ndarray
  ) -> Iterator[tuple[np.ndarray, Mapping[int, np.ndarray]]]:
    """Yields rows of pairs with the states of their texts.

    Args:
      pairs: All pairs.
      rows: The pairs to score, int [n].

    Yields:
      Row numbers, and float32 states [layers, tokens, emb_dim] by text.
    """
    lengths = np.array([len(text.ids) for text in pairs.encoded])
    limit = _WINDOW_BYTES // (4 * self._width)
    # Hypotheses of one reference are adjacent, so it is encoded once.
    order = rows[np.lexsort((pairs.pairs[rows, 0], pairs.pairs[rows, 1]))]
    start = 0
    while start < len(order):
      inside: set[int] = set()
      tokens, stop = 0, start
      while stop < len(order):
        new = set(pairs.pairs[order[stop]].tolist()) - inside
        more = int(sum(lengths[i] for i in new))
        if inside and tokens + more > limit:
          break
        inside |= new
        tokens += more
        stop += 1
      chosen = sorted(inside)
      states: dict[int, np.ndarray] = {}
      ids = [pairs.encoded[i].ids for i in chosen]
      for indices, batch in self._encoder.run(ids):
        for column, index in enumerate(indices):
          text = chosen[index]
          states[text] = batch[:, column, : lengths[text]].copy()
      yield order[start:stop], states
      start = stop


def text_pairs(
  segments: Sequence[Segment], encoder: encoding.TextEncoder
) -> TextPairs:
  """Tokenizes the texts of segments and lists the pairs to compare."""
  pairs, index = _models.distinct_pairs(segments)
  distinct = dict.fromkeys(itertools.chain.from_iterable(pairs))
  texts = {text: number for number, text in enumerate(distinct)}
  numbers = [[texts[text] for text in pair] for pair in pairs]
  return TextPairs(
    encoder.tokenize(list(texts)),
    np.array(numbers, np.int64).reshape(-1, 2),
    index,
  )


@functools.lru_cache(maxsize=64)
def _lines_digest(path: str, size: int, changed: int) -> str:
  """A digest of a file's lines; size and time identify its version."""
  del size, changed
  digest = hashlib.sha256()
  for line in files.read_lines(path):
    digest.update(line.encode('utf-8', 'surrogatepass') + b'\n')
  return digest.hexdigest()[:12]
