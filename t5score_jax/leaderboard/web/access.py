"""Who may submit to a board's server: tokens by role, sessions, rate limits.

Tokens are random; the board keeps their digests alone. Not here: HTTP
(`server`).
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import secrets
import sqlite3
import threading
import time

from t5score_jax.leaderboard.entries import BoardError, check_name, now
from t5score_jax.leaderboard.store import Store

#: What each role may submit.
ROLES = {
  'generator': ('generator',),
  'metric': ('generator', 'metric'),
  'admin': ('generator', 'metric', 'human'),
}
#: How long a session lasts, in seconds.
SESSION = 12 * 3600.0


@dataclasses.dataclass(frozen=True)
class Who:
  """A submitter.

  Attributes:
    name: Of the token.
    role: One of `ROLES`.
    csrf: What forms of this session must send back; '' for a bearer's request,
      which no other site can make.
  """

  name: str
  role: str
  csrf: str = ''

  def may(self, kind: str) -> bool:
    """Whether this kind of submission is allowed."""
    return kind in ROLES[self.role]


def _digest(secret: str) -> str:
  return hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()


def new_token(store: Store, name: str, role: str) -> str:
  """Makes a token, which is told this once.

  Args:
    store: The board.
    name: Whose it is; submissions carry this name.
    role: One of `ROLES`.

  Returns:
    The token.

  Raises:
    BoardError: The role is unknown or the name is taken.
  """
  check_name(name, 'token')
  if role not in ROLES:
    raise BoardError(f'a role is one of {", ".join(ROLES)}, not {role!r}')
  token = secrets.token_urlsafe(32)
  with store.transaction():
    try:
      store.connection.execute(
        'INSERT INTO token (name, role, digest, created) VALUES (?, ?, ?, ?)',
        (name, role, _digest(token), now()),
      )
    except sqlite3.IntegrityError as error:
      raise BoardError(f'there is a token {name!r} already') from error
  return token


def revoke(store: Store, name: str) -> None:
  """Takes a token back, with its sessions.

  Raises:
    BoardError: There is no such token.
  """
  with store.transaction():
    cursor = store.connection.execute(
      'DELETE FROM token WHERE name = ?', (name,)
    )
    if not cursor.rowcount:
      raise BoardError(f'there is no token {name!r}')


def by_token(store: Store, token: str) -> Who | None:
  """Whose token this is; None if nobody's."""
  row = store.connection.execute(
    'SELECT name, role FROM token WHERE digest = ?', (_digest(token),)
  ).fetchone()
  return None if row is None else Who(*row)


def log_in(store: Store, token: str) -> str | None:
  """Begins a session; returns its secret, or None for a wrong token."""
  session = secrets.token_urlsafe(32)
  with store.transaction():
    store.connection.execute(
      'DELETE FROM session WHERE expires < ?', (time.time(),)
    )
    cursor = store.connection.execute(
      'INSERT INTO session SELECT ?, id, ?, ? FROM token WHERE digest = ?',
      (
        _digest(session),
        secrets.token_urlsafe(32),
        time.time() + SESSION,
        _digest(token),
      ),
    )
  return session if cursor.rowcount else None


def by_session(store: Store, session: str) -> Who | None:
  """Whose session this is; None if nobody's, or if it is over."""
  row = store.connection.execute(
    'SELECT name, role, csrf FROM session JOIN token ON token.id ='
    ' session.token WHERE session.digest = ? AND expires > ?',
    (_digest(session), time.time()),
  ).fetchone()
  return None if row is None else Who(*row)


def log_out(store: Store, session: str) -> None:
  """Ends a session."""
  with store.transaction():
    store.connection.execute(
      'DELETE FROM session WHERE digest = ?', (_digest(session),)
    )


class RateLimit:
  """At most so many events a minute for each key; kept in memory."""

  def __init__(self, count: int, seconds: float = 60.0):
    self._count, self._seconds = count, seconds
    self._times: dict[str, collections.deque[float]] = {}
    self._lock = threading.Lock()

  def wait(self, key: str) -> float:
    """Counts an event; returns 0, or the seconds until it is allowed."""
    at = time.monotonic()
    with self._lock:
      if len(self._times) > 10_000:  # forget those who are long gone
        self._times = {
          k: t for k, t in self._times.items() if t[-1] > at - self._seconds
        }
      times = self._times.setdefault(key, collections.deque())
      while times and times[0] <= at - self._seconds:
        times.popleft()
      if len(times) >= self._count:
        return times[0] + self._seconds - at
      times.append(at)
      return 0.0
