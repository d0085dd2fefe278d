"""Scores a generator's outputs with a metric: this library's, or an executable.

Answers are checked here: as many as asked, all finite. An executable reads one
JSON object a line on standard input (`id`, `hypothesis`, `references`,
`source`) and prints one number a line. Not here: what is stored
(`submissions`).
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

#: What may go wrong in a metric without being an error of this program.
FAILURES = (ValueError, TypeError, ArithmeticError, LookupError, OSError)


class RunError(BoardError):
  """A metric failed on texts; the message says how."""


class Runner:
  """Runs one metric on many outputs; a metric of the library is loaded once.

  Attributes:
    signature: What the newest scores depend on; '' before there are any.
    seconds: How long the newest run took.
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
      program: The executable of kind 'command'.
      hidden: Folders that an executable must not see.

    Raises:
      RunError: There is no such metric or option in this library.
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
        f'{metric.name}: its scores came as a table; it cannot be run'
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
      ids: Their inputs' ids.
      sources: The inputs, if there are any.
      references: For each reference its K texts; None for none.

    Returns:
      K finite scores, negated where the metric says so (M.1).

    Raises:
      RunError: The metric failed, or its answers are not right.
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
  """The scores that a program printed, one a line.

  Args:
    answer: Its standard output.
    count: How many there must be.

  Returns:
    Float64 [count].

  Raises:
    RunError: There are more or fewer, or a line is no finite number.
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
  """A board's inputs and references, as runs need them."""

  def __init__(
    self,
    ids: list[str],
    sources: list[str] | None,
    references: dict[str, list[str]],
  ):
    self.ids, self.sources, self.references = ids, sources, references

  def of(self, reference_set: str) -> list[list[str]] | None:
    """The references of a set, one list each; None for `GIVEN`."""
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
  """One generator's scores by one metric, with every set of references.

  A metric without references is run once, as `GIVEN`. One that takes a single
  reference is run with each, and sets of several get the greatest or the mean
  (M.3); one that takes several itself is run with each set.

  Returns:
    Reference set -> scores [K].

  Raises:
    RunError: The metric failed, or needs references that there are none of.
  """
  settings: Any = runner.metric.settings
  if not settings.get('references'):
    return {GIVEN: texts.run(runner, outputs, GIVEN)}
  if not reference_sets:
    raise RunError(
      f'{runner.metric.name} needs references, and this board has none'
    )
  several = settings.get('several', 'own')
  # The longest run, with all references, is the one whose time is told.
  ordered = sorted(reference_sets, key=lambda s: s.count('+'))
  found: dict[str, np.ndarray] = {}
  for reference_set in ordered:
    labels = reference_set.split('+')
    if several == 'own' or len(labels) == 1:
      found[reference_set] = texts.run(runner, outputs, reference_set)
      continue
    for label in labels:
      if label not in found:
        found[label] = texts.run(runner, outputs, label)
    together = np.stack([found[label] for label in labels])
    found[reference_set] = (
      together.max(axis=0) if several == 'max' else together.mean(axis=0)
    )
  return {name: found[name] for name in reference_sets}
