"""The HTTP interface of one metric: a Starlette application.

    POST /score          texts -> scores, JSON
    GET /metric          the metric's name, signature and size
    GET /                the service's name and version, and these paths
    GET /health          whether the service takes texts, and what it has done
    GET /openapi.json    this interface in OpenAPI 3.1

For programs on the same machine or behind a proxy: no TLS, no accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from t5score_jax.errors import T5ScoreError
from t5score_jax.leaderboard.web import limits
from t5score_jax.metrics import _texts, base
from t5score_jax.service import batching
from t5score_jax.version import __version__

# Seconds after which a waiting request checks whether its client is connected.
_POLL = 1.0


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits of a service.

  Attributes:
    body: Maximum bytes of a request.
    texts: Maximum hypotheses of a request.
    batch: Maximum hypotheses that are scored together.
    queue: Maximum hypotheses that may wait.
  """

  body: int = 16 << 20
  texts: int = 4096
  batch: int = 1024
  queue: int = 16384


class Texts(msgspec.Struct, forbid_unknown_fields=True):
  """The texts of a request.

  Attributes:
    hypotheses: N texts.
    references: For each its reference, or a list of several.
    sources: N sources.
  """

  hypotheses: list[str]
  references: list[str | list[str]] | None = None
  sources: list[str] | None = None


class Answer(msgspec.Struct):
  """The scores of a request.

  Attributes:
    scores: N scores; higher is better.
    system: The value of all of them as one system's; null for no texts.
    components: Parts of the scores, N numbers each.
    signature: What reproduces the scores.
    truncated: Texts longer than the model reads, which were cut; null if texts
      of several requests were scored together, and some were cut.
    notes: Further notes.
  """

  scores: list[float]
  system: float | None
  components: dict[str, list[float]]
  signature: str
  truncated: int | None
  notes: list[str]


class Service:
  """The state of the application and its endpoints."""

  def __init__(self, metric: base.Metric, limits: Limits):
    """Takes a metric; scoring begins when the application starts."""
    self._metric = metric
    self._limits = limits
    self._batcher: batching.Batcher | None = None

  @contextlib.asynccontextmanager
  async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
    """Runs the scoring thread; at the end it finishes waiting requests."""
    self._batcher = batching.Batcher(
      self._metric, self._limits.batch, self._limits.queue
    )
    try:
      yield
    finally:
      await asyncio.to_thread(self._batcher.stop)

  def routes(self) -> list[Route]:
    """All paths."""
    return [
      Route('/', self.start),
      Route('/score', self.score, methods=['POST']),
      Route('/metric', self.metric),
      Route('/health', self.health),
      Route('/openapi.json', self.openapi),
    ]

  async def start(self, request: Request) -> Response:
    """What this is, and where the rest is described."""
    paths = ('score', 'metric', 'health', 'openapi.json')
    return JSONResponse(
      {
        'name': 't5score serve',
        'version': __version__,
        **{path.removesuffix('.json'): f'/{path}' for path in paths},
      }
    )

  async def score(self, request: Request) -> Response:
    """Scores texts."""
    assert self._batcher is not None
    try:
      texts = msgspec.json.decode(await request.body(), type=Texts)
    except msgspec.MsgspecError as error:
      raise HTTPException(400, f'not a request: {error}') from error
    except ClientDisconnect as error:
      raise HTTPException(400, 'the request was broken off') from error
    count = len(texts.hypotheses)
    if count > self._limits.texts:
      most = self._limits.texts
      raise HTTPException(413, f'{count} texts; a request may have {most}')
    segments = _texts.segments(
      texts.hypotheses, texts.references, texts.sources
    )
    queued = self._batcher.submit(segments)
    scoring = asyncio.wrap_future(queued)
    while not (await asyncio.wait({scoring}, timeout=_POLL))[0]:
      if await request.is_disconnected():
        # Requests still waiting are not computed in vain.
        queued.cancel()
        raise HTTPException(400, 'the client went away')
    return _json(_answer(scoring.result()))

  async def metric(self, request: Request) -> Response:
    """What scores."""
    return JSONResponse(
      {
        'name': self._metric.name,
        'signature': self._metric.signature(),
        'parameters': self._metric.num_parameters,
        'limits': dataclasses.asdict(self._limits),
      }
    )

  async def health(self, request: Request) -> Response:
    """Whether the service runs."""
    assert self._batcher is not None
    return JSONResponse(
      {
        'status': 'ok',
        'waiting': self._batcher.waiting,
        'batches': self._batcher.batches,
        'requests': self._batcher.requests,
        'texts': self._batcher.texts,
      }
    )

  async def openapi(self, request: Request) -> Response:
    """The description of the interface."""
    return JSONResponse(openapi(self._metric.name))

  async def error(self, request: Request, error: Exception) -> Response:
    """JSON, one sentence."""
    status, text, headers = 400, str(error), None
    if isinstance(error, HTTPException):
      status, text, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, batching.QueueFullError | batching.StoppedError):
      status, headers = 503, {'retry-after': '1'}
    return JSONResponse({'error': text}, status, headers)

  async def fault(self, request: Request, error: Exception) -> Response:
    """An internal error, whose traceback is in the log."""
    text = f'the service failed ({type(error).__name__}); its log says why'
    return JSONResponse({'error': text}, 500)


