"""Connects all processes before JAX starts, with errors that name them.

`jax.distributed.initialize` aborts the program without a useful message if a
process is missing, or has a duplicate index or a different version. Therefore
process 0 first listens on the coordinator's port, and the others introduce
themselves. When all are connected, the port is released for JAX. Not here: the
start itself (`runtime/processes.py`) and the later use of the connections
(`runtime/lifeline.py`).
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from t5score_jax.errors import T5ScoreError

_PROTOCOL = 't5score-rendezvous'
# Introductions and answers are one short line each.
_MOST_BYTES = 4096
# Seconds for one message, and between attempts to connect.
_PATIENCE = 5.0
_PAUSE = 0.2


class RendezvousError(T5ScoreError, RuntimeError):
  """The processes did not all connect; the message says which and why."""


def meet(
  host: str,
  port: int,
  count: int,
  index: int,
  timeout: float,
  release: str = '',
) -> dict[int, socket.socket]:
  """Waits until all processes have connected; each of them calls this.

  Args:
    host: Host of process 0, as the others reach it.
    port: Free port of that host; free again afterwards.
    count: Number of processes.
    index: Index of this process, from 0.
    timeout: Seconds to wait.
    release: Versions that must be the same in all processes.

  Returns:
    Process -> connection: in process 0 to all others, in the others to it.

  Raises:
    RendezvousError: Process 0 is unreachable, processes are missing, two have
      the same index, or versions or counts differ.
  """
  if index == 0:
    return _gather(port, count, timeout, release)
  introduction = {
    'protocol': _PROTOCOL,
    'index': index,
    'count': count,
    'release': release,
  }
  return {0: _introduce((host, port), introduction, timeout)}


def _gather(
  port: int, count: int, timeout: float, release: str
) -> dict[int, socket.socket]:
  deadline = time.monotonic() + timeout
  connected: dict[int, socket.socket] = {}
  try:
    with _listen(port) as server:
      while not _complete(connected, count):
        if (left := deadline - time.monotonic()) <= 0:
          missing = [str(i) for i in range(1, count) if i not in connected]
          more = f' and {len(missing) - 8} more' if len(missing) > 8 else ''
          raise RendezvousError(
            f'{len(connected) + 1} of {count} processes connected within '
            f'{timeout:.0f} s; missing: {", ".join(missing[:8])}{more}. Are '
            f'they running with this coordinator address, and is port {port} '
            'open?'
          )
        server.settimeout(left)
        try:
          peer, _ = server.accept()
        except TimeoutError:
          continue
        _welcome(peer, connected, count, release)
  except RendezvousError as error:
    for peer in connected.values():
      send(peer, {'error': f'process 0: {error}'})
      peer.close()
    raise
  for peer in connected.values():
    send(peer, {'go': True})
  return connected


def _listen(port: int) -> socket.socket:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  try:
    return socket.create_server(('', port), family=family, dualstack_ipv6=both)
  except OSError as error:
    raise RendezvousError(
      f'process 0 cannot listen on port {port} ({error.strerror}): is another '
      'run using it? Choose another port in --coordinator_address'
    ) from None


def _welcome(
  peer: socket.socket,
  connected: dict[int, socket.socket],
  count: int,
  release: str,
) -> None:
  """Accepts one process; closes connections of other programs."""
  peer.settimeout(_PATIENCE)
  message = receive(peer)
  index = message.get('index')
  if message.get('protocol') != _PROTOCOL or not isinstance(index, int):
    peer.close()
    return
  wrong = ''
  if message.get('count') != count:
    wrong = f'process {index} has --process_count {message.get("count")}, '
    wrong += f'process 0 has {count}'
  elif message.get('release') != release:
    wrong = f'process {index} has {message.get("release")}, process 0 has '
    wrong += f'{release}: install the same version everywhere'
  elif index in connected and _alive(connected[index]):
    wrong = f'two processes have --process_index {index}'
  if wrong:
    send(peer, {'error': wrong})
    peer.close()
    raise RendezvousError(wrong)
  connected[index] = peer


def _complete(connected: dict[int, socket.socket], count: int) -> bool:
  """Whether all are connected now; drops those that disconnected."""
  for index in [i for i, peer in connected.items() if not _alive(peer)]:
    connected.pop(index).close()
  return len(connected) == count - 1


def _alive(peer: socket.socket) -> bool:
  """Whether the other side is still waiting."""
  peer.setblocking(False)
  try:
    return bool(peer.recv(1, socket.MSG_PEEK))
  except BlockingIOError:
    return True
  except OSError:
    return False


def _introduce(
  address: tuple[str, int], introduction: dict[str, Any], timeout: float
) -> socket.socket:
  deadline = time.monotonic() + timeout
  why = 'no answer'
  while (left := deadline - time.monotonic()) > 0:
    try:
      peer = socket.create_connection(address, min(left, _PATIENCE))
    except OSError as error:
      why = error.strerror or str(error) or type(error).__name__
    else:
      send(peer, introduction)
      peer.settimeout(max(deadline - time.monotonic(), 0.1))
      answer = receive(peer)
      if answer.get('go'):
        return peer
      peer.close()
      if 'error' in answer:
        raise RendezvousError(answer['error'])
    time.sleep(_PAUSE)
  host, port = address
  raise RendezvousError(
    f'process {introduction["index"]} of {introduction["count"]} could not '
    f'reach process 0 at {host}:{port} within {timeout:.0f} s ({why}): is it '
    'running, and is the port open?'
  )


def send(peer: socket.socket, message: dict[str, Any]) -> None:
  """Sends one line of JSON; ignores closed connections."""
  try:
    peer.settimeout(_PATIENCE)
    peer.sendall(json.dumps(message).encode('utf-8') + b'\n')
  except OSError:
    pass  # Its absence is reported elsewhere.


def receive(peer: socket.socket) -> dict[str, Any]:
  """Receives one line of JSON; {} at the end, on a timeout or other data."""
  try:
    with peer.makefile('rb', buffering=0) as stream:
      message = json.loads(stream.readline(_MOST_BYTES))
  except (OSError, ValueError):
    return {}
  return message if isinstance(message, dict) else {}
