"""Folders of resumable runs: each names, in a manifest, the run it belongs to.

A manifest is a JSON file that holds the identity of a run: everything its
results depend on. Repeating a command resumes its run in the folder; another
command is refused, with an error that names what differs. Not here: which
parts of a run are done, which every kind of run stores in its own way.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5score_jax.data import files
from t5score_jax.errors import T5ScoreError

_DIGEST = re.compile(r'[0-9a-f]{64}')
_BLOCK = 2**20
_MOST_LINES = 4
_MOST_CHARACTERS = 200


class RunError(T5ScoreError, ValueError):
  """A folder belongs to another run, or its contents are damaged."""


def digest(path: str | os.PathLike[str]) -> str:
  """SHA-256 of a file's bytes, in hexadecimal."""
  sha256 = hashlib.sha256()
  with open(path, 'rb') as stream:
    while block := stream.read(_BLOCK):
      sha256.update(block)
  return sha256.hexdigest()


def digest_texts(texts: Iterable[str]) -> str:
  """SHA-256 of texts in their order, in hexadecimal."""
  sha256 = hashlib.sha256()
  for text in texts:
    sha256.update(text.encode('utf-8', 'surrogatepass') + b'\0')
  return sha256.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
  """Reads a JSON object.

  Raises:
    RunError: The file does not hold one.
    FileNotFoundError: There is no such file.
  """
  try:
    value = json.loads(path.read_text('utf-8'))
    if not isinstance(value, dict):
      raise ValueError('not a JSON object')
  except ValueError as error:
    raise RunError(
      f'{path}: damaged ({error}); remove its folder or choose another one, '
      'and repeat the command that writes it'
    ) from error
  return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
  """Writes a JSON object, completely or not at all."""
  with files.write_atomically(path) as out:
    json.dump(value, out, indent=2, ensure_ascii=False)
    out.write('\n')


def read_manifest(folder: Path, name: str) -> dict[str, Any] | None:
  """Reads the manifest of a folder in which a run may have begun.

  Args:
    folder: The folder.
    name: The manifest's file name.

  Returns:
    The manifest; None if the folder does not exist or is empty. Hidden files
    do not count.

  Raises:
    RunError: The folder holds something other than a run.
  """
  if (folder / name).is_file():
    return read_json(folder / name)
  if folder.exists() and (
    not folder.is_dir()
    or any(not path.name.startswith('.') for path in folder.iterdir())
  ):
    raise RunError(
      f'{folder}: exists and has no {name}, so that no run began there; remove '
      'it or choose another one'
    )
  return None


def check_identity(
  folder: Path,
  before: Mapping[str, Any],
  now: Mapping[str, Any],
  advice: str = 'choose another folder or remove this one',
) -> None:
  """Checks that a folder belongs to this run.

  Args:
    folder: The folder, for the message.
    before: The identity in its manifest.
    now: The identity of this run, in JSON types or types that convert to them.
    advice: What to do otherwise.

  Raises:
    RunError: The identities differ.
  """
  now = json.loads(json.dumps(now))
  if before != now:
    raise RunError(
      f'{folder}: belongs to another run ({_difference(before, now)}); {advice}'
    )


def claim(
  folder: Path, name: str, identity: Mapping[str, Any], advice: str
) -> None:
  """Creates the folder of a run with its manifest, or checks an existing one.

  Args:
    folder: The folder.
    name: The manifest's file name.
    identity: See `check_identity`.
    advice: See `check_identity`.

  Raises:
    RunError: The folder belongs to another run, or to none.
  """
  before = read_manifest(folder, name)
  if before is not None:
    check_identity(folder, before, identity, advice)
    return
  folder.mkdir(parents=True, exist_ok=True)
  write_json(folder / name, identity)


def _difference(before: Any, now: Any) -> str:
  """Describes how two JSON values differ."""
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    return '; '.join(
      f'{"" if name == "sha256" else f"{name}: "}'
      f'{_difference(before.get(name), now.get(name))}'
      for name in dict.fromkeys([*before, *now])
      if before.get(name) != now.get(name)
    )
  if _are_files(before) and _are_files(now) and (before or now):
    if len(before) != len(now):
      return f'{len(before)} files before, {len(now)} now'
    return ', '.join(
      f'{_file_name(number, two)}: {_difference(one, two)}'
      for number, (one, two) in enumerate(zip(before, now, strict=True), 1)
      if one != two
    )
  if _is_digest(before) and _is_digest(now):
    return 'the contents have changed'
  if isinstance(before, str) and isinstance(now, str) and '\n' in before:
    lines = difflib.unified_diff(
      before.splitlines(), now.splitlines(), lineterm='', n=0
    )
    changes = [line for line in lines if line[:2] not in ('--', '++', '@@')]
    return '; '.join(changes[:_MOST_LINES])
  return f'{_short(before)} before, {_short(now)} now'


def _is_digest(value: Any) -> bool:
  return isinstance(value, str) and bool(_DIGEST.fullmatch(value))


def _are_files(value: Any) -> bool:
  """Whether a value is a list of files: of digests, or of objects with one."""
  return isinstance(value, list) and all(
    _is_digest(one) or (isinstance(one, dict) and 'sha256' in one)
    for one in value
  )


def _file_name(number: int, described: Any) -> str:
  name = described.get('file') if isinstance(described, dict) else None
  return name or f'file {number}'


def _short(value: Any) -> str:
  if value is None:
    return 'none'
  text = json.dumps(value, ensure_ascii=False)
  cut = len(text) > _MOST_CHARACTERS
  return f'{text[:_MOST_CHARACTERS]}...' if cut else text
