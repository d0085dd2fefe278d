"""The server: who may do what, what is refused, and what survives."""

import os
import re
import sqlite3
import time

import board_data
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('starlette')
testclient = pytest.importorskip('starlette.testclient')

from t5score_jax.leaderboard import renewal  # noqa: E402
from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import access, jobs, server  # noqa: E402

TEXTS = 'text\n' * 40


@pytest.fixture
def board(tmp_path):
  """A small board with a token of each role: (file, role -> token)."""
  path = board_data.small_board(tmp_path)
  with Store(path) as store:
    tokens = {r: access.new_token(store, f'the {r}', r) for r in access.ROLES}
  return path, tokens


def _client(path, **config):
  config = {'rate': 10**6, **config}
  app = server.create_app(path, server.Config(**config))
  return testclient.TestClient(
    app, raise_server_exceptions=False, follow_redirects=False
  )


def _bearer(token):
  return {'authorization': f'Bearer {token}'}


def _submit(client, token, name='new', what='generators', text=TEXTS, **fields):
  files = {} if text is None else {'file': ('x', text)}
  return client.post(
    f'/api/{what}',
    headers=_bearer(token),
    data={'name': name, **fields},
    files=files or {'unused': ('', b'')},
  )


def _work(path):
  with Store(path) as store:
    while jobs.work(store):
      pass


def test_pages_and_downloads(board):
  path, _ = board
  client = _client(path)
  pages = ('/', '/submit', '/jobs', '/style.css', '/board.js', '/examples/')
  for page in (*pages, '/examples/1.html', '/examples/40.html'):
    answer = client.get(page)
    assert answer.status_code == 200, page
    assert "default-src 'none'" in answer.headers['content-security-policy']
  assert set(client.get('/api/board').json()) == {
    'metrics',
    'generators',
    'ensemble',
    'overrating',
  }
  assert client.get('/data/metrics.tsv').text.startswith('rank\tmetric')
  assert len(client.get('/data/inputs.jsonl').text.splitlines()) == 40
  for missing in (
    '/x',
    '/data/x',
    '/outputs/..%2Fsmall.db',
    '/jobs/9',
    '/.',
    '/examples/41.html',
  ):
    assert client.get(missing).status_code in (200, 404), missing
    assert 'SQLite' not in client.get(missing).text
  assert client.get('/api/jobs/99999999999999999999999').status_code == 404


def test_a_submission_is_ranked(board):
  path, tokens = board
  client = _client(path)
  answer = _submit(client, tokens['generator'], description='a paper')
  assert answer.status_code == 202
  job = client.get(answer.headers['location']).json()
  assert (job['status'], job['submitter']) == ('queued', 'the generator')
  _work(path)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'done', job
  names = [g['name'] for g in client.get('/api/board').json()['generators']]
  assert 'new' in names
  assert 'new' in client.get('/').text
  assert client.get('/outputs/new.jsonl').text.count('\n') == 40
  assert list(jobs.uploads(Store(path)).iterdir()) == []
  # Wrong outputs fail as a job, which says why.
  answer = _submit(client, tokens['admin'], 'short', text='one\n')
  _work(path)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'failed'
  assert '1 lines for 40 inputs' in job['message']
  assert str(path.parent) not in job['message']


def test_roles_and_tokens(board):
  path, tokens = board
  client = _client(path)
  assert _submit(client, 'wrong').status_code == 401
  assert client.post('/api/generators').status_code == 401
  for what, role, status in (
    ('metrics', 'generator', 403),
    ('ratings', 'metric', 403),
    ('ratings', 'admin', 202),
    ('metrics', 'metric', 202),
    ('nothing', 'admin', 404),
  ):
    answer = _submit(client, tokens[role], f'{what} {role}', what)
    assert answer.status_code == status, (what, role, answer.text)
  with Store(path) as store:
    access.revoke(store, 'the admin')
    with pytest.raises(ValueError, match="'the metric'"):
      access.new_token(store, 'the metric', 'metric')
  assert _submit(client, tokens['admin']).status_code == 401
  # The file does not hold what would let its reader submit.
  raw = b''.join(
    p.read_bytes() for p in path.parent.glob('small.db*') if p.is_file()
  )
  assert not [t for t in tokens.values() if t.encode() in raw]


