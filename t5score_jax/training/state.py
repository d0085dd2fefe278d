"""The training state and the one pure function that moves it a step on.

`create` makes a state directly where it will live; `make_step` compiles the
update: gradients summed over microbatches, clipped, applied, averaged. Not
here: when steps are taken, saved or reported (`training/loop.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from t5score_jax.training import optimizers, partitioning

PyTree = Any
Batch = Mapping[str, jax.Array]
# name -> (sum, weight): sums add up over microbatches, steps and hosts.
Totals = dict[str, tuple[jax.Array, jax.Array]]


@runtime_checkable
class Model(Protocol):
  """What the trunk asks of a model; it never asks which metric it serves."""

  def init(self, rng: jax.Array) -> PyTree:
    """Returns fresh parameters."""

  def logical_axes(self) -> PyTree:
    """Returns the parameters' tree with tuples of axis names."""

  def loss_fn(
    self, params: PyTree, batch: Batch, rng: jax.Array | None
  ) -> tuple[jax.Array, Mapping[str, Any]]:
    """Returns a sum of losses and {'weight': its normaliser, 'metrics': ...}.

    `metrics` is {name: (sum, weight)}. Without `rng` there is no dropout.
    """


@flax.struct.dataclass
class TrainState:
  """Everything a run has to remember, one pytree.

  Attributes:
    step: Updates made, int32 [].
    params: Parameters.
    opt_state: The optimizer's state.
    ema: Exponential moving average of the parameters, or None.
  """

  step: jax.Array
  params: PyTree
  opt_state: PyTree
  ema: PyTree | None

  @property
  def best_params(self) -> PyTree:
    """The parameters to evaluate and export: the average if there is one."""
    return self.params if self.ema is None else self.ema


@dataclasses.dataclass(frozen=True)
class StatePlan:
  """How states of one run are made.

  Attributes:
    shapes: A `TrainState` of `jax.ShapeDtypeStruct`s with shardings.
    create: Parameters -> a state at step 0 around them (the parameters are
      given away), on the mesh.
    init_params: rng -> fresh parameters on the mesh.
  """

  shapes: TrainState
  create: Callable[[PyTree], TrainState]
  init_params: Callable[[jax.Array], PyTree]

  @property
  def shardings(self) -> TrainState:
    """The shardings alone."""
    return jax.tree.map(lambda leaf: leaf.sharding, self.shapes)


def plan(
  model: Model,
  optimizer: optimizers.Optimizer,
  partitioner: partitioning.Partitioner,
  ema_decay: float | None = None,
) -> StatePlan:
  """Works out shapes and shardings without allocating anything."""

  def create(params: PyTree) -> TrainState:
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=optimizer.transformation.init(params),
      ema=None if ema_decay is None else jax.tree.map(jnp.copy, params),
    )

  param_shapes = jax.eval_shape(model.init, jax.random.key(0))
  shapes = jax.eval_shape(create, param_shapes)
  placed = partitioner.shardings(model.logical_axes(), param_shapes)
  whole = partitioner.replicated

  def like_parameter(leaf: Any, param: Any, sharding: Any) -> Any:
    # Adafactor's means over some dimensions have size 1 there.
    if leaf.ndim != param.ndim:
      return whole
    places = [*sharding.spec, *[None] * (param.ndim - len(sharding.spec))]
    kept = [
      place if ours == theirs else None
      for place, ours, theirs in zip(
        places, leaf.shape, param.shape, strict=True
      )
    ]
    return NamedSharding(partitioner.mesh, PartitionSpec(*kept))

  shardings = TrainState(
    step=whole,  # type: ignore[arg-type]
    params=placed,
    opt_state=optax.tree_map_params(
      optimizer.transformation,
      like_parameter,
      shapes.opt_state,
      param_shapes,
      placed,
      transform_non_params=lambda leaf: whole,
    ),
    ema=None if ema_decay is None else placed,
  )
  return StatePlan(
    shapes=jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding
      ),
      shapes,
      shardings,
    ),
    create=jax.jit(create, out_shardings=shardings, donate_argnums=0),
    init_params=jax.jit(model.init, out_shardings=placed),
  )


