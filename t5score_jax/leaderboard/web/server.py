"""A board over HTTP: its pages, and submissions by forms or programs.

A Starlette application. Submissions become jobs, which the worker process of
`jobs.py` runs. Everyone who reaches the server may read; submissions need a
token. TLS and access control are the business of a proxy in front of it.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import math
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
  HTMLResponse,
  JSONResponse,
  RedirectResponse,
  Response,
)
from starlette.routing import Route

from t5score_jax.leaderboard import renewal
from t5score_jax.leaderboard.entries import BoardError
from t5score_jax.leaderboard.store import Store
from t5score_jax.leaderboard.web import access, forms, jobs, limits, page
from t5score_jax.leaderboard.web.access import Submitter

_COOKIE = 'board_session'
_TITLES = {401: 'Not logged in', 403: 'Not allowed', 404: 'Not found'}


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of a server.

  Attributes:
    upload: Largest size of an upload, in bytes.
    quota: Largest total size of waiting uploads, in bytes.
    queue: Largest number of waiting jobs.
    rate: Submissions and log-ins per minute, per submitter and address.
    commands: Whether executables may be submitted.
  """

  upload: int = 64 << 20
  quota: int = 1 << 30
  queue: int = 100
  rate: int = 20
  commands: bool = True


class Server:
  """The state of the application and its endpoints."""

  def __init__(self, path: str | os.PathLike[str], config: Config):
    """Makes a server; each request opens the board for itself."""
    self._path, self._config = path, config
    self._rate = access.RateLimit(config.rate)
    self._page: tuple[Any, bytes] = (None, b'')

  def routes(self) -> list[Route]:
    """All paths."""
    return [
      Route('/', self.index),
      Route('/openapi.json', self.openapi),
      Route('/login', self.log_in, methods=['POST']),
      Route('/logout', self.log_out, methods=['POST']),
      Route('/submit', self.submit_page),
      Route('/submit/{kind}', self.submit_form, methods=['POST']),
      Route('/jobs', self.jobs_page),
      Route('/jobs/{number:int}', self.job_page),
      Route('/api/board', self.api_board),
      Route('/api/jobs', self.api_jobs),
      Route('/api/jobs/{number:int}', self.api_job),
      Route('/api/{path}', self.api_submit, methods=['POST']),
      Route('/data/inputs.jsonl', self.inputs),
      Route('/data/{name}', self.download),
      Route('/outputs/{name}', self.download),
      Route('/examples/', self.example),
      Route('/examples/{number:int}.html', self.example),
      *(Route(f'/{name}', self.asset) for name in page.ASSETS),
    ]

  # Reading. Starlette runs these in threads; each opens the board for itself.

  def _value(self, store: Store) -> dict[str, Any]:
    """The newest analyses; while a job renews them, the previous ones."""
    kept = store.snapshot()
    return renewal.current(store) if kept is None else kept[1]

  def _render(
    self, request: Request, template: str, status: int = 200, **values: Any
  ) -> HTMLResponse:
    root = '../' * (request.url.path.count('/') - 1)
    with Store(self._path) as store:
      board = {'name': store.board().name}
    html = page.render(template, root, True, board=board, **values)
    return HTMLResponse(html, status, {'cache-control': 'no-store'})

  def index(self, request: Request) -> Response:
    """The board."""
    with Store(self._path) as store:
      version = store.rows('SELECT revision, version FROM snapshot')
      if not version or self._page[0] != version:
        html = page.index(store, self._value(store), server=True)
        self._page = (version, html.encode())
    return HTMLResponse(self._page[1], headers={'cache-control': 'no-cache'})

  def asset(self, request: Request) -> Response:
    """Style and script."""
    name = request.url.path.rpartition('/')[2]
    return Response(page.asset(name), media_type=page.ASSETS[name])

  def download(self, request: Request) -> Response:
    """A table or a generator's outputs, if the board lists it."""
    encoded = request.url.path.lstrip('/')
    with Store(self._path) as store:
      files = page.downloads(store, self._value(store))
      make = files.get(encoded) or files.get(urllib.parse.unquote(encoded))
      if make is None:
        raise HTTPException(404, 'there is no such file on this board')
      return Response(make(), media_type='application/octet-stream')

  def example(self, request: Request) -> Response:
    """The page of one example, or the list of all."""
    number = request.path_params.get('number', 0)
    with Store(self._path) as store:
      if number > store.size():
        raise HTTPException(404, f'there is no example {number}')
      return HTMLResponse(page.example(store, self._value(store), number))

  def inputs(self, request: Request) -> Response:
    """The inputs, for generators; without references."""
    with Store(self._path) as store:
      ids = store.ids()
      sources: Sequence[str | None] = store.sources() or [None] * len(ids)
    lines = [
      json.dumps({'id': key, 'source': source}, ensure_ascii=False) + '\n'
      for key, source in zip(ids, sources, strict=True)
    ]
    return Response(
      ''.join(lines).encode('utf-8', 'replace'),
      media_type='application/octet-stream',
    )

  def openapi(self, request: Request) -> Response:
    """The description of the API."""
    with Store(self._path) as store:
      return JSONResponse(forms.openapi(store.board().name))

  def api_board(self, request: Request) -> Response:
    """The output of `t5score board rank --format json`."""
    with Store(self._path) as store:
      return JSONResponse(renewal.rank_document(self._value(store)))

  def api_jobs(self, request: Request) -> Response:
    """The newest jobs."""
    with Store(self._path) as store:
      return JSONResponse([_public(job) for job in jobs.recent(store)])

  def api_job(self, request: Request) -> Response:
    """One job."""
    return JSONResponse(_public(self._job(request)))

  def _job(self, request: Request) -> jobs.Job:
    number = request.path_params['number']
    with Store(self._path) as store:
      job = jobs.get(store, number) if number < 1 << 62 else None
    if job is None:
      raise HTTPException(404, f'there is no job {number}')
    return job

  def jobs_page(self, request: Request) -> Response:
    """The page of the newest jobs."""
    with Store(self._path) as store:
      newest = jobs.recent(store)
    return self._render(request, 'jobs.html', jobs=newest)

  def job_page(self, request: Request) -> Response:
    """The page of one job."""
    return self._render(request, 'job.html', job=self._job(request))

  def submit_page(self, request: Request) -> Response:
    """The forms, or the form to log in."""
    return self._render(
      request,
      'submit.html',
      who=self._session(request),
      limit=self._config.upload >> 20,
    )

  # Authentication.

  def _session(self, request: Request) -> Submitter | None:
    session = request.cookies.get(_COOKIE)
    if not session:
      return None
    with Store(self._path) as store:
      return access.by_session(store, session)

  def _bearer(self, request: Request) -> Submitter:
    scheme, _, token = request.headers.get('authorization', '').partition(' ')
    who = None
    if scheme.lower() == 'bearer' and token:
      with Store(self._path) as store:
        who = access.by_token(store, token.strip())
    if who is None:
      raise HTTPException(
        401,
        'send a token: Authorization: Bearer TOKEN',
        {'www-authenticate': 'Bearer'},
      )
    return who

  def _limit(self, request: Request, who: Submitter | None = None) -> None:
    """Counts a submission or log-in, by address and by submitter."""
    keys = [f'address {request.client.host if request.client else ""}']
    if who is not None:
      keys.append(f'token {who.name}')
    for key in keys:
      wait = math.ceil(self._rate.wait(key))
      if wait:
        raise HTTPException(
          429,
          f'too many requests; wait {wait} seconds',
          {'retry-after': str(wait)},
        )

  async def log_in(self, request: Request) -> Response:
    """Starts a session in a browser."""
    self._limit(request)
    form = await _form(request)
    _check_origin(request)

    def start() -> str | None:
      with Store(self._path) as store:
        return access.log_in(store, str(form.get('token', '')))

    session = await run_in_threadpool(start)
    if session is None:
      raise HTTPException(401, 'unknown token')
    response = RedirectResponse('submit', 303)
    response.set_cookie(
      _COOKIE,
      session,
      max_age=int(access.SESSION),
      httponly=True,
      samesite='strict',
      secure=request.url.scheme == 'https',
    )
    return response

  async def log_out(self, request: Request) -> Response:
    """Ends a session."""
    form = await _form(request)

    def end() -> None:
      self._form_sender(request, form)
      with Store(self._path) as store:
        access.log_out(store, request.cookies.get(_COOKIE, ''))

    await run_in_threadpool(end)
    response = RedirectResponse('submit', 303)
    response.delete_cookie(_COOKIE)
    return response

  def _form_sender(self, request: Request, form: FormData) -> Submitter:
    """The submitter of a form; checks the session and the CSRF secret."""
    _check_origin(request)
    who = self._session(request)
    if who is None:
      raise HTTPException(401, 'log in first')
    sent = str(form.get('csrf', '')).encode('utf-8', 'replace')
    if not hmac.compare_digest(sent, who.csrf.encode()):
      raise HTTPException(
        403, 'this form is not from your session; load the page again'
      )
    return who

  # Submissions.

  async def api_submit(self, request: Request) -> Response:
    """A submission by a program."""
    kind = forms.PATHS.get(request.path_params['path'])
    if kind is None:
      raise HTTPException(404, f'submit to one of {", ".join(forms.PATHS)}')
    who = await run_in_threadpool(self._bearer, request)
    self._limit(request, who)
    form = await _form(request)
    job = await run_in_threadpool(self._queue, kind, who, form)
    return JSONResponse(_public(job), 202, {'location': f'/api/jobs/{job.id}'})

  async def submit_form(self, request: Request) -> Response:
    """A submission by a browser."""
    kind = request.path_params['kind']
    if kind not in forms.FORMS:
      raise HTTPException(404, f'submit one of {", ".join(forms.FORMS)}')
    self._limit(request, await run_in_threadpool(self._session, request))
    form = await _form(request)
    who = await run_in_threadpool(self._form_sender, request, form)
    job = await run_in_threadpool(self._queue, kind, who, form)
    return RedirectResponse(f'../jobs/{job.id}', 303)

  def _queue(self, kind: str, who: Submitter, form: FormData) -> jobs.Job:
    """Checks the fields of a submission and queues it."""
    if not who.may(kind):
      raise HTTPException(
        403, f'tokens of role {who.role} cannot submit a {kind}'
      )
    texts = {k: v for k, v in form.multi_items() if isinstance(v, str)}
    texts.pop('csrf', None)
    fields = forms.parse(kind, texts)
    type_of = getattr(fields, 'type', '')
    if type_of == 'command' and not self._config.commands:
      raise HTTPException(403, 'executables are not accepted here')
    upload = form.get('file')
    if not isinstance(upload, UploadFile) or not upload.size:
      upload = None
    if upload is None and type_of != 'library':
      raise HTTPException(
        400, 'the field file is missing, or the file is empty'
      )
    if upload is not None and (upload.size or 0) > self._config.upload:
      raise limits.too_large(self._config.upload)
    settings = msgspec.to_builtins(fields)
    with Store(self._path) as store:
      self._check_free(store, kind, fields.name)
      saved = None
      if upload is not None:
        upload.file.seek(0)
        saved = jobs.save(store, upload.file, self._config.quota)
      number = jobs.queue(store, kind, fields.name, settings, saved, who.name)
      job = jobs.get(store, number)
    assert job is not None
    return job

  def _check_free(self, store: Store, kind: str, name: str) -> None:
    """Checks that the name is free, on the board and in the queue."""
    waiting = [job for job in jobs.recent(store, 1000) if job.waiting]
    if len(waiting) >= self._config.queue:
      raise HTTPException(
        429, 'too many jobs are waiting', {'retry-after': '60'}
      )
    taken = {(job.kind, job.name) for job in waiting}
    taken |= {('generator', g.name) for g in store.generators()}
    taken |= {('metric', m.name) for m in store.metrics()}
    if (kind, name) in taken and kind != 'human':
      raise HTTPException(409, f'there is a {kind} {name!r} already')

  async def error(self, request: Request, error: Exception) -> Response:
    """JSON for programs, a page for browsers; never a traceback."""
    status, headers, text = 400, None, str(error)
    if isinstance(error, HTTPException):
      status, text, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, jobs.QuotaError):
      status = 507
    if request.url.path.startswith('/api/'):
      return JSONResponse({'error': text}, status, headers)
    response = await run_in_threadpool(
      lambda: self._render(
        request,
        'error.html',
        status,
        title=_TITLES.get(status, 'The request failed'),
        message=text,
        code=status,
      )
    )
    response.headers.update(headers or {})
    return response


