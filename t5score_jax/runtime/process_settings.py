"""Flags and environment variables of a run of many processes.

Not here: their use (`runtime/processes.py`, which re-exports these names).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from t5score_jax.errors import T5ScoreError

# Detect the processes from Slurm, Open MPI, Kubernetes or a TPU pod.
AUTO = 'auto'
# Environment variable of each flag; the flag has precedence.
VARIABLES = {
  'coordinator_address': 'JAX_COORDINATOR_ADDRESS',
  'process_count': 'JAX_NUM_PROCESSES',
  'process_index': 'JAX_PROCESS_ID',
}
START_TIMEOUT = 300
HEARTBEAT_TIMEOUT = 100


class ProcessError(T5ScoreError, RuntimeError):
  """Processes cannot start or continue together; the message says why."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """The processes of a run.

  Attributes:
    coordinator_address: HOST:PORT of process 0, or 'auto'.
    process_count: Number of processes; None with 'auto'.
    process_index: Index of this process; None with 'auto'.
    start_timeout: Seconds to wait for all processes.
    heartbeat_timeout: Seconds of silence after which a process counts as dead.
  """

  coordinator_address: str
  process_count: int | None = None
  process_index: int | None = None
  start_timeout: int = START_TIMEOUT
  heartbeat_timeout: int = HEARTBEAT_TIMEOUT

  def __post_init__(self) -> None:
    for field in ('start_timeout', 'heartbeat_timeout'):
      if getattr(self, field) < 1:
        raise ProcessError(
          f'--{field} {getattr(self, field)}: must be at least 1 s'
        )
    if self.coordinator_address == AUTO:
      if (self.process_count, self.process_index) != (None, None):
        raise ProcessError(
          '--coordinator_address=auto detects the processes: omit '
          '--process_count and --process_index'
        )
      return
    self.host_and_port  # noqa: B018 (raises)
    if self.process_count is None or self.process_index is None:
      raise ProcessError(
        'give --coordinator_address, --process_count and --process_index '
        'together (or --coordinator_address=auto alone)'
      )
    if self.process_count < 1:
      raise ProcessError(
        f'--process_count {self.process_count}: must be at least 1'
      )
    if not 0 <= self.process_index < self.process_count:
      raise ProcessError(
        f'--process_index {self.process_index}: with --process_count '
        f'{self.process_count} it must be 0 to {self.process_count - 1}'
      )

  @property
  def host_and_port(self) -> tuple[str, int]:
    """Host and port of the address.

    Raises:
      ProcessError: It is not HOST:PORT.
    """
    host, _, port = self.coordinator_address.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise ProcessError(
        f'--coordinator_address {self.coordinator_address}: must be '
        'HOST:PORT, as in 10.0.0.1:8476, or auto'
      )
    return host.strip('[]'), int(port)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of verbs that run in many processes."""
  group = parser.add_argument_group(
    'many processes',
    # Wrapped by hand: raw help is not wrapped by argparse.
    'Run the same command in every process, each with its own index;\n'
    'scripts/launch/ has launchers. Each flag has an environment variable:\n'
    f'{", ".join(VARIABLES.values())}.',
  )
  group.add_argument(
    '--coordinator_address',
    metavar='HOST:PORT',
    help='address of process 0 with a free port; or auto: detect all three '
    'flags from Slurm, Open MPI, Kubernetes or the TPU pod',
  )
  group.add_argument(
    '--process_count', type=int, metavar='N', help='number of processes'
  )
  group.add_argument(
    '--process_index',
    type=int,
    metavar='I',
    help='index of this process, from 0',
  )
  group.add_argument(
    '--start_timeout',
    type=int,
    default=START_TIMEOUT,
    metavar='SECONDS',
    help='how long to wait for other processes (default: %(default)s)',
  )
  group.add_argument(
    '--heartbeat_timeout',
    type=int,
    default=HEARTBEAT_TIMEOUT,
    metavar='SECONDS',
    help='silence after which a process counts as dead and the others exit '
    '(default: %(default)s)',
  )


def settings(
  args: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Settings | None:
  """Reads flags and environment.

  Args:
    args: Parsed flags of `add_arguments`.
    environment: Used for flags that are absent.

  Returns:
    The settings; None for a single process, if nothing is set.

  Raises:
    ProcessError: A part is missing or out of range.
  """
  values: dict[str, Any] = {
    name: environment.get(variable) or None
    if getattr(args, name) is None
    else getattr(args, name)
    for name, variable in VARIABLES.items()
  }
  if not any(value is not None for value in values.values()):
    return None
  if values['coordinator_address'] is None:
    raise ProcessError(
      '--process_count and --process_index need --coordinator_address'
    )
  for name in ('process_count', 'process_index'):
    try:
      values[name] = None if values[name] is None else int(values[name])
    except ValueError:
      raise ProcessError(
        f'{VARIABLES[name]}={values[name]}: not a whole number'
      ) from None
  return Settings(
    **values,
    start_timeout=args.start_timeout,
    heartbeat_timeout=args.heartbeat_timeout,
  )
