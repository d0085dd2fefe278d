"""Runs an untrusted program on texts: isolated, without network, limited.

Every executable metric runs here. Where bubblewrap or Linux namespaces
(`unshare`) are available, on x86-64 and ARM64:

- no network: the only interface is a loopback that is down;
- only the program's own processes are visible, and all of them end with it;
- only /tmp and /dev/shm can be written: new file systems of `Limits.scratch`
  bytes together. Home folders, /run, /srv, /var/tmp, the board's folder and the
  host's /tmp are hidden, as are all devices but /dev/null and its like; all
  other files are read-only;
- the environment is empty; the program has a user of its own if this runs as
  root, otherwise the caller's, without capabilities; it can neither gain
  privileges nor create namespaces;
- limits on time, memory, processes, output and files. Memory is the address
  space of each process and the memory of all processes together; a filter of
  system calls forbids memory outside of processes (memfd, System V). Where a
  cgroup (version 2) can be created, the kernel enforces the limit and counts
  its own buffers too; elsewhere the sum is sampled ten times a second.

Not promised: safety against vulnerabilities of the kernel; that world-readable
files, such as those in /usr and /etc, are not read; that the machine is not
slowed down until a limit is reached. Where neither mechanism is available,
`run` raises IsolationError unless `isolation='none'`, which keeps the limits
and the empty environment but hides neither the network nor files.
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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.leaderboard.web import sandbox_child

ISOLATIONS = ('required', 'none')
#: Where version 2 of cgroups is mounted.
CGROUPS = Path('/sys/fs/cgroup')
# Bytes of standard error that are kept for the message.
_TAIL = 2000
_MARK = 'sandbox: '
_HIDDEN = ('/home', '/root', '/run', '/srv', '/tmp', '/var/tmp')
_DEVICES = ('null', 'zero', 'full', 'random', 'urandom')
_INSIDE = '/tmp/metric'
# Users that no account has, one per run (the range that systemd uses).
_FIRST_USER, _USERS = 61184, 4336


class ProgramError(T5ScoreError, ValueError):
  """A program failed or exceeded a limit; the message says how."""


class IsolationError(T5ScoreError, ValueError):
  """This machine cannot isolate programs; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """The resources of a program.

  Attributes:
    seconds: Seconds of wall-clock time, and of CPU time per process.
    memory: Bytes: address space of each process, memory of all together.
    output: Bytes of standard output.
    processes: Number of processes at a time.
    scratch: Bytes of files: seven eighths in /tmp, the rest in /dev/shm.
  """

  seconds: float = 600.0
  memory: int = 4 << 30
  output: int = 64 << 20
  processes: int = 64
  scratch: int = 256 << 20


