"""Any metric under sacrebleu's interface.

    import t5score_jax
    from t5score_jax.adapters.sacrebleu import Adapter

    metric = Adapter(t5score_jax.load())
    metric.corpus_score(hypotheses, [references]).score
    metric.sentence_score(hypothesis, [reference]).format()
    metric.get_signature()

All segments are scored at once. sacrebleu resamples the segment scores, or the
sums of a metric that has them, so its `n_bootstrap` and `PairedTest` work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import base as theirs

from t5score_jax.errors import InputError
from t5score_jax.metrics import base


class Signature(theirs.Signature):
  """The signature of scores, with sacrebleu's number of resamples and seed."""

  def __init__(self, args: dict[str, Any]):
    """Takes the attributes of an `Adapter`."""
    super().__init__(args)
    own = dict(pair.split(':', 1) for pair in args['signature'].split('|'))
    # sacrebleu's own count of references is the same number.
    drawn = {name: self.info[name] for name in ('bs', 'ar', 'seed')}
    self.info = {**own, **drawn}
    self._abbr = {**{name: name for name in own}, **self._abbr}


class Adapter(theirs.Metric):
  """A metric of this library as one of sacrebleu's.

  Attributes:
    metric: The metric.
    signature: The signature of the latest scores.
  """

  _SIGNATURE_TYPE = Signature

  def __init__(self, metric: base.Metric, sources: Sequence[str] | None = None):
    """Takes a metric.

    Args:
      metric: The metric; `t5score_jax.load` gives one.
      sources: The sources of the test set, which sacrebleu's interface does not
        pass on, for a metric that reads them.
    """
    super().__init__()  # type: ignore[no-untyped-call]
    self.metric = metric
    self.signature = metric.signature()
    self.num_refs = 0
    self._sources = sources
    self._corpus: base.Corpus | None = None

  def _extract_corpus_statistics(
    self,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str | None]] | None,
  ) -> list[list[float]]:
    """A row for each segment; a score is computed from the sum of rows."""
    texts = list(hypotheses)
    columns = self._columns(references, len(texts)) if references else None
    scores = self.metric.score(texts, columns, self._sources)
    self.signature = scores.signature
    self._corpus = scores.corpus
    if scores.corpus is not None:
      return np.asarray(scores.corpus.statistics, np.float64).tolist()
    return [[float(value), 1.0] for value in scores.values]

  def _columns(
    self, references: Sequence[Sequence[str | None]], count: int
  ) -> list[list[str]]:
    """The references of each segment; None in a stream means no reference."""
    lengths = {len(stream) for stream in references}
    if lengths != {count}:
      raise InputError(
        f'{count} hypotheses but streams of {sorted(lengths)} references; '
        'every stream must have one for each'
      )
    columns = [
      [text for text in texts if text is not None]
      for texts in zip(*references, strict=True)
    ]
    counts = {len(column) for column in columns}
    self.num_refs = counts.pop() if len(counts) == 1 else -1
    return columns

  def _aggregate_and_compute(self, stats: Any) -> theirs.Score:
    return self._compute_score_from_stats(np.sum(stats, axis=0))

  def _compute_score_from_stats(self, stats: Any) -> theirs.Score:
    total = np.asarray(stats, np.float64)
    value = (
      total[0] / total[1]
      if self._corpus is None
      else self._corpus.aggregate(total)
    )
    return theirs.Score(self.metric.name, float(value))

  # sacrebleu's hooks for single segments, which are scored together here.

  def _preprocess_segment(self, sent: str) -> str:
    return sent

  def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
    return {'refs': refs}

  def _compute_segment_statistics(
    self, hypothesis: str, ref_kwargs: dict[str, Any]
  ) -> list[float]:
    references = [[text] for text in ref_kwargs['refs']]
    return self._extract_corpus_statistics([hypothesis], references)[0]
