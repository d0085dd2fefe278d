"""`t5score board build` and `t5score board serve`: the board as pages."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from typing import Any

from t5score_jax.commands import _board_parser, _http, _usage
from t5score_jax.errors import UsageError

_SERVE = """
Serves the board's pages, and takes submissions: by a form, and by the API that
/openapi.json describes. Submissions need a token, by role: `generator` submits
generators, `metric` metrics as well, `admin` ratings as well. They become jobs,
which a worker process runs in order. Executables run isolated, or not at all
(docs/billboards.md). The server speaks HTTP: put a proxy with TLS in front of
it.
"""

_BUILD = """
Writes the board as a static site into a new folder: tables to sort and filter,
plots, downloads, the signature to copy. It needs no server and makes no request
to other hosts.
"""

_SERVE_EXAMPLES = """
examples:
  t5score board serve mine.db --new-token ada:metric
  t5score board serve mine.db --port 8000
  curl -H "Authorization: Bearer $TOKEN" -F name=base -F file=@outputs.jsonl \\
      http://127.0.0.1:8000/api/generators
"""


def add_subcommands(subparsers: Any) -> None:
  """Declares `build` and `serve`."""
  parser = _board_parser.subcommand(
    subparsers,
    'build',
    _build,
    'write the board as a static site',
    _BUILD,
    'example:\n  t5score board build zh-en.db site/\n',
  )
  parser.add_argument('folder', metavar='DIR', help='a folder to make')

  parser = _board_parser.subcommand(
    subparsers,
    'serve',
    _serve,
    'serve the board and take submissions',
    _SERVE,
    _SERVE_EXAMPLES,
  )
  _http.add_address(parser)
  parser.add_argument(
    '--new-token',
    metavar='NAME:ROLE',
    help='make a token, print it (only this once), and exit',
  )
  parser.add_argument(
    '--revoke', metavar='NAME', help='revoke a token, and exit'
  )
  parser.add_argument(
    '--upload-limit',
    type=_usage.positive,
    default=64,
    metavar='MIB',
    help='limit of one upload (default: %(default)s)',
  )
  parser.add_argument(
    '--quota',
    type=_usage.positive,
    default=1024,
    metavar='MIB',
    help='limit of all pending uploads (default: %(default)s)',
  )
  parser.add_argument(
    '--rate',
    type=_usage.positive,
    default=20,
    metavar='N',
    help='submissions a minute, for each token and address (default:'
    ' %(default)s)',
  )
  parser.add_argument(
    '--no-commands', action='store_true', help='accept no executables'
  )


def _build(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import store
  from t5score_jax.leaderboard.web import page

  with store.Store(args.board) as board:
    count = page.build(board, args.folder)
  _board_parser.say(
    f'{args.folder}: {count} files; open {args.folder}/index.html'
  )


def _serve(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard import store
  from t5score_jax.leaderboard.web import access

  if args.new_token and args.revoke:
    raise UsageError('give --new-token or --revoke')
  name, _, role = (args.new_token or '').rpartition(':')
  if args.new_token is not None and not (name and role in access.ROLES):
    raise UsageError(
      f'--new-token {args.new_token}: write NAME:ROLE; a role is one of '
      + ', '.join(access.ROLES)
    )
  if args.new_token or args.revoke:
    with store.Store(args.board) as board:
      if args.revoke:
        access.revoke(board, args.revoke)
        _board_parser.say(f'the token {args.revoke} is no longer valid')
      else:
        _board_parser.say(access.new_token(board, name, role))
    return
  _run_server(args)


def _run_server(args: argparse.Namespace) -> None:
  from t5score_jax.leaderboard.web import sandbox, server

  commands = not args.no_commands
  if commands and sandbox.mechanism() == 'none':
    print(
      't5score board serve: programs cannot be isolated here, so executables'
      ' are not accepted',
      file=sys.stderr,
    )
    commands = False
  app = server.create_app(
    args.board,
    server.Config(
      upload=args.upload_limit << 20,
      quota=args.quota << 20,
      rate=args.rate,
      commands=commands,
    ),
  )
  over = threading.Event()
  keeper = threading.Thread(target=_keep_worker, args=(args.board, over))
  keeper.start()
  try:
    _http.run(app, args.host, args.port, limit_concurrency=200)
  finally:
    over.set()
    keeper.join()


def _keep_worker(board: str, over: threading.Event) -> None:
  """Runs the worker, and a new one if it dies."""
  command = [sys.executable, '-m', 't5score_jax.leaderboard.web.jobs', board]
  while not over.is_set():
    # The worker ends with this process, however it ends, because the pipe is
    # then closed.
    worker = subprocess.Popen(
      command, stdin=subprocess.PIPE, start_new_session=True
    )
    while worker.poll() is None and not over.wait(0.2):
      pass
    if worker.poll() is None:
      # Its job is run again by the next server.
      worker.terminate()
      worker.wait()
    else:
      over.wait(1.0)
