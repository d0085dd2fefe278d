"""`t5score serve`: the interface in process, and a server's life and end."""

import asyncio
import concurrent.futures
import http.client
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import slow_metric

pytest.importorskip('uvicorn')
testclient = pytest.importorskip('starlette.testclient')

import t5score_jax  # noqa: E402
from t5score_jax.service import server  # noqa: E402

HYPOTHESES = ['a cat sees music.', '', 'this town 😀']
REFERENCES = ['the cat sees the moon.', 'a dog', 'this town']


@pytest.fixture(scope='module')
def metric(random_bundle):
  return t5score_jax.load(random_bundle)


@pytest.fixture(scope='module')
def client(metric):
  limits = server.Limits(body=4096, texts=8, batch=16, queue=32)
  app = server.create_app(metric, limits)
  with testclient.TestClient(app, raise_server_exceptions=False) as made:
    yield made


def _body(**more):
  return {'hypotheses': HYPOTHESES, 'references': REFERENCES, **more}


def test_scores_are_the_metric_s(client, metric):
  expected = metric.score(HYPOTHESES, REFERENCES)
  answer = client.post('/score', json=_body())
  assert answer.status_code == 200
  value = answer.json()
  np.testing.assert_array_equal(np.float32(value['scores']), expected.values)
  assert value['signature'] == expected.signature
  assert value['system'] == pytest.approx(expected.system)
  assert set(value['components']) == {'precision', 'recall'}
  assert value['truncated'] == 0
  assert answer.headers['x-content-type-options'] == 'nosniff'


def test_many_at_once_get_the_same(client, metric):
  """Scores do not depend on what they are joined with."""
  bodies = [
    {
      'hypotheses': HYPOTHESES[: 1 + n % 3],
      'references': REFERENCES[: 1 + n % 3],
    }
    for n in range(24)
  ]
  before = client.get('/health').json()
  with concurrent.futures.ThreadPoolExecutor(12) as pool:
    answers = list(pool.map(lambda b: client.post('/score', json=b), bodies))
  after = client.get('/health').json()
  expected = metric.score(HYPOTHESES, REFERENCES).values
  for body, answer in zip(bodies, answers, strict=True):
    values = answer.json()['scores']
    np.testing.assert_allclose(
      values, expected[: len(body['hypotheses'])], atol=1e-5
    )
  assert after['requests'] - before['requests'] == 24
  assert after['waiting'] == 0


def test_several_references_none_and_sources(client, metric):
  several = [['x', 'the cat'], ['a dog', 'a'], ['this', 'town']]
  answer = client.post('/score', json=_body(references=several)).json()
  assert 'nrefs:2' in answer['signature']
  answer = client.post('/score', json={'hypotheses': []}).json()
  assert answer['scores'] == [] and answer['system'] is None


@pytest.mark.parametrize(
  ('body', 'status', 'message'),
  [
    (b'{', 400, 'not a request'),
    (b'\xff', 400, 'not a request'),
    (b'{"hypotheses": "one"}', 400, 'Expected `array`'),
    (b'{"hypotheses": [1]}', 400, 'Expected `str`'),
    (b'{"hypotheses": [], "refs": []}', 400, 'unknown field `refs`'),
    (b'{"hypotheses": ["a"], "references": []}', 400, '1 hypotheses but 0'),
    (b'{"hypotheses": ["a"]}', 400, 'needs references'),
    (json.dumps({'hypotheses': ['a'] * 9}).encode(), 413, '9 texts'),
    (b' ' * 5000, 413, 'at most 4096 bytes'),
  ],
)
def test_errors(client, body, status, message):
  answer = client.post('/score', content=body)
  assert answer.status_code == status
  assert message in answer.json()['error']


def test_the_start_names_the_rest(client):
  start = client.get('/').json()
  assert start['name'] == 't5score serve' and start['version']
  for name in ('metric', 'health', 'openapi'):
    assert client.get(start.get(name)).status_code == 200


