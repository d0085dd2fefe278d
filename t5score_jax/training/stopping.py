"""Ends a run early, in all processes, after Ctrl-C or SIGTERM.

A cluster scheduler announces preemption by SIGTERM, often to one of many
processes. All processes must save at the same step, so they agree on it between
calls to the device. Not here: saving (`training/loop.py`).
"""

from __future__ import annotations

import collections
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5score_jax.runtime import processes

# `Result.reason` by signal; the last one has priority.
REASONS = {signal.SIGINT: 'interrupted', signal.SIGTERM: 'preempted'}
_WORDS = ('', *REASONS.values())


class Stopping:
  """Turns the first Ctrl-C or SIGTERM into a request to save and end.

  A context manager. A second signal has its usual effect. With several
  processes, all of them see a request by any one after the same call of
  `check`, at most two calls later.

  Attributes:
    reason: 'interrupted', 'preempted', or '' to continue. It changes only in
      `check` and is the same in all processes.
  """

  def __init__(self) -> None:
    self.reason = ''
    self._code = 0
    self._old: dict[int, Any] = {}
    self._agreement = _Agreement() if processes.count() > 1 else None

  def __enter__(self) -> Stopping:
    for number in REASONS:
      try:
        self._old[number] = signal.signal(number, self._request)
      except ValueError:
        break  # Only the main thread can handle signals.
    return self

  def __exit__(self, *unused: Any) -> None:
    self._restore()

  def check(self) -> bool:
    """Whether to end now; all processes must call it equally often."""
    code = self._code
    if self._agreement is not None:
      code = self._agreement.ask(code)
    self.reason = _WORDS[code]
    return bool(code)

  def _request(self, number: int, frame: Any) -> None:
    del frame
    self._code = _WORDS.index(REASONS[signal.Signals(number)])
    self._restore()

  def _restore(self) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)
    self._old = {}


class _Agreement:
  """Computes the maximum over processes, one call late.

  The devices reduce the numbers of a call after its steps. The result is read
  once the next call has been queued, so no device waits for a host.
  """

  def __init__(self) -> None:
    mesh = Mesh(np.asarray(jax.devices()), ('devices',))
    self._split = NamedSharding(mesh, PartitionSpec('devices'))
    self._most = jax.jit(
      jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec())
    )
    self._waiting: collections.deque[jax.Array] = collections.deque()

  def ask(self, number: int) -> int:
    """Submits the number of this process; returns the last call's maximum."""
    own = np.full(1, number, np.int32)
    numbers = jax.make_array_from_callback(
      (self._split.mesh.size,), self._split, lambda index: own
    )
    self._waiting.append(self._most(numbers))
    if len(self._waiting) < 2:
      return 0
    return int(self._waiting.popleft().addressable_data(0))
