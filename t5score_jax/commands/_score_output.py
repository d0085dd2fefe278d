"""What `t5score score` writes: scores, the summary, a progress bar."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from t5score_jax.data import files, records
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base

FORMATS = ('jsonl', 'tsv', 'text')

_IDS = ('system', 'document', 'segment', 'language_pair')
# A progress bar appears when work has gone on for so many seconds.
_LONG_WORK = 1.0


def write_scores(
  path: str, segments: Sequence[Segment], scores: base.Scores, format: str
) -> None:
  """Writes a line for each segment, in order.

  Args:
    path: Where; `-` is standard output, `.gz` is compressed.
    segments: N segments.
    scores: Their scores.
    format: One of `FORMATS`. 'jsonl' and 'tsv' have the ids that the segments
      have, `score`, and the components; numbers have the digits of float32.

  Raises:
    files.RecordError: An id can't be written.
    OSError: The file can't be written.
  """
  if format == 'text':
    files.write_lines(path, (str(value) for value in scores.values))
  elif format == 'tsv':
    values: dict[str, Any] = {'score': scores.values, **scores.components}
    records.write_records(
      path, segments, format='tsv', values=values, fields=_IDS
    )
  else:
    rows = _rows(segments, scores)
    files.write_lines(path, (json.dumps(r, ensure_ascii=False) for r in rows))


def _rows(
  segments: Sequence[Segment], scores: base.Scores
) -> Iterator[dict[str, Any]]:
  """What JSONL says of each segment."""
  tokens = getattr(scores, 'token_log_probs', None) or {}
  for n, segment in enumerate(segments):
    row: dict[str, Any] = {
      name: value
      for name in _IDS
      if (value := getattr(segment, name)) is not None
    }
    # str() gives a float32 the digits it has; float() alone adds noise.
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
  resamples: int = base.DEFAULT_RESAMPLES,
  seed: int = base.DEFAULT_SEED,
) -> str:
  """Each system's value, what was cut, and the signature, as lines of text."""
  lines = []
  if segments:
    found = base.system_scores(segments, scores, resamples, seed)
    rows = [('system', 'language pair', 'segments', 'score', '95% interval')]
    for entry in found:
      interval = ''
      if entry.low is not None:
        interval = f'[{entry.low:.4f}, {entry.high:.4f}]'
      rows.append(
        (
          entry.system or '(all)',
          entry.language_pair or '',
          str(entry.segments),
          f'{entry.value:.4f}',
          interval,
        )
      )
    lines = _aligned(rows)
  else:
    lines.append('no segments')
  if scores.cut:
    lines.append(
      f'cut: {scores.cut} longer than the model reads (length in the signature)'
    )
  lines += [f'note: {note}' for note in scores.notes]
  lines.append(f'signature: {scores.signature}')
  return '\n'.join(lines) + '\n'


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
  """Columns side by side, the empty ones left out; numbers to the right."""
  columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
  widths = [max(map(len, column)) for column in columns]
  numbers = ('segments', 'score')
  return [
    '  '.join(
      cell.rjust(width) if column[0] in numbers else cell.ljust(width)
      for cell, column, width in zip(row, columns, widths, strict=True)
    ).rstrip()
    for row in zip(*columns, strict=True)
  ]


class Bar:
  """A bar on standard error while something works for long.

  A context manager, which gives what is to be told of done and total; all being
  done, the bar goes away, and the next work may have another.
  """

  def __init__(self, what: str, quiet: bool):
    """Names the work.

    Args:
      what: In one word, such as 'scoring'.
      quiet: Whether there is to be no bar; there is none either where standard
        error is not a terminal.
    """
    self._what = what
    self._wanted = not quiet and _is_terminal(sys.stderr)
    self._bar: Any = None
    self._start: float | None = None

  def __enter__(self) -> Callable[[int, int], None] | None:
    self._start = time.monotonic()
    return self._advance if self._wanted else None

  def __exit__(self, *error: object) -> None:
    if self._bar is not None:
      self._bar.stop()
    self._bar = None

  def _advance(self, done: int, total: int) -> None:
    if done >= total:
      self.__exit__()
      self._start = None
      return
    if self._start is None:
      self._start = time.monotonic()
    if self._bar is None:
      if time.monotonic() - self._start < _LONG_WORK:
        return
      from rich import console, progress

      self._bar = progress.Progress(
        progress.TextColumn(self._what),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=True,
      )
      self._task = self._bar.add_task('', total=total)
      self._bar.start()
    self._bar.update(self._task, completed=done, total=total)


class Progress(Bar):
  """A bar while a metric that can tell scores."""

  def __init__(self, metric: base.Metric, quiet: bool):
    """Names the metric, for `Bar`."""
    super().__init__('scoring', quiet)
    self._metric = metric

  def __enter__(self) -> Callable[[int, int], None] | None:
    told = super().__enter__()
    if told is not None and self._metric.num_parameters is not None:
      self._metric.progress = told
    return told


def _is_terminal(stream: IO[str]) -> bool:
  return bool(getattr(stream, 'isatty', bool)())
