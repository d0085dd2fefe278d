"""Long runs in shards, which are combined into one output at the end.

Inputs are read in shards. Finished shards are kept in OUTPUT.parts, from which
an interrupted run resumes. With several processes, process 0 writes. Not here:
what is computed (`inference/bulk.py`, `mbr/`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from t5score_jax.data import files, folders, runs
from t5score_jax.errors import OptionError
from t5score_jax.inference import balance
from t5score_jax.runtime import processes
from t5score_jax.version import __version__

FORMATS = ('jsonl', 'text')
DEFAULT_SHARD = 10_000

# Called with the number of examples done.
Progress = Callable[[int], None]

_RUN_FILE = 'run.json'


@dataclasses.dataclass(frozen=True)
class Totals:
  """Counts of a run.

  Attributes:
    examples: Number of examples.
    cut: Number of texts that exceeded the model's maximum length.
    unfinished: Number of generated texts that did not reach `</s>`.
  """

  examples: int = 0
  cut: int = 0
  unfinished: int = 0


class Work(Protocol):
  """What a run computes.

  Attributes:
    shapes: Shapes of the batches so far; see `scoring.Scorer.expect`.
  """

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...]:
    """Shapes of the batches so far, on which the last digits may depend."""

  def identity(self) -> dict[str, Any]:
    """The settings on which the results depend, JSON."""

  def expect(self, shapes: Iterable[Any]) -> None:
    """Adds the shapes of an earlier run."""

  def rows(self, examples: list[Any]) -> tuple[list[dict[str, Any]], Totals]:
    """Computes the output row of each example, JSON."""


class Parts:
  """The finished shards of one output, in OUTPUT.parts.

  Args:
    output: The file to write at the end; '-' keeps nothing.
    identity: Identifies the run, JSON.

  Attributes:
    heads: The head of each finished shard, in order, without gaps.
  """

  def __init__(self, output: str, identity: Mapping[str, Any]):
    self._output = output
    self._folder = Path(f'{output}.parts')
    self._identity = dict(identity)
    self.heads: list[dict[str, Any]] = []

  def open(self, restart: bool) -> None:
    """Finds the shards of an earlier run.

    Args:
      restart: Whether to discard them.

    Raises:
      RunError: They belong to another run or to none.
    """
    if self._output == '-':
      return
    before = runs.read_manifest(self._folder, _RUN_FILE)
    if before is None:
      return
    if restart or not self._path(0).exists():
      shutil.rmtree(self._folder)
      return
    runs.check_identity(
      self._folder,
      before,
      self._identity,
      'give --restart to discard it, or choose another output',
    )
    while self._path(len(self.heads)).exists():
      with files.open_text(self._path(len(self.heads))) as lines:
        self.heads.append(json.loads(next(lines)))

  def add(
    self,
    number: int,
    head: dict[str, Any],
    rows: list[dict[str, Any]],
    format: str,
  ) -> None:
    """Stores a shard; with '-', writes it.

    Args:
      number: The number of the shard, from 0, in order.
      head: What a resumed run needs to know about it, JSON.
      rows: The rows to write, JSON each.
      format: One of `FORMATS`, for '-'.
    """
    if self._output == '-':
      files.write_lines('-', formatted(rows, format))
      return
    if number == 0:
      # Created only now, so a run that fails at once leaves no folder.
      with folders.new_folder(self._folder) as new:
        runs.write_json(new / _RUN_FILE, self._identity)
    lines = (json.dumps(row, ensure_ascii=False) for row in [head, *rows])
    files.write_lines(self._path(number), lines)

  def merge(self, count: int, format: str) -> None:
    """Writes the output and removes the folder."""
    if self._output == '-':
      return

    def lines() -> Iterator[str]:
      for number in range(count):
        with files.open_text(self._path(number)) as part:
          next(part)
          if format == 'jsonl':
            yield from part
          else:
            yield from formatted(map(json.loads, part), format)

    files.write_lines(self._output, lines())
    shutil.rmtree(self._folder, ignore_errors=True)

  def changed(self, start: int, count: int) -> str:
    """The message for inputs that have changed since the run started."""
    what = f'inputs {start + 1} to {start + count} have changed since'
    if not count:
      what = f'there are only {start} inputs, fewer than when'
    return (
      f'{self._folder}: {what} the run started; give --restart to start again'
    )

  def _path(self, number: int) -> Path:
    return self._folder / f'{number:06d}.jsonl'


def run(
  examples: Iterable[Any],
  work: Work,
  output: str | os.PathLike[str],
  identity: Mapping[str, Any],
  *,
  format: str = 'jsonl',
  shard_size: int = DEFAULT_SHARD,
  restart: bool = False,
  progress: Progress | None = None,
) -> Totals:
  """Computes the rows of all examples; all processes call it alike.

  Args:
    examples: The examples in order, read as they are needed; their `repr`
      identifies them.
    work: Computes the rows.
    output: The file to write; '-' writes each shard to stdout when it is done,
      and keeps nothing.
    identity: Identifies the run, JSON.
    format: 'jsonl', or 'text': the generated text or the score alone.
    shard_size: Number of examples in memory; an interruption loses at most
      these.
    restart: Whether to discard the shards of an earlier run.
    progress: Called with the number of examples done.

  Returns:
    The totals, those of an earlier run included.

  Raises:
    RunError: The shards that exist belong to another run.
    OptionError: An argument is out of range.
    OSError: The output cannot be written.
  """
  if shard_size < 1:
    raise OptionError(f'shard_size {shard_size}: at least 1')
  if format not in FORMATS:
    raise OptionError(f'format {format!r}: use one of {", ".join(FORMATS)}')
  identity = {
    'version': __version__,
    'shard_size': shard_size,
    **identity,
    **work.identity(),
  }
  parts = Parts(os.fspath(output), identity)
  processes.on_first(lambda: parts.open(restart))
  done = processes.broadcast(parts.heads)
  totals = Totals()
  iterator = iter(examples)
  number = 0
  while shard := list(itertools.islice(iterator, shard_size)):
    digest = _digest(shard)
    balance.agree([digest], 'the inputs')
    if number < len(done):
      if done[number]['digest'] != digest:
        raise runs.RunError(parts.changed(totals.examples, len(shard)))
      work.expect(done[number]['shapes'])
      counts = Totals(**done[number]['totals'])
    else:
      rows, counts = work.rows(shard)
      head = {
        'digest': digest,
        'shapes': [list(shape) for shape in work.shapes],
        'totals': dataclasses.asdict(counts),
      }
      processes.on_first(
        functools.partial(parts.add, number, head, rows, format)
      )
    pairs = zip(
      dataclasses.astuple(totals), dataclasses.astuple(counts), strict=True
    )
    totals = Totals(*(a + b for a, b in pairs))
    if progress:
      progress(totals.examples)
    number += 1
  if number < len(done):
    raise runs.RunError(parts.changed(totals.examples, 0))
  processes.on_first(lambda: parts.merge(number, format))
  return totals


def _digest(shard: Iterable[Any]) -> str:
  digest = hashlib.sha256()
  for example in shard:
    digest.update(repr(example).encode('utf-8', 'surrogatepass'))
  return digest.hexdigest()


def formatted(rows: Iterable[Mapping[str, Any]], format: str) -> Iterator[str]:
  """Formats a run's rows as lines of text."""
  for row in rows:
    if format == 'jsonl':
      yield json.dumps(row, ensure_ascii=False)
    elif 'predictions' in row:
      yield from (one['prediction'] for one in row['predictions'])
    else:
      yield row['prediction'] if 'prediction' in row else str(row['score'])
