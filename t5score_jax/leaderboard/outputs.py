"""Reads and checks submitted outputs, ratings and scores.

Errors name the line and the field. `submissions.py` stores the results.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.data import files, numbers, tables
from t5score_jax.data.files import RecordError
from t5score_jax.leaderboard.entries import Generator

#: Largest size of a file of outputs, in bytes, uncompressed.
MAX_BYTES = 64 << 20
_ID_FIELDS = ('id', 'seg_id', 'segment')
_TEXT_FIELDS = ('hypothesis', 'output', 'text')
_SYSTEM_FIELDS = ('system', 'generator')


def read_outputs(
  path: str | os.PathLike[str],
  ids: Sequence[str],
  max_bytes: int = MAX_BYTES,
) -> list[str]:
  """Reads the outputs of a generator, in the order of the inputs.

  Args:
    path: JSONL with an id (`id`, `seg_id` or `segment`) and a text
      (`hypothesis`, `output` or `text`) per line, in any order; or plain text,
      one output per line, in the order of the inputs. UTF-8, gzipped or not.
    ids: The ids of the K inputs.
    max_bytes: Largest size of the text.

  Returns:
    K texts.

  Raises:
    RecordError: The number of outputs, an id, the encoding or the size is
      wrong.
    OSError: The file cannot be read.
  """
  lines = []
  size = 0
  with files.open_text(path) as stream:
    for line in stream:
      size += len(line) + 1
      if size > max_bytes:
        raise RecordError(
          f'more than {max_bytes} characters of outputs', path=path
        )
      lines.append(line)
  if lines and lines[0].lstrip().startswith('{') and _is_json(lines[0]):
    return _by_id(lines, os.fspath(path), ids)
  if len(lines) != len(ids):
    raise RecordError(
      f'{len(lines)} lines for {len(ids)} inputs; write one output per line, or'
      ' JSONL with ids',
      path=path,
    )
  return lines


def _is_json(line: str) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except ValueError:
    return False


def _by_id(lines: Sequence[str], path: str, ids: Sequence[str]) -> list[str]:
  places = {key: n for n, key in enumerate(ids)}
  texts: list[str | None] = [None] * len(ids)
  for number, row in tables.read_table(iter(lines), path, 'jsonl').rows:
    key = str(_field(row, _ID_FIELDS, path, number))
    text = _field(row, _TEXT_FIELDS, path, number)
    if not isinstance(text, str):
      raise RecordError(f'{text!r} is not a text', path=path, line=number)
    files.check_writable(text, '\0', path=path, line=number)
    if key not in places:
      raise RecordError(
        f'the board has no input {key[:60]!r}', path=path, line=number
      )
    if texts[places[key]] is not None:
      raise RecordError(
        f'a second output for input {key!r}', path=path, line=number
      )
    texts[places[key]] = text
  missing = [key for key, text in zip(ids, texts, strict=True) if text is None]
  if missing:
    raise RecordError(
      f'no output for {len(missing)} of {len(ids)} inputs, first'
      f' {missing[0]!r}',
      path=path,
    )
  return [text for text in texts if text is not None]


def _field(
  row: dict[str, Any], names: Sequence[str], path: str, line: int
) -> Any:
  for name in names:
    if name in row:
      return row[name]
  raise RecordError(
    f'none of the fields {", ".join(names)}', path=path, line=line
  )


def read_columns(
  path: str | os.PathLike[str],
  ids: Sequence[str],
  generators: Sequence[Generator],
  columns: Sequence[str] | None = None,
  generator: str | None = None,
) -> dict[str, dict[int, np.ndarray]]:
  """Reads ratings or scores of outputs.

  Args:
    path: TSV or JSONL with a system, an id, and columns of numbers; empty
      cells are missing values.
    ids: The ids of the K inputs.
    generators: The generators of the board.
    columns: Names of the columns to read; None for all that are not ids.
    generator: The generator, if the table has no column of systems.

  Returns:
    Column -> generator id -> float64 [K]; NaN if missing.

  Raises:
    RecordError: A generator or an id is unknown or repeated, or a cell is not
      a finite number.
    OSError: The file cannot be read.
  """
  path = os.fspath(path)
  places = {key: n for n, key in enumerate(ids)}
  known = {g.name: g.id for g in generators}
  columns_read: dict[str, dict[int, np.ndarray]] = {}
  seen: set[tuple[str, str]] = set()
  with files.open_text(path) as lines:
    for number, row in tables.read_table(lines, path).rows:
      key = str(_field(row, _ID_FIELDS, path, number))
      system = generator
      if any(f in row for f in _SYSTEM_FIELDS) or generator is None:
        system = str(_field(row, _SYSTEM_FIELDS, path, number))
      if system not in known:
        raise RecordError(
          f'the board has no generator {str(system)[:60]!r}',
          path=path,
          line=number,
        )
      if key not in places or (system, key) in seen:
        problem = 'is repeated' if key in places else 'is not on the board'
        raise RecordError(
          f'input {key[:60]!r} {problem}', path=path, line=number
        )
      seen.add((system, key))
      names = columns or [
        n for n in row if n not in (*_ID_FIELDS, *_SYSTEM_FIELDS, 'set_id')
      ]
      for name in names:
        if name not in row:
          raise RecordError(
            'no such column', path=path, line=number, field=name
          )
        values = columns_read.setdefault(name, {})
        if known[system] not in values:
          values[known[system]] = np.full(len(ids), np.nan)
        values[known[system]][places[key]] = _number(
          row[name], path, number, name
        )
  if not columns_read:
    raise RecordError('no rows or no columns of numbers', path=path)
  return columns_read


def _number(value: Any, path: str, line: int, field: str) -> float:
  if value is None or value == '':
    return math.nan
  return numbers.read(value, path=path, line=line, field=field)
