"""BLEU, chrF and TER from sacrebleu's counts, one set per segment.

sacrebleu computes counts from a segment, and a score from a sum of counts. A
segment is scored from its own counts, and a system from their sum, which gives
the number that `sacrebleu` prints on the command line. Keeping the counts makes
bootstrap intervals cheap. The methods in `HOOKS` are private to sacrebleu; a
test reports any that a new release changes.

Not a metric by itself (hence the underscore in the name).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import sacrebleu
import sacrebleu.metrics.base

from t5score_jax.data.records import Segment
from t5score_jax.metrics import base

#: The private methods of sacrebleu's metrics called here, with their
#: parameters.
HOOKS = {
  '_preprocess_segment': ('sent',),
  '_extract_reference_info': ('refs',),
  '_compute_segment_statistics': ('hypothesis', 'ref_kwargs'),
  '_compute_score_from_stats': ('stats',),
}


# Characters of scripts without spaces between words, by language.
_SCRIPTS = {
  'zh': re.compile('[\u4e00-\u9fff]'),
  'ja': re.compile('[\u3040-\u30ff]'),
  'th': re.compile('[\u0e00-\u0e7f]'),
  'lo': re.compile('[\u0e80-\u0eff]'),
  'my': re.compile('[\u1000-\u109f]'),
  'km': re.compile('[\u1780-\u17ff]'),
}
# ISO 639-3 codes, which FLORES uses.
_SHORTER = {
  **{'zho': 'zh', 'cmn': 'zh', 'jpn': 'ja', 'kor': 'ko', 'tha': 'th'},
  **{'lao': 'lo', 'mya': 'my', 'khm': 'km'},
}


def target_languages(segments: Sequence[Segment]) -> set[str]:
  """Returns the languages of the references.

  They are taken from the language pairs ('en-zh', 'en-zh_CN',
  'eng_Latn-zho_Hans'), or else detected from the script if it has no spaces
  between words.
  """
  pairs = {s.language_pair for s in segments if s.language_pair}
  if pairs:
    ends = (pair.partition('-')[2] or pair for pair in pairs)
    plain = {re.split('[-_]', end)[0].lower() for end in ends}
    return {_SHORTER.get(language, language) for language in plain}
  text = ''.join(t for s in segments for t in s.references)
  counts = {name: len(x.findall(text)) for name, x in _SCRIPTS.items()}
  # Japanese uses Chinese characters too.
  counts['zh' if not counts['ja'] else 'ja'] = counts['zh'] + counts['ja']
  return {name for name, n in counts.items() if 2 * n > len(text)}


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
    """Sets up the scorers.

    Args:
      scorer: Computes counts, and a system's score from their sum.
      settings: The settings of the signature.
      segment_scorer: Computes a segment's score from the same counts, if it
        differs.
      sign: -1 for an error rate, so that higher is better.
    """
    self._scorer = scorer
    self._settings = settings
    self._segment_scorer = segment_scorer or scorer
    self._sign = sign

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return base.format_signature(
      {
        'metric': self.name,
        **observed,
        **self._settings,
        'sacrebleu': sacrebleu.__version__,
      }
    )

  def _notes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
    """Notes to the user about these segments."""
    return ()

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    nrefs = base.require_references(segments, self.name)
    counts = np.asarray(self._count(segments), np.float64)
    return base.Scores(
      values=np.array([self._value(self._segment_scorer, c) for c in counts]),
      signature=self.signature(nrefs=nrefs),
      notes=self._notes(segments),
      corpus=base.Corpus(
        # Without segments the width is unknown.
        counts.reshape(len(segments), -1) if segments else counts,
        self._system_value,
      ),
    )

  # A method, not a lambda, so that scores can be pickled.
  def _system_value(self, total: np.ndarray) -> float:
    return self._value(self._scorer, total)

  def _value(
    self, scorer: sacrebleu.metrics.base.Metric, counts: np.ndarray
  ) -> float:
    # A list: sacrebleu's smoothing adds to slices in place; only a list's slice
    # is a copy.
    score = scorer._compute_score_from_stats(counts.tolist()).score
    # + 0.0 makes the zero of an error rate 0.0, not -0.0.
    return self._sign * score + 0.0

  def _count(self, segments: Sequence[Segment]) -> list[list[float]]:
    """Counts every segment; references are prepared once for all systems."""
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
