"""Scores outputs with a metric of this library or an executable.

An executable reads one JSON object per line on standard input (`id`,
`hypothesis`, `references`, `source`) and prints one number per line. The number
of scores and their finiteness are checked. `submissions.py` stores them.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence

import numpy as np

from t5score_jax.data import numbers
from t5score_jax.data.records import Segment
from t5score_jax.leaderboard.data import combine
from t5score_jax.leaderboard.entries import GIVEN, BoardError, Metric
from t5score_jax.leaderboard.store import Store
from t5score_jax.leaderboard.web import sandbox
from t5score_jax.metrics import base, registry

#: Exceptions by which a metric rejects texts or options.
FAILURES = (ValueError, TypeError, ArithmeticError, LookupError, OSError)
#: The kinds of metrics that can be run.
RUNNABLE = ('library', 'command')


class RunError(BoardError):
  """A metric failed; the message says how."""


@dataclasses.dataclass(frozen=True)
class Texts:
  """The ids of K inputs, their texts if known, and K texts per reference."""

  ids: Sequence[str]
  sources: Sequence[str] | None
  references: Mapping[str, Sequence[str]]

  @classmethod
  def of(cls, store: Store) -> Texts:
    """The inputs of a board."""
    return cls(store.ids(), store.sources(), store.references())


class Runner:
  """Runs one metric on many outputs; loads a metric of the library once.

  Attributes:
    metric: The metric.
    signature: The signature of the newest scores; '' before the first run.
    seconds: Duration of the newest run.
  """

  def __init__(
    self, store: Store, metric: Metric, program: bytes | None = None
  ):
    """Makes a runner.

    Args:
      store: The board; executables must not see its folder.
      metric: The metric, of kind 'library' or 'command'.
      program: The executable; None for the one on the board.

    Raises:
      RunError: The library has no such metric or option.
    """
    self.metric = metric
    self.signature = ''
    self.seconds = 0.0
    self._hidden = [store.path.resolve().parent]
    self._loaded: base.Metric | None = None
    if metric.kind == 'library':
      try:
        self._loaded = registry.load_metric(
          metric.settings['metric'], **metric.settings.get('options', {})
        )
      except FAILURES as error:
        raise RunError(f'{metric.name}: {error}') from error
    elif metric.kind == 'command':
      self._program = program or store.program(metric.id) or b''
    else:
      raise RunError(
        f'{metric.name}: its scores were imported; it cannot be run'
      )

  def score(
    self, outputs: Sequence[str], texts: Texts, reference_set: str = GIVEN
  ) -> np.ndarray:
    """Scores K outputs.

    Args:
      outputs: The K texts.
      texts: Their inputs and references.
      reference_set: Labels joined by '+', or `GIVEN` for no references.

    Returns:
      K finite scores, negated if lower is better (M.1).

    Raises:
      RunError: The metric failed, or its scores are invalid.
    """
    labels = [] if reference_set == GIVEN else reference_set.split('+')
    segments = [
      Segment(
        hypothesis=text,
        references=tuple(texts.references[label][n] for label in labels),
        source=None if texts.sources is None else texts.sources[n],
        segment=texts.ids[n],
      )
      for n, text in enumerate(outputs)
    ]
    start = time.perf_counter()
    try:
      values = self._values(segments)
    except FAILURES as error:
      raise RunError(f'{self.metric.name}: {error}') from error
    self.seconds = time.perf_counter() - start
    if values.shape != (len(outputs),) or not np.isfinite(values).all():
      raise RunError(
        f'{self.metric.name}: {values.shape} scores for {len(outputs)} outputs,'
        ' or some that are not finite'
      )
    return -values if self.metric.negated else values

  def _values(self, segments: Sequence[Segment]) -> np.ndarray:
    if self._loaded is not None:
      scores = self._loaded.score_segments(segments)
      self.signature = scores.signature
      return np.asarray(scores.values, dtype=np.float64)
    lines = (
      json.dumps(
        {
          'id': s.segment,
          'hypothesis': s.hypothesis,
          'references': list(s.references),
          'source': s.source,
        }
      )
      + '\n'
      for s in segments
    )
    self.signature = self.metric.signature
    settings = self.metric.settings
    printed = sandbox.run(
      self._program,
      ''.join(lines).encode(),
      sandbox.Limits(**settings.get('limits', {})),
      self._hidden,
      settings.get('isolation', 'required'),
    )
    return _parse(printed, len(segments))


def _parse(printed: bytes, count: int) -> np.ndarray:
  """Parses the scores that a program printed, one per line."""
  lines = printed.splitlines()
  if len(lines) != count:
    raise RunError(f'the program printed {len(lines)} lines for {count} texts')
  values = np.empty(count)
  for n, line in enumerate(lines):
    value = numbers.parse(line.strip().decode('ascii', 'replace'))
    if value is None:
      raise RunError(
        f'the program printed {line[:40]!r} in line {n + 1}: not a finite'
        ' number'
      )
    values[n] = value
  return values


def score_generator(
  runner: Runner,
  outputs: Sequence[str],
  texts: Texts,
  reference_sets: Sequence[str],
  several: str | None = None,
) -> dict[str, np.ndarray]:
  """Scores one generator by one metric with every reference set.

  A metric without references is run once, as `GIVEN`. A metric that takes a
  single reference is run with each; sets of several references get the maximum
  or mean (M.3). A metric that takes several references is run with each set.

  Args:
    runner: The metric.
    outputs: The K texts.
    texts: Their inputs and references.
    reference_sets: Labels joined by '+', each.
    several: How several references are combined; None for the metric's way.

  Returns:
    Reference set -> scores [K].

  Raises:
    RunError: The metric failed, or the board lacks references it needs.
  """
  settings = runner.metric.settings
  if not settings.get('references'):
    return {GIVEN: runner.score(outputs, texts)}
  if not reference_sets:
    raise RunError(
      f'{runner.metric.name} needs references, and this board has none'
    )
  several = several or settings.get('several', 'own')
  scores: dict[str, np.ndarray] = {}
  # The last run, with all references, is the one whose duration is kept.
  for reference_set in sorted(reference_sets, key=lambda s: s.count('+')):
    labels = reference_set.split('+')
    if several == 'own' or len(labels) == 1:
      scores[reference_set] = runner.score(outputs, texts, reference_set)
      continue
    for label in labels:
      if label not in scores:
        scores[label] = runner.score(outputs, texts, label)
    together = np.stack([scores[label] for label in labels])
    scores[reference_set] = combine(together, several)
  return {name: scores[name] for name in reference_sets}
