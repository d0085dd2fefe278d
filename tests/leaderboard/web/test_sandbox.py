"""The promises of the sandbox, by both mechanisms, as root and as a user."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from t5score_jax.leaderboard.web import sandbox

LIMITS = {
  'seconds': 60,
  'memory': 400 << 20,
  'output': 1 << 16,
  'processes': 32,
  'scratch': 8 << 20,
}
isolated = pytest.mark.skipif(
  sandbox.mechanism() == 'none',
  reason='neither bubblewrap nor user namespaces are available',
)
_RUN = """
import json, sys
from t5score_jax.leaderboard.web import sandbox
sandbox.mechanism = lambda: sys.argv[1]
limits = sandbox.Limits(**json.loads(sys.argv[2]))
answer = sandbox.run(sys.stdin.buffer.read(), b'', limits, sys.argv[3:])
sys.stdout.buffer.write(answer)
"""


def _script(text):
  return b'#!/usr/bin/env python3\n' + textwrap.dedent(text).encode()


@pytest.fixture(params=['namespaces', 'bubblewrap'])
def kind(request):
  if request.param == 'bubblewrap' and shutil.which('bwrap') is None:
    pytest.skip('bubblewrap is not installed')
  return request.param


@pytest.fixture(params=['as this user', 'as another user'])
def run(request, kind):
  """Runs a program: function of (program, hidden folders) to its output."""
  command, environment = [sys.executable], {**os.environ, 'SECRET': 'x'}
  if request.param == 'as another user':
    if os.geteuid() != 0:
      pytest.skip('needs root, to become another user')
    command = 'setpriv --reuid 65534 --regid 65534 --clear-groups'.split()
    command += ['/usr/bin/python3', '-B']
    environment['PYTHONPATH'] = os.getcwd()
    tried = [*command, '-c', 'import t5score_jax.leaderboard.web.sandbox']
    if subprocess.run(tried, env=environment, capture_output=True).returncode:
      pytest.skip('no interpreter that another user can run')

  def run(program, *hidden):
    done = subprocess.run(
      [*command, '-c', _RUN, kind, json.dumps(LIMITS), *map(str, hidden)],
      input=program,
      env=environment,
      capture_output=True,
      timeout=120,
    )
    return (done.stdout or done.stderr).decode()

  return run


# Everything that a program must not be able to do, tried in one run.
_ATTEMPTS = _script("""
  import ctypes, json, os, socket, sys
  libc = ctypes.CDLL(None, use_errno=True)
  result = {}

  def attempt(name, function):
    try:
      result[name] = function()
    except OSError as error:
      result[name] = error.strerror

  def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
      raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

  def fill():
    size = 0
    try:
      for n in range(100):
        for folder in ('/tmp', '/dev/shm'):
          with open(f'{folder}/{n}', 'wb', buffering=0) as out:
            for _ in range(16):
              size += out.write(bytes(1 << 16))
    except OSError:
      return size

  clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
  attempt('memfd', lambda: os.memfd_create('x'))
  attempt('shmget', lambda: call('shmget', 0, 1 << 28, 0o1600))
  attempt('unshare', lambda: call('unshare', 0x10000000))
  attempt('clone', lambda: call('syscall', clone, 0x10000011, 0, 0, 0, 0))
  attempt('clone3', lambda: call('syscall', 435, 0, 0))
  attempt('mount', lambda: call('mount', b'x', b'/tmp', b'tmpfs', 0, None))
  attempt('root', lambda: os.setuid(0 if os.getuid() else 1))
  attempt('network', lambda: socket.create_connection(('1.1.1.1', 53), 2))
  result['writable'] = []
  for folder in ('/', '/dev', '/dev/shm', '/etc', '/home', '/root', '/run',
                 '/srv', '/tmp', '/usr', '/var', '/var/tmp', *sys.argv[1:]):
    try:
      open(folder + '/probe', 'w').close()
      result['writable'].append(folder)
    except OSError:
      pass
  result['filled'] = fill()
  result['environment'] = sorted(set(os.environ) - {'LC_CTYPE'})
  result['interfaces'] = [n for _, n in socket.if_nameindex() if n != 'lo']
  result['devices'] = os.listdir('/dev')
  result['processes'] = sum(p.isdigit() for p in os.listdir('/proc'))
  open('/dev/null', 'w').write('x')
  print(json.dumps(result))
