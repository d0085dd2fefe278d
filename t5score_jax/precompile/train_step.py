"""Compiles the step of `training/loop.py` ahead of time for a slice.

Not here: scoring (`precompile/scoring.py`), what is measured
(`precompile/reports.py`), flags (`commands/precompile.py`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.errors import ConfigurationError
from t5score_jax.models import regression, t5score
from t5score_jax.nn import axes, heads, unified
from t5score_jax.precompile import flops, reports, topologies
from t5score_jax.precompile.reports import PrecompileError
from t5score_jax.training import optimizers, partitioning
from t5score_jax.training import state as states

Shapes = dict[str, jax.ShapeDtypeStruct]

# FLOPs of a backward pass relative to a forward one: products for the gradients
# of the inputs and of the weights.
_BACKWARD = 2


@dataclasses.dataclass(frozen=True)
class Training:
  """A train step to compile, with the arguments of `loop.train`.

  Attributes:
    model: The model: parameters and loss.
    optimizer: The optimizer.
    partitioner: The mesh; its devices are replaced by those of the slice.
    batch: Shapes of a batch over all devices.
    pairs: See `reports.Report`.
    unit: See `reports.Report`.
    microbatches: Number of parts of a batch.
    ema_decay: Decay of the moving average, which needs as much memory as the
      parameters; None for no average.
  """

  model: Any
  optimizer: optimizers.Optimizer
  partitioner: partitioning.Partitioner
  batch: Shapes
  pairs: int
  unit: str
  microbatches: int = 1
  ema_decay: float | None = None

  def on(self, topology: topologies.Topology) -> reports.Report:
    """Compiles the step for a slice.

    Raises:
      PrecompileError: The batch or the network cannot be divided that way.
    """
    partitioner = self._partitioner_on(topology)
    rows = next(iter(self.batch.values())).shape[0]
    try:
      partitioner.check_batch_size(rows, self.microbatches)
      plan = self._plan(partitioner)
    except axes.MeshError as error:
      raise PrecompileError(str(error)) from error
    step = states.make_step(
      self.model,
      self.optimizer,
      partitioner,
      plan,
      seed=0,
      microbatches=self.microbatches,
      ema_decay=self.ema_decay,
    )
    start = time.perf_counter()
    traced = step.trace(self.batch)
    memory, traffic = reports.measure(traced.lower().compile, topology)
    forward = jax.make_jaxpr(self.model.loss_fn)(
      plan.shapes.params, self.batch, jax.random.key(0)
    )
    return reports.make(
      topology,
      memory,
      flops.count(traced.jaxpr),
      (1 + _BACKWARD) * flops.count(forward),
      what='train step',
      collectives=traffic,
      seconds=time.perf_counter() - start,
      mesh=dict(partitioner.mesh.shape),
      fully_sharded=partitioner.fully_sharded,
      microbatches=self.microbatches,
      batch={key: x.shape for key, x in self.batch.items()},
      pairs=self.pairs,
      unit=self.unit,
      parameters=sum(
        math.prod(x.shape) for x in jax.tree.leaves(plan.shapes.params)
      ),
    )

  def least_memory(self, topology: topologies.Topology) -> int:
    """Bytes per chip of state and gradients, a lower bound of any schedule."""
    plan = self._plan(self._partitioner_on(topology))
    gradients = reports.shard_bytes(plan.shapes.params)
    return reports.shard_bytes(plan.shapes) + gradients

  def _partitioner_on(
    self, topology: topologies.Topology
  ) -> partitioning.Partitioner:
    return dataclasses.replace(self.partitioner, devices=topology.devices)

  def _plan(self, partitioner: partitioning.Partitioner) -> states.StatePlan:
    return states.plan(self.model, self.optimizer, partitioner, self.ema_decay)


_ENCODERS = (
  regression.CrossEncoderModel
  | regression.RegressorModel
  | regression.UnifiedModel
)


def default_lengths(model: Any) -> dict[str, int] | None:
  """The longest texts that an encoder reads; None for other models."""
  if not isinstance(model, _ENCODERS):
    return None
  if isinstance(model, regression.UnifiedModel):
    return {'inputs': model.text_length}
  encoder = getattr(model.config, 'encoder', model.config)
  return {'inputs': encoder.max_length}


def batch_shapes(
  model: Any, batch: int, lengths: Mapping[str, int]
) -> tuple[Shapes, int, str]:
  """Returns the shapes of a model's batch, as the feature converters make it.

  Args:
    model: A model of `models/`.
    batch: Number of examples over all devices.
    lengths: TASK_FEATURE_LENGTHS: 'inputs', 'targets' and, for groups,
      'ratings', the number of hypotheses of a group. Regressors have 'inputs'
      alone, the tokens of each text, or of a pair that is one sequence.

  Returns:
    Shapes by name, the number of pairs in them, and what a pair is.

  Raises:
    ConfigurationError: The model is unknown, or lengths are missing.
  """

  def ids(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, *shape), jnp.int32)

  def numbers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, *shape), jnp.float32)

  try:
    inputs = lengths['inputs']
    if isinstance(model, regression.FirstStepModel):
      shapes = {'encoder_input_tokens': ids(inputs), 'ratings': numbers(1)}
      return shapes, batch, 'input'
    if isinstance(model, regression.CrossEncoderModel):
      shapes = {'tokens': ids(inputs), 'token_types': ids(inputs)}
      return {**shapes, 'ratings': numbers(1)}, batch, 'pair of texts'
    if isinstance(model, regression.RegressorModel | regression.UnifiedModel):
      if isinstance(model, regression.UnifiedModel):
        inputs = min(inputs, model.text_length)
      roles = [r for r in regression.ROLES if _reads(model.config, r)]
      shapes = {f'{role}_tokens': ids(inputs) for role in roles}
      if model.config.num_tags:
        shapes['hypothesis_tags'] = ids(inputs)
      outputs = numbers(len(model.config.outputs))
      return {**shapes, 'ratings': outputs}, batch, 'instance'
    targets = lengths['targets']
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
    raise ConfigurationError(
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
  raise ConfigurationError(
    f'precompile cannot make batches for {type(model).__name__}, only for '
    'the models of models/t5score.py, and encoders that are trained whole'
  )


def _reads(config: heads.RegressorConfig, role: str) -> bool:
  """Whether a regressor reads the texts of a role."""
  if role == 'reference':
    return config.reference
  if role == 'source' and isinstance(config, unified.UnifiedConfig):
    return config.source
  return True


def smallest(kind: str, training: Training) -> Iterator[reports.Report]:
  """Compiles for larger and larger slices until the step fits.

  Slices that cannot hold the state and the gradients are skipped without
  compiling.

  Args:
    kind: The kind of chip, such as 'v5e'.
    training: The step; its partitioner is replaced: first a replica per chip,
      then the two splits of the parameters over all chips whose meshes are
      nearest to a square.

  Yields:
    A report for every attempt; only the last one may fit.

  Raises:
    PrecompileError: No slice can be tried.
  """
  tried = False
  for shape in topologies.CHIPS[kind].slices:
    topology = topologies.get(f'{kind}:{shape}')
    for partitioner in _partitioners(len(topology.devices)):
      attempt = dataclasses.replace(training, partitioner=partitioner)
      try:
        if attempt.least_memory(topology) > (topology.usable_memory or 0):
          continue
        report = attempt.on(topology)
      except (PrecompileError, axes.MeshError):
        continue
      tried = True
      yield report
      if report.fits:
        return
  if not tried:
    raise PrecompileError(
      f'no slice of {kind} can be tried: its memory is too small for the state '
      'and the gradients, or the batch cannot be divided over it'
    )


def _partitioners(chips: int) -> Iterator[partitioning.Partitioner]:
  yield partitioning.Partitioner(1)
  divisors = [n for n in range(1, chips + 1) if chips % n == 0]
  divisors.sort(key=lambda n: (abs(math.log2(n * n / chips)), n))
  for partitions in divisors[:2]:
    if chips > 1:
      yield partitioning.Partitioner(partitions, fully_sharded=True)
