"""The training state and the pure function that updates it.

`plan` computes the shapes and shardings of a state. `make_step` compiles the
update: it sums gradients over microbatches, clips and applies them, and updates
the moving average. Not here: when to take, save and report steps
(`training/loop.py`).
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

from t5score_jax.errors import OptionError
from t5score_jax.training import optimizers, partitioning

PyTree = Any
Batch = Mapping[str, jax.Array]
# Name -> (sum, weight), which add up over microbatches, steps and processes.
Totals = dict[str, tuple[jax.Array, jax.Array]]
# In the totals of a step: whether its loss is finite.
FINITE = 'finite_losses'


@runtime_checkable
class Model(Protocol):
  """A model as the training loop sees it, whatever its metric.

  A model whose loss is not a sum over examples sets `WHOLE_BATCH = True`, so
  that it is not trained in microbatches.
  """

  def init(self, rng: jax.Array) -> PyTree:
    """Returns fresh parameters."""

  def logical_axes(self) -> PyTree:
    """Returns the parameter tree with tuples of axis names."""

  def loss_fn(
    self, params: PyTree, batch: Batch, rng: jax.Array | None
  ) -> tuple[jax.Array, Mapping[str, Any]]:
    """Returns the sum of losses and {'weight': its normalizer, 'metrics': ...}.

    `metrics` is {name: (sum, weight)}. Without `rng` there is no dropout.
    """


@flax.struct.dataclass
class TrainState:
  """The whole state of a run, one pytree.

  Attributes:
    step: Number of updates so far, int32 [].
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
  """Shapes of the states of one run, and functions that create them.

  Attributes:
    shapes: A `TrainState` of `jax.ShapeDtypeStruct`s with shardings.
    create: Parameters (donated) -> the state at step 0, on the mesh.
    init_params: Random key -> initial parameters, on the mesh.
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
  """Computes shapes and shardings without allocating anything."""

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
    axes = [*sharding.spec, *[None] * (param.ndim - len(sharding.spec))]
    kept = [
      axis if size == full else None
      for axis, size, full in zip(axes, leaf.shape, param.shape, strict=True)
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
    """Takes K steps; `state` is donated."""
    with self.partitioner.context():
      return self.compiled(state, batches)

  def trace(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
    """Traces one step from shapes; returns a `jax.stages.Traced`.

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

  The state is donated. Dropout depends only on the seed and the step, so a
  resumed run repeats it.

  Args:
    model: The model; its loss is a sum with a weight.
    optimizer: The optimizer; it receives the gradient of sum / weight.
    partitioner: The mesh and the sharding of batches.
    state_plan: The shardings of the state.
    seed: The seed of dropout.
    microbatches: Number of parts of a batch to differentiate one after the
      other. The update is that of the whole batch: the sum of gradients divided
      by the sum of weights.
    ema_decay: Decay of the moving average per step; None for no average. The
      first steps use a smaller decay: min(decay, (1 + step) / (10 + step)).

  Raises:
    OptionError: Microbatches for a model whose loss needs the whole batch.
  """
  if microbatches > 1 and getattr(model, 'WHOLE_BATCH', False):
    raise OptionError(
      f'microbatches = {microbatches}: the loss of a {type(model).__name__} '
      'compares all examples of a batch with each other; use its own parts'
    )

  def one_step(state: TrainState, batch: Batch) -> tuple[TrainState, Totals]:
    rng = jax.random.fold_in(jax.random.key(seed), state.step)
    gradients, loss, weight, totals = _accumulate(
      model, state.params, batch, rng, microbatches, partitioner
    )
    # A batch of weight 0 (without pairs to rank) has loss 0.
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
      FINITE: (jnp.isfinite(loss).astype(jnp.float32), one),
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


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
  """Whether a state can be trained further or exported, bool [].

  All values must be finite, and so must the squares of the weights: weights of
  1e20 give no finite loss.
  """
  weights = [state.params, state.ema, jax.tree.map(jnp.square, state.params)]
  leaves = jax.tree.leaves((weights, state.opt_state))
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))


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
    # [B, ...] -> [M, B / M, ...]: a microbatch takes every M-th example, so
    # that examples stay on their devices.
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
