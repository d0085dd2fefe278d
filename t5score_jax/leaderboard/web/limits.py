"""ASGI middleware: security headers and the largest size of a request."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

#: Only our own scripts, styles and forms; no frames.
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
  """Rejects bodies over a size (413) by their header or as they arrive."""

  def __init__(self, app: Any, most: int):
    self._app, self._most = app, most

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    """Handles a request."""
    headers = dict(scope.get('headers', ()))
    announced = headers.get(b'content-length', b'0').decode('latin-1')
    size = int(announced) if announced.isdecimal() else self._most + 1
    read = 0

    async def counted() -> Any:
      nonlocal read
      if size > self._most:
        raise too_large(self._most)
      message = await receive()
      read += len(message.get('body', b''))
      if read > self._most:
        raise too_large(self._most)
      return message

    await self._app(scope, counted, send)


def too_large(most: int) -> HTTPException:
  """The error for a body over the limit."""
  return HTTPException(413, f'an upload may have at most {most} bytes')