def test_wrong_submissions_are_refused(board):
  path, tokens = board
  client = _client(path)
  token = tokens['metric']
  for name, fields, status in (
    ('', {}, 400),
    ('a/../b', {}, 400),
    ('x' * 101, {}, 400),
    ('system 1', {}, 409),
    ('ok', {'seconds': 'many'}, 400),
    ('ok', {'seconds': 'nan'}, 400),
    ('ok', {'human': 'perhaps'}, 400),
    ('ok', {'unknown': '1'}, 400),
  ):
    answer = _submit(client, token, name, **fields)
    assert answer.status_code == status, (name, fields, answer.text)
    assert answer.json()['error']
  assert _submit(client, token, 'ok', text='').status_code == 400
  assert _submit(client, token, 'ok').status_code == 202
  assert _submit(client, token, 'ok').status_code == 409  # it waits already
  closed = _client(path, commands=False)
  assert _submit(closed, token, 'm', 'metrics').status_code == 403
  assert (
    _submit(closed, token, 'm', 'metrics', type='scores').status_code == 202
  )


def test_forms_are_protected(board):
  path, tokens = board
  client = _client(path)
  assert 'password' in client.get('/submit').text
  assert client.post('/login', data={'token': 'wrong'}).status_code == 401
  answer = client.post('/login', data={'token': tokens['admin']})
  assert answer.status_code == 303
  cookie = answer.headers['set-cookie'].lower()
  assert 'httponly' in cookie and 'samesite=strict' in cookie
  text = client.get('/submit').text
  csrf = re.search(r'name="csrf" value="([^"]+)"', text)[1]

  def send(secret, **headers):
    return client.post(
      '/submit/generator',
      data={'name': 'form', 'csrf': secret},
      files={'file': ('x', TEXTS)},
      headers=headers,
    )

  assert send('').status_code == 403
  assert send('guessed').status_code == 403
  assert send(csrf, origin='https://evil.example').status_code == 403
  answer = send(csrf, origin='http://testserver')
  assert (answer.status_code, answer.headers['location']) == (303, '../jobs/1')
  assert 'generator <strong>form' in client.get('/jobs/1').text.lower()
  # A cookie alone opens nothing of the API.
  assert client.post('/api/generators').status_code == 401
  client.post('/logout', data={'csrf': csrf})
  assert 'password' in client.get('/submit').text


def test_rates_are_limited(board):
  path, tokens = board
  client = _client(path, rate=3)
  found = [client.post('/login', data={'token': 'x'}) for _ in range(5)]
  assert [a.status_code for a in found] == [401] * 3 + [429] * 2
  assert int(found[-1].headers['retry-after']) <= 60
  limit = access.RateLimit(2, seconds=0.05)
  assert [limit.wait('a') > 0 for _ in range(3)] == [False, False, True]
  time.sleep(0.06)
  assert limit.wait('a') == 0.0


@pytest.mark.parametrize(
  'file_name',
  ['../../../etc/passwd', '/etc/cron.d/x', '..\\..\\x', 'a\0b', '.', 'x' * 500],
)
def test_file_names_do_not_matter(board, file_name):
  path, tokens = board
  before = {p for p in path.parent.rglob('*')}
  client = _client(path)
  answer = client.post(
    '/api/generators',
    headers=_bearer(tokens['generator']),
    data={'name': 'new'},
    files={'file': (file_name, TEXTS)},
  )
  assert answer.status_code == 202
  folder = jobs.uploads(Store(path))
  made = {p for p in path.parent.rglob('*')} - before
  assert {p for p in made if p.is_file() and p.parent != path.parent} == set(
    folder.iterdir()
  )
  (kept,) = folder.iterdir()
  assert re.fullmatch('[0-9a-f]{32}', kept.name)