async def _form(request: Request) -> FormData:
  try:
    return await request.form(max_files=1, max_fields=30, max_part_size=1 << 16)
  except (ValueError, KeyError, ClientDisconnect) as error:
    raise HTTPException(400, f'not a form: {error}') from error


def _check_origin(request: Request) -> None:
  """Rejects forms that, according to the browser, are from another site."""
  origin = request.headers.get('origin')
  host = request.headers.get('host')
  if origin is not None and urllib.parse.urlsplit(origin).netloc != host:
    raise HTTPException(403, 'this form is from another site')


def _public(job: jobs.Job) -> dict[str, Any]:
  return {k: v for k, v in vars(job).items() if k not in jobs.PRIVATE}


def create_app(
  path: str | os.PathLike[str], config: Config | None = None
) -> Starlette:
  """Creates the application.

  Args:
    path: The board.
    config: The settings; None for the defaults.

  Returns:
    The ASGI application, without the worker (`jobs.run_worker`).

  Raises:
    BoardError: There is no such board.
  """
  config = config or Config()
  with Store(path):
    pass
  server = Server(path, config)
  return Starlette(
    routes=server.routes(),
    middleware=[
      Middleware(limits.Headers),
      # Space for the fields beside the file.
      Middleware(limits.BodyLimit, most=config.upload + (1 << 20)),
    ],
    exception_handlers={HTTPException: server.error, BoardError: server.error},
  )
