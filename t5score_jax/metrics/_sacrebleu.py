"""What BLEU, chrF and TER share: counts from sacrebleu, one set a segment.

sacrebleu turns a segment into counts, and the sum of counts into a score. So a
segment's score is that of its own counts, and a system's that of their sum:
the number that `sacrebleu` prints on the command line. Keeping the counts makes
bootstrap intervals cheap. The methods used are the hooks that sacrebleu's
metric classes fill in; their names begin with an underscore, and the tests
compare with sacrebleu's public interface.

Not a metric by itself (hence the underscore in the name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sacrebleu
import sacrebleu.metrics.base

from t5score_jax.data.records import Segment
from t5score_jax.metrics import base


class CountingMetric(base.Metric):
  """A metric that sacrebleu computes from counts."""

  def __init__(
    self,
    scorer: sacrebleu.metrics.base.Metric,
    settings: Mapping[str, object],
    *,
    segment_scorer: sacrebleu.metrics.base.Metric | None = None,
    sign: float = 1.0,
  ):
    """Takes the scorers that do the work.

    Args:
      scorer: Computes counts, and a system's score from their sum.
      settings: What the scores depend on, for the signature.
      segment_scorer: Computes a segment's score from the same counts, where
        this differs.
      sign: -1 for an error rate, so that higher is better.
    """
    self._scorer = scorer
    self._settings = settings
    self._segment_scorer = segment_scorer or scorer
    self._sign = sign

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: dict[str, object]) -> str:
    return base.format_signature(
      {
        'metric': self.name,
        **observed,
        **self._settings,
        'sacrebleu': sacrebleu.__version__,
      }
    )

  def _notes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
    """Things to tell the user about these segments."""
    return ()

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    nrefs = base.require_references(segments, self.name)
    counts = np.asarray(self._count(segments), np.float64)
    return base.Scores(
      values=np.array([self._value(self._segment_scorer, c) for c in counts]),
      signature=self._sign_with({'nrefs': nrefs}),
      notes=self._notes(segments),
      corpus=base.Corpus(
        # Without segments there is one row too few to know the width.
        counts.reshape(len(segments), -1) if segments else counts,
        lambda total: self._value(self._scorer, total),
      ),
    )

  def _value(
    self, scorer: sacrebleu.metrics.base.Metric, counts: np.ndarray
  ) -> float:
    # A list: sacrebleu's smoothing adds to slices, which copies only a list.
    score = scorer._compute_score_from_stats(counts.tolist()).score
    # + 0.0 makes the zero of an error rate 0.0, not -0.0.
    return self._sign * score + 0.0

  def _count(self, segments: Sequence[Segment]) -> list[list[float]]:
    """The counts of every segment, references prepared once for all systems."""
    by_references: dict[tuple[str, ...], list[int]] = {}
    for index, segment in enumerate(segments):
      by_references.setdefault(segment.references, []).append(index)
    counts: list[list[float]] = [[] for _ in segments]
    scorer = self._scorer
    for references, members in by_references.items():
      prepared = scorer._extract_reference_info(
        [scorer._preprocess_segment(text) for text in references]
      )
      for index in members:
        counts[index] = scorer._compute_segment_statistics(
          scorer._preprocess_segment(segments[index].hypothesis), prepared
        )
    return counts
