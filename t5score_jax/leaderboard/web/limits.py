"""What every request to a board's server goes through: sizes, headers.

ASGI middleware, without knowledge of boards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException

#: No script, style or form but our own; nobody may frame the pages.
HEADERS = {
  'content-security-policy': (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none';"
    " base-uri 'none'"
  ),
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'same-origin',
  'cross-origin-opener-policy': 'same-origin',
}


class Headers:
  """Adds `HEADERS` to every response."""

  def __init__(self, app: Any):
    self._app = app

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    """Handles a request."""

    async def with_headers(message: Any) -> None:
      if message['type'] == 'http.response.start':
        message['headers'] = [
          *message.get('headers', ()),
          *((k.encode(), v.encode()) for k, v in HEADERS.items()),
        ]
      await send(message)

    await self._app(scope, receive, with_headers)


class BodyLimit:
  """Refuses bodies over a size (413), announced or not, as they come."""

  def __init__(self, app: Any, most: int):
    self._app, self._most = app, most

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    """Handles a request."""
    if scope['type'] == 'http':
      receive = _Counted(receive, self._most, scope)
    await self._app(scope, receive, send)


class _Counted:
  def __init__(
    self, receive: Callable[[], Awaitable[Any]], most: int, scope: Any
  ):
    self._receive, self._most, self._seen = receive, most, 0
    headers = dict(scope['headers'])
    try:
      self._told = int(headers.get(b'content-length', b'0'))
    except ValueError:
      self._told = most + 1

  async def __call__(self) -> Any:
    if self._told > self._most:
      raise too_large(self._most)
    message = await self._receive()
    self._seen += len(message.get('body', b''))
    if self._seen > self._most:
      raise too_large(self._most)
    return message


def too_large(most: int) -> HTTPException:
  """The error of a body over the limit."""
  return HTTPException(413, f'an upload has at most {most} bytes')
