"""Many processes as one program: start together, talk, and end together.

A verb that may run on several hosts declares `add_arguments` and runs by
`together`, before anything touches a device. In between processes tell each
other small things by the functions here. JAX is imported when it is
needed, so that help stays fast. Not here: when a training run stops
(`training/stopping.py`), and how a batch is divided (`inputs/shares.py`).
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np

from t5score_jax import errors
from t5score_jax.runtime import lifeline, rendezvous
from t5score_jax.runtime.process_settings import (
  AUTO,
  ProcessError,
  Settings,
  add_arguments,
  settings,
)

__all__ = [
  'ProcessError',
  'Settings',
  'add_arguments',
  'agree',
  'all_gather',
  'barrier',
  'count',
  'explain_loss',
  'broadcast',
  'index',
  'is_first',
  'leave',
  'local_copy',
  'on_first',
  'own_rows',
  'settings',
  'start',
  'stop',
  'together',
]

PyTree = Any

# Words of JAX, gloo and Orbax about a peer that is gone.
_SIGNS_OF_LOSS = (
  *('gloo', 'coordination', 'heartbeat', 'barrier', 'connection', 'peer'),
  *('unavailable', 'deadline_exceeded', 'aborted', 'nccl', 'remote'),
)
_ADVICE = 'The same command in all processes goes on from the last checkpoint'
# Seconds between the loss of another process and this one's end.
_GRACE = 2.0
# While the processes run: at most one.
_watches: list[lifeline.Lifeline] = []


def together(
  verb: str,
  args: argparse.Namespace,
  body: Callable[[], int],
  agreed: Collection[int] = (0,),
  advice: str = '',
) -> int:
  """Runs a verb in this process as one of many, if the flags say so.

  Args:
    verb: For messages.
    args: With the flags of `add_arguments`.
    body: The verb; returns its exit code.
    agreed: Exit codes with which all processes end alike and wait for one
      another. With any other this process ends at once, see `stop`.
    advice: What to do where another process is gone.

  Returns:
    The exit code.

  Raises:
    UsageError: The flags are wrong.
    ProcessError: The processes did not meet.
  """
  try:
    chosen = settings(args)
  except ProcessError as error:
    raise errors.UsageError(str(error)) from error
  start(chosen)
  try:
    code = body()
  except BaseException as error:
    if count() == 1:
      raise
    # The others wait for this process, which must not end as usual.
    lost = explain_loss(error, advice)
    code_of_error = errors.report(
      f't5score {verb}', ProcessError(lost) if lost else error
    )
    if code_of_error is None:
      traceback.print_exc()
    leave(1 if code_of_error is None else code_of_error)
  return stop(code, agreed=code in agreed)


def start(chosen: Settings | None) -> None:
  """Joins the other processes; call it before anything touches a device.

  What C++ libraries print to standard output goes to standard error from here
  on, so that output is the program's own.

  Args:
    chosen: From `settings`; None, or one process, does nothing.

  Raises:
    ProcessError: Not all came in time, the coordinator is out of reach, or the
      environment does not say what 'auto' needs.
  """
  if chosen is None or chosen.process_count == 1:
    return
  import jax

  _own_stdout()
  # JAX's own use of SIGTERM would keep it from the program.
  if hasattr(jax.config, 'jax_enable_preemption_service'):
    jax.config.update('jax_enable_preemption_service', False)
  if hasattr(jax.config, 'jax_cpu_collectives_implementation'):
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  options: dict[str, Any] = {
    'initialization_timeout': chosen.start_timeout,
    'heartbeat_timeout_seconds': chosen.heartbeat_timeout,
  }
  if chosen.coordinator_address != AUTO:
    assert chosen.process_count is not None
    assert chosen.process_index is not None
    # JAX aborts where a process is missing; this says which.
    try:
      peers = rendezvous.meet(
        *chosen.host_and_port,
        chosen.process_count,
        chosen.process_index,
        chosen.start_timeout,
        f'jax {jax.__version__}',
      )
    except rendezvous.RendezvousError as error:
      raise ProcessError(str(error)) from None
    _watches.append(
      lifeline.Lifeline(peers, chosen.heartbeat_timeout, _end_without)
    )
    options.update(
      coordinator_address=chosen.coordinator_address,
      num_processes=chosen.process_count,
      process_id=chosen.process_index,
      cluster_detection_method='deactivate',
    )
  known = inspect.signature(jax.distributed.initialize).parameters
  try:
    jax.distributed.initialize(
      **{name: value for name, value in options.items() if name in known}
    )
  except (ValueError, RuntimeError, OSError) as error:
    if chosen.coordinator_address == AUTO:
      raise ProcessError(
        '--coordinator_address=auto: neither Slurm, Open MPI, Kubernetes nor a '
        f'TPU pod says who the processes are ({error}); give the three flags'
      ) from error
    raise ProcessError(
      f'--coordinator_address={chosen.coordinator_address}: {error}'
    ) from error


def stop(code: int, agreed: bool) -> int:
  """Ends this process's part.

  Args:
    code: The exit code.
    agreed: Whether all processes end this way, so that they wait for one
      another. Otherwise this process ends here and now, since the others may
      never come; they notice by its silence.

  Returns:
    The exit code, if the process is to end as usual.
  """
  if count() == 1:
    return code
  if not agreed:
    leave(code)
  import jax

  while _watches:
    _watches.pop().close()

  jax.distributed.shutdown()
  return code


def leave(code: int) -> NoReturn:
  """Ends this process at once, without waiting for the others."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def count() -> int:
  """Processes of the run."""
  if 'jax' not in sys.modules:
    return 1  # Nothing can have been started.
  import jax

  return jax.process_count()


