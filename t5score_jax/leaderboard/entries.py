"""The entries of a board as values, and the encoding of columns and texts.

`store.py` reads these from SQLite; `changes.py` writes them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.errors import T5ScoreError

#: The reference set of imported scores and of metrics without references.
GIVEN = 'given'


class BoardError(T5ScoreError, ValueError):
  """A request that a board cannot fulfil; the message says why."""


@dataclasses.dataclass(frozen=True)
class Board:
  """The description of a board.

  Attributes:
    name: The name, part of the ensemble's signature.
    task: The task of the generators, in words.
    human: Name of the default ratings; None if there are none.
    reference_set: The default references of rankings.
    revision: The number of changes so far.
    created: Time of creation (ISO 8601, UTC).
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
    name: The name.
    human: Whether the texts are human-written.
    description: A paper, a link.
    seconds: Seconds for generating the outputs, if known.
    parameters: Number of parameters, if known.
    id: The key in the file; 0 before it is stored.
    submitted: Time of submission (ISO 8601, UTC).
    has_outputs: Whether the texts are stored.
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
    name: The name.
    kind: 'column' (imported scores), 'library' (a metric of this library),
      'command' (an executable stored in the file), or 'ensemble' (published
      scores of an ensemble: compared, never combined again).
    settings: Name and options of a library metric; limits of a command.
    negated: Whether the scores were negated so that higher is better (M.1).
    description: A paper, a link.
    signature: Identifies everything the scores depend on.
    seconds: Seconds per generator, measured or given.
    parameters: Number of parameters, if known.
    id: The key in the file; 0 before it is stored.
    submitted: Time of submission (ISO 8601, UTC).
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


def imported_metric(name: str, negated: bool, kind: str = 'column') -> Metric:
  """A metric whose scores are imported; their origin is unknown."""
  signature = f'metric:{name}|scores:imported'
  return Metric(name, kind, negated=negated, signature=signature)


def check_free(path: str | os.PathLike[str]) -> None:
  """Raises a BoardError if a path exists or its parent folder does not."""
  target = Path(os.path.abspath(path))
  if target.exists():
    raise BoardError(f'{path} exists already; choose another name')
  if not target.parent.is_dir():
    raise BoardError(f'folder {target.parent} does not exist; create it first')


@dataclasses.dataclass(frozen=True)
class Version:
  """A version of the ensemble; `ensemble` is a value of `Ensemble.to_json`."""

  version: int
  created: str
  revision: int
  cause: str
  signature: str
  ensemble: Mapping[str, Any]

  def to_json(self) -> dict[str, Any]:
    """The version as JSON, without the revision of the board."""
    return {n: v for n, v in vars(self).items() if n != 'revision'}


def now() -> str:
  """The current time in ISO 8601: UTC, whole seconds."""
  return datetime.datetime.now(datetime.timezone.utc).isoformat(
    timespec='seconds'
  )


def human_pattern(text: str) -> re.Pattern[str]:
  """Compiles the regular expression for names of human systems.

  Raises:
    BoardError: The text is not a regular expression.
  """
  try:
    return re.compile(text)
  except re.error as error:
    raise BoardError(
      f'{text!r} is not a regular expression: {error}'
    ) from error


def check_name(name: str, what: str) -> str:
  r"""Checks a name that is used in signatures, tables and links.

  Args:
    name: The name.
    what: The kind of thing named, for the message.

  Returns:
    The name.

  Raises:
    BoardError: It is empty, longer than 100 characters, begins or ends with
      white space, or contains a control character or one of `|/\\`.
  """
  if not 0 < len(name) <= 100:
    raise BoardError(
      f'the name of a {what} must have 1 to 100 characters, not {len(name)}'
    )
  bad = [c for c in name if c in '|/\\' or not c.isprintable()]
  if bad or name != name.strip() or name in ('.', '..'):
    raise BoardError(
      f'{name[:40]!r} cannot name a {what}: remove'
      + (f' {bad[0]!r}' if bad else ' white space at both ends')
    )
  return name


def encode(values: np.ndarray) -> bytes:
  """Encodes a column for the file: float64, little endian."""
  return np.ascontiguousarray(values, dtype='<f8').tobytes()


def decode(data: bytes) -> np.ndarray:
  """Decodes a column; read-only float64 [K]."""
  return np.frombuffer(data, dtype='<f8')


def pack(value: Any) -> bytes:
  """Encodes texts or analyses for the file: compressed JSON."""
  text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
  return zlib.compress(text.encode('utf-8', 'surrogatepass'), 6)


def unpack(data: bytes) -> Any:
  """Decodes a value of `pack`."""
  return json.loads(zlib.decompress(data).decode('utf-8', 'surrogatepass'))
