"""Anything at all is sent to the submission API: no server error comes back."""

import urllib.parse

import board_data
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip('sklearn')
pytest.importorskip('starlette')
testclient = pytest.importorskip('starlette.testclient')

from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import access, server  # noqa: E402


def _bearer(token):
  return {'authorization': f'Bearer {token}'}


_TEXT = st.text(max_size=40)
_NAMES = st.one_of(
  st.sampled_from(
    ['name', 'file', 'type', 'library', 'several', 'csrf', 'seconds', 'human']
  ),
  st.text(
    alphabet=st.characters(codec='ascii', exclude_characters='"\r\n'),
    min_size=1,
    max_size=20,
  ),
)


@pytest.fixture(scope='module')
def fuzzed(tmp_path_factory):
  path = board_data.small_board(tmp_path_factory.mktemp('fuzz'))
  with Store(path) as store:
    token = access.new_token(store, 'fuzz', 'admin')
  app = server.create_app(path, server.Config(rate=10**6, queue=10**6))
  client = testclient.TestClient(
    app, raise_server_exceptions=False, follow_redirects=False
  )
  return client, token


@settings(
  max_examples=150,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  path=st.one_of(
    st.sampled_from(
      ['generators', 'metrics', 'ratings', 'board', 'jobs', 'jobs/1', '..']
    ),
    st.text(max_size=10),
  ),
  method=st.sampled_from(['GET', 'POST', 'PUT', 'DELETE', 'HEAD']),
  fields=st.dictionaries(_NAMES, _TEXT, max_size=6),
  upload=st.one_of(st.none(), st.binary(max_size=300)),
  known=st.booleans(),
)
def test_fuzzed_fields_cause_no_server_error(
  fuzzed, path, method, fields, upload, known
):
  client, token = fuzzed
  form = {}
  if method == 'POST':
    form = {'data': fields}
    if upload is not None:
      form['files'] = {'file': ('f', upload)}
  quoted = urllib.parse.quote(path.encode('utf-8', 'replace'), safe='/.')
  answer = client.request(
    method,
    f'/api/{quoted}',
    headers=_bearer(token if known else 'x'),
    **form,
  )
  assert answer.status_code < 500, answer.text


@settings(
  max_examples=150,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  body=st.one_of(
    st.binary(max_size=400),
    st.binary(max_size=200).map(
      lambda b: b'--B\r\nContent-Disposition: form-data; name="' + b
    ),
    st.tuples(st.binary(max_size=60), st.binary(max_size=60)).map(
      lambda p: (
        b'--B\r\nContent-Disposition: form-data; name="name"'
        + p[0]
        + b'\r\n\r\n'
        + p[1]
        + b'\r\n--B--'
      )
    ),
  ),
  kind=st.sampled_from(
    [
      'multipart/form-data; boundary=B',
      'multipart/form-data',
      'multipart/form-data; boundary=',
      'application/x-www-form-urlencoded',
      'application/json',
      'x',
    ]
  ),
  authorization=st.sampled_from(
    ['known', 'Bearer', 'Basic x', '', 'Bearer \xff']
  ),
  path=st.sampled_from(
    ['/api/generators', '/api/metrics', '/login', '/logout', '/submit/metric']
  ),
)
def test_fuzzed_bodies_cause_no_server_error(
  fuzzed, body, kind, authorization, path
):
  client, token = fuzzed
  if authorization == 'known':
    authorization = f'Bearer {token}'
  answer = client.post(
    path,
    content=body,
    headers={
      'content-type': kind.encode(),
      'authorization': authorization.encode('latin-1'),
      'cookie': b'board_session=x\xff',
    },
  )
  assert answer.status_code < 500, answer.text


def test_fuzzed_jobs_all_end(fuzzed):
  """What the fuzz queued fails or succeeds; the board can be read."""
  client, _ = fuzzed
  for job in client.get('/api/jobs').json():
    assert job['status'] == 'queued'
  assert client.get('/').status_code == 200
