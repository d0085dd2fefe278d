"""Who the processes of a run are: flags, environment, and what is wrong there.

Not here: what is done with it (`runtime/processes.py`, which hands these names
on).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from t5score_jax.errors import T5ScoreError

# Stands for what Slurm, Open MPI, Kubernetes or a TPU pod say themselves.
AUTO = 'auto'
# Environment variable of each flag; a flag wins.
VARIABLES = {
  'coordinator_address': 'JAX_COORDINATOR_ADDRESS',
  'process_count': 'JAX_NUM_PROCESSES',
  'process_index': 'JAX_PROCESS_ID',
}
START_TIMEOUT = 300
HEARTBEAT_TIMEOUT = 100


class ProcessError(T5ScoreError, RuntimeError):
  """Processes cannot start or go on together; the message says why."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """Who the processes of a run are.

  Attributes:
    coordinator_address: HOST:PORT of process 0, or 'auto'.
    process_count: Of the run; None with 'auto'.
    process_index: Of this process; None with 'auto'.
    start_timeout: Seconds to wait for all processes to come.
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
        raise ProcessError(f'--{field} {getattr(self, field)}: at least 1 (s)')
    if self.coordinator_address == AUTO:
      if (self.process_count, self.process_index) != (None, None):
        raise ProcessError(
          '--coordinator_address=auto finds the processes by itself: leave '
          '--process_count and --process_index out'
        )
      return
    self.host_and_port  # noqa: B018 (raises)
    if self.process_count is None or self.process_index is None:
      raise ProcessError(
        'a process needs --coordinator_address, --process_count and '
        '--process_index together (or --coordinator_address=auto alone)'
      )
    if self.process_count < 1:
      raise ProcessError(f'--process_count {self.process_count}: at least 1')
    if not 0 <= self.process_index < self.process_count:
      raise ProcessError(
        f'--process_index {self.process_index}: with --process_count '
        f'{self.process_count} it must be 0 to {self.process_count - 1}'
      )

  @property
  def host_and_port(self) -> tuple[str, int]:
    """The address in two parts.

    Raises:
      ProcessError: It is not HOST:PORT.
    """
    host, _, port = self.coordinator_address.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise ProcessError(
        f'--coordinator_address {self.coordinator_address}: write HOST:PORT, '
        'as in 10.0.0.1:8476, or auto'
      )
    return host.strip('[]'), int(port)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the flags that every verb for many processes shares."""
  group = parser.add_argument_group(
    'many processes',
    # Wrapped here: where help is printed raw, argparse does not.
    'The same command in every process, with another index each;\n'
    'scripts/launch_*.sh start them. Each flag may come from the environment:\n'
    f'{", ".join(VARIABLES.values())}.',
  )
  group.add_argument(
    '--coordinator_address',
    metavar='HOST:PORT',
    help='where process 0 is reached, a free port; or auto: ask Slurm, Open '
    'MPI, Kubernetes or the TPU pod, which also know the other two',
  )
  group.add_argument(
    '--process_count', type=int, metavar='N', help='processes of the run'
  )
  group.add_argument(
    '--process_index', type=int, metavar='I', help='of this process, from 0'
  )
  group.add_argument(
    '--start_timeout',
    type=int,
    default=START_TIMEOUT,
    metavar='SECONDS',
    help='how long to wait for the other processes (%(default)s)',
  )
  group.add_argument(
    '--heartbeat_timeout',
    type=int,
    default=HEARTBEAT_TIMEOUT,
    metavar='SECONDS',
    help='silence after which a process counts as dead and the others end '
    '(%(default)s)',
  )


def settings(
  args: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Settings | None:
  """Reads flags and environment.

  Args:
    args: With the flags of `add_arguments`.
    environment: Read where a flag is absent.

  Returns:
    None where neither says anything: one process.

  Raises:
    ProcessError: A part is missing or out of range.
  """
  given: dict[str, Any] = {
    name: environment.get(variable) or None
    if getattr(args, name) is None
    else getattr(args, name)
    for name, variable in VARIABLES.items()
  }
  if not any(value is not None for value in given.values()):
    return None
  if given['coordinator_address'] is None:
    raise ProcessError(
      '--process_count and --process_index need --coordinator_address'
    )
  for name in ('process_count', 'process_index'):
    try:
      given[name] = None if given[name] is None else int(given[name])
    except ValueError:
      raise ProcessError(
        f'{VARIABLES[name]}={given[name]}: not a whole number'
      ) from None
  return Settings(
    **given,
    start_timeout=args.start_timeout,
    heartbeat_timeout=args.heartbeat_timeout,
  )
