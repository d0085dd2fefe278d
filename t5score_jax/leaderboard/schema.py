"""The tables of a board's SQLite file, and migrations of older files.

A file stores its version in SQLite's `user_version`. `MIGRATIONS[v]` migrates
version v to v + 1, in one transaction. Released migrations are never edited;
changes are new migrations.
"""

from __future__ import annotations

import sqlite3

#: SQLite's application id of boards ('T5BB').
APPLICATION_ID = 0x54354242

_BOARD = """
CREATE TABLE board (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  name TEXT NOT NULL,
  task TEXT NOT NULL,
  human TEXT,
  reference_set TEXT NOT NULL,
  revision INTEGER NOT NULL,
  created TEXT NOT NULL
);
CREATE TABLE input (
  position INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  source TEXT
);
CREATE TABLE reference (
  label TEXT NOT NULL,
  position INTEGER NOT NULL REFERENCES input,
  text TEXT NOT NULL,
  PRIMARY KEY (label, position)
) WITHOUT ROWID;
CREATE TABLE role (
  name TEXT PRIMARY KEY,
  generators TEXT NOT NULL,
  reference_set TEXT NOT NULL
);
CREATE TABLE generator (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  human INTEGER NOT NULL,
  description TEXT NOT NULL,
  seconds REAL,
  parameters REAL,
  submitted TEXT NOT NULL,
  outputs BLOB
);
CREATE TABLE metric (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL
    CHECK (kind IN ('column', 'library', 'command', 'ensemble')),
  settings TEXT NOT NULL,
  program BLOB,
  negated INTEGER NOT NULL,
  description TEXT NOT NULL,
  signature TEXT NOT NULL,
  seconds REAL,
  parameters REAL,
  submitted TEXT NOT NULL
);
CREATE TABLE score (
  metric INTEGER NOT NULL REFERENCES metric ON DELETE CASCADE,
  generator INTEGER NOT NULL REFERENCES generator ON DELETE CASCADE,
  reference_set TEXT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (metric, generator, reference_set)
);
CREATE TABLE failure (
  metric INTEGER NOT NULL REFERENCES metric ON DELETE CASCADE,
  generator INTEGER NOT NULL REFERENCES generator ON DELETE CASCADE,
  reference_set TEXT NOT NULL,
  message TEXT NOT NULL,
  PRIMARY KEY (metric, generator, reference_set)
);
CREATE TABLE rating (
  name TEXT NOT NULL,
  generator INTEGER NOT NULL REFERENCES generator ON DELETE CASCADE,
  data BLOB NOT NULL,
  PRIMARY KEY (name, generator)
);
CREATE TABLE version (
  version INTEGER PRIMARY KEY,
  created TEXT NOT NULL,
  revision INTEGER NOT NULL,
  cause TEXT NOT NULL,
  signature TEXT NOT NULL,
  ensemble TEXT NOT NULL
);
CREATE TABLE snapshot (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  revision INTEGER NOT NULL,
  version INTEGER,
  data BLOB NOT NULL
);
CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  time TEXT NOT NULL,
  message TEXT NOT NULL
);
"""

# Only digests of tokens and sessions are stored.
_SERVER = """
CREATE TABLE token (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL CHECK (role IN ('generator', 'metric', 'admin')),
  digest TEXT NOT NULL UNIQUE,
  created TEXT NOT NULL
);
CREATE TABLE session (
  digest TEXT PRIMARY KEY,
  token INTEGER NOT NULL REFERENCES token ON DELETE CASCADE,
  csrf TEXT NOT NULL,
  expires REAL NOT NULL
);
CREATE TABLE job (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('generator', 'metric', 'human')),
  name TEXT NOT NULL,
  settings TEXT NOT NULL,
  upload TEXT,
  submitter TEXT NOT NULL,
  status TEXT NOT NULL
    CHECK (status IN ('queued', 'running', 'stored', 'done', 'failed')),
  attempts INTEGER NOT NULL,
  message TEXT NOT NULL,
  created TEXT NOT NULL,
  started TEXT,
  finished TEXT
);
CREATE INDEX job_status ON job (status, id);
"""

MIGRATIONS = (_BOARD, _SERVER)

#: The file version that this library writes.
VERSION = len(MIGRATIONS)


def version_of(connection: sqlite3.Connection) -> int:
  """The version of an open file; 0 if it has no tables yet."""
  return int(connection.execute('PRAGMA user_version').fetchone()[0])


def statements(script: str) -> list[str]:
  """The statements of a migration; none may contain a `;`."""
  return [part.strip() for part in script.split(';') if part.strip()]


def migrate(connection: sqlite3.Connection) -> None:
  """Migrates an open file to `VERSION`, in the caller's transaction."""
  for version in range(version_of(connection), VERSION):
    # Not executescript(), which commits pending changes.
    for statement in statements(MIGRATIONS[version]):
      connection.execute(statement)
    connection.execute(f'PRAGMA user_version = {version + 1}')
  connection.execute(f'PRAGMA application_id = {APPLICATION_ID}')
