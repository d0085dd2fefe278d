"""Ahead-of-time compilation for a slice that is not there, and what it says.

Compiles the very step that `training/loop.py` takes and the very programs of
`inference/scoring.py`, and reads off memory, products and collectives. Not
here: slices and chips (`precompile/topologies.py`), flags
(`commands/precompile.py`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.errors import T5ScoreError
from t5score_jax.models import t5score
from t5score_jax.nn import axes
from t5score_jax.precompile import flops, hlo, topologies
from t5score_jax.training import optimizers, partitioning
from t5score_jax.training import state as states

Shapes = dict[str, jax.ShapeDtypeStruct]

# More of a backward pass than of a forward one: products for the gradient of
# the inputs and for that of the weights.
_BACKWARD = 2


class PrecompileError(T5ScoreError, ValueError):
  """What was asked for cannot be compiled; says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one chip.

  Attributes:
    arguments: State and batch, or weights and tokens.
    outputs: What comes back.
    aliased: Outputs that take the place of arguments.
    temporaries: Everything between.
    program: The program itself.
    peak: The most that XLA says to be in use at one time, arguments included;
      0 where it doesn't say.
    needed: What has to be free: the peak and the program, or everything where
      there is no peak. Where XLA refuses the program it is at least this, by
      its own words, and the others are 0.
  """

  arguments: int = 0
  outputs: int = 0
  aliased: int = 0
  temporaries: int = 0
  program: int = 0
  peak: int = 0
  needed: int = 0


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Seconds a step from the chips' published limits; see `ASSUMPTIONS`.

  Attributes:
    products: Of matrix products at their peak.
    memory: Of reading and writing HBM.
    links: Of sending what collectives send.
    least: The slowest of the three, as if all were hidden behind it.
    most: The sum, as if nothing were hidden.
    utilization: The network's own FLOPs, recomputation left out, over what the
      chips could have done: at `most` and at `least` seconds.
  """

  products: float
  memory: float
  links: float
  least: float
  most: float
  utilization: tuple[float, float]


ASSUMPTIONS = (
  'products at the peak of bfloat16, evenly over the chips; HBM moves '
  'arguments and outputs once and temporaries and what collectives bring '
  'twice; collectives go round a ring over all links of a chip; none of it '
  'measured'
)


