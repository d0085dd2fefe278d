"""Optimizers and learning-rate schedules, built from Optax.

An `Optimizer` pairs a gradient transformation with its schedule, so that the
training loop can report the learning rate. Regular expressions over T5X names
('encoder/layers_0/mlp/wo/kernel') select parameters. Not here: clipping over
microbatches and the parameters' moving average, which belong to the step
(`training/state.py`).
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

# T5X does not decay vectors: scales of norms and biases.
NO_DECAY = r'(scale|bias|rel_embedding)$'
# In `Optimizer.frozen`: frozen for the whole run.
ALWAYS = -1


class OptimizerError(T5ScoreError, ValueError):
  """The settings of an optimizer or schedule are invalid."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A gradient transformation and the schedule it follows.

  Attributes:
    transformation: Turns gradients of the mean loss into updates to add.
    schedule: Step (0 before the first update) -> learning rate.
    clip_norm: Maximum global norm of the gradients, which are scaled down to
      it before anything else. None: no clipping.
    frozen: Regular expression -> number of initial updates in which matching
      parameters do not change, or `ALWAYS`. Their gradients enter neither the
      norm nor the moments. The first expression that matches a name applies.
  """

  transformation: optax.GradientTransformation
  schedule: Schedule
  clip_norm: float | None = None
  frozen: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def thaw(self, tree: PyTree, step: jax.Array) -> PyTree:
    """Sets gradients or updates of frozen parameters to zero.

    Args:
      tree: A tree shaped like the parameters.
      step: The number of updates so far.

    Raises:
      OptimizerError: An expression matches no parameter.
    """
    if not self.frozen:
      return tree
    until = _first_matches(tree, self.frozen, 0, 'frozen')

    def one(leaf: jax.Array, steps: int) -> jax.Array:
      if not steps:
        return leaf
      # A constant, so that XLA drops the computation of these gradients.
      if steps == ALWAYS:
        return jnp.zeros_like(leaf)
      return jnp.where(step < steps, 0.0, leaf)

    return jax.tree.map(one, tree, until)


def constant(learning_rate: float, warmup_steps: int = 0) -> Schedule:
  """A constant rate after linear warm-up over `warmup_steps`.

  Raises:
    OptimizerError: A value is not a number.
  """
  _check_schedule(learning_rate, warmup_steps=warmup_steps)
  return lambda step: learning_rate * _warmup(step, warmup_steps)


def linear(
  learning_rate: float,
  total_steps: int,
  warmup_steps: int = 0,
  final_fraction: float = 0.0,
) -> Schedule:
  """Linear warm-up, then linear decay (T5Score, appendix).

  Args:
    learning_rate: The rate at the end of the warm-up.
    total_steps: The last step of the decay; the rate is constant afterwards.
    warmup_steps: The number of updates until the full rate.
    final_fraction: The rate at the end, as a share of `learning_rate`.

  Raises:
    OptimizerError: A value is not a number.
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
    OptimizerError: A value is not a number.
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
  """AdamW (Loshchilov and Hutter 2019); weight decay scales with the rate.

  Args:
    schedule: Step -> learning rate.
    b1: Decay of the mean of gradients.
    b2: Decay of the mean of squared gradients.
    eps: Added to the root of that mean.
    weight_decay: Fraction of a weight subtracted per step, times the rate.
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
  """Adafactor (Shazeer and Stern 2018); the defaults are T5X's.

  The published T5Score trainer (Hugging Face's with `--adafactor`) does not
  multiply by the parameter's scale. Nor do the paper's runs in
  `gin_configs/runs/`, which set `multiply_by_parameter_scale=False`. Unlike
  T5X, this function multiplies `weight_decay` by the learning rate, as that
  trainer does. Layers stacked for scanning are updated like separate ones
  (`training/adafactor.py`).

  Args:
    schedule: Step -> learning rate, relative to the parameter's scale or
      absolute.
    decay_rate: Exponent of the second moment's decay, 1 - step^-decay_rate.
    step_offset: Steps to subtract in that formula, for fine-tuning.
    multiply_by_parameter_scale: Whether a step is relative to the root mean
      square of the parameter (at least 1e-3). At a rate of 1e-5, a kernel with
      root mean square .05 then moves 20 times less than at the absolute rate.
    clipping_threshold: Maximum root mean square of a parameter's update.
    min_dim_size_to_factor: Smaller matrices keep a full second moment.
    weight_decay: Fraction of a weight subtracted per step, times the rate.
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
  """Returns a factor of the learning rate for every parameter.

  Args:
    params: The parameters, a nested dict.
    multipliers: Regular expression -> factor. The first expression that
      matches a name ('/' between the levels) applies; without one the factor
      is 1. A factor of 0 freezes a parameter.

  Returns:
    The same tree with a float for each parameter.

  Raises:
    OptimizerError: An expression matches no parameter.
  """
  return _first_matches(params, multipliers, 1.0, 'multipliers')


def layerwise_multipliers(
  num_layers: int,
  decay: float,
  encoder: float = 1.0,
  prefix: str = 'encoder/',
) -> dict[str, float]:
  """Learning-rate factors that decrease towards an encoder's input.

  COMES, Table 4: an encoder rate of 1e-5 beside 3.1e-5, layer-wise decay .95.

  Args:
    num_layers: Number of layers of the encoder.
    decay: The factor from a layer to the one below it, in (0, 1]; the
      embeddings count as the layer below the first.
    encoder: The last layer's rate as a fraction of the learning rate.
    prefix: The prefix of the encoder's parameter names.

  Returns:
    Expression -> factor, for `multipliers`.

  Raises:
    OptimizerError: A value is not a number, or the decay is out of range.
  """
  validation.check(
    validation.NonNegative, OptimizerError, num_layers=num_layers
  )
  validation.check(
    validation.Finite, OptimizerError, decay=decay, encoder=encoder
  )
  if not 0 < decay <= 1:
    raise OptimizerError(f'decay = {decay}: must be above 0 and at most 1')
  start = '^' + re.escape(prefix)
  factors = {
    f'{start}layers_{n}/': encoder * decay ** (num_layers - 1 - n)
    for n in range(num_layers)
  }
  return {**factors, f'{start}embeddings/': encoder * decay**num_layers}


def share(learning_rate: float, of: float) -> float:
  """Divides one rate by another, because gin cannot divide.

  Raises:
    OptimizerError: A rate is not a number, or the divisor is 0.
  """
  validation.check(
    validation.Finite, OptimizerError, learning_rate=learning_rate, of=of
  )
  if not of:
    raise OptimizerError('of = 0: a learning rate cannot be divided by 0')
  return learning_rate / of


def _first_matches(
  params: PyTree, rules: Mapping[str, Any], default: Any, what: str
) -> PyTree:
  """Returns, for every parameter, the value of the first match in `rules`."""
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
  # Steps count from 0, and the first update has a rate above 0.
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
        f'frozen: {expression!r} for {steps} updates: must be a number of '
        f'updates, or {ALWAYS} for the whole run'
      )
  return Optimizer(optax.chain(*parts), schedule, clip_norm, frozen or {})


def _scale_by_multipliers(
  multipliers: Mapping[str, float],
) -> optax.GradientTransformation:
  def init(params: PyTree) -> optax.EmptyState:
    # Check early, except when Optax passes a placeholder without leaves.
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
