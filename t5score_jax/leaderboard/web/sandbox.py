"""Runs a stranger's program on texts: no network, little to see, hard limits.

A metric that someone submitted is run here, and nowhere else. What is promised,
where bubblewrap or Linux namespaces (`unshare`) can be used:

- no network: the program's namespace has no interface but a dead loopback;
- it sees no process but its own, and all of them die with it;
- it can write only to a /tmp of its own, which is small and thrown away; home
  folders, /run, /tmp and the board's folder are hidden, the rest is read-only;
- its environment is empty; it has a user of its own where this runs as root,
  or else the caller's without any capability, and can gain no privileges;
- limits on time, memory (of each process, and of all together), processes,
  output and files.

What is not promised: that a hole in the kernel cannot be used (there is no
virtual machine and no system call filter); that files which anyone may read,
such as those in /usr and /etc, stay unread; that a machine is not slowed down
while the time limit runs. Where neither mechanism can be used, `run` refuses
unless it is told `isolation='none'`, which keeps the limits and the empty
environment but hides neither the network nor any file, and does not find
processes that the program leaves behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from t5score_jax.errors import T5ScoreError
from t5score_jax.leaderboard.web import sandbox_child

ISOLATIONS = ('required', 'none')
#: What of standard error is kept for the message.
_TAIL = 2000
_MARK = 'sandbox: '
_HIDDEN = ('/home', '/root', '/run', '/tmp', '/var/tmp', '/dev/shm', '/srv')
_INSIDE = '/tmp/metric'
# Users that no account has, one for each run (the range that systemd uses).
_FIRST_USER, _USERS = 61184, 4336


class ProgramError(T5ScoreError, ValueError):
  """A program failed, or went over a limit; the message says how."""


class IsolationError(T5ScoreError, ValueError):
  """This machine cannot isolate programs; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a program may use.

  Attributes:
    seconds: Of wall clock, and of processor time of each process.
    memory: Bytes: address space of each process, resident memory of all.
    output: Bytes of standard output.
    processes: At a time.
    scratch: Bytes of files.
  """

  seconds: float = 600.0
  memory: int = 4 << 30
  output: int = 64 << 20
  processes: int = 64
  scratch: int = 256 << 20


@functools.cache
def mechanism() -> str:
  """How programs are isolated here: 'bubblewrap', 'namespaces' or 'none'."""
  if sys.platform != 'linux':
    return 'none'
  with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    trial = Path(folder) / 'program'
    trial.write_bytes(b'#!/bin/sh\necho isolated\n')
    trial.chmod(0o555)
    for name in ('bubblewrap', 'namespaces'):
      try:
        command = _command(name, folder, Limits(seconds=10), [])
        done = subprocess.run(
          command, capture_output=True, timeout=20, env={}, check=False
        )
      except (OSError, subprocess.SubprocessError):
        continue
      if done.stdout == b'isolated\n':
        return name
  return 'none'


def run(
  program: bytes,
  data: bytes,
  limits: Limits | None = None,
  hidden: Sequence[str | os.PathLike[str]] = (),
  isolation: str = 'required',
) -> bytes:
  """Runs a program.

  Args:
    program: The executable: a script with `#!`, or a binary.
    data: Its standard input.
    limits: What it may use.
    hidden: Folders that it must not see, besides the usual ones.
    isolation: 'required', or 'none': limits only.

  Returns:
    Its standard output.

  Raises:
    ProgramError: It did not end well, or went over a limit.
    IsolationError: Isolation is required and not to be had.
  """
  if isolation not in ISOLATIONS:
    raise ValueError(f'isolation must be one of {ISOLATIONS}')
  limits = limits or Limits()
  kind = mechanism() if isolation == 'required' else 'none'
  if kind == 'none' and isolation == 'required':
    raise IsolationError(
      'programs cannot be isolated here: install bubblewrap, or allow user'
      ' namespaces (and util-linux `unshare`, Linux 5.12); or trust the program'
      ' and run it without isolation'
    )
  folder = tempfile.mkdtemp(prefix='t5score_metric_')
  try:
    os.chmod(folder, 0o755)
    path = Path(folder) / 'program'
    path.write_bytes(program)
    path.chmod(0o555)
    with tempfile.TemporaryFile() as stdin:
      stdin.write(data)
      stdin.seek(0)
      command = _command(kind, folder, limits, hidden)
      return _watch(command, stdin, limits)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def _command(
  kind: str,
  folder: str,
  limits: Limits,
  hidden: Sequence[str | os.PathLike[str]],
) -> list[str]:
  """The command line that isolates the program in a folder."""
  root = os.geteuid() == 0
  unseen = [*_HIDDEN, *(os.path.realpath(path) for path in hidden)]
  unseen = [
    path
    for path in dict.fromkeys(unseen)
    if not any(_inside(path, other) for other in unseen if other != path)
  ]
  prefixes = {os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)}
  kept = [
    p for p in sorted(prefixes) if any(_inside(p, path) for path in unseen)
  ]
  settings = {
    'mounts': kind == 'namespaces',
    'folder': folder,
    'inside': folder if kind == 'none' else _INSIDE,
    'program': 'program',
    'hidden': unseen,
    'kept': kept,
    'scratch': limits.scratch,
    'user': _FIRST_USER + secrets.randbelow(_USERS) if root else None,
    'mark': _MARK,
    'limits': {
      'CPU': max(1, int(limits.seconds) + 1),
      'AS': limits.memory,
      'FSIZE': max(limits.scratch, limits.output),
      'NPROC': limits.processes,
      'NOFILE': 256,
      'CORE': 0,
    },
  }
  child = [
    sys.executable,
    '-I',
    '-S',
    '-c',
    _child_source(),
    json.dumps(settings),
  ]
  if kind == 'none':
    return child
  if kind == 'namespaces':
    user = [] if root else ['--user', '--map-root-user']
    return [
      'unshare',
      *user,
      *'--mount --net --pid --ipc --uts --fork --kill-child --'.split(),
      *child,
    ]
  command = 'bwrap --unshare-net --unshare-pid --unshare-ipc'.split()
  command += '--unshare-uts --die-with-parent --new-session --clearenv'.split()
  if root:
    # Another user in a namespace of users would still be root to the files.
    command += '--cap-add CAP_SETUID --cap-add CAP_SETGID'.split()
    command += '--cap-add CAP_SETPCAP'.split()
  else:
    command += '--unshare-user --uid 65534 --gid 65534'.split()
  command += '--ro-bind / / --dev /dev --proc /proc'.split()
  for path in unseen:
    if os.path.isdir(path) and path != '/dev/shm':
      command += ['--perms', '1777', '--tmpfs', path]
  for path in kept:
    command += ['--ro-bind', path, path]
  return [*command, '--ro-bind', folder, _INSIDE, '--', *child]


def _inside(path: str, folder: str) -> bool:
  return path == folder or path.startswith(folder + '/')


@functools.cache
def _child_source() -> str:
  return inspect.getsource(sandbox_child)


def _watch(command: list[str], stdin: IO[bytes], limits: Limits) -> bytes:
  """Runs the command, kills it and all it started at the first limit."""
  # The search path of the host finds bwrap and unshare; the program's own
  # environment is emptied by the child.
  process = subprocess.Popen(
    command,
    stdin=stdin,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env={'PATH': os.environ.get('PATH', os.defpath)},
    start_new_session=True,
  )
  assert process.stdout is not None and process.stderr is not None
  streams = {process.stdout: bytearray(), process.stderr: bytearray()}
  try:
    problem = _pump(process, streams, limits)
  finally:
    _kill(process)
    for stream in streams:
      stream.close()
  stderr = streams[process.stderr].decode('utf-8', 'replace').strip()
  if problem is None and process.returncode:
    problem = _ending(process.returncode)
    if _MARK in stderr:
      problem = f'cannot be started: {stderr.partition(_MARK)[2]}'
    elif stderr:
      problem += f'; it said: {stderr[-500:]}'
  if problem is not None:
    raise ProgramError(f'the program {problem}')
  return bytes(streams[process.stdout])


def _pump(
  process: subprocess.Popen[bytes],
  streams: dict[Any, bytearray],
  limits: Limits,
) -> str | None:
  """Reads both streams to their ends; says what went wrong, if anything."""
  ended = time.monotonic()
  deadline = ended + limits.seconds
  looked = 0.0
  with selectors.DefaultSelector() as selector:
    for stream in streams:
      os.set_blocking(stream.fileno(), False)
      selector.register(stream, selectors.EVENT_READ)
    # A child that lives on may keep the streams open: the process counts.
    while selector.get_map() or process.poll() is None:
      now = time.monotonic()
      if now > deadline:
        return f'took longer than {limits.seconds:g} seconds'
      if now - looked > 0.1:
        looked = now
        if _resident(process.pid) > limits.memory:
          return f'used more than {limits.memory >> 20} MiB of memory'
      for key, _ in selector.select(0.05):
        chunk = os.read(key.fd, 1 << 16)
        held = streams[key.fileobj]
        held += chunk
        if not chunk:
          selector.unregister(key.fileobj)
        elif key.fileobj is process.stderr:
          del held[:-_TAIL]
        elif len(held) > limits.output:
          return f'wrote more than {limits.output} bytes'
      if process.poll() is None:
        ended = now
      elif now > ended + 1.0:
        return None
  return None


def _ending(code: int) -> str:
  """What an exit code tells; unshare and bwrap pass signals on as 128 + n."""
  number = -code if code < 0 else code - 128 if code > 128 else 0
  if number in (signal.SIGXCPU, signal.SIGKILL):
    return 'was killed: it used more time or memory than it may'
  if number:
    with contextlib.suppress(ValueError):
      return f'was ended by {signal.Signals(number).name}'
  return f'ended with exit code {code}'


def _tree(pid: int) -> list[int]:
  """A process and all that it started, directly or not."""
  children: dict[int, list[int]] = {}
  for name in os.listdir('/proc') if os.path.isdir('/proc') else ():
    if name.isdigit():
      with contextlib.suppress(OSError, IndexError, ValueError):
        text = Path('/proc', name, 'stat').read_text(errors='replace')
        parent = int(text.rpartition(')')[2].split()[1])
        children.setdefault(parent, []).append(int(name))
  found = [pid]
  for each in found:
    found += children.get(each, [])
  return found


def _resident(pid: int) -> int:
  """Bytes of memory that a process and all that it started hold."""
  page = os.sysconf('SC_PAGE_SIZE')
  total = 0
  for each in _tree(pid):
    with contextlib.suppress(OSError, IndexError, ValueError):
      total += int(Path('/proc', str(each), 'statm').read_text().split()[1])
  return total * page


def _kill(process: subprocess.Popen[bytes]) -> None:
  """Ends the process and all that it started.

  In a namespace the first process takes all others with it; without, those
  that left the process group are found by their parents.
  """
  for pid in _tree(process.pid)[1:]:
    with contextlib.suppress(OSError):
      os.kill(pid, signal.SIGKILL)
  with contextlib.suppress(OSError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()
