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
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
# Less free space than this is a full disk: SQLite reports an I/O error when it
# cannot extend the index of its write-ahead log.
_FULL = 1 << 20


class Store:
  """An open board, for one thread; a file may be opened any number of times."""

  def __init__(self, path: str | os.PathLike[str], *, create: bool = False):
    """Opens the file of a board and migrates an older one.

    Args:
      path: The file.
      create: Whether to create it; call `changes.initialise` next.

    Raises:
      BoardError: The file does not exist (with `create`: exists), is not a
        board, cannot be read, or was written by a later version of this
        library.
    """
    self.path = Path(path)
    if create and self.path.exists():
      raise BoardError(f'{self.path} exists already; choose another name')
    if not create and not self.path.is_file():
      raise BoardError(
        f'{self.path}: no such board; `t5score board init` creates one'
      )
    self._depth = 0
    with self._explained():
      self.connection = self._connected()
    try:
      self._open(create)
    except BaseException as error:
      self.connection.close()
      if type(error) is sqlite3.DatabaseError:
        raise BoardError(f'{self.path}: not a board ({error})') from error
      raise

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
    self.run('PRAGMA foreign_keys = ON')
    version, application = (
      self.rows(f'PRAGMA {name}')[0][0]
      for name in ('user_version', 'application_id')
    )
    if not create and application != schema.APPLICATION_ID:
      raise BoardError(f'{self.path}: a SQLite file, but not a board')
    if version > schema.VERSION:
      raise BoardError(
        f'{self.path}: written by a later version of t5score_jax (file'
        f' version {version}, known {schema.VERSION}); update the package'
      )
    if create or not self._writable:
      return
    self.run('PRAGMA journal_mode = WAL')
    # A crash of the machine must not lose a reported version.
    self.run('PRAGMA synchronous = FULL')
    if version < schema.VERSION:
      with self.transaction():
        schema.migrate(self.connection)

  def __enter__(self) -> Store:
    return self

  def __exit__(self, *error: object) -> None:
    self.connection.close()

  def run(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Executes a statement.

    Raises:
      BoardError: The file is locked, cannot be written, or the disk is full.
    """
    with self._explained():
      return self.connection.execute(query, values)

  def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
    """All rows of a query, as tuples; errors are those of `run`."""
    with self._explained():
      return self.connection.execute(query, values).fetchall()

  def insert(self, table: str, row: Mapping[str, Any], name: str = '') -> int:
    """Inserts a row, given by columns, and returns its id.

    Raises:
      BoardError: An entry has the same key; `name` describes it.
    """
    marks = ', '.join('?' * len(row))
    try:
      cursor = self.run(
        f'INSERT INTO {table} ({", ".join(row)}) VALUES ({marks})',
        tuple(row.values()),
      )
    except sqlite3.IntegrityError as error:
      problem = 'exists already; choose another name'
      if 'UNIQUE' not in str(error):
        problem = f'is not valid ({error})'
      raise BoardError(f'{name or table} {problem}') from error
    return int(cursor.lastrowid or 0)

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
    # Lock now: upgrading a read transaction later may fail.
    self.run('BEGIN IMMEDIATE')
    self._depth = 1
    try:
      with self._explained():
        yield
      self.run('COMMIT')
    except BaseException:
      if self.connection.in_transaction:
        self.connection.execute('ROLLBACK')
      raise
    finally:
      self._depth = 0

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    """Turns SQLite's errors of files and locks into one clear line."""
    try:
      yield
    except sqlite3.OperationalError as error:
      reason = str(error)
      folder = self.path.absolute().parent
      if 'full' in reason or shutil.disk_usage(folder).free < _FULL:
        reason = f'no space left on the disk of {folder} ({error}); free some'
      elif 'locked' in reason:
        reason = f'another process has written for {WAIT:g} seconds ({error})'
      raise BoardError(
        f'{self.path}: {reason}; the board is unchanged'
      ) from error

  def board(self) -> Board:
    """The description of the board."""
    return Board(
      *self.rows(
        'SELECT name, task, human, reference_set, revision, created FROM board'
      )[0]
    )

  def ids(self) -> list[str]:
    """The ids of the inputs, in order."""
    return [
      key for (key,) in self.rows('SELECT id FROM input ORDER BY position')
    ]

  def size(self) -> int:
    """K, the number of inputs."""
    return int(self.rows('SELECT count(*) FROM input')[0][0])

  def sources(self) -> list[str] | None:
    """The texts of the inputs, in order; None if unknown."""
    rows = self.rows('SELECT source FROM input ORDER BY position')
    return None if rows[0][0] is None else [text for (text,) in rows]

  def references(self) -> dict[str, list[str]]:
    """References: label -> texts, in the order of the inputs."""
    order = self.board().reference_set.split('+')
    texts: dict[str, list[str]] = {}
    for label, text in self.rows(
      'SELECT label, text FROM reference ORDER BY label, position'
    ):
      texts.setdefault(label, []).append(text)
    rank = {label: n for n, label in enumerate(order)}
    return dict(
      sorted(texts.items(), key=lambda x: (rank.get(x[0], len(rank)), x[0]))
    )

  def generators(self) -> list[Generator]:
    """The generators, in order of submission."""
    return [
      Generator(*(name, bool(human), *rest, bool(stored)))
      for name, human, *rest, stored in self.rows(
        'SELECT name, human, description, seconds, parameters, id, submitted,'
        ' outputs IS NOT NULL FROM generator ORDER BY id'
      )
    ]

  def outputs(self, generator: int) -> list[str] | None:
    """The texts of a generator, in the order of the inputs; None if unknown."""
    ((packed,),) = self.rows(
      'SELECT outputs FROM generator WHERE id = ?', [generator]
    )
    return None if packed is None else unpack(packed)

  def metrics(self) -> list[Metric]:
    """The metrics, in order of submission."""
    return [
      Metric(name, kind, json.loads(settings), bool(negated), *rest)
      for name, kind, settings, negated, *rest in self.rows(
        'SELECT name, kind, settings, negated, description, signature, seconds,'
        ' parameters, id, submitted FROM metric ORDER BY id'
      )
    ]

  def program(self, metric: int) -> bytes | None:
    """The executable of a metric of kind 'command'."""
    ((program,),) = self.rows(
      'SELECT program FROM metric WHERE id = ?', [metric]
    )
    return program

  def scores(
    self, metric: int, reference_set: str
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (generator id, scores [K]) of one metric."""
    for generator, data in self.run(
      'SELECT generator, data FROM score WHERE metric = ?'
      ' AND reference_set = ?',
      (metric, reference_set),
    ):
      yield generator, decode(data)

  def scored(self) -> set[tuple[int, int, str]]:
    """All (metric, generator, reference set) with scores."""
    return set(self.rows('SELECT metric, generator, reference_set FROM score'))

  def failures(self) -> dict[tuple[int, int, str], str]:
    """Failures: (metric, generator, reference set) -> message."""
    return {
      tuple(key): message
      for *key, message in self.rows('SELECT * FROM failure')
    }

  def failures_of(self, generator: str) -> list[str]:
    """One line per metric that failed on a generator: its name and why."""
    return [
      f'{metric} failed: {message}'
      for metric, message in self.rows(
        'SELECT metric.name, message FROM failure'
        ' JOIN metric ON metric.id = failure.metric'
        ' JOIN generator ON generator.id = failure.generator'
        ' WHERE generator.name = ? ORDER BY metric.id',
        [generator],
      )
    ]

  def rating_names(self) -> list[str]:
    """The names of the human ratings."""
    return [
      name
      for (name,) in self.rows('SELECT DISTINCT name FROM rating ORDER BY name')
    ]

  def ratings(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (generator id, ratings [K]); NaN if missing."""
    for generator, data in self.run(
      'SELECT generator, data FROM rating WHERE name = ?', [name]
    ):
      yield generator, decode(data)

  def roles(self) -> dict[str, tuple[list[str], str]]:
    """Roles: name -> (human generators, the references they face)."""
    return {
      name: (json.loads(generators), reference_set)
      for name, generators, reference_set in self.rows(
        'SELECT * FROM role ORDER BY rowid'
      )
    }

  def versions(self) -> list[Version]:
    """All versions of the ensemble, oldest first."""
    return [
      Version(*(*rest, json.loads(ensemble)))
      for *rest, ensemble in self.rows(
        'SELECT version, created, revision, cause, signature, ensemble'
        ' FROM version ORDER BY version'
      )
    ]

  def snapshot(self) -> tuple[int, Any] | None:
    """The stored analyses, (revision, value); None if there are none."""
    rows = self.rows('SELECT revision, data FROM snapshot')
    return (rows[0][0], unpack(rows[0][1])) if rows else None
