"""Folders of pairs in shards: found again, checked, each written whole.

    manifest.json        what the whole is: kind, identity, shards once known
    part-00000.jsonl.gz  rows, one JSON object a line
    part-00000.json      how many, the file's SHA-256, what was counted

The description of a shard is written after its rows, so that a shard is done
if both are there and the hash is right. Shards don't know of each other:
several machines can write into one folder. Not here: what stands in the rows
(`pairs`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5score_jax.data import files, runs, tables
from t5score_jax.data.runs import RunError

MANIFEST = 'manifest.json'
_NAME = re.compile(r'part-([0-9]{5,})\.jsonl\.gz')

Row = Mapping[str, str | float]


class Folder:
  """A folder of shards that is being written.

  Args:
    path: made if need be.
    kind: what its rows are, 'pairs' or 'annotations'.
    identity: what makes these rows others than those of another run, JSON; a
      folder with another identity is left alone.

  Raises:
    RunError: the folder is of another run, or no folder of shards.
    OSError: it can't be made.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    kind: str,
    identity: Mapping[str, Any],
  ):
    self.path = Path(path)
    self._whole: dict[str, Any] = json.loads(
      json.dumps({'kind': kind, 'identity': dict(identity)})
    )
    if (before := runs.read_manifest(self.path, MANIFEST)) is not None:
      _check_kind(self.path, before, kind)
      runs.check_identity(
        self.path, before.get('identity', {}), self._whole['identity']
      )

  def write_manifest(self, **more: Any) -> None:
    """Writes the manifest.

    Args:
      **more: what is known of the whole, JSON; for example ``shards``.
    """
    self.path.mkdir(parents=True, exist_ok=True)
    runs.write_json(self.path / MANIFEST, {**self._whole, **more})

  def done(self, number: int) -> dict[str, Any] | None:
    """The description of a shard that is complete and intact, else None."""
    info = shard_info(self.path, number)
    path = self.path / shard_name(number)
    if info is None or not path.is_file():
      return None
    return info if runs.digest(path) == info.get('sha256') else None

  def is_complete(self) -> bool:
    """Whether the number of shards is known, and all are there and intact."""
    path = self.path / MANIFEST
    count = runs.read_json(path).get('shards') if path.exists() else None
    return isinstance(count, int) and all(
      self.done(number) for number in range(count)
    )

  def write(
    self, number: int, rows: Iterable[Row], info: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Writes a shard.

    Args:
      number: from 0.
      rows: texts and finite numbers by column.
      info: what else to say of it, JSON.

    Returns:
      Its description.

    Raises:
      RecordError: a value can't be written.
      OSError: the file can't be written.
    """
    path = self.path / shard_name(number)
    counted = _Counted(rows)
    tables.write_table(path, counted, 'jsonl')
    found = {'rows': counted.count, 'sha256': runs.digest(path), **info}
    runs.write_json(_info_path(self.path, number), found)
    return found

  def remove_from(self, number: int) -> None:
    """Removes the shards from this one on, left by a run that was cut off."""
    for path in list(self.path.glob('part-*')):
      match = _NAME.fullmatch(path.name)
      if match and int(match[1]) >= number:
        _info_path(self.path, int(match[1])).unlink(missing_ok=True)
        path.unlink()


class _Counted:
  """Rows that are counted as they go by."""

  def __init__(self, rows: Iterable[Row]):
    self._rows = rows
    self.count = 0

  def __iter__(self) -> Iterator[Row]:
    for row in self._rows:
      self.count += 1
      yield row


def shard_name(number: int) -> str:
  """The name of a shard's file."""
  return f'part-{number:05d}.jsonl.gz'


def _info_path(folder: Path, number: int) -> Path:
  return folder / f'part-{number:05d}.json'


def shard_info(folder: Path, number: int) -> dict[str, Any] | None:
  """A shard's description; None if it has none, or a damaged one."""
  try:
    found = runs.read_json(_info_path(folder, number))
  except (FileNotFoundError, RunError):
    return None
  whole = isinstance(found.get('rows'), int) and 'sha256' in found
  return found if whole else None


def manifest(folder: str | os.PathLike[str], kind: str) -> dict[str, Any]:
  """The manifest of a folder, which must be of this kind.

  Raises:
    RunError: it isn't.
  """
  path = Path(folder) / MANIFEST
  if not path.is_file():
    raise RunError(
      f'{folder}: no folder of {kind}; it has no {MANIFEST}'
      + (' yet: is the run that writes it finished?' * Path(folder).is_dir())
    )
  found = runs.read_json(path)
  _check_kind(Path(folder), found, kind)
  return found


def complete(folder: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
  """The descriptions of all shards of a folder that is complete.

  Raises:
    RunError: a shard is missing or damaged.
  """
  path = Path(folder)
  count = manifest(path, kind).get('shards')
  if not isinstance(count, int):
    raise RunError(
      f'{folder}: the run that writes it is not finished; give its command '
      'once more'
    )
  found = []
  for number in range(count):
    info = shard_info(path, number)
    if info is None or not (path / shard_name(number)).is_file():
      raise RunError(
        f'{path / shard_name(number)}: is not there yet, or its description '
        f'({_info_path(path, number).name}) is missing or damaged; {count} '
        'shards belong to this folder: give the command that writes it once '
        'more'
      )
    found.append(info)
  return found


def read_rows(
  folder: str | os.PathLike[str], number: int, sha256: str | None = None
) -> list[dict[str, Any]]:
  """The rows of a shard.

  Args:
    folder: where it is.
    number: from 0.
    sha256: what its bytes must be; None for anything.

  Raises:
    RunError: its bytes are others.
    RecordError: a line is not an object.
  """
  path = Path(folder) / shard_name(number)
  if sha256 is not None and runs.digest(path) != sha256:
    raise RunError(
      f'{path}: damaged (its SHA-256 is not the one that was noted); give the '
      'command that writes it once more'
    )
  with files.open_text(path) as lines:
    if (first := next(lines, None)) is None:
      return []
    found = tables.read_table(_chain(first, lines), str(path), 'jsonl')
    return [row for _, row in found.rows]


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
  yield first
  yield from rest


def _check_kind(path: Path, there: Mapping[str, Any], kind: str) -> None:
  if there.get('kind') != kind:
    raise RunError(
      f'{path}: holds {there.get("kind")!r}, not {kind!r}; choose another folder'
    )
