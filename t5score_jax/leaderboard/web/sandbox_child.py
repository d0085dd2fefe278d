"""The last steps inside the sandbox, before a metric's program is executed.

`sandbox.py` runs this as a script (`python -I -S -c SOURCE SETTINGS`). It
imports nothing of this library, which is hidden at that point.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from typing import Any

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_MOUNT_SETATTR = 442  # The same on every architecture.
_AT_RECURSIVE = 0x8000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_LAST_CAPABILITY = 63

# Architecture of AUDIT_ARCH_*, numbers of clone and of forbidden system calls.
# memfd_create, memfd_secret, shmget, msgget: memory that no process maps, which
# the limits would miss. unshare, setns: namespaces, which give capabilities.
# The others reach much of the kernel and no metric needs them: mount, umount2,
# pivot_root, bpf, userfaultfd, perf_event_open, ptrace, keys.
_SYSTEM_CALLS = {
  'x86_64': (
    0xC000003E,
    56,
    (319, 447, 29, 68, 272, 308, 165, 166, 155, 321, 323, 298, 101)
    + (248, 249, 250),
  ),
  'aarch64': (
    0xC00000B7,
    220,
    (279, 447, 194, 186, 97, 268, 40, 39, 41, 280, 282, 241, 117)
    + (217, 218, 219),
  ),
}
# io_uring_setup, open_tree, move_mount, fsopen, fsmount, mount_setattr: the
# same numbers on every architecture, as is clone3.
_NEW_CALLS = (425, 428, 429, 430, 432, 442)
_CLONE3 = 435
_CLONE_NEW = 0x7E020080  # All flags of namespaces.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050000, 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
  if result != 0:
    number = ctypes.get_errno()
    raise OSError(number, f'{what}: {os.strerror(number)}')


def _mount(
  source: str, target: str, kind: str | None, flags: int, data: str = ''
) -> None:
  arguments = (
    source.encode(),
    target.encode(),
    kind.encode() if kind else None,
    ctypes.c_ulong(flags),
    data.encode() if data else None,
  )
  _check(_libc.mount(*arguments), f'mount {target}')


def hide(settings: dict[str, Any]) -> None:
  """Makes all files read-only and hides folders; some are new and writable."""
  _mount('none', '/', None, _MS_REC | _MS_PRIVATE)
  # Kept open, because hiding their parent folders removes their names.
  kept = [(path, os.open(path, os.O_PATH)) for path in settings['kept']]
  kept.append((settings['inside'], os.open(settings['folder'], os.O_PATH)))
  attributes = (ctypes.c_uint64 * 4)(_MS_RDONLY | _MS_NOSUID, 0, 0, 0)
  _check(
    _libc.syscall(
      _MOUNT_SETATTR,
      -100,
      b'/',
      _AT_RECURSIVE,
      ctypes.byref(attributes),
      ctypes.c_size_t(32),
    ),
    'make / read-only (needs Linux 5.12)',
  )
  flags = _MS_NOSUID | _MS_NODEV
  for path in settings['hidden']:
    os.makedirs(path, exist_ok=True)
    size = settings['writable'].get(path)
    data = 'size=64k,mode=755'
    if size is not None:
      data = f'size={size},nr_inodes={max(1000, size >> 14)},mode=1777'
    _mount('tmpfs', path, 'tmpfs', flags, data)
  for path, descriptor in kept:
    source = f'/proc/self/fd/{descriptor}'
    if not os.path.exists(path):
      if os.path.isdir(source):
        os.makedirs(path)
      else:
        open(path, 'x').close()
      _mount(source, path, None, _MS_BIND | _MS_REC)
    os.close(descriptor)
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    os.symlink(f'/proc/self/fd/{number}', f'/dev/{name}')
  os.symlink('/proc/self/fd', '/dev/fd')
  for path in settings['hidden']:
    if path not in settings['writable']:
      _mount('none', path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)
  try:
    _mount('proc', '/proc', 'proc', flags)
  except OSError:  # A container that masks its /proc.
    _mount('tmpfs', '/proc', 'tmpfs', flags | _MS_RDONLY, 'size=4k')


def drop(settings: dict[str, Any]) -> None:
  """Gives up all privileges permanently."""
  if settings['user'] is not None:
    os.setgroups([])
    os.setresgid(*[settings['user']] * 3)
    os.setresuid(*[settings['user']] * 3)
  else:
    for capability in range(_LAST_CAPABILITY):
      _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
  _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 'no new privileges')
  _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
  # A change of the user resets this.
  _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Program(ctypes.Structure):
  _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_char_p)]


def forbid() -> None:
  """Forbids system calls (seccomp) that evade limits or create namespaces."""
  machine = platform.machine()
  if machine not in _SYSTEM_CALLS:
    raise OSError(f'no filter of system calls for the architecture {machine}')
  architecture, clone, calls = _SYSTEM_CALLS[machine]

  # (operation, operand, instructions to skip if true, if false)
  def refuse(operation: int, operand: int, error: int = _EPERM) -> list[Any]:
    return [(operation, operand, 0, 1), (_RETURN, _ERRNO | error, 0, 0)]

  code = [
    (_LOAD, 4, 0, 0),
    (_EQUAL, architecture, 1, 0),
    (_RETURN, _ERRNO | _EPERM, 0, 0),
    (_LOAD, 0, 0, 0),
    *refuse(_AT_LEAST, 0x40000000),  # x32.
    # Without clone3, whose flags a filter cannot read, libraries use clone.
    *refuse(_EQUAL, _CLONE3, _ENOSYS),
    *(part for n in calls + _NEW_CALLS for part in refuse(_EQUAL, n)),
    (_EQUAL, clone, 0, 3),
    (_LOAD, 16, 0, 0),
    *refuse(_ANY_BIT, _CLONE_NEW),
    (_RETURN, _ALLOW, 0, 0),
  ]
  packed = b''.join(struct.pack('HBBI', c, t, f, k) for c, k, t, f in code)
  program = _Program(len(code), packed)
  _check(
    _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), 'seccomp'
  )


def main() -> None:
  """Isolates, limits, drops privileges, and executes the program."""
  settings = json.loads(sys.argv[1])
  try:
    if settings['mounts']:
      hide(settings)
    os.chdir(settings['inside'])
    for name, value in settings['limits'].items():
      resource.setrlimit(getattr(resource, f'RLIMIT_{name}'), (value, value))
    drop(settings)
    if settings['filter']:
      forbid()
    program = os.path.join(settings['inside'], 'program')
    os.execve(program, [program], {})
  except OSError as error:
    sys.stderr.write(f'{settings["mark"]}{error}\n')
    sys.stderr.flush()
    os._exit(125)


if __name__ == '__main__':
  main()