@dataclasses.dataclass(frozen=True)
class Step:
  """(state, batches [K, B, ...]) -> (state, totals); see `make_step`."""

  compiled: Any
  partitioner: partitioning.Partitioner
  state_plan: StatePlan

  def __call__(
    self, state: TrainState, batches: Batch
  ) -> tuple[TrainState, Totals]:
    """Takes K steps; the state that is passed in is gone afterwards."""
    with self.partitioner.context():
      return self.compiled(state, batches)

  def trace(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
    """Traces one step (`jax.stages.Traced`) without any array.

    Args:
      batch: Shapes [B, ...] and dtypes of a batch over all devices.
    """
    sharding = self.partitioner.batch_sharding(leading=1)
    batches = {
      key: jax.ShapeDtypeStruct((1, *x.shape), x.dtype, sharding=sharding)
      for key, x in batch.items()
    }
    with self.partitioner.context():
      return self.compiled.trace(self.state_plan.shapes, batches)


def make_step(
  model: Model,
  optimizer: optimizers.Optimizer,
  partitioner: partitioning.Partitioner,
  state_plan: StatePlan,
  seed: int,
  microbatches: int = 1,
  ema_decay: float | None = None,
) -> Step:
  """Compiles (state, batches [K, B, ...]) -> (state, totals over K steps).

  The state is donated: the one passed in is gone afterwards. Dropout depends
  on the seed and the step alone, so that a resumed run repeats it.

  Args:
    model: Gives sums of losses and their weights.
    optimizer: Turns the gradient of sum / weight into an update.
    partitioner: Places batches; its mesh is the state's.
    state_plan: The state's shardings.
    seed: Of dropout.
    microbatches: Parts in which a batch is differentiated. The update is
      that of the whole batch: sums of gradients over sums of weights.
    ema_decay: Share of the moving average kept a step, if there is one; less
      in the beginning, min(decay, (1 + step) / (10 + step)).
  """

  def one_step(state: TrainState, batch: Batch) -> tuple[TrainState, Totals]:
    rng = jax.random.fold_in(jax.random.key(seed), state.step)
    gradients, loss, weight, totals = _accumulate(
      model, state.params, batch, rng, microbatches, partitioner
    )
    # A batch that weighs nothing (no pair to rank) leaves the loss at zero.
    scale = 1.0 / jnp.where(weight > 0, weight, 1.0)
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    gradients = optimizer.thaw(gradients, state.step)
    norm = _norm(gradients)
    if optimizer.clip_norm is not None:
      shrink = jnp.minimum(1.0, optimizer.clip_norm / (norm + 1e-12))
      gradients = jax.tree.map(lambda g: g * shrink, gradients)
    updates, opt_state = optimizer.transformation.update(
      gradients, state.opt_state, state.params
    )
    updates = optimizer.thaw(updates, state.step)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema_decay is not None:
      keep = jnp.minimum(ema_decay, (1.0 + state.step) / (10.0 + state.step))
      ema = jax.tree.map(lambda e, p: e + (1.0 - keep) * (p - e), ema, params)
    one = jnp.ones(())
    totals = {
      'loss': (loss, weight),
      **totals,
      'gradient_norm': (norm, one),
      'learning_rate': (optimizer.schedule(state.step) * one, one),
    }
    return TrainState(state.step + 1, params, opt_state, ema), totals

  def steps(state: TrainState, batches: Batch) -> tuple[TrainState, Totals]:
    state, totals = lax.scan(one_step, state, dict(batches))
    return state, jax.tree.map(lambda x: x.sum(axis=0), totals)

  compiled = jax.jit(
    steps,
    in_shardings=(state_plan.shardings, partitioner.batch_sharding(leading=1)),
    out_shardings=(state_plan.shardings, partitioner.replicated),
    donate_argnums=0,
  )

  return Step(compiled, partitioner, state_plan)


def _norm(tree: PyTree) -> jax.Array:
  """The Euclidean norm of all leaves together."""
  return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


def _accumulate(
  model: Model,
  params: PyTree,
  batch: Batch,
  rng: jax.Array,
  microbatches: int,
  partitioner: partitioning.Partitioner,
) -> tuple[PyTree, jax.Array, jax.Array, Totals]:
  """Sums gradients, losses, weights and metrics over the microbatches."""
  differentiate = jax.value_and_grad(model.loss_fn, has_aux=True)

  def part(batch: Batch, rng: jax.Array) -> Any:
    (loss, aux), gradients = differentiate(params, batch, rng)
    totals = {
      name: (jnp.float32(total), jnp.float32(weight))
      for name, (total, weight) in aux.get('metrics', {}).items()
    }
    return gradients, jnp.float32(loss), jnp.float32(aux['weight']), totals

  if microbatches == 1:
    return part(batch, rng)

  def split(x: jax.Array) -> jax.Array:
    # [B, ...] -> [M, B / M, ...]; every M-th example together, so that no
    # example changes its device.
    x = x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:])
    return lax.with_sharding_constraint(
      x.swapaxes(0, 1), partitioner.batch_sharding(leading=1)
    )

  def add(sums: Any, inputs: Any) -> tuple[Any, None]:
    return jax.tree.map(jnp.add, sums, part(*inputs)), None

  parts = jax.tree.map(split, dict(batch))
  rngs = jax.random.split(rng, microbatches)
  first = jax.tree.map(lambda x: x[0], parts)
  zeros = jax.tree.map(
    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
    jax.eval_shape(part, first, rngs[0]),
  )
  sums, _ = lax.scan(add, zeros, (parts, rngs))
  return sums
