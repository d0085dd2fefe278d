"""When a run is to end before its time: Ctrl-C, SIGTERM, in all processes.

The scheduler of a cluster announces that a machine will be taken away by
SIGTERM, often to one process of many. All must save at the same step, so they
agree on it between calls to the device. Not here: saving (`training/loop.py`).
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

# Reason of an `Outcome` by signal, the one that wins last.
REASONS = {signal.SIGINT: 'interrupted', signal.SIGTERM: 'preempted'}
_WORDS = ('', *REASONS.values())


class Stopping:
  """Turns the first Ctrl-C or SIGTERM into a request to save and end.

  A context manager. The second signal acts as usual. With many processes the
  request of any is known to all after the same call of `check`, at most two
  calls later.

  Attributes:
    reason: 'interrupted', 'preempted', or '' to go on; changes in `check`
      alone, and is the same in all processes.
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
        break  # Not the main thread: signals are someone else's.
    return self

  def __exit__(self, *unused: Any) -> None:
    self._restore()

  def check(self) -> bool:
    """Whether to end now; every process calls it as often as the others."""
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
  """The largest number that any process gave, one call late.

  The numbers of a call travel behind its steps on the devices; the answer is
  read when the next call has been handed over, so that no device waits for a
  host.
  """

  def __init__(self) -> None:
    mesh = Mesh(np.asarray(jax.devices()), ('devices',))
    self._split = NamedSharding(mesh, PartitionSpec('devices'))
    self._most = jax.jit(
      jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec())
    )
    self._waiting: collections.deque[jax.Array] = collections.deque()

  def ask(self, number: int) -> int:
    """Gives this process's number; returns the answer of the last call."""
    own = np.full(1, number, np.int32)
    numbers = jax.make_array_from_callback(
      (self._split.mesh.size,), self._split, lambda index: own
    )
    self._waiting.append(self._most(numbers))
    if len(self._waiting) < 2:
      return 0
    return int(self._waiting.popleft().addressable_data(0))
