"""A board in one SQLite file: opening, reading, transactions.

It holds inputs, references, generators with outputs, metrics with scores, human
ratings, and versions of the ensemble. Scores and ratings are stored as columns:
one blob of float64 (little endian, NaN if missing) per metric and generator, in
the order of the inputs, so that 40 million scores are read in a second.

Writing is safe against kills and concurrent writers: every change is one
transaction (`Store.transaction`), the journal is a write-ahead log, and each
change increments `revision`, which identifies the data of an analysis.
`changes.py` has the changes.
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

#: Seconds that a writer waits for another.
WAIT = 60.0


class Store:
  """An open board, for one thread; a file may be opened any number of times."""

  def __init__(self, path: str | os.PathLike[str], *, create: bool = False):
    """Opens the file of a board and migrates an older one.

    Args:
      path: The file.
      create: Whether to create it; call `changes.initialise` next.

    Raises:
      BoardError: The file does not exist (with `create`: exists), is not a
        board, or was written by a later version of this library.
    """
    self.path = Path(path)
    if create and self.path.exists():
      raise BoardError(f'{self.path} exists already; choose another name')
    if not create and not self.path.is_file():
      raise BoardError(
        f'{self.path}: no such board; `t5score board init` creates one'
      )
    self._depth = 0
    try:
      self.connection = self._connected()
      self._open(create)
    except sqlite3.DatabaseError as error:
      raise BoardError(f'{self.path}: not a board ({error})') from error

  def _connected(self) -> sqlite3.Connection:
    """Connects to the file; read-only if it cannot be written."""
    folder = self.path.absolute().parent
    self._writable = os.access(folder, os.W_OK) and (
      not self.path.exists() or os.access(self.path, os.W_OK)
    )
    address = self.path.absolute().as_uri()
    if not self._writable:
      # A write-ahead log needs a second file, which cannot be created here.
      address += '?immutable=1'
    return sqlite3.connect(
      address, timeout=WAIT, isolation_level=None, uri=True
    )

  def _open(self, create: bool) -> None:
    run = self.connection.execute
    run('PRAGMA foreign_keys = ON')
    version = schema.version_of(self.connection)
    application = run('PRAGMA application_id').fetchone()[0]
    if not create and application != schema.APPLICATION_ID:
      raise BoardError(f'{self.path}: a SQLite file, but not a board')
    if version > schema.VERSION:
      raise BoardError(
        f'{self.path}: written by a later version of t5score_jax (file'
        f' version {version}, known {schema.VERSION}); update the package'
      )
    if create or not self._writable:
      return
    run('PRAGMA journal_mode = WAL')
    # A crash of the machine must not lose a reported version.
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
    """Makes the changes of the block atomic; one writer at a time.

    Raises:
      BoardError: Another writer held the file for a minute, or the disk is
        full; the board is unchanged.
    """
    if self._depth:
      self._depth += 1
      try:
        yield
      finally:
        self._depth -= 1
      return
    try:
      # Lock now: upgrading a read transaction later may fail.
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
    return BoardError(f'{self.path}: {error}; the board is unchanged')

  def board(self) -> Board:
    """The description of the board."""
    row = self.connection.execute(
      'SELECT name, task, human, reference_set, revision, created FROM board'
    ).fetchone()
    return Board(*row)

  def ids(self) -> list[str]:
    """The ids of the inputs, in order."""
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
    """The texts of the inputs, in order; None if unknown."""
    rows = self.connection.execute(
      'SELECT source FROM input ORDER BY position'
    ).fetchall()
    return None if rows[0][0] is None else [row[0] for row in rows]

  def references(self) -> dict[str, list[str]]:
    """References: label -> texts, in the order of the inputs."""
    texts: dict[str, list[str]] = {}
    for label, text in self.connection.execute(
      'SELECT label, text FROM reference ORDER BY label, position'
    ):
      texts.setdefault(label, []).append(text)
    order = self.board().reference_set.split('+')
    return {
      label: texts[label]
      for label in sorted(
        texts, key=lambda x: (order.index(x) if x in order else len(order), x)
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
    """The texts of a generator, in the order of the inputs; None if unknown."""
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
    """Yields (generator id, scores [K]) of one metric."""
    for generator, data in self.connection.execute(
      'SELECT generator, data FROM score WHERE metric = ?'
      ' AND reference_set = ?',
      (metric, reference_set),
    ):
      yield generator, decode(data)

  def scored(self) -> set[tuple[int, int, str]]:
    """All (metric, generator, reference set) with scores."""
    return set(
      self.connection.execute(
        'SELECT metric, generator, reference_set FROM score'
      )
    )

  def failures(self) -> dict[tuple[int, int, str], str]:
    """Failures: (metric, generator, reference set) -> message."""
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
    """Yields (generator id, ratings [K]); NaN if missing."""
    for generator, data in self.connection.execute(
      'SELECT generator, data FROM rating WHERE name = ?', (name,)
    ):
      yield generator, decode(data)

  def roles(self) -> dict[str, tuple[list[str], str]]:
    """Roles: name -> (human generators, the references they face)."""
    return {
      row[0]: (json.loads(row[1]), row[2])
      for row in self.connection.execute('SELECT * FROM role ORDER BY rowid')
    }

  def versions(self) -> list[Version]:
    """All versions of the ensemble, oldest first."""
    return [
      Version(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]))
      for row in self.connection.execute(
        'SELECT version, created, revision, cause, signature, ensemble'
        ' FROM version ORDER BY version'
      )
    ]

  def events(self, count: int = 50) -> list[tuple[str, str]]:
    """The newest events, (time, message), newest first."""
    return list(
      self.connection.execute(
        'SELECT time, message FROM event ORDER BY id DESC LIMIT ?', (count,)
      )
    )