def _answer(result: batching.Result) -> Answer:
  scores = result.scores

  def numbers(values: Any) -> list[float]:
    # str() gives the shortest digits of a float32; float() alone adds noise.
    return [float(str(value)) for value in values]

  return Answer(
    scores=numbers(scores.values),
    system=scores.system if len(scores) else None,
    components={n: numbers(v) for n, v in scores.components.items()},
    signature=scores.signature,
    truncated=result.truncated,
    notes=list(scores.notes),
  )


def _json(value: Any) -> Response:
  return Response(msgspec.json.encode(value), media_type='application/json')


def openapi(name: str) -> dict[str, Any]:
  """The interface in OpenAPI 3.1.

  Args:
    name: The metric.
  """
  (texts, answer), schemas = msgspec.json.schema_components(
    [Texts, Answer], ref_template='#/components/schemas/{name}'
  )

  def content(schema: Any) -> dict[str, Any]:
    return {'content': {'application/json': {'schema': schema}}}

  anything = content({'type': 'object'})
  error = {'$ref': '#/components/responses/Error'}
  get = {
    path: {
      'get': {
        'summary': summary,
        'responses': {'200': {'description': summary, **anything}},
      }
    }
    for path, summary in {
      '/': 'Name, version and the other paths',
      '/metric': 'Name, signature, parameters and limits of the metric',
      '/health': 'Whether the service takes texts, and what it has done',
    }.items()
  }
  score = {
    'summary': 'Scores of texts; higher is better',
    'requestBody': {'required': True, **content(texts)},
    'responses': {
      '200': {'description': 'the scores, in order', **content(answer)},
      **dict.fromkeys(('400', '413', '503'), error),
    },
  }
  described = {
    'description': 'what is wrong; 503 has Retry-After',
    **content({'type': 'object', 'properties': {'error': {'type': 'string'}}}),
  }
  return {
    'openapi': '3.1.0',
    'info': {'title': f't5score serve: {name}', 'version': __version__},
    'paths': {'/score': {'post': score}, **get},
    'components': {'schemas': schemas, 'responses': {'Error': described}},
  }


def create_app(metric: base.Metric, most: Limits | None = None) -> Starlette:
  """Creates the application.

  Args:
    metric: The metric.
    most: The limits; None for the defaults.
  """
  most = most or Limits()
  service = Service(metric, most)
  return Starlette(
    routes=service.routes(),
    lifespan=service.lifespan,
    middleware=[
      Middleware(limits.Headers),
      Middleware(limits.BodyLimit, most=most.body),
    ],
    exception_handlers={
      HTTPException: service.error,
      T5ScoreError: service.error,
      TypeError: service.error,
      Exception: service.fault,
    },
  )
