"""Scores outputs with a metric of this library or an executable.

An executable reads one JSON object per line on standard input (`id`,
`hypothesis`, `references`, `source`) and prints one number per line. The number
of scores and their finiteness are checked. `submissions.py` stores them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.leaderboard.entries import GIVEN, BoardError, Metric
from t5score_jax.leaderboard.web import sandbox
from t5score_jax.metrics import base, registry

#: Exceptions by which a metric rejects texts or options.
FAILURES = (ValueError, TypeError, ArithmeticError, LookupError, OSError)


class RunError(BoardError):
  """A metric failed; the message says how."""


class Runner:
  """Runs one metric on many outputs; loads a metric of the library once.

  Attributes:
    signature: The signature of the newest scores; '' before the first run.
    seconds: Duration of the newest run.
  """

  def __init__(
    self,
    metric: Metric,
    program: bytes | None = None,
    hidden: Sequence[str] = (),
  ):
    """Makes a runner.

    Args:
      metric: The metric, of kind 'library' or 'command'.
      program: The executable of a metric of kind 'command'.
      hidden: Folders that the executable must not see.

    Raises:
      RunError: The library has no such metric or option.
    """
    self.metric = metric
    self.signature = ''
    self.seconds = 0.0
    self._program = program
    self._hidden = hidden
    self._loaded: base.Metric | None = None
    if metric.kind == 'library':
      try:
        self._loaded = registry.load_metric(
          metric.settings['metric'], **metric.settings.get('options', {})
        )
      except FAILURES as error:
        raise RunError(f'{metric.name}: {error}') from error
    elif metric.kind != 'command':
      raise RunError(
        f'{metric.name}: its scores were imported; it cannot be run'
      )

  def score(
    self,
    outputs: Sequence[str],
    ids: Sequence[str],
    sources: Sequence[str] | None,
    references: Sequence[Sequence[str]] | None,
  ) -> np.ndarray:
    """Scores K outputs.

    Args:
      outputs: The K texts.
      ids: The ids of their inputs.
      sources: The texts of their inputs, if known.
      references: K texts per reference; None for no references.

    Returns:
      K finite scores, negated if lower is better (M.1).

    Raises:
      RunError: The metric failed, or its scores are invalid.
    """
    segments = [
      Segment(
        hypothesis=text,
        references=tuple(column[n] for column in references or ()),
        source=None if sources is None else sources[n],
        segment=ids[n],
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
    assert self._program is not None
    lines = [
      json.dumps(
        {
          'id': s.segment,
          'hypothesis': s.hypothesis,
          'references': list(s.references),
          'source': s.source,
        }
      )
      for s in segments
    ]
    self.signature = self.metric.signature
    settings = self.metric.settings
    answer = sandbox.run(
      self._program,
      ('\n'.join(lines) + '\n').encode(),
      sandbox.Limits(**settings.get('limits', {})),
      self._hidden,
      settings.get('isolation', 'required'),
    )
    return parse_answer(answer, len(segments))


def parse_answer(answer: bytes, count: int) -> np.ndarray:
  """Parses the scores that a program printed, one per line.

  Args:
    answer: The standard output of the program.
    count: The number of scores expected.

  Returns:
    Float64 [count].

  Raises:
    RunError: The number of lines differs, or a line is not a finite number.
  """
  lines = answer.splitlines()
  if len(lines) != count:
    raise RunError(f'the program printed {len(lines)} lines for {count} texts')
  values = np.empty(count)
  for n, line in enumerate(lines):
    try:
      values[n] = float(line)
    except ValueError:
      values[n] = math.nan
    if not math.isfinite(values[n]):
      raise RunError(
        f'the program printed {line[:40]!r} in line {n + 1}: not a finite'
        ' number'
      )
  return values


class Texts:
  """The inputs and references of a board."""

  def __init__(
    self,
    ids: list[str],
    sources: list[str] | None,
    references: dict[str, list[str]],
  ):
    self.ids, self.sources, self.references = ids, sources, references

  def of(self, reference_set: str) -> list[list[str]] | None:
    """The texts of each reference of a set; None for `GIVEN`."""
    if reference_set == GIVEN:
      return None
    return [self.references[label] for label in reference_set.split('+')]

  def run(
    self, runner: Runner, outputs: Sequence[str], reference_set: str
  ) -> np.ndarray:
    """Scores outputs with a set of references."""
    return runner.score(outputs, self.ids, self.sources, self.of(reference_set))


def score_generator(
  runner: Runner,
  outputs: Sequence[str],
  texts: Texts,
  reference_sets: Sequence[str],
) -> dict[str, np.ndarray]:
  """Scores one generator by one metric with every reference set.

  A metric without references is run once, as `GIVEN`. A metric that takes a
  single reference is run with each; sets of several references get the maximum
  or mean (M.3). A metric that takes several references is run with each set.

  Returns:
    Reference set -> scores [K].

  Raises:
    RunError: The metric failed, or the board lacks references it needs.
  """
  settings: Any = runner.metric.settings
  if not settings.get('references'):
    return {GIVEN: texts.run(runner, outputs, GIVEN)}
  if not reference_sets:
    raise RunError(
      f'{runner.metric.name} needs references, and this board has none'
    )
  several = settings.get('several', 'own')
  # The last run, with all references, is the one whose duration is kept.
  ordered = sorted(reference_sets, key=lambda s: s.count('+'))
  scores: dict[str, np.ndarray] = {}
  for reference_set in ordered:
    labels = reference_set.split('+')
    if several == 'own' or len(labels) == 1:
      scores[reference_set] = texts.run(runner, outputs, reference_set)
      continue
    for label in labels:
      if label not in scores:
        scores[label] = texts.run(runner, outputs, label)
    together = np.stack([scores[label] for label in labels])
    scores[reference_set] = (
      together.max(axis=0) if several == 'max' else together.mean(axis=0)
    )
  return {name: scores[name] for name in reference_sets}
