"""Runs an application on uvicorn; flags of the verbs that serve.

Not a verb itself (hence the underscore).
"""

from __future__ import annotations

import threading
from typing import Any

from t5score_jax.commands import _usage


def add_address(group: Any) -> None:
  """Declares --host and --port on a parser or one of its groups."""
  group.add_argument(
    '--host', default='127.0.0.1', help='(default: %(default)s)'
  )
  group.add_argument(
    '--port',
    type=_usage.port,
    default=8000,
    help='(default: %(default)s; 0: any)',
  )


def run(app: Any, host: str, port: int, **settings: Any) -> None:
  """Serves until a signal, and prints the address once it listens.

  Args:
    app: The ASGI application.
    host: The address to listen on.
    port: The port; 0 for any.
    **settings: Further settings of `uvicorn.Config`.
  """
  import uvicorn

  server = uvicorn.Server(
    uvicorn.Config(
      app,
      host=host,
      port=port,
      log_level='warning',
      server_header=False,
      timeout_keep_alive=10,
      proxy_headers=False,
      **settings,
    )
  )
  over = threading.Event()
  threading.Thread(target=_announce, args=(server, over), daemon=True).start()
  try:
    server.run()
  finally:
    over.set()


def _announce(server: Any, over: threading.Event) -> None:
  """Prints the addresses on which the server listens, once it does."""
  while not server.started and not over.wait(0.05):
    pass
  for listening in server.servers if server.started else ():
    for each in listening.sockets:
      host, port = each.getsockname()[:2]
      shown = f'[{host}]' if ':' in host else host
      print(f'http://{shown}:{port}/ (Ctrl-C ends)', flush=True)
