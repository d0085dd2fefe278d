"""Joins the texts of concurrent requests and scores them in one thread.

While a batch is scored, further requests wait; the next batch takes as many of
them as may be joined. Nobody waits for a batch to fill: a request that comes
alone is scored at once. Scores do not depend on what they are joined with.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
from collections.abc import Hashable, Sequence

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import T5ScoreError
from t5score_jax.metrics import base


class QueueFullError(T5ScoreError):
  """Too many texts wait."""


class StoppedError(T5ScoreError):
  """The service is ending and takes no more texts."""


@dataclasses.dataclass(frozen=True)
class Result:
  """The scores of one request.

  Attributes:
    scores: The scores of its segments.
    truncated: The number of distinct texts that were cut; None if texts of a
      batch were cut and it is not known whose.
  """

  scores: base.Scores
  truncated: int | None


@dataclasses.dataclass(frozen=True)
class _Job:
  segments: Sequence[Segment]
  group: Hashable
  future: concurrent.futures.Future[Result]


class Batcher:
  """Scores for many callers with one metric.

  Attributes:
    batches: The number of batches so far.
    requests: The number of requests in them.
    texts: The number of segments in them.
  """

  def __init__(self, metric: base.Metric, most: int, most_waiting: int):
    """Starts the thread.

    Args:
      metric: The metric.
      most: Maximum segments of a batch; a larger request is its own batch.
      most_waiting: Maximum segments that may wait.
    """
    self._metric = metric
    self._most = most
    self._most_waiting = most_waiting
    self._waiting: collections.deque[_Job] = collections.deque()
    self._count = 0
    self._stopping = False
    self._changed = threading.Condition()
    self.batches = self.requests = self.texts = 0
    self._thread = threading.Thread(target=self._run, name='scoring')
    self._thread.start()

  @property
  def waiting(self) -> int:
    """The number of segments that wait."""
    return self._count

  def submit(
    self, segments: Sequence[Segment]
  ) -> concurrent.futures.Future[Result]:
    """Queues the segments of one request.

    Returns:
      The future result, or the error of scoring just these segments. A future
      that is cancelled in time is not computed.

    Raises:
      QueueFullError: There is no room; try again.
      StoppedError: `stop` was called.
    """
    job = _Job(segments, self._group(segments), concurrent.futures.Future())
    with self._changed:
      if self._stopping:
        raise StoppedError('the service is ending; ask another one')
      if self._count and self._count + len(segments) > self._most_waiting:
        raise QueueFullError(f'{self._count} texts wait already; try again')
      self._waiting.append(job)
      self._count += len(segments)
      self._changed.notify()
    return job.future

  def stop(self) -> None:
    """Scores what waits, and ends the thread."""
    with self._changed:
      self._stopping = True
      self._changed.notify()
    self._thread.join()

  def _group(self, segments: Sequence[Segment]) -> Hashable:
    """Requests of one group may be joined: they have the same signature."""
    if not self._metric.independent:
      return object()
    counts = {len(segment.references) for segment in segments}
    sources = {segment.source is None for segment in segments}
    return frozenset(counts), frozenset(sources)

  def _run(self) -> None:
    while jobs := self._next():
      jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
      if jobs:
        self._score(jobs)

  def _next(self) -> list[_Job]:
    """The next batch: the oldest request, and others that fit; [] at the end.

    The batch may consist of cancelled requests.
    """
    with self._changed:
      while not self._waiting and not self._stopping:
        self._changed.wait()
      jobs: list[_Job] = []
      rest: collections.deque[_Job] = collections.deque()
      size = 0
      for job in self._waiting:
        fits = size + len(job.segments) <= self._most
        if not jobs or (job.group == jobs[0].group and fits):
          jobs.append(job)
          size += len(job.segments)
        else:
          rest.append(job)
      self._waiting = rest
      self._count -= size
      return jobs

  def _score(self, jobs: Sequence[_Job]) -> None:
    segments = [segment for job in jobs for segment in job.segments]
    try:
      scores = self._metric.score_segments(segments)
    except Exception as error:
      if len(jobs) == 1:
        jobs[0].future.set_exception(error)
        return
      # One request's fault is not another's.
      for job in jobs:
        self._score([job])
      return
    self.batches += 1
    self.requests += len(jobs)
    self.texts += len(segments)
    alone = len(jobs) == 1 or not scores.truncated
    start = 0
    for job in jobs:
      end = start + len(job.segments)
      part = _part(scores, slice(start, end))
      job.future.set_result(Result(part, scores.truncated if alone else None))
      start = end


def _part(scores: base.Scores, rows: slice) -> base.Scores:
  """The scores of some of the segments."""
  corpus = scores.corpus
  if corpus is not None:
    corpus = base.Corpus(np.asarray(corpus.statistics)[rows], corpus.aggregate)
  return base.Scores(
    scores.values[rows],
    scores.signature,
    {name: column[rows] for name, column in scores.components.items()},
    notes=scores.notes,
    corpus=corpus,
  )