def index() -> int:
  """Of this process, from 0."""
  return 0 if count() == 1 else sys.modules['jax'].process_index()


def is_first() -> bool:
  """Whether this process writes what is written once."""
  return index() == 0


def barrier(name: str) -> None:
  """Waits until every process is at the barrier of this name."""
  if count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def broadcast(value: Any) -> Any:
  """Gives every process what process 0 passes.

  Args:
    value: Anything that JSON holds; NaN and infinities too. Ignored elsewhere
      than in process 0.

  Returns:
    The value after a round through JSON (tuples become lists), in all
    processes, also where there is one.
  """
  text = json.dumps(value) if is_first() else ''
  if count() == 1:
    return json.loads(text)
  from jax.experimental import multihost_utils

  data = np.frombuffer(text.encode('utf-8'), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
  # Few sizes, so that few programs are compiled.
  padded = np.zeros(max(256, 1 << (size - 1).bit_length()), np.uint8)
  padded[: len(data)] = data
  whole = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
  return json.loads(whole[:size].tobytes().decode('utf-8'))


def on_first(function: Callable[[], Any]) -> None:
  """Runs a function in process 0 while the others wait.

  Raises:
    ProcessError: In the others, when it failed there; process 0 raises what
      the function raised.
  """
  error: Exception | None = None
  if is_first():
    try:
      function()
    except Exception as caught:  # noqa: BLE001 (raised below)
      error = caught
  if count() > 1:
    told = broadcast(None if error is None else str(error))
    if told is not None and error is None:
      raise ProcessError(f'process 0: {told}')
  if error is not None:
    raise error


def own_rows(total: int) -> np.ndarray:
  """Which of `total` rows this process works on, int64; see `all_gather`."""
  return np.arange(index(), total, count())


def all_gather(values: np.ndarray, total: int) -> np.ndarray:
  """Puts the rows that each process worked on together again.

  Args:
    values: [own, ...], one row for each of `own_rows(total)`.
    total: Rows of all processes.

  Returns:
    [total, ...] of the same dtype, the same in all processes.
  """
  if count() == 1:
    return np.asarray(values)
  from jax.experimental import multihost_utils

  values = np.ascontiguousarray(values)
  dtype = values.dtype
  most = -(-total // count())
  padded = np.zeros((most, *values.shape[1:]), dtype)
  padded[: len(values)] = values
  # As bytes: JAX would make 64 bits 32.
  gathered = multihost_utils.process_allgather(padded.view(np.uint8))
  parts = np.ascontiguousarray(np.asarray(gathered, np.uint8)).view(dtype)
  # [processes, most, ...] -> row i * processes + p is process p's row i
  return parts.swapaxes(0, 1).reshape(-1, *values.shape[1:])[:total]


def local_copy(tree: PyTree) -> PyTree:
  """Arrays as this process alone can use them; a part of all processes' work.

  What this process has whole stays as it is; parts are gathered from all, leaf
  by leaf, into NumPy arrays, so that the host needs memory for all of them.
  """
  if count() == 1:
    return tree
  import jax
  from jax.experimental import multihost_utils

  def one(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
      return leaf
    if leaf.is_fully_replicated:
      return leaf.addressable_data(0)
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.tree.map(one, tree)


def agree(value: int | str, what: str) -> None:
  """Checks that all processes pass the same number, or text.

  Raises:
    ProcessError: They don't; the message gives the numbers (checksums of
      texts) by process.
  """
  if count() == 1:
    return
  if isinstance(value, str):
    value = zlib.crc32(value.encode('utf-8'))
  told = all_gather(np.asarray([value], np.int64), count())
  if len(set(told.tolist())) > 1:
    raise ProcessError(f'processes differ in {what}: {told.tolist()}')


def explain_loss(error: BaseException, advice: str = '') -> str:
  """Words for an error that means that another process is gone, else ''."""
  if count() == 1:
    return ''
  seen: BaseException | None = error
  while seen is not None:
    kind, text = type(seen).__name__, str(seen).lower()
    runtime = kind in ('JaxRuntimeError', 'XlaRuntimeError')
    if runtime and any(sign in text for sign in _SIGNS_OF_LOSS):
      first = str(seen).strip().splitlines()[0][:200]
      return (
        f'process {index()} of {count()} lost another process ({first}); see '
        f'its messages. {advice or _ADVICE}'
      )
    seen = seen.__cause__ or seen.__context__
  return ''


def _end_without(gone: int) -> None:
  """Ends this process, which would wait for one that is gone."""
  # It may be about to end with words of its own.
  time.sleep(_GRACE)
  print(
    f't5score: process {gone} of {count()} is gone, so process {index()} ends '
    'too; see its messages. The same command in all processes goes on',
    file=sys.stderr,
  )
  leave(1)


def _own_stdout() -> None:
  """Keeps standard output for Python; whatever C++ prints joins the errors."""
  try:
    if sys.stdout.fileno() != 1:
      return
  except (AttributeError, OSError, ValueError):
    return  # Already someone else's, as under a test.
  sys.stdout.flush()
  own = os.dup(1)
  os.dup2(2, 1)
  sys.stdout = os.fdopen(
    own,
    'w',
    encoding=sys.stdout.encoding,
    errors=sys.stdout.errors,
    buffering=1 if os.isatty(own) else -1,
  )