@dataclasses.dataclass(frozen=True)
class Report:
  """What is known of a program before it runs.

  Attributes:
    what: 'train step' or 'scoring step'.
    topology: Name of the slice.
    chips: Their number.
    mesh: Axis -> size.
    fully_sharded: Whether parameters are divided over the data axis too.
    microbatches: Parts of a batch.
    batch: Shapes by name.
    pairs: Pairs of texts, or of hypotheses, that a step takes.
    unit: What a pair is.
    parameters: Their number.
    memory: Bytes on one chip.
    usable: Bytes of a chip that a program may take; None: no bound.
    fits: Whether it does.
    flops: Of one step on all chips, recomputation included.
    model_flops: The same without recomputation.
    collectives: Of one step.
    estimate: None where the chip isn't known.
    seconds: That compilation took.
    effort: 'full' or 'quick': see `effort`.
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
  collectives: tuple[hlo.Collective, ...]
  estimate: Estimate | None
  seconds: float
  effort: str = 'full'

  def collectives_by_kind(self) -> dict[str, dict[str, float]]:
    """{kind: {'count', 'bytes', 'sent'}} on one chip, the most sent first."""
    table: dict[str, dict[str, float]] = collections.defaultdict(
      lambda: {'count': 0, 'bytes': 0.0, 'sent': 0.0}
    )
    for one in self.collectives:
      line = table[one.kind]
      line['count'] += one.count
      line['bytes'] += one.count * one.bytes
      line['sent'] += one.sent
    return dict(sorted(table.items(), key=lambda item: -item[1]['sent']))

  def as_dict(self) -> dict[str, Any]:
    """Plain values, for JSON."""
    plain = dataclasses.asdict(self)
    plain['collectives'] = self.collectives_by_kind()
    plain['flops_per_pair'] = self.flops / self.pairs
    if self.estimate is not None:
      plain['estimate']['assumptions'] = ASSUMPTIONS
    return plain


@dataclasses.dataclass(frozen=True)
class Training:
  """A train step to be compiled, as `loop.train` would be given it.

  Attributes:
    model: Loss and parameters.
    optimizer: Updates.
    partitioner: Its devices are replaced by those of the slice.
    batch: Shapes of a batch over all devices.
    pairs: See `Report`.
    unit: See `Report`.
    microbatches: Parts of a batch.
    ema_decay: Moving average, which takes as much memory as the parameters.
  """

  model: Any
  optimizer: optimizers.Optimizer
  partitioner: partitioning.Partitioner
  batch: Shapes
  pairs: int
  unit: str
  microbatches: int = 1
  ema_decay: float | None = None

  def on(self, topology: topologies.Topology) -> Report:
    """Compiles the step for a slice.

    Raises:
      PrecompileError: The batch or the network can't be divided that way.
    """
    placed = dataclasses.replace(self.partitioner, devices=topology.devices)
    try:
      placed.check_batch_size(self._rows, self.microbatches)
      plan = states.plan(self.model, self.optimizer, placed, self.ema_decay)
    except axes.MeshError as error:
      raise PrecompileError(str(error)) from error
    step = states.make_step(
      self.model,
      self.optimizer,
      placed,
      plan,
      seed=0,
      microbatches=self.microbatches,
      ema_decay=self.ema_decay,
    )
    start = time.perf_counter()
    traced = step.trace(self.batch)
    program = compile_or_measure(traced.lower().compile, topology)
    forward = jax.make_jaxpr(self.model.loss_fn)(
      plan.shapes.params, self.batch, jax.random.key(0)
    )
    return report(
      'train step',
      topology,
      [program],
      seconds=time.perf_counter() - start,
      mesh=dict(placed.mesh.shape),
      fully_sharded=placed.fully_sharded,
      microbatches=self.microbatches,
      batch={key: x.shape for key, x in self.batch.items()},
      pairs=self.pairs,
      unit=self.unit,
      parameters=_count(plan.shapes.params),
      flops=flops.count(traced.jaxpr),
      model_flops=(1 + _BACKWARD) * flops.count(forward),
    )

  @property
  def _rows(self) -> int:
    return next(iter(self.batch.values())).shape[0]

  def least_memory(self, topology: topologies.Topology) -> int:
    """Bytes a chip that no schedule can do without: state and gradients."""
    placed = dataclasses.replace(self.partitioner, devices=topology.devices)
    plan = states.plan(self.model, self.optimizer, placed, self.ema_decay)
    gradients = shard_bytes(plan.shapes.params)
    return shard_bytes(plan.shapes) + gradients


def batch_shapes(
  model: Any, batch: int, lengths: Mapping[str, int]
) -> tuple[Shapes, int, str]:
  """Shapes of a model's batch, as the feature converters make them.

  Args:
    model: One of `models`.
    batch: Examples over all devices.
    lengths: TASK_FEATURE_LENGTHS: 'inputs', 'targets' and, for groups,
      'ratings', the hypotheses of a group.

  Returns:
    Shapes by name, the number of pairs in them, and what a pair is.

  Raises:
    PrecompileError: A model that isn't known, or lengths that are missing.
  """

  def ids(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, *shape), jnp.int32)

  def numbers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, *shape), jnp.float32)

  try:
    inputs, targets = lengths['inputs'], lengths['targets']
    if isinstance(model, t5score.GroupModel | t5score.ParaphraseModel):
      size = lengths['ratings']
      shapes = {
        'shared_tokens': ids(inputs),
        'hypothesis_tokens': ids(size, targets),
        'ratings': numbers(size),
        'group_mask': numbers(size),
      }
      return shapes, batch * size, 'hypothesis with its shared text'
  except KeyError as error:
    raise PrecompileError(
      f'TASK_FEATURE_LENGTHS = {dict(lengths)} lacks {error}'
    ) from None
  if isinstance(model, t5score.PairModel):
    shapes = {
      'encoder_input_tokens': ids(2, inputs),
      'decoder_target_tokens': ids(2, targets),
      'ratings': numbers(2),
    }
    return shapes, batch, 'pair of hypotheses in one direction'
  if isinstance(model, t5score.GenerativeModel):
    shapes = {
      'encoder_input_tokens': ids(inputs),
      'decoder_target_tokens': ids(targets),
      'decoder_loss_weights': numbers(targets),
    }
    return shapes, batch, 'pair of texts'
  raise PrecompileError(
    f'{type(model).__name__}: it is not known which batches it reads'
  )


@contextlib.contextmanager
def effort(full: bool) -> Iterator[None]:
  """Within it, XLA compiles as for training, or with its least effort.

  With the least effort a large program takes a sixth of the time to compile. It
  is the same program, less well scheduled: it would run more slowly, and take a
  few percent more memory.
  """
  name = 'jax_exec_time_optimization_effort'
  before = jax.config.values[name]
  jax.config.update(name, before if full else -1.0)
  try:
    yield
  finally:
    jax.config.update(name, before)


def compile_or_measure(
  compile_it: Callable[[], Any], topology: topologies.Topology
) -> tuple[Any | None, Memory]:
  """Compiles; a program that is too large gives None and what it would need."""
  try:
    compiled = compile_it()
  except Exception as error:  # XLA's own, whose class has moved.
    needed = memory_asked_for(str(error))
    if needed is None:
      raise
    return None, Memory(needed=needed)
  stats = compiled.memory_analysis()
  parts = {
    'arguments': stats.argument_size_in_bytes,
    'outputs': stats.output_size_in_bytes,
    'aliased': stats.alias_size_in_bytes,
    'temporaries': stats.temp_size_in_bytes,
    'program': stats.generated_code_size_in_bytes,
  }
  # Temporaries are counted one by one; the peak knows which share a place. That
  # of a host leaves temporaries out.
  peak = 0
  if topology.chip is not None:
    peak = getattr(stats, 'peak_memory_in_bytes', 0)
  together = sum(parts.values()) - 2 * parts['aliased']
  needed = peak + parts['program'] if peak else together
  return compiled, Memory(**parts, peak=peak, needed=needed)


def memory_asked_for(message: str) -> int | None:
  """Bytes that XLA says a program would need at least; None: another error."""
  if 'RESOURCE_EXHAUSTED' not in message:
    return None
  found = re.search(
    r'(?:Used |temporaries \()([\d.]+)([KMGT])i?B?\)? (?:of|exceeds)', message
  )
  if found is None:
    return 0
  return int(float(found[1]) * 2 ** (10 * (1 + 'KMGT'.index(found[2]))))


def report(
  what: str,
  topology: topologies.Topology,
  programs: Sequence[tuple[Any | None, Memory]],
  **known: Any,
) -> Report:
  """Puts together what is known of programs that run one after the other.

  Args:
    what: See `Report`.
    topology: What they were compiled for.
    programs: Results of `compile_or_measure`; memory is that of the largest.
    **known: The rest of `Report`.
  """
  chips = len(topology.devices)
  usable = topology.usable_memory
  found: tuple[hlo.Collective, ...] = ()
  estimate = None
  memory = max((part for _, part in programs), key=lambda part: part.needed)
  compiled = [program for program, _ in programs if program is not None]
  complete = len(compiled) == len(programs)
  fits = complete and (usable is None or memory.needed <= usable)
  if complete:
    found = tuple(
      one
      for program in compiled
      for one in hlo.collectives(program.as_text(), chips)
    )
    if topology.chip is not None:
      estimate = estimate_of(
        topology.chip,
        chips,
        memory,
        found,
        known['flops'],
        known['model_flops'],
      )
  least = jax.config.values['jax_exec_time_optimization_effort'] < 0
  return Report(
    effort='quick' if least else 'full',
    what=what,
    topology=topology.name,
    chips=chips,
    memory=memory,
    usable=usable,
    fits=fits,
    collectives=found,
    estimate=estimate,
    **known,
  )


def estimate_of(
  chip: topologies.Chip,
  chips: int,
  memory: Memory,
  found: Sequence[hlo.Collective],
  executed: float,
  model_flops: float,
) -> Estimate:
  """A roofline from published limits; see `ASSUMPTIONS`."""
  brought = sum(one.count * one.bytes for one in found)
  moved: float = memory.arguments + memory.outputs
  moved += 2 * (memory.temporaries + brought)
  products = executed / chips / chip.flops
  seconds = (
    products,
    moved / chip.bandwidth,
    sum(one.sent for one in found) / chip.links,
  )
  least, most = max(seconds), sum(seconds)
  ideal = model_flops / chips / chip.flops
  return Estimate(*seconds, least, most, (ideal / most, ideal / least))


def shard_bytes(shapes: Any) -> int:
  """Bytes on one device of a tree of `jax.ShapeDtypeStruct` with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(shapes)
  )