def test_the_description(client):
  described = client.get('/openapi.json').json()
  assert set(described['paths']) == {'/', '/score', '/metric', '/health'}
  text = json.dumps(described)
  for name in re.findall(r'"#/components/(\w+/\w+)"', text):
    kind, _, one = name.partition('/')
    assert one in described['components'][kind]
  assert client.get('/metric').json()['limits']['texts'] == 8
  assert client.get('/nothing').status_code == 404
  assert client.get('/score').status_code == 405


def test_a_full_queue_and_a_fault(metric, monkeypatch):
  class Full:
    def submit(self, segments):
      raise server.batching.QueueFullError('7 texts wait already; try again')

    def stop(self):
      pass

  monkeypatch.setattr(server.batching, 'Batcher', lambda *_: Full())
  app = server.create_app(metric)
  with testclient.TestClient(app, raise_server_exceptions=False) as client:
    answer = client.post('/score', json=_body())
    assert answer.status_code == 503 and answer.headers['retry-after'] == '1'
    monkeypatch.setattr(Full, 'submit', lambda *_: 1 / 0)
    answer = client.post('/score', json=_body())
    assert answer.status_code == 500
    assert 'ZeroDivisionError' in answer.json()['error']


def test_a_client_that_went_away_is_not_computed(monkeypatch):
  monkeypatch.setattr(server, '_POLL', 0.02)
  metric = slow_metric.Slow()
  app = server.create_app(metric)
  body = json.dumps({'hypotheses': ['text']}).encode()
  scope = {'type': 'http', 'method': 'POST', 'path': '/score', 'headers': []}
  scope |= {'query_string': b'', 'http_version': '1.1', 'scheme': 'http'}

  async def ask(stays):
    messages = [{'type': 'http.request', 'body': body}]
    sent = []

    async def receive():
      if messages:
        return messages.pop()
      if stays:
        await asyncio.sleep(60)
      return {'type': 'http.disconnect'}

    async def send(message):
      sent.append(message)

    await app(dict(scope), receive, send)
    return sent[0]['status']

  async def both():
    async with app.router.lifespan_context(app):
      first = asyncio.create_task(ask(stays=True))
      assert await asyncio.to_thread(metric.entered.wait, 20)
      assert await ask(stays=False) == 400
      metric.go.set()
      assert await first == 200

  asyncio.run(both())
  assert metric.sizes == [1]


def test_sigterm_answers_what_was_accepted(tmp_path):
  """A request whose body is still on its way is answered before the end."""
  command = [sys.executable, '-m', 't5score_jax', 'serve', '-m', 'chrf']
  process = subprocess.Popen(
    [*command, '--port', '0'], stdout=subprocess.PIPE, text=True
  )
  host, port = re.match(
    r'http://([\d.]+):(\d+)/', process.stdout.readline()
  ).groups()
  body = json.dumps(_body()).encode()
  connection = http.client.HTTPConnection(host, int(port), timeout=20)
  connection.putrequest('POST', '/score')
  connection.putheader('Content-Length', str(len(body)))
  connection.endheaders(body[:10])
  other = http.client.HTTPConnection(host, int(port), timeout=20)
  other.request('GET', '/health')
  assert other.getresponse().status == 200
  process.send_signal(signal.SIGTERM)
  connection.send(body[10:])
  answer = connection.getresponse()
  assert answer.status == 200
  assert len(json.loads(answer.read())['scores']) == 3
  assert process.wait(30) == 0


def test_the_command_line(capsys, monkeypatch):
  from t5score_jax import cli
  from t5score_jax.commands import _http

  seen = {}
  monkeypatch.setattr(
    _http, 'run', lambda app, host, port, **more: seen.update(more, app=app)
  )
  before = signal.getsignal(signal.SIGTERM)
  try:
    assert cli.main(['serve', '-m', 'chrf', '--grace', '7']) == 0
  finally:
    signal.signal(signal.SIGTERM, before)
  assert seen['timeout_graceful_shutdown'] == 7
  with testclient.TestClient(seen['app']) as client:
    assert client.get('/metric').json()['name'] == 'chrF'
  assert cli.main(['serve', '-m', 'no_such_model']) == 1
  assert 'no model' in capsys.readouterr().err
