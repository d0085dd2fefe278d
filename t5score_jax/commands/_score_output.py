"""The output of `t5score score`: scores, the summary, a progress bar."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from t5score_jax.data import files, records
from t5score_jax.data.records import Segment
from t5score_jax.evaluation import bootstrap
from t5score_jax.evaluation.reports import tables
from t5score_jax.metrics import base, systems

FORMATS = ('jsonl', 'tsv', 'text')

#: The ids that are written beside scores.
IDS = ('system', 'document', 'segment', 'language_pair')
# Seconds of work after which a progress bar appears.
_LONG_WORK = 1.0


def write_scores(
  path: str, segments: Sequence[Segment], scores: base.Scores, format: str
) -> None:
  """Writes a line for each segment, in order.

  Args:
    path: The file; `-` is standard output, `.gz` is compressed.
    segments: N segments.
    scores: Their scores.
    format: A name in `FORMATS`. 'jsonl' and 'tsv' hold the segments' ids,
      `score` and the components; numbers have the digits of float32.

  Raises:
    files.RecordError: An id can't be written.
    OSError: The file can't be written.
  """
  if format == 'text':
    files.write_lines(path, (str(value) for value in scores.values))
  elif format == 'tsv':
    values: dict[str, Any] = {'score': scores.values, **scores.components}
    records.write_records(
      path, segments, format='tsv', values=values, fields=IDS
    )
  else:
    rows = _rows(segments, scores)
    files.write_lines(path, (json.dumps(r, ensure_ascii=False) for r in rows))


def write_spans(
  path: str, segments: Sequence[Segment], scores: base.Scores
) -> None:
  """Writes a JSON object for each segment, in order, with its errors.

  `errors` is a list of `start` and `end` (characters of the hypothesis, the
  latter exclusive), `severity`, `confidence` and `text`.

  Args:
    path: The file; `-` is standard output, `.gz` is compressed.
    segments: N segments.
    scores: Their scores, with `spans` (`metrics/_spans.py`).

  Raises:
    OSError: The file can't be written.
  """
  spans: Sequence[Sequence[Any]] = getattr(scores, 'spans', None) or ()
  files.write_lines(
    path,
    (
      json.dumps(_with_errors(segment, found), ensure_ascii=False)
      for segment, found in zip(segments, spans, strict=True)
    ),
  )


def _with_errors(segment: Segment, spans: Sequence[Any]) -> dict[str, Any]:
  text = segment.hypothesis
  errors = [
    {
      'start': span.start,
      'end': span.end,
      'severity': span.severity,
      'confidence': round(span.confidence, 4),
      'text': text[span.start : span.end],
    }
    for span in spans
    # An error on a special token covers no character.
    if span.start < span.end
  ]
  return {**_ids(segment), 'hypothesis': text, 'errors': errors}


def _ids(segment: Segment) -> dict[str, Any]:
  return {
    name: value for name in IDS if (value := getattr(segment, name)) is not None
  }


def _rows(
  segments: Sequence[Segment], scores: base.Scores
) -> Iterator[dict[str, Any]]:
  """The objects of JSONL, one per segment."""
  tokens = getattr(scores, 'token_log_probs', None) or {}
  for n, segment in enumerate(segments):
    row = _ids(segment)
    # str() gives the shortest digits of a float32; float() alone adds noise.
    row['score'] = float(str(scores.values[n]))
    for name, column in scores.components.items():
      row[name] = float(str(column[n]))
    if tokens:
      row['token_log_probs'] = {
        side: [float(str(value)) for value in column[n]]
        for side, column in tokens.items()
      }
    yield row


def summary(
  segments: Sequence[Segment],
  scores: base.Scores,
  resamples: int = systems.DEFAULT_RESAMPLES,
  seed: int = systems.DEFAULT_SEED,
) -> str:
  """Lines of text: each system's value, what was cut, and the signature."""
  lines, few = ['no segments'], []
  if segments:
    rows = [['system', 'language pair', 'segments', 'score', '95% interval']]
    entries = systems.system_scores(segments, scores, resamples, seed)
    if resamples:
      few = [bootstrap.few_segments(min(e.segments for e in entries))]
    for entry in entries:
      interval = ''
      if entry.low is not None:
        interval = f'[{entry.low:.4f}, {entry.high:.4f}]'
      rows.append(
        [
          entry.system or '(all)',
          entry.language_pair or '',
          str(entry.segments),
          f'{entry.value:.4f}',
          interval,
        ]
      )
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    rows = [list(row) for row in zip(*columns, strict=True)]
    named = {'system', 'language pair'}
    left = [n for n, title in enumerate(rows[0]) if title in named]
    lines = [tables.lay_out(rows, 'text', left)]
  if scores.cut:
    lines.append(
      f'cut: {scores.cut} longer than the model reads (length in the signature)'
    )
  lines += [f'note: {note}' for note in [*scores.notes, *few] if note]
  lines.append(f'signature: {scores.signature}')
  return '\n'.join(lines) + '\n'


@contextlib.contextmanager
def bar(what: str, quiet: bool) -> Iterator[base.Progress | None]:
  """Shows a progress bar on standard error while work takes long.

  Args:
    what: The work in one word, such as 'scoring'.
    quiet: Whether to show nothing, as if standard error were not a terminal.

  Yields:
    A function of the numbers of items done and of all, or None without a bar.
  """
  if quiet or not (hasattr(sys.stderr, 'isatty') and sys.stderr.isatty()):
    yield None
    return
  from rich import console, progress

  start = time.monotonic()
  columns = (
    progress.TextColumn(what),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TimeRemainingColumn(),
  )
  to = console.Console(stderr=True)
  with progress.Progress(*columns, console=to, transient=True) as shown:
    task = shown.add_task('', visible=False)

    def advance(done: int, total: int) -> None:
      late = time.monotonic() - start >= _LONG_WORK
      running = late and done < total
      shown.update(
        task, completed=done, total=total, visible=running, refresh=running
      )

    yield advance


@contextlib.contextmanager
def scoring_bar(metric: base.Metric, quiet: bool) -> Iterator[None]:
  """Shows a progress bar while a metric with a model scores."""
  with bar('scoring', quiet) as progress:
    if progress and metric.num_parameters is not None:
      metric.progress = progress
    yield
