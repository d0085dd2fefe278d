"""Properties of a program before it runs: memory, FLOPs, a bound on time.

Not here: which programs are compiled (`precompile/train_step.py`,
`precompile/scoring.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t5score_jax.errors import T5ScoreError
from t5score_jax.precompile import collectives, topologies

_EFFORT = 'jax_exec_time_optimization_effort'


class PrecompileError(T5ScoreError, ValueError):
  """The program cannot be compiled as requested."""


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one chip.

  Attributes:
    arguments: State and batch, or weights and tokens.
    outputs: Results.
    aliased: Outputs that reuse the memory of arguments.
    temporaries: Intermediate values.
    program: The program itself.
    peak: XLA's largest use of memory at one time, arguments included; 0 if
      unknown.
    needed: Bytes that must be free: the peak and the program, or the sum of
      all parts without a peak. If XLA rejects the program, its lower bound;
      the other attributes are 0 then.
  """

  arguments: int = 0
  outputs: int = 0
  aliased: int = 0
  temporaries: int = 0
  program: int = 0
  peak: int = 0
  needed: int = 0


@dataclasses.dataclass(frozen=True)
class Roofline:
  """A lower bound on a step's seconds from a chip's published limits.

  Attributes:
    products: Seconds of matrix products at the bfloat16 peak, spread evenly
      over the chips.
    memory: Seconds of HBM traffic: arguments and outputs once, temporaries
      twice.
    seconds: The larger of the two.
    utilization: The largest share of the peak that the network's own FLOPs,
      without recomputation, can reach (MFU).
  """

  products: float
  memory: float
  seconds: float
  utilization: float


ASSUMPTIONS = (
  'products at the peak of bfloat16, evenly over the chips; HBM moves '
  'arguments and outputs once and temporaries twice; communication between '
  'chips is left out; nothing is measured'
)


@dataclasses.dataclass(frozen=True)
class Report:
  """The properties of a compiled step.

  Attributes:
    what: 'train step' or 'scoring step'.
    topology: Name of the slice.
    chips: Number of chips.
    mesh: Axis -> size.
    fully_sharded: Whether parameters are split over the data axis too.
    microbatches: Number of parts of a batch.
    batch: Shapes by name.
    pairs: Number of pairs of texts, or of hypotheses, per step.
    unit: What a pair is.
    parameters: Number of parameters.
    memory: Bytes on one chip.
    usable: Bytes of a chip that a program may use; None: no bound.
    fits: Whether the program fits into them.
    flops: FLOPs of one step on all chips, recomputation included.
    model_flops: The same without recomputation.
    roofline: None for an unknown chip, or if the program does not compile.
    collectives: Communication of a step, by kind of operation.
    seconds: Seconds of compilation.
    effort: 'full' or 'quick'; see `effort`.
  """

  what: str
  topology: str
  chips: int
  mesh: dict[str, int]
  fully_sharded: bool
  microbatches: int
  batch: dict[str, tuple[int, ...]]
  pairs: int
  unit: str
  parameters: int
  memory: Memory
  usable: int | None
  fits: bool
  flops: int
  model_flops: int
  roofline: Roofline | None
  collectives: dict[str, collectives.Traffic]
  seconds: float
  effort: str = 'full'

  def as_dict(self) -> dict[str, Any]:
    """Plain values, for JSON."""
    plain = dataclasses.asdict(self)
    plain['flops_per_pair'] = self.flops / self.pairs
    if self.roofline is not None:
      plain['roofline']['assumptions'] = ASSUMPTIONS
    return plain


def make(
  topology: topologies.Topology,
  memory: Memory,
  flops: int,
  model_flops: int,
  **known: Any,
) -> Report:
  """Makes the report of a step, whose memory `measure` returned.

  Args:
    topology: The slice.
    memory: Bytes on one chip.
    flops: See `Report`.
    model_flops: See `Report`.
    **known: The rest of `Report`.
  """
  compiles = memory.arguments > 0
  usable = topology.usable_memory
  bound = None
  if compiles and topology.chip is not None:
    chips = len(topology.devices)
    bound = roofline(topology.chip, chips, memory, flops, model_flops)
  return Report(
    topology=topology.name,
    chips=len(topology.devices),
    memory=memory,
    usable=usable,
    fits=compiles and (usable is None or memory.needed <= usable),
    flops=flops,
    model_flops=model_flops,
    roofline=bound,
    effort='quick' if jax.config.values[_EFFORT] < 0 else 'full',
    **known,
  )


def roofline(
  chip: topologies.Chip,
  chips: int,
  memory: Memory,
  flops: float,
  model_flops: float,
) -> Roofline:
  """Bounds the time of a step; see `ASSUMPTIONS`."""
  moved = memory.arguments + memory.outputs + 2 * memory.temporaries
  products = flops / chips / chip.flops
  traffic = moved / chip.bandwidth
  seconds = max(products, traffic)
  ideal = model_flops / chips / chip.flops
  return Roofline(products, traffic, seconds, ideal / seconds)


def measure(
  compile_it: Callable[[], Any], topology: topologies.Topology
) -> tuple[Memory, dict[str, collectives.Traffic]]:
  """Compiles a program; returns the memory that it needs and its traffic."""
  try:
    program = compile_it()
    stats = program.memory_analysis()
  except Exception as error:  # XLA's own class has moved between modules.
    needed = memory_asked_for(str(error))
    if needed is None:
      raise
    return Memory(needed=needed), {}
  parts = {
    'arguments': stats.argument_size_in_bytes,
    'outputs': stats.output_size_in_bytes,
    'aliased': stats.alias_size_in_bytes,
    'temporaries': stats.temp_size_in_bytes,
    'program': stats.generated_code_size_in_bytes,
  }
  # Temporaries may share memory, which only the peak considers. The peak of
  # host devices excludes temporaries.
  peak = 0
  if topology.chip is not None:
    peak = getattr(stats, 'peak_memory_in_bytes', 0)
  together = sum(parts.values()) - 2 * parts['aliased']
  needed = peak + parts['program'] if peak else together
  traffic = collectives.count(program.as_text())
  return Memory(**parts, peak=peak, needed=needed), traffic


def memory_asked_for(message: str) -> int | None:
  """Parses XLA's message that a program is too large.

  Returns:
    The bytes that it needs at least, 0 if unknown; None for other messages.
  """
  if 'RESOURCE_EXHAUSTED' not in message:
    return None
  match = re.search(
    r'(?:Used |temporaries \()([\d.]+)([KMGT])i?B?\)? (?:of|exceeds)', message
  )
  if match is None:
    return 0
  return int(float(match[1]) * 2 ** (10 * (1 + 'KMGT'.index(match[2]))))


@contextlib.contextmanager
def effort(full: bool) -> Iterator[None]:
  """Within it, XLA compiles as for training, or with minimal effort.

  With minimal effort a large program compiles in a sixth of the time. It is
  scheduled less well: it runs more slowly and takes a few percent more memory.
  """
  before = jax.config.values[_EFFORT]
  jax.config.update(_EFFORT, before if full else -1.0)
  try:
    yield
  finally:
    jax.config.update(_EFFORT, before)


def shard_bytes(shapes: Any) -> int:
  """Bytes on one device of a tree of `jax.ShapeDtypeStruct` with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(shapes)
  )
