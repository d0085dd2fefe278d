"""A board in one SQLite file: opened, read, and changed in transactions.

On it are inputs, references, generators and their outputs, metrics and their
scores, human ratings, and versions of the ensemble. `changes` has the changes
themselves. Scores and ratings are columns:
one blob of float64 (little endian, NaN where there is none) for each pair of
metric and generator, in the order of the inputs, so that a board of 40 million
scores is read in a second. Not here: what scores mean (`ranking`).

Writing is safe against kills and against others: every change is one
transaction (`Store.transaction`), the journal is a write-ahead log, and each
change raises `revision`, by which analyses know what they were made from.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t5score_jax.leaderboard import schema
from t5score_jax.leaderboard.entries import (
  Board,
  BoardError,
  Generator,
  Metric,
  Version,
  decode,
  unpack,
)

#: How long a writer waits for another, in seconds.
WAIT = 60.0


class Store:
  """An open board. Not shared between threads; any number may open a file."""

  def __init__(self, path: str | os.PathLike[str], *, create: bool = False):
    """Opens a board's file, and brings an older one up to date.

    Args:
      path: The file.
      create: Whether to make it; `changes.initialise` must follow.

    Raises:
      BoardError: There is no such file (or, with `create`, there is one), it
        isn't a board, or a later version of this library wrote it.
    """
    self.path = Path(path)
    if create and self.path.exists():
      raise BoardError(f'{self.path} exists already; give another name')
    if not create and not self.path.is_file():
      raise BoardError(
        f'{self.path}: no such board; `t5score board init` makes one'
      )
    self._depth = 0
    try:
      self.connection = self._connected()
      self._open(create)
    except sqlite3.DatabaseError as error:
      raise BoardError(f'{self.path}: not a board ({error})') from error

  def _connected(self) -> sqlite3.Connection:
    """The connection; where nothing can be written, one that only reads."""
    folder = self.path.absolute().parent
    self._writable = os.access(folder, os.W_OK) and (
      not self.path.exists() or os.access(self.path, os.W_OK)
    )
    address = self.path.absolute().as_uri()
    if not self._writable:
      # A write-ahead log needs a file beside the board; nobody writes here.
      address += '?immutable=1'
    return sqlite3.connect(
      address, timeout=WAIT, isolation_level=None, uri=True
    )

  def _open(self, create: bool) -> None:
    run = self.connection.execute
    run('PRAGMA foreign_keys = ON')
    version = schema.version_of(self.connection)
    found = run('PRAGMA application_id').fetchone()[0]
    if not create and found != schema.APPLICATION_ID:
      raise BoardError(f'{self.path}: a SQLite file, but not a board')
    if version > schema.VERSION:
      raise BoardError(
        f'{self.path}: written by a later version of t5score_jax (file'
        f' version {version}, known {schema.VERSION}); update the package'
      )
    if create or not self._writable:
      return
    run('PRAGMA journal_mode = WAL')
    # A killed machine must not lose a version that was announced.
    run('PRAGMA synchronous = FULL')
    if version < schema.VERSION:
      with self.transaction():
        schema.migrate(self.connection)

  def __enter__(self) -> Store:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def close(self) -> None:
    """Closes the file."""
    self.connection.close()

  @contextlib.contextmanager
  def transaction(self) -> Iterator[None]:
    """All changes of the block, or none; one writer at a time.

    Raises:
      BoardError: Another writer held the file for a minute, or the disk is
        full; nothing was changed.
    """
    if self._depth:
      self._depth += 1
      try:
        yield
      finally:
        self._depth -= 1
      return
    try:
      # The lock is taken now: a reader that becomes a writer could be refused.
      self.connection.execute('BEGIN IMMEDIATE')
    except sqlite3.OperationalError as error:
      raise self._explained(error) from error
    self._depth = 1
    try:
      yield
      self.connection.execute('COMMIT')
    except BaseException as error:
      if self.connection.in_transaction:
        self.connection.execute('ROLLBACK')
      if isinstance(error, sqlite3.OperationalError):
        raise self._explained(error) from error
      raise
    finally:
      self._depth = 0

  def _explained(self, error: sqlite3.OperationalError) -> BoardError:
    return BoardError(f'{self.path}: {error}; the board is as it was before')

  # What is there.

  def board(self) -> Board:
    """What the board is."""
    row = self.connection.execute(
      'SELECT name, task, human, reference_set, revision, created FROM board'
    ).fetchone()
    return Board(*row)

  def ids(self) -> list[str]:
    """The inputs' ids, in order."""
    return [
      row[0]
      for row in self.connection.execute(
        'SELECT id FROM input ORDER BY position'
      )
    ]

  def size(self) -> int:
    """K, the number of inputs."""
    row = self.connection.execute('SELECT count(*) FROM input').fetchone()
    return int(row[0])

  def sources(self) -> list[str] | None:
    """The inputs' texts, in order; None where the board has none."""
    rows = self.connection.execute(
      'SELECT source FROM input ORDER BY position'
    ).fetchall()
    return None if rows[0][0] is None else [row[0] for row in rows]

  def references(self) -> dict[str, list[str]]:
    """Label -> texts in the order of the inputs; labels as they were given."""
    found: dict[str, list[str]] = {}
    for label, text in self.connection.execute(
      'SELECT label, text FROM reference ORDER BY label, position'
    ):
      found.setdefault(label, []).append(text)
    order = self.board().reference_set.split('+')
    return {
      label: found[label]
      for label in sorted(
        found, key=lambda x: (order.index(x) if x in order else len(order), x)
      )
    }

  def generators(self) -> list[Generator]:
    """The generators, in order of submission."""
    return [
      Generator(
        id=row[0],
        name=row[1],
        human=bool(row[2]),
        description=row[3],
        seconds=row[4],
        parameters=row[5],
        submitted=row[6],
        has_outputs=bool(row[7]),
      )
      for row in self.connection.execute(
        'SELECT id, name, human, description, seconds, parameters, submitted,'
        ' outputs IS NOT NULL FROM generator ORDER BY id'
      )
    ]

  def outputs(self, generator: int) -> list[str] | None:
    """A generator's texts, in the order of the inputs; None where unknown."""
    row = self.connection.execute(
      'SELECT outputs FROM generator WHERE id = ?', (generator,)
    ).fetchone()
    return None if row is None or row[0] is None else unpack(row[0])

  def metrics(self) -> list[Metric]:
    """The metrics, in order of submission."""
    return [
      Metric(
        id=row[0],
        name=row[1],
        kind=row[2],
        settings=json.loads(row[3]),
        negated=bool(row[4]),
        description=row[5],
        signature=row[6],
        seconds=row[7],
        parameters=row[8],
        submitted=row[9],
      )
      for row in self.connection.execute(
        'SELECT id, name, kind, settings, negated, description, signature,'
        ' seconds, parameters, submitted FROM metric ORDER BY id'
      )
    ]

  def program(self, metric: int) -> bytes | None:
    """The executable of a metric of kind 'command'."""
    row = self.connection.execute(
      'SELECT program FROM metric WHERE id = ?', (metric,)
    ).fetchone()
    return None if row is None else row[0]

  def scores(
    self, metric: int, reference_set: str
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (generator's id, scores [K]) of one metric."""
    for generator, data in self.connection.execute(
      'SELECT generator, data FROM score WHERE metric = ?'
      ' AND reference_set = ?',
      (metric, reference_set),
    ):
      yield generator, decode(data)

  def scored(self) -> set[tuple[int, int, str]]:
    """What has scores: (metric, generator, reference set)."""
    return set(
      self.connection.execute(
        'SELECT metric, generator, reference_set FROM score'
      )
    )

  def failures(self) -> dict[tuple[int, int, str], str]:
    """What failed: (metric, generator, reference set) -> why."""
    return {
      (row[0], row[1], row[2]): row[3]
      for row in self.connection.execute('SELECT * FROM failure')
    }

  def rating_names(self) -> list[str]:
    """The names of the human ratings."""
    return [
      row[0]
      for row in self.connection.execute(
        'SELECT DISTINCT name FROM rating ORDER BY name'
      )
    ]

  def ratings(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (generator's id, ratings [K]); NaN where there is none."""
    for generator, data in self.connection.execute(
      'SELECT generator, data FROM rating WHERE name = ?', (name,)
    ):
      yield generator, decode(data)

  def roles(self) -> dict[str, tuple[list[str], str]]:
    """Human roles: name -> (human generators, the references they face)."""
    return {
      row[0]: (json.loads(row[1]), row[2])
      for row in self.connection.execute('SELECT * FROM role ORDER BY rowid')
    }

  def versions(self) -> list[Version]:
    """All versions of the ensemble, the oldest first."""
    return [
      Version(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]))
      for row in self.connection.execute(
        'SELECT version, created, revision, cause, signature, ensemble'
        ' FROM version ORDER BY version'
      )
    ]

  def events(self, count: int = 50) -> list[tuple[str, str]]:
    """The last events, (time, what happened), the newest first."""
    return list(
      self.connection.execute(
        'SELECT time, message FROM event ORDER BY id DESC LIMIT ?', (count,)
      )
    )