""")


@isolated
def test_attempts_to_escape_fail(run):
  result = json.loads(run(_ATTEMPTS))
  refused = os.strerror(1)
  for name in ('memfd', 'shmget', 'unshare', 'clone', 'mount', 'root'):
    assert result[name] in (refused, os.strerror(22)), (name, result[name])
  # Libraries take this for an old kernel, and use clone.
  assert result['clone3'] == os.strerror(38)
  assert result['network'] == os.strerror(101)
  assert result['writable'] == ['/dev/shm', '/tmp']
  assert 0 < result['filled'] <= LIMITS['scratch']
  assert (result['environment'], result['interfaces']) == ([], [])
  assert result['processes'] <= 2
  few = 'null zero full random urandom shm fd stdin stdout stderr'.split()
  of_bubblewrap = {'console', 'core', 'ptmx', 'pts', 'tty'}
  assert set(few) <= set(result['devices']) <= {*few, *of_bubblewrap}


# Each process stays within its address space; together they do not.
_PRIVATE = _script("""
  import os, time
  for _ in range(4):
    if not os.fork():
      block = b'x' * (150 << 20)
      time.sleep(30)
  time.sleep(30)
""")
# The pages leave the processes, not the memory.
_SHARED = _script("""
  import mmap, os, time
  for _ in range(3):
    if not os.fork():
      block = mmap.mmap(-1, 200 << 20)
      for page in range(0, 200 << 20, 4096):
        block[page] = 1
      block.madvise(mmap.MADV_DONTNEED)
      time.sleep(30)
  time.sleep(30)
""")
_FORKS = b'#!/bin/bash\nf() { f | f & }; f; sleep 1000\n'


@isolated
@pytest.mark.parametrize(
  ('program', 'message'),
  [
    (_PRIVATE, 'more than 400 MiB of memory'),
    (_SHARED, 'more than 400 MiB of memory'),
    (_script('x = bytearray(10**9)'), 'MemoryError'),
    (b'#!/bin/sh\nkill -9 -1; exit 9\n', 'exit code 9'),
  ],
)
def test_memory_and_signals(run, program, message):
  assert message in run(program)


@isolated
def test_a_fork_bomb_ends():
  limits = sandbox.Limits(**{**LIMITS, 'seconds': 2})
  with pytest.raises(sandbox.ProgramError):
    sandbox.run(_FORKS, b'', limits)


@isolated
def test_threads_and_pools_work(run):
  program = _script("""
    import asyncio, multiprocessing, subprocess, threading
    threading.Thread(target=print, args=(1,)).start()
    context = multiprocessing.get_context('fork')
    with context.Pool(2) as pool:
      print(sum(pool.map(abs, range(4))))
    print(subprocess.check_output(['bash', '-c', 'cat <(echo 3)']))
    asyncio.run(asyncio.sleep(0.01))
  """)
  assert run(program).split() == ['1', '6', "b'3\\n'"]


@isolated
def test_folders_are_hidden(run, tmp_path):
  secret = tmp_path / 'board' / 'secret'
  secret.parent.mkdir()
  secret.write_text('secret')
  program = _script(f"""
    import os
    print(os.path.exists({str(secret)!r}), os.listdir('/home'))
  """)
  assert run(program, secret.parent).split() == ['False', '[]']


def test_isolation_is_required(monkeypatch):
  monkeypatch.setattr(sandbox, 'mechanism', lambda: 'none')
  program = _script('print(len(input()))')
  with pytest.raises(sandbox.IsolationError, match='bubblewrap'):
    sandbox.run(program, b'')
  assert sandbox.run(program, b'abc\n', isolation='none') == b'3\n'


def test_a_cgroup_limits_memory_where_one_can_be_created(tmp_path, monkeypatch):
  """The files that the kernel would act on; a real cgroup needs delegation."""
  (tmp_path / 'cgroup.subtree_control').write_text('cpu memory\n')
  monkeypatch.setattr(sandbox, 'CGROUPS', tmp_path)
  own = open('/proc/self/cgroup').read()
  if '0::/\n' not in own:
    pytest.skip('this process is in a cgroup of its own')
  limits = sandbox.Limits(**LIMITS)
  sandbox.run(b'#!/bin/sh\necho\n', b'', limits, isolation='none')
  (group,) = tmp_path.glob('t5score-*')
  memory = int((group / 'memory.max').read_text())
  assert memory == limits.memory + limits.scratch
  assert int((group / 'cgroup.procs').read_text()) > 1
