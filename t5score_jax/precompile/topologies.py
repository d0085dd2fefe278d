"""TPU chips, slices, and the devices of an absent slice to compile for.

`libtpu` compiles for a slice that is absent. Not here: what is compiled
(`precompile/train_step.py`), and whether it fits (`precompile/reports.py`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax

from t5score_jax.errors import T5ScoreError, UsageError

_GIB = 2**30


class TopologyError(T5ScoreError, ValueError):
  """The slice does not exist, or no compiler for it is installed."""


@dataclasses.dataclass(frozen=True)
class Chip:
  """The published limits of one chip.

  Attributes:
    name: The kind, as in 'v5e:4x4'.
    memory: Bytes of HBM.
    flops: Peak of bfloat16 products, FLOP/s.
    bandwidth: Bytes/s of HBM.
    slices: Shapes of slices for rent, the smallest first.
  """

  name: str
  memory: int
  flops: float
  bandwidth: float
  slices: tuple[str, ...]


_FLAT = tuple('1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16'.split())
_CUBES = tuple(
  '2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16'.split()
)
# cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read in 2026.
CHIPS = {
  chip.name: chip
  for chip in (
    Chip('v4', 32 * _GIB, 275e12, 1228e9, _CUBES),
    Chip('v5e', 16 * _GIB, 197e12, 819e9, _FLAT),
    Chip('v5p', 95 * _GIB, 459e12, 2765e9, _CUBES),
    Chip('v6e', 32 * _GIB, 918e12, 1640e9, _FLAT),
  )
}

# Reserved by the runtime: XLA leaves 15.75 GiB of v5e's 16.
_RESERVED = _GIB // 4

# Chips of a host in each direction, for slices smaller than a host.
_HOST_BOUNDS = {'1x1': (1, 1, 1)}


@dataclasses.dataclass(frozen=True)
class Topology:
  """Devices to compile for.

  Attributes:
    name: 'v5e:4x4'; 'cpu:8' for this host's processor.
    chip: The kind of chip; None for processors.
    devices: The devices in JAX's order.
  """

  name: str
  chip: Chip | None
  devices: tuple[Any, ...]

  @property
  def usable_memory(self) -> int | None:
    """Bytes of a chip that a program may use; None: no bound."""
    return None if self.chip is None else self.chip.memory - _RESERVED


def size_of(name: str) -> int:
  """Number of devices of 'v5e:4x4' (16) or 'cpu:8' (8).

  Raises:
    UsageError: The name has another form or an unknown kind of chip.
  """
  kind, _, shape = name.partition(':')
  if kind not in (*CHIPS, 'cpu') or not re.fullmatch(
    r'[1-9]\d*(x[1-9]\d*)*', shape
  ):
    raise UsageError(
      f'topology {name!r}: write KIND:SHAPE, as in v5e:4x4 or v5p:2x2x4 '
      f'(kinds: {", ".join(CHIPS)}), or cpu:8 for host devices'
    )
  return math.prod(map(int, shape.split('x')))


def get(name: str) -> Topology:
  """Returns the devices of a slice, which may be absent.

  Args:
    name: 'v5e:4x4', or 'cpu:8' for 8 devices of the host's processor; see
      `use_no_accelerator`.

  Raises:
    TopologyError: The slice does not exist, or libtpu is not installed.
  """
  size = size_of(name)
  kind, _, shape = name.partition(':')
  if kind == 'cpu':
    return Topology(name, None, _host_devices(name, size))
  if importlib.util.find_spec('libtpu') is None:
    raise TopologyError(
      f'topology {name}: compiling for TPU needs libtpu; install it by '
      "pip install 't5score-jax[tpu]' (Linux on x86-64), or try cpu:8"
    )
  _quiet()
  from jax.experimental import topologies

  options: dict[str, Any] = {}
  if shape in _HOST_BOUNDS:
    options['chips_per_host_bounds'] = _HOST_BOUNDS[shape]
  try:
    devices = topologies.get_topology_desc(
      name, platform='tpu', **options
    ).devices
  except Exception as error:  # XLA's own class has moved between modules.
    raise TopologyError(
      f'topology {name}: libtpu knows no such slice ({error})'
    ) from error
  return Topology(name, CHIPS[kind], tuple(devices))


def use_no_accelerator(host_devices: int = 1) -> None:
  """Keeps JAX off accelerators and libtpu off the network.

  Must be called before JAX starts.

  Args:
    host_devices: Number of devices into which to split the host's processor.
  """
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  # Programs for absent chips are not worth caching.
  os.environ['T5SCORE_COMPILATION_CACHE'] = 'off'
  _quiet()
  jax.config.update('jax_platforms', 'cpu')
  if host_devices > 1:
    try:
      jax.config.update('jax_num_cpu_devices', host_devices)
    except RuntimeError:
      pass  # JAX has started; `get` raises an error if there are too few.


def _quiet() -> None:
  """Sets what libtpu would otherwise request from the cloud's metadata."""
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  # Several processes may compile at once: none of them uses a chip.
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-16')
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  os.environ.setdefault('TPU_WORKER_ID', '0')
  os.environ.setdefault('TPU_STDERR_LOG_LEVEL', '3')
  os.environ.setdefault('TPU_MIN_LOG_LEVEL', '3')


def _host_devices(name: str, size: int) -> tuple[Any, ...]:
  devices = jax.devices('cpu')
  if len(devices) < size:
    raise TopologyError(
      f'topology {name}: JAX has started with {len(devices)} host device(s)'
    )
  return tuple(devices[:size])
