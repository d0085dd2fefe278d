"""Optimizers and learning-rate schedules, made of Optax's parts.

An `Optimizer` is a gradient transformation with the schedule beside it, so
that the trunk can report the learning rate. Parameters are told apart by
regular expressions over their T5X names ('encoder/layers_0/mlp/wo/kernel').
Not here: clipping across accumulated batches and the moving average of the
parameters, which belong to the step (`training/state.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5score_jax.errors import T5ScoreError
from t5score_jax.runtime import validation
from t5score_jax.training import adafactor as adafactor_scaling

PyTree = Any
Schedule = Callable[[jax.Array], jax.Array]

# T5X decays no vector: neither the scales of norms nor biases.
NO_DECAY = r'(scale|bias|rel_embedding)$'
# Of `Optimizer.frozen`: for the whole of a run.
ALWAYS = -1


class OptimizerError(T5ScoreError, ValueError):
  """Settings that do not fit the parameters."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A gradient transformation and the schedule it follows.

  Attributes:
    transformation: Turns gradients of the mean loss into updates to add.
    schedule: Step (0 before the first update) -> learning rate.
    clip_norm: Largest global norm of the gradients; longer ones are scaled
      down to it before anything else. None: not clipped.
    frozen: Regular expression -> number of first updates in which parameters
      of such a name stand still, or `ALWAYS`; their gradients count for
      nothing, in the norm and in moments. The first expression that is found
      in a name counts.
  """

  transformation: optax.GradientTransformation
  schedule: Schedule
  clip_norm: float | None = None
  frozen: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def thaw(self, tree: PyTree, step: jax.Array) -> PyTree:
    """Gradients or updates with zeros where parameters are frozen.

    Args:
      tree: Shaped as the parameters.
      step: Updates made.

    Raises:
      OptimizerError: An expression that matches no parameter.
    """
    if not self.frozen:
      return tree
    until = _first_matches(tree, self.frozen, 0, 'frozen')

    def one(leaf: jax.Array, steps: int) -> jax.Array:
      if not steps:
        return leaf
      # A constant, so that nothing is computed for what never moves.
      if steps == ALWAYS:
        return jnp.zeros_like(leaf)
      return jnp.where(step < steps, 0.0, leaf)

    return jax.tree.map(one, tree, until)


def constant(learning_rate: float, warmup_steps: int = 0) -> Schedule:
  """A constant rate, reached linearly over `warmup_steps`.

  Raises:
    OptimizerError: A number is none.
  """
  _check_schedule(learning_rate, warmup_steps=warmup_steps)
  return lambda step: learning_rate * _warmup(step, warmup_steps)


def linear(
  learning_rate: float,
  total_steps: int,
  warmup_steps: int = 0,
  final_fraction: float = 0.0,
) -> Schedule:
  """Linear warm-up, then a straight line down (T5Score, appendix).

  Args:
    learning_rate: The rate at the end of the warm-up.
    total_steps: The step at which the line ends; constant from there on.
    warmup_steps: Updates until the full rate.
    final_fraction: The rate at the end, as a share of `learning_rate`.

  Raises:
    OptimizerError: A number is none.
  """
  _check_schedule(
    learning_rate, total_steps=total_steps, warmup_steps=warmup_steps
  )
  validation.check(
    validation.Finite, OptimizerError, final_fraction=final_fraction
  )
  span = max(total_steps - warmup_steps, 1)

  def schedule(step: jax.Array) -> jax.Array:
    done = jnp.clip((step - warmup_steps) / span, 0.0, 1.0)
    decay = 1.0 - (1.0 - final_fraction) * done
    return learning_rate * _warmup(step, warmup_steps) * decay

  return schedule


def inverse_sqrt(learning_rate: float, warmup_steps: int) -> Schedule:
  """T5's pre-training schedule: learning_rate / sqrt(max(step, warm-up)).

  The rate is constant during the warm-up (Raffel et al. 2020, section 3.1.2,
  with learning_rate = 1).

  Raises:
    OptimizerError: A number is none.
  """
  _check_schedule(learning_rate, warmup_steps=warmup_steps)
  return lambda step: (
    learning_rate / jnp.sqrt(jnp.maximum(step, max(warmup_steps, 1)))
  )


def _check_schedule(learning_rate: float, **steps: int) -> None:
  validation.check(
    validation.Finite, OptimizerError, learning_rate=learning_rate
  )
  validation.check(validation.NonNegative, OptimizerError, **steps)


def adamw(
  schedule: Schedule,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  clip_norm: float | None = 1.0,
  multipliers: Mapping[str, float] | None = None,
  no_decay: str = NO_DECAY,
  frozen: Mapping[str, int] | None = None,
) -> Optimizer:
  """AdamW (Loshchilov and Hutter 2019); decay is scaled by the rate.

  Args:
    schedule: Step -> learning rate.
    b1: Decay of the mean of gradients.
    b2: Decay of the mean of squared gradients.
    eps: Added to the root of the latter.
    weight_decay: Share of a weight taken off a step, times the rate.
    clip_norm: See `Optimizer`.
    multipliers: See `learning_rate_multipliers`.
    no_decay: Parameters whose name matches (re.search) are not decayed.
    frozen: See `Optimizer`.
  """
  return _optimizer(
    [optax.scale_by_adam(b1=b1, b2=b2, eps=eps)],
    schedule,
    weight_decay,
    clip_norm,
    multipliers,
    no_decay,
    frozen,
  )


def adafactor(
  schedule: Schedule,
  decay_rate: float = 0.8,
  step_offset: int = 0,
  multiply_by_parameter_scale: bool = True,
  clipping_threshold: float | None = 1.0,
  min_dim_size_to_factor: int = 128,
  weight_decay: float = 0.0,
  clip_norm: float | None = None,
  multipliers: Mapping[str, float] | None = None,
  no_decay: str = NO_DECAY,
  frozen: Mapping[str, int] | None = None,
) -> Optimizer:
  """Adafactor (Shazeer and Stern 2018) with T5X's settings.

  Where this differs from T5X's own: `weight_decay` is multiplied by the
  learning rate, as in the published T5Score trainer, not taken off in full
  every step. Layers stacked for scanning are updated as plain ones are
  (`training/adafactor.py`).

  Args:
    schedule: Step -> learning rate, relative to the parameter's scale.
    decay_rate: Exponent of the second moment's decay, 1 - step^-decay_rate.
    step_offset: Steps to leave out of that, for fine-tuning.
    multiply_by_parameter_scale: Whether a step is relative to the root mean
      square of the parameter (at least 1e-3).
    clipping_threshold: Largest root mean square of a parameter's update.
    min_dim_size_to_factor: Smaller matrices keep a full second moment.
    weight_decay: Share of a weight taken off a step, times the rate.
    clip_norm: See `Optimizer`.
    multipliers: See `learning_rate_multipliers`.
    no_decay: Parameters whose name matches (re.search) are not decayed.
    frozen: See `Optimizer`.
  """
  parts = [
    adafactor_scaling.scale_by_factored_rms(
      decay_rate, step_offset, min_dim_size_to_factor
    )
  ]
  if clipping_threshold is not None:
    parts.append(adafactor_scaling.clip_by_layer_rms(clipping_threshold))
  if multiply_by_parameter_scale:
    parts.append(adafactor_scaling.scale_by_layer_rms())
  return _optimizer(
    parts, schedule, weight_decay, clip_norm, multipliers, no_decay, frozen
  )


def learning_rate_multipliers(
  params: PyTree, multipliers: Mapping[str, float]
) -> PyTree:
  """A factor of the learning rate for every parameter, 1.0 by default.

  Args:
    params: The parameters, a nested dict.
    multipliers: Regular expression -> factor. A parameter takes the factor of
      the first expression found in its name ('/' between the levels); a
      factor of 0 freezes it.

  Returns:
    The same tree with a float a parameter.

  Raises:
    OptimizerError: An expression that matches no parameter.
  """
  return _first_matches(params, multipliers, 1.0, 'multipliers')


def layerwise_multipliers(
  num_layers: int,
  decay: float,
  encoder: float = 1.0,
  prefix: str = 'encoder/',
) -> dict[str, float]:
  """Factors of the learning rate that fall towards an encoder's input.

  COMES, Table 4: an encoder rate of 1e-5 beside 3.1e-5, layer-wise decay .95.

  Args:
    num_layers: Of the encoder.
    decay: The factor from a layer to the one below, above 0, at most 1; the
      embeddings count as the layer below the first.
    encoder: The last layer's rate as a share of the learning rate.
    prefix: What the encoder's parameters are called.

  Returns:
    For `multipliers`: expression -> factor.

  Raises:
    OptimizerError: A number is none, or a decay out of range.
  """
  validation.check(
    validation.NonNegative, OptimizerError, num_layers=num_layers
  )
  validation.check(
    validation.Finite, OptimizerError, decay=decay, encoder=encoder
  )
  if not 0 < decay <= 1:
    raise OptimizerError(f'decay = {decay}: above 0, at most 1')
  start = '^' + re.escape(prefix)
  factors = {
    f'{start}layers_{n}/': encoder * decay ** (num_layers - 1 - n)
    for n in range(num_layers)
  }
  return {**factors, f'{start}embeddings/': encoder * decay**num_layers}


def share(learning_rate: float, of: float) -> float:
  """A rate as a share of another, for gin, which doesn't divide.

  Raises:
    OptimizerError: A rate is no number, or the other is 0.
  """
  validation.check(
    validation.Finite, OptimizerError, learning_rate=learning_rate, of=of
  )
  if not of:
    raise OptimizerError('of = 0: nothing is a share of a learning rate of 0')
  return learning_rate / of


def _first_matches(
  params: PyTree, rules: Mapping[str, Any], default: Any, what: str
) -> PyTree:
  """For every parameter the value of the first expression in its name."""
  used: set[str] = set()

  def one(path: Any, leaf: Any) -> Any:
    del leaf
    name = parameter_name(path)
    for expression, value in rules.items():
      if re.search(expression, name):
        used.add(expression)
        return type(default)(value)
    return default

  tree = jax.tree_util.tree_map_with_path(one, params)
  if idle := sorted(set(rules) - used):
    raise OptimizerError(
      f'{what}: {idle} match no parameter (or earlier expressions match '
      "all of theirs); a name looks like 'encoder/layers_0/mlp/wo/kernel'"
    )
  return tree


def parameter_name(path: Any) -> str:
  """The T5X name of a leaf: its keys joined by '/'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def _warmup(step: jax.Array, warmup_steps: int) -> jax.Array:
  # The first update already moves: step counts from 0.
  return jnp.minimum(1.0, (step + 1) / max(warmup_steps, 1))


