"""A server in its own process, with its worker: kills, crowds, a browser."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import board_data
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('starlette')
pytest.importorskip('uvicorn')

from t5score_jax.leaderboard import changes  # noqa: E402
from t5score_jax.leaderboard.entries import Generator  # noqa: E402
from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import access, sandbox  # noqa: E402

TEXTS = 'text\n' * 40


@pytest.fixture
def board(tmp_path):
  """A small board with a token of each role: (file, role -> token)."""
  path = board_data.small_board(tmp_path)
  with Store(path) as store:
    tokens = {r: access.new_token(store, f'the {r}', r) for r in access.ROLES}
  return path, tokens


def _bearer(token):
  return {'authorization': f'Bearer {token}'}


def _start(path, errors=None):
  """Starts a server: (process, address)."""
  process = subprocess.Popen(
    [sys.executable, '-m', 't5score_jax.cli', 'board', 'serve', str(path)]
    + ['--port', '0', '--rate', '1000'],
    stdout=subprocess.PIPE,
    stderr=errors,
    text=True,
  )
  line = process.stdout.readline()
  return process, re.match(r'http://([\d.]+):(\d+)/', line).groups()


@contextlib.contextmanager
def _running(path, errors=None):
  """The address of a server in a process of its own."""
  process, address = _start(path, errors)
  try:
    yield address
  finally:
    process.send_signal(signal.SIGINT)
    process.wait(30)


def _request(address, method, path, headers=None, body=None):
  connection = http.client.HTTPConnection(*address, timeout=60)
  try:
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read()
  finally:
    connection.close()


def _multipart(name, text):
  body = (
    '--B\r\nContent-Disposition: form-data; name="name"\r\n\r\n'
    f'{name}\r\n--B\r\nContent-Disposition: form-data; name="file";'
    f' filename="f"\r\n\r\n{text}\r\n--B--\r\n'
  )
  return body.encode(), {'content-type': 'multipart/form-data; boundary=B'}


def _wait(address, number, statuses=('done', 'failed'), seconds=60):
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    job = json.loads(_request(address, 'GET', f'/api/jobs/{number}')[1])
    if job['status'] in statuses:
      return job
    time.sleep(0.1)
  raise AssertionError(f'not done: {job}')


@pytest.mark.slow
def test_two_submitters_at_once_and_a_large_upload(board):
  path, tokens = board
  with _running(path) as address:
    answers = {}

    def submit(name):
      body, headers = _multipart(name, TEXTS)
      headers |= _bearer(tokens['generator'])
      answers[name] = _request(
        address, 'POST', '/api/generators', headers, body
      )

    threads = [
      threading.Thread(target=submit, args=(f'g{n % 4}',)) for n in range(4)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert {status for status, _ in answers.values()} == {202}
    found = [_wait(address, json.loads(b)['id']) for _, b in answers.values()]
    assert {job['status'] for job in found} == {'done'}

    # 200 MB, in pieces: refused, and the server goes on.
    with socket.create_connection(address) as client:
      client.sendall(
        b'POST /api/generators HTTP/1.1\r\nHost: x\r\nContent-Length: '
        + str(200 << 20).encode()
        + b'\r\nContent-Type: multipart/form-data; boundary=B\r\n'
        + f'Authorization: Bearer {tokens["generator"]}\r\n\r\n'.encode()
      )
      with contextlib.suppress(OSError):
        for _ in range(200):
          client.sendall(b'x' * (1 << 20))
      with contextlib.suppress(OSError):
        assert b' 413 ' in client.recv(100)
    status, text = _request(address, 'GET', '/api/board')
    assert status == 200
    names = [g['name'] for g in json.loads(text)['generators']]
    assert {'g0', 'g1', 'g2', 'g3'} <= set(names)


_SLOW = """#!/bin/sh
sleep 1.5
while read -r x; do echo ${#x}; done
"""


def _pids(*words) -> list[int]:
  """The processes that have all these words in their command lines."""
  pids = []
  for entry in pathlib.Path('/proc').iterdir():
    with contextlib.suppress(OSError, ValueError):
      line = (entry / 'cmdline').read_bytes().split(b'\0')
      if all(str(word).encode() in line for word in words):
        pids.append(int(entry.name))
  return pids


def _workers(path) -> list[int]:
  return _pids('t5score_jax.leaderboard.web.jobs', path)


def _submit_slow(address, token, program):
  body, headers = _multipart('slow', program)
  body = body.replace(
    b'--B\r\n',
    b'--B\r\nContent-Disposition: form-data; name="referenceless"\r\n\r\n1'
    b'\r\n--B\r\n',
    1,
  )
  headers |= _bearer(token)
  status, text = _request(address, 'POST', '/api/metrics', headers, body)
  assert status == 202, text
  number = json.loads(text)['id']
  _wait(address, number, ('running', 'done', 'failed'))
  return number


@pytest.mark.slow
@pytest.mark.skipif(
  sandbox.mechanism() == 'none', reason='programs cannot be isolated here'
)
def test_a_kill_during_a_job(board):
  """The worker is killed while a metric runs: the board is right afterwards."""
  path, tokens = board
  with _running(path) as address:
    body, headers = _multipart('first', TEXTS)
    headers |= _bearer(tokens['admin'])
    status, text = _request(address, 'POST', '/api/generators', headers, body)
    assert _wait(address, json.loads(text)['id'])['status'] == 'done'
    number = _submit_slow(address, tokens['admin'], _SLOW)
    time.sleep(0.3)
    os.kill(_workers(path)[0], signal.SIGKILL)
    with Store(path) as store:
      assert [m.name for m in store.metrics() if m.name == 'slow'] == []
    job = _wait(address, number)
    assert job['status'] == 'done', job
    assert b'Started 2 times' in _request(address, 'GET', f'/jobs/{number}')[1]
  with Store(path) as store:
    assert [m.name for m in store.metrics()].count('slow') == 1
    assert store.connection.execute('PRAGMA integrity_check').fetchone() == (
      'ok',
    )


def _until(condition, seconds=20):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(
  sandbox.mechanism() == 'none', reason='programs cannot be isolated here'
)
def test_a_killed_server_takes_its_worker_along(board, tmp_path):
  """Killed in any order, no process stays, and the next server works."""
  path, tokens = board
  with Store(path) as store:
    changes.add_generator(store, Generator('first'), ['x'] * store.size())
  sleeping = f'9{os.getpid()}'
  with open(tmp_path / 'errors', 'w') as errors:
    server, address = _start(path, errors)
    program = f'#!/bin/sh\nexec sleep {sleeping}\n'
    _submit_slow(address, tokens['admin'], program)
    _until(lambda: _pids('sleep', sleeping))
    os.kill(_workers(path)[0], signal.SIGKILL)
    # The sandboxed program dies with the worker, and is run again.
    _until(lambda: not _pids('sleep', sleeping))
    _until(lambda: _pids('sleep', sleeping))
    server.kill()
    server.wait()
    _until(lambda: not _workers(path) + _pids('sleep', sleeping))

    # A worker with a server is waited for, not run into.
    server, _ = _start(path, errors)
    _until(lambda: _pids('sleep', sleeping))
    with _running(path, errors) as address:
      _until(lambda: 'another worker' in (tmp_path / 'errors').read_text())
      _until(lambda: len(_workers(path)) == 2)
      for worker in _workers(path):
        with contextlib.suppress(ProcessLookupError):
          os.kill(worker, signal.SIGKILL)
      server.kill()
      server.wait()
      _until(lambda: len(_workers(path)) == 1)
      status, text = _request(address, 'GET', '/api/jobs/1')
      assert json.loads(text)['status'] in ('queued', 'running', 'failed')
  lines = (tmp_path / 'errors').read_text()
  assert 'Traceback' not in lines
  assert lines.count('another worker') <= 3


def test_submit_in_a_browser_and_see_it_ranked(board, tmp_path):
  api = pytest.importorskip(
    'playwright.sync_api', reason='needs playwright, to drive a browser'
  )
  if board_data.CHROMIUM is None:
    pytest.skip('needs Chromium: apt-get install chromium')
  path, tokens = board
  outputs = tmp_path / 'outputs.txt'
  outputs.write_text(TEXTS)
  with _running(path) as address, api.sync_playwright() as running:
    browser = running.chromium.launch(
      executable_path=board_data.CHROMIUM, args=['--no-sandbox']
    )
    view = browser.new_page()
    problems = []
    view.on('console', lambda message: problems.append(message.text))
    view.goto(f'http://{":".join(address)}/')
    view.get_by_role('link', name='Submit').click()
    view.get_by_label('Token').fill(tokens['admin'])
    view.get_by_role('button', name='Log in').click()
    form = view.locator('form[action="submit/generator"]')
    form.get_by_label('Name').fill('From a browser')
    form.get_by_label('Outputs').set_input_files(outputs)
    form.get_by_role('button', name='Submit').click()
    view.get_by_text('Done').wait_for(timeout=60_000)
    view.get_by_role('link', name='The board', exact=True).click()
    row = view.locator('#generators tr', has_text='From a browser')
    row.wait_for()
    link = row.get_by_role('link', name='outputs')
    assert link.get_attribute('href').startswith('outputs/')
    assert problems == []
    browser.close()
