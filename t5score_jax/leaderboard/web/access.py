"""Tokens, roles, sessions and rate limits of a board's server.

Tokens are random; the board stores only their digests. `server.py` has HTTP.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import secrets
import threading
import time

from t5score_jax.leaderboard.entries import BoardError, check_name, now
from t5score_jax.leaderboard.store import Store

#: Role -> kinds of submissions it allows.
ROLES = {
  'generator': ('generator',),
  'metric': ('generator', 'metric'),
  'admin': ('generator', 'metric', 'human'),
}
#: Duration of a session, in seconds.
SESSION = 12 * 3600.0


@dataclasses.dataclass(frozen=True)
class Submitter:
  """The owner of a token.

  Attributes:
    name: The name of the token.
    role: One of `ROLES`.
    csrf: The secret that forms of this session must contain; '' for a request
      with a token, which other sites cannot make.
  """

  name: str
  role: str
  csrf: str = ''

  def may(self, kind: str) -> bool:
    """Whether the role allows this kind of submission."""
    return kind in ROLES[self.role]


def _digest(secret: str) -> str:
  return hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()


def new_token(store: Store, name: str, role: str) -> str:
  """Creates a token; the board stores only its digest.

  Args:
    store: The board.
    name: The owner's name, which submissions carry.
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
  row = {'name': name, 'role': role, 'digest': _digest(token), 'created': now()}
  with store.transaction():
    store.insert('token', row, f'a token {name!r}')
  return token


def revoke(store: Store, name: str) -> None:
  """Deletes a token and its sessions.

  Raises:
    BoardError: There is no such token.
  """
  with store.transaction():
    if not store.run('DELETE FROM token WHERE name = ?', [name]).rowcount:
      raise BoardError(f'there is no token {name!r}')


def by_token(store: Store, token: str) -> Submitter | None:
  """The owner of a token; None if it is unknown."""
  rows = store.rows(
    'SELECT name, role FROM token WHERE digest = ?', [_digest(token)]
  )
  return Submitter(*rows[0]) if rows else None


def log_in(store: Store, token: str) -> str | None:
  """Starts a session; returns its secret, or None for an unknown token."""
  session, at = secrets.token_urlsafe(32), time.time()
  with store.transaction():
    store.run('DELETE FROM session WHERE expires < ?', [at])
    cursor = store.run(
      'INSERT INTO session SELECT ?, id, ?, ? FROM token WHERE digest = ?',
      (
        _digest(session),
        secrets.token_urlsafe(32),
        at + SESSION,
        _digest(token),
      ),
    )
  return session if cursor.rowcount else None


def by_session(store: Store, session: str) -> Submitter | None:
  """The owner of a session; None if it is unknown or has expired."""
  rows = store.rows(
    'SELECT name, role, csrf FROM session JOIN token ON token.id ='
    ' session.token WHERE session.digest = ? AND expires > ?',
    (_digest(session), time.time()),
  )
  return Submitter(*rows[0]) if rows else None


def log_out(store: Store, session: str) -> None:
  """Ends a session."""
  with store.transaction():
    store.run('DELETE FROM session WHERE digest = ?', [_digest(session)])


class RateLimit:
  """Limits the number of events per minute and key; kept in memory."""

  def __init__(self, count: int, seconds: float = 60.0):
    self._count, self._seconds = count, seconds
    self._times: dict[str, collections.deque[float]] = {}
    self._lock = threading.Lock()

  def wait(self, key: str) -> float:
    """Counts an event; returns 0, or the seconds until it is allowed."""
    at = time.monotonic()
    with self._lock:
      if len(self._times) > 10_000:  # Drop keys without recent events.
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