def _optimizer(
  parts: list[optax.GradientTransformation],
  schedule: Schedule,
  weight_decay: float,
  clip_norm: float | None,
  multipliers: Mapping[str, float] | None,
  no_decay: str,
  frozen: Mapping[str, int] | None,
) -> Optimizer:
  def decays(params: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(
      lambda path, _: not re.search(no_decay, parameter_name(path)), params
    )

  if weight_decay:
    parts = [*parts, optax.add_decayed_weights(weight_decay, decays)]
  parts = [*parts, optax.scale_by_learning_rate(schedule)]
  if multipliers:
    parts = [*parts, _scale_by_multipliers(multipliers)]
  for expression, steps in (frozen or {}).items():
    if steps < ALWAYS:
      raise OptimizerError(
        f'frozen: {expression!r} for {steps} updates: give a number of them, '
        f'or {ALWAYS} for always'
      )
  return Optimizer(optax.chain(*parts), schedule, clip_norm, frozen or {})


def _scale_by_multipliers(
  multipliers: Mapping[str, float],
) -> optax.GradientTransformation:
  def init(params: PyTree) -> optax.EmptyState:
    # Complain early; but Optax also calls this with a placeholder for all
    # parameters, which has no leaves.
    if jax.tree.leaves(params):
      learning_rate_multipliers(params, multipliers)
    return optax.EmptyState()

  def update(
    updates: PyTree, state: optax.EmptyState, params: PyTree | None = None
  ) -> tuple[PyTree, optax.EmptyState]:
    del params
    factors = learning_rate_multipliers(updates, multipliers)
    return jax.tree.map(lambda u, f: u * f, updates, factors), state

  return optax.GradientTransformation(init, update)