def test_large_uploads_are_refused(board):
  path, tokens = board
  client = _client(path, upload=1 << 20)
  answer = _submit(client, tokens['generator'], text='x' * (3 << 20))
  assert answer.status_code == 413

  def stream():  # a body that does not say how long it is
    head = (
      '--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    yield head.encode()
    for _ in range(64):
      yield b'x' * (1 << 16)

  answer = client.post(
    '/api/generators',
    content=stream(),
    headers={
      **_bearer(tokens['generator']),
      'content-type': 'multipart/form-data; boundary=B',
    },
  )
  assert answer.status_code == 413
  assert not list(path.parent.glob('*.uploads/*'))


def test_quota_and_full_disk(board, monkeypatch):
  path, tokens = board
  client = _client(path, quota=len(TEXTS) + 10)
  assert _submit(client, tokens['generator'], 'one').status_code == 202
  answer = _submit(client, tokens['generator'], 'two')
  assert answer.status_code == 507
  assert 'uploads' in answer.json()['error']
  assert len(list(jobs.uploads(Store(path)).iterdir())) == 1
  _work(path)

  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(jobs.os, 'fsync', full)
  answer = _submit(client, tokens['generator'], 'three')
  assert answer.status_code == 507
  assert 'No space left' in answer.json()['error']
  assert list(jobs.uploads(Store(path)).iterdir()) == []


def test_full_file_fails_the_job_alone(board):
  """The board's own file is full: the job fails, the board is as it was."""
  path, tokens = board
  client = _client(path)
  texts = ''.join(os.urandom(3000).hex() + '\n' for _ in range(40))
  answer = _submit(client, tokens['generator'], 'large', text=texts)
  with Store(path) as store:
    pages = store.connection.execute('PRAGMA page_count').fetchone()[0]
    store.connection.execute(f'PRAGMA max_page_count = {pages + 1}')
    jobs.work(store)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'failed' and 'full' in job['message']
  names = [g['name'] for g in client.get('/api/board').json()['generators']]
  assert 'large' not in names


def test_a_stored_job_is_not_stored_twice(board, monkeypatch):
  """Killed between storing and renewing: renewed afterwards, once there."""
  path, tokens = board
  client = _client(path)
  answer = _submit(client, tokens['generator'])

  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(renewal, 'renew', killed)
    patch.setattr(jobs.submissions.renewal, 'renew', killed)
    with pytest.raises(KeyboardInterrupt):
      _work(path)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'stored'
  with Store(path) as store:
    jobs.recover(store)
  _work(path)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'done'
  names = [g['name'] for g in client.get('/api/board').json()['generators']]
  assert names.count('new') == 1


def test_a_job_that_kills_the_worker_is_given_up(board):
  path, tokens = board
  client = _client(path)
  answer = _submit(client, tokens['generator'])
  for attempt in range(jobs.ATTEMPTS):
    with Store(path) as store:
      with store.transaction():
        store.connection.execute(
          "UPDATE job SET status = 'running', attempts = ?", (attempt + 1,)
        )
      jobs.recover(store)
  job = client.get(answer.headers['location']).json()
  assert job['status'] == 'failed' and '3 times' in job['message']


def test_openapi_describes_what_is_there(board):
  path, _ = board
  client = _client(path)
  document = client.get('/openapi.json').json()
  assert document['openapi'] == '3.1.0'
  for where, methods in document['paths'].items():
    for method in methods:
      url = where.replace('{number}', '1')
      answer = client.request(method.upper(), url)
      assert answer.status_code != 405, where
      assert str(answer.status_code) in methods[method]['responses'], where


def test_older_boards_are_brought_up_to_date(tmp_path):
  path = board_data.small_board(tmp_path)
  connection = sqlite3.connect(path)
  for table in ('session', 'token', 'job'):
    connection.execute(f'DROP TABLE {table}')
  connection.execute('PRAGMA user_version = 1')
  connection.commit()
  connection.close()
  with Store(path) as store:
    assert jobs.recent(store) == []
    assert len(store.generators()) == 5
