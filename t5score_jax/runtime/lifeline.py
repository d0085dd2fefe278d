"""Detects immediately when another process of the run has died.

Processes keep the connections of the rendezvous open. If a process dies, the
operating system closes its connections; JAX alone would wait in a collective
until a heartbeat is missed (100 s), and abort. Not here: making the connections
(`runtime/rendezvous.py`).
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Mapping

from t5score_jax.runtime import rendezvous


class Lifeline:
  """Watches connections to other processes in a thread.

  Process 0 is connected to all others and reports to them which process died.
  """

  def __init__(
    self,
    peers: Mapping[int, socket.socket],
    timeout: int,
    lost: Callable[[int], None],
  ):
    """Starts watching.

    Args:
      peers: Process -> connection, from `rendezvous.meet`.
      timeout: Seconds of silence after which a host counts as dead.
      lost: Called once, in the thread, with the index of the dead process.
    """
    self._peers = dict(peers)
    self._lost = lost
    self._selector = selectors.DefaultSelector()
    # Closed to stop the thread.
    self._wake, woken = socket.socketpair()
    self._selector.register(woken, selectors.EVENT_READ, None)
    for index, peer in self._peers.items():
      _keep_alive(peer, timeout)
      peer.settimeout(5)
      self._selector.register(peer, selectors.EVENT_READ, index)
    self._thread = threading.Thread(
      target=self._watch, name='lifeline', daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Stops watching; the others see this process end normally."""
    self._wake.close()
    self._thread.join()
    for peer in self._peers.values():
      rendezvous.send(peer, {'bye': True})
      peer.close()

  def _watch(self) -> None:
    while True:
      for key, _ in self._selector.select():
        if key.data is None:
          return
        message = rendezvous.receive(key.fileobj)  # type: ignore[arg-type]
        self._selector.unregister(key.fileobj)
        if 'bye' in message:
          continue
        gone = message.get('lost', key.data)
        for index, peer in self._peers.items():
          if index not in (key.data, gone):
            rendezvous.send(peer, {'lost': gone})
        self._lost(gone)
        return


def _keep_alive(peer: socket.socket, timeout: int) -> None:
  """Makes the operating system probe silent hosts."""
  peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  seconds = max(1, timeout // 4)
  for name, value in (
    ('TCP_KEEPIDLE', seconds),
    ('TCP_KEEPINTVL', seconds),
    ('TCP_KEEPCNT', 3),
  ):
    if hasattr(socket, name):
      peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
