"""`t5score serve`: one loaded metric over HTTP.

The application is `service/server.py`.
"""

from __future__ import annotations

import argparse
import signal

from t5score_jax.commands import _http, _usage
from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.metrics import base

SUMMARY = 'serve one metric over HTTP'

DESCRIPTION = """
Loads a metric once and scores what comes by HTTP: POST /score with JSON,
{"hypotheses": [...], "references": [...], "sources": [...]}, as in
`t5score_jax.load().score`. Requests that come while others are scored are
joined into batches; their scores are the same. GET /metric, /health and
/openapi.json describe the rest.

The service has no TLS and no accounts: it listens on 127.0.0.1, and a proxy in
front of it has both. SIGTERM ends it once all accepted requests are answered.
"""

EPILOG = """
examples:
  t5score serve
  t5score serve -m wmt22-comet-da/ --port 8080
  curl http://127.0.0.1:8000/score -d \\
      '{"hypotheses": ["a cat"], "references": ["the cat"]}'

exit code: 0 ended by SIGTERM; 1 the metric or the port is not to be had; 2 the
command line is wrong; 130 Ctrl-C
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  metric_arguments.add_choice(parser)
  metric_arguments.add_model_options(parser, tokens=False)
  group = parser.add_argument_group('service')
  _http.add_address(group)
  for flag, default, text in (
    ('--body-limit', 16, 'MiB of one request'),
    ('--texts-limit', 4096, 'hypotheses of one request'),
    ('--batch-texts', 1024, 'hypotheses that are scored together'),
    ('--queue', 16384, 'hypotheses that may wait; further ones get 503'),
    ('--grace', 30, 'seconds to answer accepted requests after SIGTERM'),
  ):
    group.add_argument(
      flag,
      type=_usage.positive,
      default=default,
      metavar='N',
      help=f'{text} (default: %(default)s)',
    )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  # Imported here: help needs no server.
  from t5score_jax.service import server

  options = metric_arguments.metric_options(args)
  metric = metric_arguments.load(args.model, options, args.metric)
  _warm_up(metric)
  most = server.Limits(
    body=args.body_limit << 20,
    texts=args.texts_limit,
    batch=args.batch_texts,
    queue=args.queue,
  )
  # uvicorn raises the signal again when it has ended.
  signal.signal(signal.SIGTERM, lambda *_: None)
  _http.run(
    server.create_app(metric, most),
    args.host,
    args.port,
    timeout_graceful_shutdown=args.grace,
    limit_concurrency=256,
  )
  return 0


def _warm_up(metric: base.Metric) -> None:
  """Compiles programs for batches of several sizes before the first request."""
  for count in (1, 4, 8, 16, 32):
    for words in (6, 18):
      texts = [f'{n} ship leaves port ' * (words // 3) for n in range(count)]
      try:
        metric.score_segments([Segment(t, t, (t[::-1],)) for t in texts])
      except InputError:
        return  # It reads something other than texts, such as paths.
