"""What stands on a board, as values; and how the file keeps columns and texts.

The vocabulary of `store`, `changes` and everything above them. Not here: SQL.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5score_jax.errors import T5ScoreError

#: The reference set of scores that came as a table, without references.
GIVEN = 'given'


class BoardError(T5ScoreError, ValueError):
  """Something asked of a board that it cannot do; the message says why."""


@dataclasses.dataclass(frozen=True)
class Board:
  """What a board is.

  Attributes:
    name: Its name, part of the ensemble's signature.
    task: What the generators do, in words.
    human: The ratings that count; None while there are none.
    reference_set: The set of references that rankings use by default.
    revision: Counts the changes.
    created: When (ISO 8601, UTC).
  """

  name: str
  task: str
  human: str | None
  reference_set: str
  revision: int
  created: str


@dataclasses.dataclass(frozen=True)
class Generator:
  """A generator on a board.

  Attributes:
    name: Its name.
    human: Whether people wrote the texts.
    description: In words: a paper, a link.
    seconds: Cost of generating the outputs, if told.
    parameters: Size, if told.
    id: Its key in the file; 0 before it is there.
    submitted: When (ISO 8601, UTC).
    has_outputs: Whether the texts are there.
  """

  name: str
  human: bool = False
  description: str = ''
  seconds: float | None = None
  parameters: float | None = None
  id: int = 0
  submitted: str = ''
  has_outputs: bool = False


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric on a board.

  Attributes:
    name: Its name.
    kind: 'column' (scores came as a table), 'library' (a metric of this
      library), 'command' (an executable, kept in the file), or 'ensemble'
      (published scores of an ensemble of other metrics: compared, never
      combined again).
    settings: Of a library metric its name and options, of a command its limits.
    negated: Whether its values were negated, so that higher is better (M.1).
    description: In words.
    signature: What its scores depend on.
    seconds: Seconds for a generator's outputs, measured or told.
    parameters: Size, if told.
    id: Its key in the file; 0 before it is there.
    submitted: When (ISO 8601, UTC).
  """

  name: str
  kind: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  negated: bool = False
  description: str = ''
  signature: str = ''
  seconds: float | None = None
  parameters: float | None = None
  id: int = 0
  submitted: str = ''


@dataclasses.dataclass(frozen=True)
class Version:
  """A version of the ensemble; `ensemble` is what `Ensemble.to_json` gave."""

  version: int
  created: str
  revision: int
  cause: str
  signature: str
  ensemble: Mapping[str, Any]


def now() -> str:
  """The time as the file keeps it: ISO 8601, UTC, whole seconds."""
  return datetime.datetime.now(datetime.timezone.utc).isoformat(
    timespec='seconds'
  )


def people_pattern(text: str) -> re.Pattern[str]:
  """The regular expression of the names of systems that are people.

  Raises:
    BoardError: The text is none.
  """
  try:
    return re.compile(text)
  except re.error as error:
    raise BoardError(
      f'{text!r} is not a regular expression: {error}'
    ) from error


def check_name(name: str, what: str) -> str:
  r"""Checks a name that stands in signatures, tables and links.

  Args:
    name: The name.
    what: What it names, for the message.

  Returns:
    The name.

  Raises:
    BoardError: It is empty, longer than 100 characters, begins or ends with
      white space, or holds a control character or one of `|/\\`.
  """
  if not 0 < len(name) <= 100:
    raise BoardError(
      f'the name of a {what} has 1 to 100 characters, not {len(name)}'
    )
  bad = [c for c in name if c in '|/\\' or not c.isprintable()]
  if bad or name != name.strip() or name in ('.', '..'):
    raise BoardError(
      f'{name[:40]!r} cannot name a {what}: leave out'
      + (f' {bad[0]!r}' if bad else ' white space at the ends')
    )
  return name


def encode(values: np.ndarray) -> bytes:
  """Float64, little endian: a column as the file keeps it."""
  return np.ascontiguousarray(values, dtype='<f8').tobytes()


def decode(data: bytes) -> np.ndarray:
  """The column of `encode`; read-only float64 [K]."""
  return np.frombuffer(data, dtype='<f8')


def pack(value: Any) -> bytes:
  """JSON, compressed: texts and analyses as the file keeps them."""
  text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
  return zlib.compress(text.encode('utf-8', 'surrogatepass'), 6)


def unpack(data: bytes) -> Any:
  """The value of `pack`."""
  return json.loads(zlib.decompress(data).decode('utf-8', 'surrogatepass'))
