"""A long run's output in parts: kept, found again, made one file.

For `inference/bulk.py`, whose runs go on where they broke off. Not here: what
is computed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5score_jax.data import files, folders, runs

FORMATS = ('jsonl', 'text')

_RUN_FILE = 'run.json'


class Parts:
  """The shards of one output that are done, in OUTPUT.parts.

  Args:
    output: Where to write at the end; '-' keeps nothing.
    identity: What tells this run from others, JSON.

  Attributes:
    heads: for each what is known of it, in order, without gaps.
  """

  def __init__(self, output: str, identity: Mapping[str, Any]):
    self._output = output
    self._folder = Path(f'{output}.parts')
    self._identity = dict(identity)
    self.heads: list[dict[str, Any]] = []

  def open(self, restart: bool) -> None:
    """Finds what an earlier run left.

    Args:
      restart: Whether to throw it away.

    Raises:
      RunError: It is of another run, or no run's.
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
    """Keeps a shard; with '-', writes it.

    Args:
      number: Of the shard, from 0; they come in order.
      head: What to know of it when the run goes on, JSON.
      rows: What is to be written, JSON each.
      format: One of `FORMATS`, for '-'.
    """
    if self._output == '-':
      files.write_lines('-', formatted(rows, format))
      return
    if number == 0:
      # Not before there is something to keep: a run that fails at once leaves
      # nothing.
      with folders.new_folder(self._folder) as new:
        runs.write_json(new / _RUN_FILE, self._identity)
    lines = (json.dumps(row, ensure_ascii=False) for row in [head, *rows])
    files.write_lines(self._path(number), lines)

  def merge(self, count: int, format: str) -> None:
    """Writes the output, and removes the folder."""
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
    """What is wrong where inputs are not what they were."""
    what = f'inputs {start + 1} to {start + count} are not what they were'
    if not count:
      what = f'there are {start} inputs, fewer than there were'
    return (
      f'{self._folder}: {what} when the run was begun; give --restart to begin '
      'anew'
    )

  def _path(self, number: int) -> Path:
    return self._folder / f'{number:06d}.jsonl'


def formatted(rows: Iterable[Mapping[str, Any]], format: str) -> Iterator[str]:
  """Lines of text for rows of `inference.run`."""
  for row in rows:
    if format == 'jsonl':
      yield json.dumps(row, ensure_ascii=False)
    elif 'predictions' in row:
      yield from (one['prediction'] for one in row['predictions'])
    else:
      yield row['prediction'] if 'prediction' in row else str(row['score'])
