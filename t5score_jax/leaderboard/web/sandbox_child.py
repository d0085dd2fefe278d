"""The last steps inside the isolation, before a metric's program takes over.

Run as a script of its own (`python -I -S -c SOURCE SETTINGS`), by `sandbox`
alone: it imports nothing of this library, since nothing of it may be visible by
then.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any

_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MS_NOSUID, _MS_NODEV = 2, 4
_MOUNT_SETATTR = 442  # the same on every architecture
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 24, 38, 4
_LAST_CAPABILITY = 63

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


def _read_only_root() -> None:
  """Everything that is mounted becomes read-only, in this namespace."""
  attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
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


def see_little(settings: dict[str, Any]) -> None:
  """Hides what the program has no business with; /tmp is new and small."""
  _mount('none', '/', None, _MS_REC | _MS_PRIVATE)
  # Held open: their names vanish when what is above them is hidden.
  kept = [(path, os.open(path, os.O_PATH)) for path in settings['kept']]
  work = os.open(settings['folder'], os.O_PATH)
  _read_only_root()
  for path in settings['hidden']:
    if os.path.isdir(path):
      size = f'size={settings["scratch"]},mode=1777'
      _mount('tmpfs', path, 'tmpfs', _MS_NOSUID | _MS_NODEV, size)
  for path, descriptor in kept:
    if not os.path.isdir(path):
      os.makedirs(path)
      _mount(f'/proc/self/fd/{descriptor}', path, None, _MS_BIND | _MS_REC)
  os.makedirs(settings['inside'])
  _mount(f'/proc/self/fd/{work}', settings['inside'], None, _MS_BIND)
  try:
    _mount('proc', '/proc', 'proc', _MS_NOSUID | _MS_NODEV)
  except OSError:  # inside a container that masks its /proc
    _mount('tmpfs', '/proc', 'tmpfs', _MS_NOSUID | _MS_NODEV, 'size=4k')


def limit(settings: dict[str, Any]) -> None:
  """Limits of this process and of those that it starts."""
  for name, value in settings['limits'].items():
    resource.setrlimit(getattr(resource, f'RLIMIT_{name}'), (value, value))


def drop(settings: dict[str, Any]) -> None:
  """Gives up every privilege, for good."""
  if settings['user'] is not None:
    os.setgroups([])
    os.setresgid(*[settings['user']] * 3)
    os.setresuid(*[settings['user']] * 3)
  else:
    for capability in range(_LAST_CAPABILITY):
      _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
  _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 'no new privileges')
  _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
  """Isolates, limits, gives up privileges, and becomes the program."""
  settings = json.loads(sys.argv[1])
  try:
    if settings['mounts']:
      see_little(settings)
    os.chdir(settings['inside'])
    limit(settings)
    drop(settings)
    program = os.path.join(settings['inside'], settings['program'])
    os.execve(program, [program], {})
  except OSError as error:
    sys.stderr.write(f'{settings["mark"]}{error}\n')
    sys.stderr.flush()
    os._exit(125)


if __name__ == '__main__':
  main()
