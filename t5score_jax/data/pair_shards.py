"""Folders of pairs in shards, each written atomically and verified on reading.

    manifest.json        kind, identity and, once known, number of shards
    part-00000.jsonl.gz  rows, one JSON object per line
    part-00000.json      number of rows, SHA-256 of the file, counts

The description of a shard is written after its rows: a shard is done if both
exist and the hash matches. Shards are independent, so that several machines
can write into one folder. Not here: which pairs there are (`data/pairs.py`).
"""

from __future__ import annotations

import itertools
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
    path: The folder; created with the first shard.
    kind: What the rows are, 'pairs' or 'annotations'.
    identity: What the rows depend on, JSON. A folder with another identity is
      refused.

  Raises:
    RunError: The folder belongs to another run or holds something else.
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
      **more: Further entries, JSON; for example `shards`.
    """
    self.path.mkdir(parents=True, exist_ok=True)
    runs.write_json(self.path / MANIFEST, {**self._whole, **more})

  def done(self, number: int) -> dict[str, Any] | None:
    """Returns the description of a shard if it is complete, else None."""
    info = shard_info(self.path, number)
    path = self.path / shard_name(number)
    if info is None or not path.is_file():
      return None
    return info if runs.digest(path) == info.get('sha256') else None

  def is_complete(self) -> bool:
    """Whether the number of shards is known and all are complete."""
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
      number: The shard, from 0.
      rows: Texts and finite numbers by column.
      info: Further entries of the description, JSON.

    Returns:
      The description.

    Raises:
      RecordError: A value cannot be written.
      OSError: The file cannot be written.
    """
    path = self.path / shard_name(number)
    count = 0

    def counted() -> Iterator[Row]:
      nonlocal count
      for count, row in enumerate(rows, 1):  # noqa: B007
        yield row

    tables.write_table(path, counted(), 'jsonl')
    description = {'rows': count, 'sha256': runs.digest(path), **info}
    runs.write_json(_info_path(self.path, number), description)
    return description

  def remove_from(self, number: int) -> None:
    """Removes this and later shards, left by an interrupted run."""
    for path in list(self.path.glob('part-*')):
      match = _NAME.fullmatch(path.name)
      if match and int(match[1]) >= number:
        _info_path(self.path, int(match[1])).unlink(missing_ok=True)
        path.unlink()


def shard_name(number: int) -> str:
  """Returns the file name of a shard."""
  return f'part-{number:05d}.jsonl.gz'


def _info_path(folder: Path, number: int) -> Path:
  return folder / f'part-{number:05d}.json'


def shard_info(folder: Path, number: int) -> dict[str, Any] | None:
  """Reads a shard's description; None if it is missing or damaged."""
  try:
    info = runs.read_json(_info_path(folder, number))
  except (FileNotFoundError, RunError):
    return None
  whole = isinstance(info.get('rows'), int) and 'sha256' in info
  return info if whole else None


def manifest(folder: str | os.PathLike[str], kind: str) -> dict[str, Any]:
  """Reads the manifest of a folder of this kind.

  Raises:
    RunError: The folder is of another kind.
  """
  path = Path(folder) / MANIFEST
  if not path.is_file():
    raise RunError(
      f'{folder}: no folder of {kind}, or not finished yet; it has no '
      f'{MANIFEST}'
    )
  value = runs.read_json(path)
  _check_kind(Path(folder), value, kind)
  return value


def complete(folder: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
  """Reads the descriptions of all shards of a complete folder.

  Raises:
    RunError: A shard is missing or damaged.
  """
  path = Path(folder)
  count = manifest(path, kind).get('shards')
  if not isinstance(count, int):
    raise RunError(
      f'{folder}: the run that writes it is not finished; repeat its command'
    )
  descriptions = []
  for number in range(count):
    info = shard_info(path, number)
    if info is None or not (path / shard_name(number)).is_file():
      raise RunError(
        f'{path / shard_name(number)}: is missing, or its description '
        f'({_info_path(path, number).name}) is missing or damaged; the folder '
        f'has {count} shards: repeat the command that writes it'
      )
    descriptions.append(info)
  return descriptions


def read_rows(
  folder: str | os.PathLike[str], number: int, sha256: str | None = None
) -> list[dict[str, Any]]:
  """Reads the rows of a shard.

  Args:
    folder: The folder of shards.
    number: The shard, from 0.
    sha256: The expected SHA-256; None skips the check.

  Raises:
    RunError: The file has another SHA-256.
    RecordError: A line is not a JSON object.
  """
  path = Path(folder) / shard_name(number)
  if sha256 is not None and runs.digest(path) != sha256:
    raise RunError(
      f'{path}: damaged (its SHA-256 is not the recorded one); repeat the '
      'command that writes it'
    )
  with files.open_text(path) as lines:
    if (first := next(lines, None)) is None:
      return []
    table = tables.read_table(
      itertools.chain([first], lines), str(path), 'jsonl'
    )
    return [row for _, row in table.rows]


def _check_kind(path: Path, there: Mapping[str, Any], kind: str) -> None:
  if there.get('kind') != kind:
    raise RunError(
      f'{path}: holds {there.get("kind")!r}, not {kind!r}; choose another '
      'folder'
    )
