"""Error spans: decoded from tag probabilities, and their penalties.

Decoding follows COMET, so scores that depend on spans are the same. Not a
metric by itself (hence the underscore).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5score_jax.metrics import base
from t5score_jax.nn import unified

#: Penalty of an error by severity; XCOMET (Guerreiro et al. 2024), section 3.
POINTS = {'minor': 1, 'major': 5, 'critical': 10}
_MOST_POINTS = 25


@dataclasses.dataclass(frozen=True)
class ErrorSpan:
  """An error in a hypothesis.

  Attributes:
    start: Its first character.
    end: The character after its last.
    severity: One of the network's labels, such as 'minor'.
    confidence: The mean probability of its tokens' tags, in [0, 1].
  """

  start: int
  end: int
  severity: str
  confidence: float


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Scores(base.Scores):
  """Scores of segments, and the errors found in each hypothesis.

  Attributes:
    spans: For each segment its errors in order; None where the network has no
      tags. With several references, the errors found with the best one.
  """

  spans: Sequence[tuple[ErrorSpan, ...]] | None = None


def decode(
  probabilities: np.ndarray,
  offsets: Sequence[tuple[int, int]],
  labels: Sequence[str],
  threshold: float | None = None,
) -> tuple[ErrorSpan, ...]:
  """Decodes error spans from tag probabilities.

  Adjacent error tokens form one span, which takes the severity of its first
  token. As in COMET, the special tokens around the text are tagged too, and a
  span that extends to the end of the sequence does not count.

  Args:
    probabilities: Tag probabilities of each token, [tokens, 1 + labels].
    offsets: Character offsets of each token in the hypothesis; (0, 0) for
      special tokens.
    labels: The severities.
    threshold: A token is an error if the probabilities of all severities sum
      to more than this. None or 0: if a severity is the most probable tag.
  """
  severities = probabilities[:, 1:]
  tags = probabilities.argmax(1)
  if threshold:
    wrong = severities.sum(1) > threshold
    tags = np.where(wrong, 1 + severities.argmax(1), unified.NO_ERROR)
  spans = []
  begin = None
  for place, tag in enumerate(tags):
    if tag != unified.NO_ERROR and begin is None:
      begin = place
    elif tag == unified.NO_ERROR and begin is not None:
      chosen = range(begin, place)
      spans.append(
        ErrorSpan(
          offsets[begin][0],
          # A special token at the end has no position in the text.
          max(offsets[n][1] for n in chosen),
          labels[tags[begin] - 1],
          float(np.mean([probabilities[n, tags[n]] for n in chosen])),
        )
      )
      begin = None
  return tuple(spans)


def mqm(spans: Sequence[ErrorSpan]) -> float:
  """XCOMET's score of a hypothesis' errors, in [0, 1]; 1 without errors."""
  points = sum(POINTS.get(span.severity, 0) for span in spans)
  return (_MOST_POINTS - min(points, _MOST_POINTS)) / _MOST_POINTS
