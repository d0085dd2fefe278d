"""The board over HTTP: its pages, and submissions by people and programs.

A Starlette application; submissions become jobs, which `jobs` works off in a
process of its own. Anyone who reaches the server may read; a token submits, by
its role. Not here: TLS and who reaches the server: put a proxy before it.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import math
import os
import urllib.parse
from collections.abc import Callable
from typing import Any

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

from t5score_jax.leaderboard import changes, data, renewal
from t5score_jax.leaderboard.entries import BoardError, check_name
from t5score_jax.leaderboard.store import Store
from t5score_jax.leaderboard.web import access, jobs, limits, openapi, page
from t5score_jax.leaderboard.web.access import Who

_COOKIE = 'board_session'
_KINDS = {'generators': 'generator', 'metrics': 'metric', 'ratings': 'human'}


@dataclasses.dataclass(frozen=True)
class Config:
  """How a server behaves.

  Attributes:
    upload: Bytes of one upload at most.
    quota: Bytes of all uploads that wait.
    queue: Jobs that may wait at a time.
    rate: Submissions and log-ins a minute, for each submitter and address.
    commands: Whether executables may be submitted.
  """

  upload: int = 64 << 20
  quota: int = 1 << 30
  queue: int = 100
  rate: int = 20
  commands: bool = True


class Server:
  """The application's state and its endpoints."""

  def __init__(self, path: str | os.PathLike[str], config: Config):
    """Opens nothing yet: each request opens the board for itself."""
    self._path, self._config = path, config
    self._rate = access.RateLimit(config.rate)
    self._page: tuple[Any, bytes] = (None, b'')

  def routes(self) -> list[Route]:
    """All paths."""
    found = [
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
      Route('/api/{what}', self.api_submit, methods=['POST']),
      Route('/data/inputs.jsonl', self.inputs),
      Route('/data/{name}', self.download),
      Route('/outputs/{name}', self.download),
    ]
    found += [Route(f'/{name}', self.asset) for name in page.ASSETS]
    return found

  # Reading. Starlette runs these in threads, so that each opens the board.

  def _value(self, store: Store) -> dict[str, Any]:
    """The newest analyses; while a job renews them, the ones before."""
    kept = changes.snapshot(store)
    return renewal.current(store) if kept is None else kept[1]

  def _render(
    self, request: Request, template: str, status: int = 200, **values: Any
  ) -> HTMLResponse:
    root = '../' * (request.url.path.count('/') - 1)
    with Store(self._path) as store:
      board = {'name': store.board().name}
    html = page.render(template, root, True, board=board, **values)
    headers = {'cache-control': 'no-store'}
    return HTMLResponse(html, status, headers)

  def index(self, request: Request) -> Response:
    """The board."""
    with Store(self._path) as store:
      row = store.connection.execute(
        'SELECT revision, version FROM snapshot'
      ).fetchone()
      if row is None or self._page[0] != row:
        value = self._value(store)
        self._page = (row, page.index(store, value, server=True).encode())
    return HTMLResponse(self._page[1], headers={'cache-control': 'no-cache'})

  def asset(self, request: Request) -> Response:
    """Style and script."""
    name = request.url.path.rpartition('/')[2]
    return Response(page.asset(name), media_type=page.ASSETS[name])

  def download(self, request: Request) -> Response:
    """A table, or a generator's outputs; only what the board itself offers."""
    wanted = urllib.parse.unquote(request.url.path).lstrip('/')
    encoded = request.url.path.lstrip('/')
    with Store(self._path) as store:
      offered = page.downloads(store, self._value(store))
      make = offered.get(encoded) or offered.get(wanted)
      if make is None:
        raise HTTPException(404, 'there is no such file on this board')
      content = make()
    return Response(content, media_type='application/octet-stream')

  def inputs(self, request: Request) -> Response:
    """The inputs, for those who generate; references stay here."""
    with Store(self._path) as store:
      ids, sources = store.ids(), store.sources()
    rows = [
      json.dumps(
        {'id': key, 'source': sources[n] if sources else None},
        ensure_ascii=False,
      )
      for n, key in enumerate(ids)
    ]
    return Response(
      ('\n'.join(rows) + '\n').encode('utf-8', 'replace'),
      media_type='application/octet-stream',
    )

  def openapi(self, request: Request) -> Response:
    """The description of the API."""
    with Store(self._path) as store:
      return JSONResponse(openapi.document(store.board().name))

  def api_board(self, request: Request) -> Response:
    """What `t5score board rank --format json` prints."""
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
    """The newest jobs, for people."""
    with Store(self._path) as store:
      found = jobs.recent(store)
    return self._render(request, 'jobs.html', jobs=found)

  def job_page(self, request: Request) -> Response:
    """One job, for people."""
    return self._render(request, 'job.html', job=self._job(request))

  def submit_page(self, request: Request) -> Response:
    """The forms, or the form to log in."""
    return self._render(
      request,
      'submit.html',
      who=self._session(request),
      limit=self._config.upload >> 20,
    )

  # Who asks.

  def _session(self, request: Request) -> Who | None:
    session = request.cookies.get(_COOKIE)
    if not session:
      return None
    with Store(self._path) as store:
      return access.by_session(store, session)

  def _bearer(self, request: Request) -> Who:
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

  def _limit(self, request: Request, who: Who | None = None) -> None:
    """Counts a submission or log-in, by address and by submitter."""
    keys = [f'address {request.client.host if request.client else ""}']
    if who is not None:
      keys.append(f'token {who.name}')
    for key in keys:
      wait = self._rate.wait(key)
      if wait:
        raise HTTPException(
          429,
          f'too many requests; wait {math.ceil(wait)} seconds',
          {'retry-after': str(math.ceil(wait))},
        )

  async def log_in(self, request: Request) -> Response:
    """Begins a session in a browser."""
    self._limit(request)
    form = await _form(request)
    _check_origin(request)
    token = form.get('token')

    def begin() -> str | None:
      with Store(self._path) as store:
        return access.log_in(store, str(token)) if token else None

    session = await run_in_threadpool(begin)
    if session is None:
      raise HTTPException(401, 'this token is not known here')
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
    await run_in_threadpool(self._form_sender, request, form)

    def end() -> None:
      with Store(self._path) as store:
        access.log_out(store, request.cookies.get(_COOKIE, ''))

    await run_in_threadpool(end)
    response = RedirectResponse('submit', 303)
    response.delete_cookie(_COOKIE)
    return response

  def _form_sender(self, request: Request, form: FormData) -> Who:
    """Who sent a form: the session, and its secret in the form (CSRF)."""
    _check_origin(request)
    who = self._session(request)
    if who is None:
      raise HTTPException(401, 'log in first')
    sent = str(form.get('csrf', ''))
    if not hmac.compare_digest(
      sent.encode('utf-8', 'replace'), who.csrf.encode()
    ):
      raise HTTPException(
        403, 'this form is not from your session; load the page again'
      )
    return who

  # Submissions.

  async def api_submit(self, request: Request) -> Response:
    """A program's submission."""
    kind = _KINDS.get(request.path_params['what'])
    if kind is None:
      raise HTTPException(404, 'there is no such thing to submit')
    who = await run_in_threadpool(self._bearer, request)
    self._limit(request, who)
    form = await _form(request)
    job = await run_in_threadpool(self._queue, kind, who, form)
    location = {'location': f'/api/jobs/{job.id}'}
    return JSONResponse(_public(job), 202, location)

  async def submit_form(self, request: Request) -> Response:
    """A submission from a browser."""
    kind = request.path_params['kind']
    if kind not in _KINDS.values():
      raise HTTPException(404, 'there is no such thing to submit')
    self._limit(request, await run_in_threadpool(self._session, request))
    form = await _form(request)
    who = await run_in_threadpool(self._form_sender, request, form)
    job = await run_in_threadpool(self._queue, kind, who, form)
    return RedirectResponse(f'../jobs/{job.id}', 303)

  def _queue(self, kind: str, who: Who, form: FormData) -> jobs.Job:
    """Checks a submission as far as a glance can, and queues it."""
    if not who.may(kind):
      raise HTTPException(403, f'the role {who.role} does not submit a {kind}')
    name, settings = self._settings(kind, form)
    upload = form.get('file')
    has_file = isinstance(upload, UploadFile) and bool(upload.size)
    if not has_file and not settings.get('library'):
      raise HTTPException(
        400, 'the field file is missing, or the file is empty'
      )
    if has_file and isinstance(upload, UploadFile):
      if (upload.size or 0) > self._config.upload:
        raise limits.too_large(self._config.upload)
    with Store(self._path) as store:
      self._check_free(store, kind, name)
      saved = None
      if has_file and isinstance(upload, UploadFile):
        upload.file.seek(0)
        saved = jobs.save(store, upload.file, self._config.quota)
      number = jobs.queue(store, kind, name, settings, saved, who.name)
      job = jobs.get(store, number)
    assert job is not None
    return job

  def _check_free(self, store: Store, kind: str, name: str) -> None:
    """Whether the name is free, on the board and in the queue."""
    waiting = [job for job in jobs.recent(store, 1000) if job.waiting]
    if len(waiting) >= self._config.queue:
      raise HTTPException(429, 'too many jobs wait', {'retry-after': '60'})
    taken = {(job.kind, job.name) for job in waiting}
    taken |= {('generator', g.name) for g in store.generators()}
    taken |= {('metric', m.name) for m in store.metrics()}
    if (kind, name) in taken and kind != 'human':
      raise HTTPException(409, f'there is a {kind} {name!r} already')

  def _settings(self, kind: str, form: FormData) -> tuple[str, dict[str, Any]]:
    """A submission's fields, checked."""
    texts = {k: v for k, v in form.multi_items() if isinstance(v, str)}
    name = texts.pop('name', '').strip()
    check_name(name, kind)
    texts.pop('csrf', None)
    settings: dict[str, Any] = {}
    for field, text in texts.items():
      if field not in openapi.FIELDS[kind]:
        raise HTTPException(400, f'there is no field {field[:40]!r}')
      settings[field] = _field(field, openapi.FIELDS[kind][field][0], text)
    settings = {k: v for k, v in settings.items() if v is not None}
    if kind == 'metric':
      self._check_metric(settings)
    return name, settings

  def _check_metric(self, settings: dict[str, Any]) -> None:
    type_of = settings.pop(
      'type', 'library' if 'library' in settings else 'command'
    )
    if type_of not in ('command', 'scores', 'library'):
      raise HTTPException(400, f'there is no type {type_of[:40]!r} of metrics')
    if type_of == 'command' and not self._config.commands:
      raise HTTPException(403, 'executables are not accepted here')
    if type_of == 'library' and not settings.get('library'):
      raise HTTPException(400, 'the field library names the metric')
    if type_of != 'library':
      settings.pop('library', None)
    settings['scores'] = type_of == 'scores'
    if settings.get('several', 'max') not in data.SEVERAL:
      raise HTTPException(400, 'several is max, mean or own')

  # Errors.

  async def error(self, request: Request, error: Exception) -> Response:
    """JSON for programs, a page for people; never a trace."""
    status, headers = 400, None
    if isinstance(error, HTTPException):
      status, text, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, jobs.QuotaError):
      status, text = 507, str(error)
    else:
      text = str(error)
    if request.url.path.startswith('/api/'):
      return JSONResponse({'error': text}, status, headers)
    title = {401: 'Not logged in', 403: 'Not allowed', 404: 'Not found'}
    found = await run_in_threadpool(
      lambda: self._render(
        request,
        'error.html',
        status,
        title=title.get(status, 'That did not work'),
        message=text,
        code=status,
      )
    )
    found.headers.update(headers or {})
    return found


