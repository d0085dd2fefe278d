"""Logical axes: the rules that map them to a mesh, and the mesh itself.

A network names the axes of its arrays ('batch', 'mlp', ...). T5X's rules map
each name to an axis of a (data, model) mesh, over which that dimension is
sharded. Training and inference share the rules and the mesh. Not here: the
axis names of parameters (`nn/t5_axes.py`, `nn/bert.py`).
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from t5score_jax.errors import OptionError

Array = jax.Array
Names = Sequence[str | None]
# One axis of the mesh, several (the first varies slowest), or none.
MeshAxes = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, MeshAxes]]

# JAX 0.6, the last release for Python 3.10, uses the older name.
_set_mesh: Any = getattr(jax, 'set_mesh', None) or getattr(
  jax.sharding, 'use_mesh', None
)

# The platform of the active mesh, which may be that of another machine.
_PLATFORM: contextvars.ContextVar[str | None] = contextvars.ContextVar(
  'platform', default=None
)


class MeshError(OptionError):
  """The devices, the mesh and the arrays do not fit together."""


def standard_rules(
  fully_sharded: bool = False, training: bool = True
) -> tuple[tuple[str, MeshAxes], ...]:
  """Returns T5X's rules: logical axis -> axis of the mesh (None: replicated).

  If two axes of an array map to the same axis of the mesh, the first rule wins.

  Args:
    fully_sharded: Whether 'embed' and 'vocab' of parameters and optimizer
      states are sharded over the data axis as well, so that no device holds a
      full replica.
    training: Whether gradients are computed. Otherwise sharding the logits has
      no benefit, and their rule is left out.
  """
  rules: tuple[tuple[str, MeshAxes], ...] = (
    ('batch', 'data'),
    # Unlike T5X: sharded over all devices, a vocabulary matrix never moves; the
    # hidden states that meet it do, and they are far smaller.
    ('vocab', ('model', 'data') if fully_sharded else 'model'),
    ('heads', 'model'),
    ('mlp', 'model'),
    ('joined_kv', 'model'),
    ('embed', 'data' if fully_sharded else None),
    ('kv', None),
    ('length', None),
    ('layers', None),
    ('relpos_buckets', None),
    # Encoders and their heads.
    ('positions', None),
    ('types', None),
    ('one', None),
  )
  # The columns of the logits, an activation.
  return (*rules, ('logits', ('model', 'data'))) if training else rules


def make_mesh(devices: Sequence[Any], num_partitions: int = 1) -> Mesh:
  """Makes a mesh with the axes ('data', 'model').

  Args:
    devices: The devices; in precompilation, those of another machine.
    num_partitions: Number of devices that share one replica of the model (T5X's
      name): the size of 'model'.

  Raises:
    MeshError: `num_partitions` does not divide the number of devices.
  """
  if num_partitions < 1 or len(devices) % num_partitions:
    raise MeshError(
      f'num_partitions = {num_partitions} does not divide the {len(devices)} '
      f'devices ({devices[0].platform})'
    )
  return jax.make_mesh(
    (len(devices) // num_partitions, num_partitions),
    ('data', 'model'),
    axis_types=(AxisType.Auto, AxisType.Auto),
    devices=devices,
  )


@contextlib.contextmanager
def mesh_context(mesh: Mesh, rules: Rules) -> Iterator[None]:
  """In this context, the rules shard activations that name their axes."""
  token = _PLATFORM.set(mesh.devices.flat[0].platform)
  try:
    with _set_mesh(mesh), nn.logical_axis_rules(rules):
      yield
  finally:
    _PLATFORM.reset(token)


def partition_spec(
  names: Names, shape: Sequence[int], rules: Rules, mesh: Mapping[str, int]
) -> PartitionSpec:
  """Maps the logical axes of one array to axes of the mesh.

  Each mesh axis is used at most once per array, by the first rule that maps to
  it. A dimension that its mesh axis does not divide is replicated; of several
  axes, it takes as many as divide it together.

  Args:
    names: One logical name (or None) per dimension; a name without a rule is
      replicated.
    shape: The shape of the array.
    rules: Logical name -> axis of the mesh. A second rule for a name applies
      where the first finds no free axis.
    mesh: Axis of the mesh -> its size.
  """
  sharding: list[MeshAxes] = [None] * len(shape)
  used: set[str] = set()
  for name, mesh_axes in rules:
    wanted = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes or ()
    for i, size in enumerate(shape):
      if names[i] != name or sharding[i] is not None:
        continue
      taken: list[str] = []
      for axis in wanted:
        parts = math.prod(mesh[a] for a in taken) * mesh[axis]
        if axis in used or size % parts:
          break
        taken.append(axis)
      used.update(taken)
      if taken:
        sharding[i] = taken[0] if len(taken) == 1 else tuple(taken)
  while sharding and sharding[-1] is None:
    sharding.pop()
  return PartitionSpec(*sharding)


def constrain(x: Array, names: Names) -> Array:
  """Shards an activation by the active rules; identity outside a mesh.

  Args:
    x: An array that is being traced.
    names: One logical name (or None: replicated) per dimension.
  """
  mesh = jax.sharding.get_abstract_mesh()
  rules = nn.get_logical_axis_rules()
  if mesh.empty or not rules:
    return x
  spec = partition_spec(names, x.shape, rules, dict(mesh.shape))
  return lax.with_sharding_constraint(x, spec)


def is_sharded(name: str) -> bool:
  """Whether the active rules shard a logical axis over some mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and any(
    rule == name and mesh_axes is not None
    for rule, mesh_axes in nn.get_logical_axis_rules()
  )


def mesh_size() -> int:
  """Number of devices of the active mesh; 1 outside a mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else mesh.size


def on_one_cpu() -> bool:
  """Whether the traced computation runs on a CPU as a single device."""
  platform = _PLATFORM.get() or jax.default_backend()
  return platform == 'cpu' and mesh_size() == 1
