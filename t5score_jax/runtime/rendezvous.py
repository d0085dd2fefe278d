"""Processes find each other before JAX starts, and say who is missing.

JAX's own start aborts the program without a word of use when a process does not
come, comes twice or brings another version. So process 0 first listens on the
coordinator's port, everyone introduces itself, and when all are there the port
is handed over. Not here: the start itself (`runtime/processes.py`), and what
the connections are kept for (`runtime/lifeline.py`).
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from t5score_jax.errors import T5ScoreError

_PROTOCOL = 't5score-rendezvous'
# An introduction and an answer are one short line each.
_MOST_BYTES = 4096


class RendezvousError(T5ScoreError, RuntimeError):
  """Not all processes came together; the message says which and why."""


def meet(
  host: str,
  port: int,
  count: int,
  index: int,
  timeout: float,
  release: str = '',
) -> dict[int, socket.socket]:
  """Returns when all processes are there, in each of them.

  Args:
    host: Of process 0, as the others reach it.
    port: Free there; free again afterwards.
    count: Processes.
    index: Of this one, 0 to count - 1.
    timeout: Seconds to wait.
    release: Versions that must be the same everywhere.

  Returns:
    Process -> connection: in process 0 to all others, in the others to it.

  Raises:
    RendezvousError: Out of reach, too few in time, twice the same index, or
      processes that do not belong together.
  """
  deadline = time.monotonic() + timeout
  if index == 0:
    return _gather(port, count, deadline, timeout, release)
  return {0: _introduce(host, port, count, index, deadline, timeout, release)}


def _gather(
  port: int, count: int, deadline: float, timeout: float, release: str
) -> dict[int, socket.socket]:
  try:
    server = _listen(port)
  except OSError as error:
    raise RendezvousError(
      f'process 0 cannot listen on port {port} ({error.strerror}): another '
      'run is there? Choose another port in --coordinator_address'
    ) from None
  came: dict[int, socket.socket] = {}
  try:
    with server:
      while not _complete(came, count):
        left = deadline - time.monotonic()
        if left <= 0:
          missing = sorted(set(range(1, count)) - set(came))
          raise RendezvousError(
            f'{len(came) + 1} of {count} processes came within '
            f'{timeout:.0f} s; missing: {_listed(missing)}. Do they run, '
            f'with this coordinator address, and is port {port} open?'
          )
        server.settimeout(left)
        try:
          peer, _ = server.accept()
        except TimeoutError:
          continue
        _welcome(peer, came, count, release)
    for peer in came.values():
      send(peer, {'go': True})
  except RendezvousError as error:
    for peer in came.values():
      send(peer, {'error': f'process 0: {error}'})
      peer.close()
    raise
  return came


def _welcome(
  peer: socket.socket, came: dict[int, socket.socket], count: int, release: str
) -> None:
  """Takes one newcomer in; strangers are sent away."""
  peer.settimeout(5)
  told = receive(peer)
  if told.get('protocol') != _PROTOCOL:
    peer.close()
    return
  index = told.get('index')
  if not isinstance(index, int):
    peer.close()
    return
  wrong = ''
  if told.get('count') != count:
    wrong = f'process {index} has --process_count {told.get("count")}, '
    wrong += f'process 0 has {count}'
  elif told.get('release') != release:
    wrong = f'process {index} has {told.get("release")}, process 0 has '
    wrong += f'{release}: install the same everywhere'
  elif index in came and _alive(came[index]):
    wrong = f'two processes have --process_index {index}'
  if wrong:
    send(peer, {'error': wrong})
    peer.close()
    raise RendezvousError(wrong)
  came[index] = peer


def _introduce(
  host: str,
  port: int,
  count: int,
  index: int,
  deadline: float,
  timeout: float,
  release: str,
) -> socket.socket:
  words = {
    'protocol': _PROTOCOL,
    'index': index,
    'count': count,
    'release': release,
  }
  why = 'no answer'
  while (left := deadline - time.monotonic()) > 0:
    peer = None
    try:
      peer = socket.create_connection((host, port), min(left, 5))
      send(peer, words)
      peer.settimeout(max(deadline - time.monotonic(), 0.1))
      answer = receive(peer)
    except OSError as error:
      why = error.strerror or str(error) or type(error).__name__
      answer = {}
    if peer is not None and answer.get('go'):
      return peer
    if peer is not None:
      peer.close()
    if 'error' in answer:
      raise RendezvousError(answer['error'])
    time.sleep(0.2)
  raise RendezvousError(
    f'process {index} of {count} found no process 0 at {host}:{port} within '
    f'{timeout:.0f} s ({why}): does it run there, and is the port open?'
  )


def _listen(port: int) -> socket.socket:
  if socket.has_dualstack_ipv6():
    try:
      return socket.create_server(
        ('', port), family=socket.AF_INET6, dualstack_ipv6=True
      )
    except OSError as error:
      if error.strerror == 'Address already in use':
        raise
  return socket.create_server(('', port))


def _complete(came: dict[int, socket.socket], count: int) -> bool:
  """Whether all are there now; those that left again are struck out."""
  if len(came) < count - 1:
    return False
  for index in [i for i, peer in came.items() if not _alive(peer)]:
    came.pop(index).close()
  return len(came) == count - 1


def _alive(peer: socket.socket) -> bool:
  """Whether the other side still waits: nothing has come, nor an end."""
  peer.setblocking(False)
  try:
    return bool(peer.recv(1, socket.MSG_PEEK))
  except BlockingIOError:
    return True
  except OSError:
    return False


def send(peer: socket.socket, words: dict[str, Any]) -> None:
  """Sends one line of JSON; in vain to one who is gone."""
  try:
    peer.settimeout(5)
    peer.sendall(json.dumps(words).encode('utf-8') + b'\n')
  except OSError:
    pass  # It went away; whoever misses it says so.


def receive(peer: socket.socket) -> dict[str, Any]:
  """One line of JSON; {} for an end, silence or something else."""
  data = b''
  try:
    while not data.endswith(b'\n') and len(data) < _MOST_BYTES:
      part = peer.recv(_MOST_BYTES)
      if not part:
        break
      data += part
    words = json.loads(data)
  except (OSError, ValueError):
    return {}
  return words if isinstance(words, dict) else {}


def _listed(numbers: list[int]) -> str:
  shown = ', '.join(map(str, numbers[:8]))
  return shown + (f' and {len(numbers) - 8} more' if len(numbers) > 8 else '')