def _field(name: str, kind: str, text: str) -> Any:
  """A form's field as its type; an empty one is none."""
  if not text.strip():
    return None
  if kind == 'boolean':
    if text.lower() not in ('1', 'true', 'on', '0', 'false'):
      raise HTTPException(400, f'{name} is true or false')
    return text.lower() in ('1', 'true', 'on')
  if kind == 'number':
    try:
      value = float(text)
    except ValueError:
      value = math.nan
    if not (math.isfinite(value) and value >= 0):
      raise HTTPException(400, f'{name} is a number, 0 or above')
    return value
  if len(text) > 500 or '\0' in text:
    raise HTTPException(400, f'{name} has at most 500 characters')
  return text.encode('utf-8', 'replace').decode()


async def _form(request: Request) -> FormData:
  try:
    return await request.form(max_files=1, max_fields=30, max_part_size=1 << 16)
  except (ValueError, KeyError, ClientDisconnect) as error:
    raise HTTPException(400, f'not a form: {error}') from error


def _check_origin(request: Request) -> None:
  """Browsers say where a form is from; it must be from here."""
  origin = request.headers.get('origin')
  if origin is None:
    return
  host = urllib.parse.urlsplit(origin).netloc
  if host != request.headers.get('host'):
    raise HTTPException(403, 'this form is from another site')


def _public(job: jobs.Job) -> dict[str, Any]:
  hidden = ('settings', 'upload', 'attempts')
  return {k: v for k, v in vars(job).items() if k not in hidden}


def create_app(
  path: str | os.PathLike[str], config: Config | None = None
) -> Starlette:
  """The application.

  Args:
    path: The board.
    config: How the server behaves; None for the defaults.

  Returns:
    The ASGI application, without the worker (`jobs.run_worker`).

  Raises:
    BoardError: There is no such board.
  """
  config = config or Config()
  with Store(path):
    pass
  server = Server(path, config)
  # Room for the fields around the file.
  most = config.upload + (1 << 20)
  handlers: dict[Any, Callable[..., Any]] = {
    HTTPException: server.error,
    BoardError: server.error,
  }
  return Starlette(
    routes=server.routes(),
    middleware=[
      Middleware(limits.Headers),
      Middleware(limits.BodyLimit, most=most),
    ],
    exception_handlers=handlers,
  )