@functools.cache
def mechanism() -> str:
  """The isolation available: 'bubblewrap', 'namespaces' or 'none'."""
  if sys.platform != 'linux':
    return 'none'
  for kind in ('bubblewrap', 'namespaces'):
    with contextlib.suppress(OSError, ProgramError):
      trial = b'#!/bin/sh\necho isolated\n'
      if _run(kind, trial, b'', Limits(seconds=20), ()) == b'isolated\n':
        return kind
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
    limits: Its resources.
    hidden: Folders to hide, besides the usual ones.
    isolation: 'required', or 'none' for limits only.

  Returns:
    Its standard output.

  Raises:
    ProgramError: The program failed or exceeded a limit.
    IsolationError: Isolation is required but not available.
  """
  if isolation not in ISOLATIONS:
    raise OptionError(f'isolation must be one of {ISOLATIONS}')
  kind = mechanism() if isolation == 'required' else 'none'
  if kind == 'none' and isolation == 'required':
    raise IsolationError(
      'programs cannot be isolated here: install bubblewrap (0.7 or later), or'
      ' allow user namespaces (and util-linux `unshare`, Linux 5.12); or trust'
      ' the program and run it without isolation'
    )
  return _run(kind, program, data, limits or Limits(), hidden)


def _run(
  kind: str,
  program: bytes,
  data: bytes,
  limits: Limits,
  hidden: Sequence[str | os.PathLike[str]],
) -> bytes:
  with tempfile.TemporaryDirectory(
    prefix='t5score_metric_', ignore_cleanup_errors=True
  ) as folder:
    os.chmod(folder, 0o755)
    path = Path(folder) / 'program'
    path.write_bytes(program)
    path.chmod(0o555)
    with tempfile.TemporaryFile() as stdin, _cgroup(limits) as group:
      stdin.write(data)
      stdin.seek(0)
      command = _command(kind, folder, limits, hidden)
      if group is not None:
        join = '{ echo $$ >"$0/cgroup.procs"; } 2>/dev/null; exec "$@"'
        command = ['sh', '-c', join, str(group), *command]
      return _watch(command, stdin, limits, group)


def _command(
  kind: str,
  folder: str,
  limits: Limits,
  hidden: Sequence[str | os.PathLike[str]],
) -> list[str]:
  """The command that isolates and runs the program in a folder."""
  root = os.geteuid() == 0
  unseen = [*_HIDDEN, *(os.path.realpath(path) for path in hidden)]
  unseen = [
    path
    for path in dict.fromkeys(unseen)
    if os.path.isdir(path)
    and not any(_inside(path, other) for other in unseen if other != path)
  ]
  # The interpreter is needed, wherever it is installed.
  prefixes = {os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)}
  kept = [
    p for p in sorted(prefixes) if any(_inside(p, path) for path in unseen)
  ]
  shared = limits.scratch // 8
  writable = {'/tmp': limits.scratch - shared, '/dev/shm': shared}
  settings = {
    'mounts': kind == 'namespaces',
    'filter': kind != 'none',
    'folder': folder,
    'inside': folder if kind == 'none' else _INSIDE,
    'hidden': ['/dev', *unseen, '/dev/shm'],
    'kept': [*kept, *(f'/dev/{name}' for name in _DEVICES)],
    'writable': writable,
    'user': _FIRST_USER + secrets.randbelow(_USERS) if root else None,
    'mark': _MARK,
    'limits': {
      'CPU': max(1, int(limits.seconds) + 1),
      'AS': limits.memory,
      'FSIZE': max(limits.scratch, limits.output),
      'NPROC': limits.processes,
      'NOFILE': 256,
      'CORE': 0,
      'MSGQUEUE': 0,
      'MEMLOCK': 1 << 16,
    },
  }
  source = inspect.getsource(sandbox_child)
  child = [sys.executable, '-I', '-S', '-c', source, json.dumps(settings)]
  if kind == 'none':
    return child
  if kind == 'namespaces':
    user = [] if root else ['--user', '--map-root-user']
    return [
      *'setpriv --pdeathsig KILL unshare'.split(),
      *user,
      *'--mount --net --pid --ipc --uts --fork --kill-child --'.split(),
      *child,
    ]
  command = 'bwrap --unshare-net --unshare-pid --unshare-ipc'.split()
  command += '--unshare-uts --die-with-parent --new-session --clearenv'.split()
  if root:
    # In a user namespace, another user would still be root for the files.
    for capability in ('SETUID', 'SETGID', 'SETPCAP'):
      command += ['--cap-add', f'CAP_{capability}']
  else:
    command += '--unshare-user --uid 65534 --gid 65534'.split()
  command += '--ro-bind / / --dev /dev --proc /proc'.split()
  for path in [*unseen, '/dev/shm']:
    size, mode = writable.get(path, 65536), 1777 if path in writable else 755
    command += f'--size {size} --perms {mode} --tmpfs'.split() + [path]
  for path in kept:
    command += ['--ro-bind', path, path]
  command += ['--ro-bind', folder, _INSIDE]
  for path in ['/dev', *unseen]:
    if path not in writable:
      command += ['--remount-ro', path]
  return [*command, '--', *child]


def _inside(path: str, folder: str) -> bool:
  return path == folder or path.startswith(folder + '/')


@contextlib.contextmanager
def _cgroup(limits: Limits) -> Iterator[Path | None]:
  """A cgroup (version 2) with a memory limit; None if none can be created."""
  group = None
  with contextlib.suppress(OSError, ValueError):
    lines = Path('/proc/self/cgroup').read_text().splitlines()
    own = next(line[3:] for line in lines if line.startswith('0::')).strip('/')
    # A cgroup with processes cannot limit its children: use a sibling.
    for parent in ((CGROUPS / own).parent, CGROUPS / own):
      if (
        parent.is_relative_to(CGROUPS)
        and 'memory' in (parent / 'cgroup.subtree_control').read_text().split()
      ):
        path = parent / f't5score-{secrets.token_hex(8)}'
        path.mkdir()
        group = path
        # Files in /tmp and /dev/shm are memory too.
        (path / 'memory.max').write_text(str(limits.memory + limits.scratch))
        with contextlib.suppress(OSError):  # A kernel without swap.
          (path / 'memory.swap.max').write_text('0')
        (path / 'memory.oom.group').write_text('1')
        break
  try:
    yield group
  finally:
    if group is not None:
      _remove(group)


def _remove(group: Path) -> None:
  """Removes a cgroup, once its processes have ended."""
  with contextlib.suppress(OSError):
    (group / 'cgroup.kill').write_text('1')
  for _ in range(25):
    try:
      group.rmdir()
      return
    except OSError:
      time.sleep(0.02)


def _watch(
  command: list[str], stdin: IO[bytes], limits: Limits, group: Path | None
) -> bytes:
  """Runs the command; kills all its processes at the first exceeded limit."""
  # PATH finds bwrap and unshare; the child empties the program's environment.
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
  if group is not None and _ran_out(group):
    problem = _too_much(limits)
  if problem is None and process.returncode:
    problem = _ending(process.returncode)
    if _MARK in stderr:
      problem = f'cannot be started: {stderr.partition(_MARK)[2]}'
    elif stderr:
      problem += f'; standard error: {stderr[-500:]}'
  if problem is not None:
    raise ProgramError(f'the program {problem}')
  return bytes(streams[process.stdout])


def _ran_out(group: Path) -> bool:
  """Whether the kernel killed a process at the memory limit."""
  with contextlib.suppress(OSError):
    lines = (group / 'memory.events').read_text().splitlines()
    return any(x.startswith('oom_kill ') and x[9:] != '0' for x in lines)
  return False


def _too_much(limits: Limits) -> str:
  return f'used more than {limits.memory >> 20} MiB of memory'


def _pump(
  process: subprocess.Popen[bytes],
  streams: dict[Any, bytearray],
  limits: Limits,
) -> str | None:
  """Reads both streams to their ends; returns the exceeded limit, if any."""
  ended = time.monotonic()
  deadline = ended + limits.seconds
  sampled = 0.0
  with selectors.DefaultSelector() as selector:
    for stream in streams:
      os.set_blocking(stream.fileno(), False)
      selector.register(stream, selectors.EVENT_READ)
    # Surviving children may keep the streams open: wait for the process only.
    while selector.get_map() or process.poll() is None:
      now = time.monotonic()
      if now > deadline:
        return f'took longer than {limits.seconds:g} seconds'
      if now - sampled > 0.1:
        sampled = now
        if _memory(process.pid) > limits.memory:
          return _too_much(limits)
      for key, _ in selector.select(0.05):
        chunk = os.read(key.fd, 1 << 16)
        read = streams[key.fileobj]
        read += chunk
        if not chunk:
          selector.unregister(key.fileobj)
        elif key.fileobj is process.stderr:
          del read[:-_TAIL]
        elif len(read) > limits.output:
          return f'wrote more than {limits.output} bytes'
      if process.poll() is None:
        ended = now
      elif now > ended + 1.0:
        return None
  return None


def _ending(code: int) -> str:
  """An exit code in words; unshare and bwrap report signals as 128 + n."""
  number = -code if code < 0 else code - 128 if code > 128 else 0
  if number in (signal.SIGXCPU, signal.SIGKILL):
    return 'was killed: it used more time or memory than allowed'
  if number:
    with contextlib.suppress(ValueError):
      return f'was ended by {signal.Signals(number).name}'
  return f'ended with exit code {code}'


def _tree(pid: int) -> list[int]:
  """A process and all its descendants."""
  children: dict[int, list[int]] = {}
  for name in os.listdir('/proc') if os.path.isdir('/proc') else ():
    if name.isdigit():
      with contextlib.suppress(OSError, IndexError, ValueError):
        text = Path('/proc', name, 'stat').read_text(errors='replace')
        parent = int(text.rpartition(')')[2].split()[1])
        children.setdefault(parent, []).append(int(name))
  tree = [pid]
  for each in tree:
    tree += children.get(each, [])
  return tree


def _memory(pid: int) -> int:
  """Bytes of memory of a process and its descendants.

  Private memory is what is resident. Shared writable mappings count in full,
  once: `madvise` takes their pages from a process without freeing them.
  """
  private, shared = 0, {}
  for each in _tree(pid):
    with contextlib.suppress(OSError, IndexError, ValueError):
      folder = Path('/proc', str(each))
      _, resident, of_files, *_ = (folder / 'statm').read_text().split()
      private += int(resident) - int(of_files)
      for line in (folder / 'maps').read_text(errors='replace').splitlines():
        span, access, _, device, inode, *_ = line.split()
        if access[1] + access[3] == 'ws':
          start, end = (int(x, 16) for x in span.split('-'))
          shared[device, inode, start] = end - start
  return private * os.sysconf('SC_PAGE_SIZE') + sum(shared.values())


def _kill(process: subprocess.Popen[bytes]) -> None:
  """Kills the process and all its descendants.

  In a PID namespace, all processes end with the first; without one, those that
  left the process group are found by their parents.
  """
  for pid in _tree(process.pid)[1:]:
    with contextlib.suppress(OSError):
      os.kill(pid, signal.SIGKILL)
  with contextlib.suppress(OSError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()
