"""Runs a program in many processes: start, collective operations, end.

A verb that can run on several hosts adds the flags of `add_arguments` and runs
its body in `together`, before anything touches a device. The other functions
exchange small values between processes. JAX is imported only when needed, which
keeps --help fast. Not here: the end of training runs (`training/stopping.py`)
and shares of batches (`inputs/shares.py`).
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

# Words in errors of JAX, gloo and Orbax about a lost process.
_SIGNS_OF_LOSS = (
  *('gloo', 'coordination', 'heartbeat', 'barrier', 'connection', 'peer'),
  *('unavailable', 'deadline_exceeded', 'aborted', 'nccl', 'remote'),
)
_ADVICE = (
  'Run the same command in all processes to continue from the last checkpoint'
)
# Seconds from the loss of another process to the exit of this one.
_GRACE = 2.0
# At most one, while the processes run.
_watches: list[lifeline.Lifeline] = []


def together(
  verb: str,
  args: argparse.Namespace,
  body: Callable[[], int],
  agreed: Collection[int] = (0,),
  advice: str = '',
) -> int:
  """Runs a verb in this process, one of many if the flags say so.

  Args:
    verb: Name of the verb, for messages.
    args: Parsed flags of `add_arguments`.
    body: The verb; returns its exit code.
    agreed: Exit codes that all processes share, so that they wait for each
      other. With any other code this process exits at once; see `stop`.
    advice: What to do after the loss of another process.

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
  """Joins the other processes. Must be called before JAX touches a device.

  From here on, C++ libraries print to standard error instead of standard
  output.

  Args:
    chosen: From `settings`; nothing happens if None or a single process.

  Raises:
    ProcessError: Processes are missing, the coordinator is unreachable, or
      'auto' does not find the processes.
  """
  if chosen is None or chosen.process_count == 1:
    return
  import jax

  _own_stdout()
  # JAX would intercept SIGTERM.
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
    # JAX aborts if a process is missing; this names it.
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
        '--coordinator_address=auto: no Slurm, Open MPI, Kubernetes or TPU pod '
        f'found ({error}); give the three flags'
      ) from error
    raise ProcessError(
      f'--coordinator_address={chosen.coordinator_address}: {error}'
    ) from error


def stop(code: int, agreed: bool) -> int:
  """Ends the run in this process.

  Args:
    code: The exit code.
    agreed: Whether all processes end with this code, so that they wait for each
      other. Otherwise this process exits immediately, since the others may
      never arrive; they detect its loss.

  Returns:
    The exit code, unless the process exits here.
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
  """Exits immediately, without waiting for the other processes."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def count() -> int:
  """Number of processes of the run."""
  if 'jax' not in sys.modules:
    return 1  # No other process can have been started.
  import jax

  return jax.process_count()


def index() -> int:
  """Index of this process, from 0."""
  return 0 if count() == 1 else sys.modules['jax'].process_index()


def is_first() -> bool:
  """Whether this is process 0, which writes shared files."""
  return index() == 0


def barrier(name: str) -> None:
  """Waits until every process has reached the barrier of this name."""
  if count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def broadcast(value: Any) -> Any:
  """Sends a value from process 0 to all processes.

  Args:
    value: A JSON value, NaN and infinities included; ignored in other
      processes.

  Returns:
    The value after a round trip through JSON (tuples become lists), even in a
    single process.
  """
  text = json.dumps(value) if is_first() else ''
  if count() == 1:
    return json.loads(text)
  from jax.experimental import multihost_utils

  data = np.frombuffer(text.encode('utf-8'), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
  # Rounded up, so that few programs are compiled.
  padded = np.zeros(max(256, 1 << (size - 1).bit_length()), np.uint8)
  padded[: len(data)] = data
  whole = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
  return json.loads(whole[:size].tobytes().decode('utf-8'))


def on_first(function: Callable[[], Any]) -> None:
  """Runs a function in process 0 while the others wait.

  Raises:
    ProcessError: The function failed; process 0 raises the error itself.
  """
  error: Exception | None = None
  if is_first():
    try:
      function()
    except Exception as caught:  # noqa: BLE001 (raised below)
      error = caught
  if count() > 1:
    message = broadcast(None if error is None else str(error))
    if message is not None and error is None:
      raise ProcessError(f'process 0: {message}')
  if error is not None:
    raise error


def own_rows(total: int) -> np.ndarray:
  """Indices of the rows of this process among `total`, int64."""
  return np.arange(index(), total, count())


def all_gather(values: np.ndarray, total: int) -> np.ndarray:
  """Gathers the rows of all processes.

  Args:
    values: [own, ...], one row for each of `own_rows(total)`.
    total: Number of rows of all processes.

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
  # As bytes: JAX would convert 64 to 32 bits.
  gathered = multihost_utils.process_allgather(padded.view(np.uint8))
  parts = np.ascontiguousarray(np.asarray(gathered, np.uint8)).view(dtype)
  # [processes, most, ...] -> row i * processes + p is process p's row i
  return parts.swapaxes(0, 1).reshape(-1, *values.shape[1:])[:total]


def local_copy(tree: PyTree) -> PyTree:
  """Makes arrays addressable in this process; called by all processes.

  Replicated arrays stay as they are; sharded ones are gathered, leaf by leaf,
  into NumPy arrays, for all of which the host needs memory.
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
  """Checks that all processes pass the same number or string.

  Raises:
    ProcessError: The values differ; the message lists the numbers (checksums
      of strings) by process.
  """
  if count() == 1:
    return
  if isinstance(value, str):
    value = zlib.crc32(value.encode('utf-8'))
  values = all_gather(np.asarray([value], np.int64), count())
  if len(set(values.tolist())) > 1:
    raise ProcessError(f'processes differ in {what}: {values.tolist()}')


def explain_loss(error: BaseException, advice: str = '') -> str:
  """Returns a message if the error means the loss of a process, else ''."""
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
  """Exits this process, which would wait for the lost one."""
  # It may be about to exit with its own message.
  time.sleep(_GRACE)
  print(
    f't5score: process {gone} of {count()} is gone, so process {index()} exits '
    'too; see its messages. Run the same command in all processes to continue',
    file=sys.stderr,
  )
  leave(1)


def _own_stdout() -> None:
  """Keeps standard output for Python; C++ prints to standard error."""
  try:
    if sys.stdout.fileno() != 1:
      return
  except (AttributeError, OSError, ValueError):
    return  # Already replaced, as under pytest.
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
