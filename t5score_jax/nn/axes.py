"""Named axes: which part of the mesh each dimension of an array is split over.

A network names the axes of its arrays ('batch', 'mlp', ...); rules, given by
`training/partitioning.py`, map names to axes of a mesh. Not here: the rules
themselves, meshes, and what the axes of parameters are called (`nn/t5.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
from jax import lax
from jax.sharding import PartitionSpec

Array = jax.Array
Names = Sequence[str | None]
# An axis of the mesh, several (the first varies slowest), or none.
Place = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, Place]]


def partition_spec(
  names: Names, shape: Sequence[int], rules: Rules, mesh: Mapping[str, int]
) -> PartitionSpec:
  """Maps the named axes of one array to axes of the mesh.

  An axis of the mesh is used once an array, by the rule that stands first. A
  dimension that its axis of the mesh does not divide stays whole; of several
  axes it takes as many as divide it together.

  Args:
    names: One logical name (or None) per dimension; a name without a rule is
      not split.
    shape: The array's shape.
    rules: Logical name -> axis of the mesh; of two rules for one name the
      second counts where the first finds nothing free.
    mesh: Axis of the mesh -> its size.
  """
  places: list[Place] = [None] * len(shape)
  used: set[str] = set()
  for name, place in rules:
    wanted = (place,) if isinstance(place, str) else place or ()
    for i, size in enumerate(shape):
      if names[i] != name or places[i] is not None:
        continue
      taken: list[str] = []
      for axis in wanted:
        parts = math.prod(mesh[a] for a in taken) * mesh[axis]
        if axis in used or size % parts:
          break
        taken.append(axis)
      used.update(taken)
      if taken:
        places[i] = taken[0] if len(taken) == 1 else tuple(taken)
  while places and places[-1] is None:
    places.pop()
  return PartitionSpec(*places)


def constrain(x: Array, names: Names) -> Array:
  """Splits an activation as the rules say; identity outside a mesh.

  Args:
    x: An array that is being traced.
    names: One logical name (or None: whole) per dimension.
  """
  mesh = jax.sharding.get_abstract_mesh()
  rules = nn.get_logical_axis_rules()
  if mesh.empty or not rules:
    return x
  spec = partition_spec(names, x.shape, rules, dict(mesh.shape))
  return lax.with_sharding_constraint(x, spec)


def is_divided(name: str) -> bool:
  """Whether the rules in force split a logical axis over some mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and any(
    rule == name and place is not None
    for rule, place in nn.get_logical_axis_rules()
  )


def mesh_size() -> int:
  """Devices of the mesh in force; 1 outside one."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else mesh.size