def smallest(kind: str, training: Training) -> Iterator[Report]:
  """Compiles for one slice after another until one is large enough.

  Slices that cannot hold the state and the gradients are left out without
  compiling; of the others the two ways to divide the network that come nearest
  to a square are tried.

  Args:
    kind: Of the chip, such as 'v5e'.
    training: Its partitioner is replaced: one copy a chip where that fits, and
      parameters divided over all chips otherwise.

  Yields:
    What was found; the last one fits, or nothing does.

  Raises:
    PrecompileError: No slice can divide the batch.
  """
  tried = False
  for shape in topologies.CHIPS[kind].slices:
    topology = topologies.get(f'{kind}:{shape}')
    for partitioner in _ways(len(topology.devices)):
      asked = dataclasses.replace(training, partitioner=partitioner)
      try:
        if asked.least_memory(topology) > (topology.usable_memory or 0):
          continue
        found = asked.on(topology)
      except (PrecompileError, axes.MeshError):
        continue
      tried = True
      yield found
      if found.fits:
        return
  if not tried:
    raise PrecompileError(
      f'no slice of {kind} can be tried: its memory is too small for the state '
      'and the gradients, or the batch cannot be divided over it'
    )


def _ways(chips: int) -> Iterator[partitioning.Partitioner]:
  """Copies, then parameters divided over all chips, nearest to a square."""
  yield partitioning.Partitioner(1)
  divisors = [n for n in range(1, chips + 1) if chips % n == 0]
  divisors.sort(key=lambda n: (abs(math.log2(n * n / chips)), n))
  for partitions in divisors[:2]:
    if chips > 1:
      yield partitioning.Partitioner(partitions, fully_sharded=True)


def _count(shapes: Any) -> int:
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
