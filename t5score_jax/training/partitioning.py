"""Sharding: applies logical axis rules on a (data, model) mesh.

A parameter names its axes ('vocab', 'embed', ...); the rules map each to an
axis of the mesh. Not here: the rules and the names of axes (`nn/axes.py`), and
placing arrays on devices (`training/state.py`, `inputs/`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5score_jax.inputs import shares
from t5score_jax.nn import axes as named_axes
from t5score_jax.nn.axes import MeshError

AxisNames = tuple[str | None, ...]
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Partitioner:
  """Splits batches over 'data' and parameters over 'model'.

  Attributes:
    num_partitions: Number of devices over which one replica of the model is
      split (T5X's name); the replicas share the batch.
    fully_sharded: See `nn.axes.standard_rules`.
    rules: Logical axis rules, in place of the standard ones.
    devices: Devices of the mesh; all by default. Precompilation passes those
      of an absent machine.

  Raises:
    MeshError: The number of devices is not a multiple of `num_partitions`.
  """

  num_partitions: int = 1
  fully_sharded: bool = False
  rules: Sequence[tuple[str, Any]] | None = None
  devices: Sequence[Any] | None = None

  @functools.cached_property
  def mesh(self) -> Mesh:
    """The mesh over all devices of all processes, axes ('data', 'model')."""
    devices = jax.devices() if self.devices is None else list(self.devices)
    return named_axes.make_mesh(devices, self.num_partitions)

  @property
  def axis_rules(self) -> named_axes.Rules:
    """The rules in force."""
    if self.rules is not None:
      return tuple(
        (axis, tuple(place) if isinstance(place, list) else place)
        for axis, place in self.rules
      )
    return named_axes.standard_rules(self.fully_sharded)

  @property
  def replicated(self) -> NamedSharding:
    """The sharding of an array that is replicated on all devices."""
    return NamedSharding(self.mesh, PartitionSpec())

  def spec(self, axes: AxisNames, shape: Sequence[int]) -> PartitionSpec:
    """Maps the named axes of one array to axes of the mesh.

    Each mesh axis is used at most once per array, by the first rule that maps
    to it. A dimension that its mesh axis does not divide stays whole; of
    several axes, it takes as many as divide it.

    Args:
      axes: One logical name (or None) per dimension.
      shape: The array's shape.

    Raises:
      MeshError: A name has no rule, or the names do not fit the shape.
    """
    if len(axes) != len(shape):
      raise MeshError(f'axes {axes} do not fit shape {tuple(shape)}')
    known = {name for name, _ in self.axis_rules}
    for name in axes:
      if name is not None and name not in known:
        raise MeshError(
          f'no rule for the logical axis {name!r}; the rules name '
          f'{sorted(known)}'
        )
    return named_axes.partition_spec(
      axes, shape, self.axis_rules, dict(self.mesh.shape)
    )

  def shardings(self, axes: PyTree, shapes: PyTree) -> PyTree:
    """Shardings of a tree of parameters.

    Args:
      axes: A tree of tuples of logical axis names.
      shapes: The same tree with arrays or `jax.ShapeDtypeStruct`s.

    Returns:
      The same tree of `NamedSharding`s.

    Raises:
      MeshError: See `spec`; the message names the parameter.
    """

    def one(path: Any, names: AxisNames, leaf: Any) -> NamedSharding:
      try:
        return NamedSharding(self.mesh, self.spec(names, leaf.shape))
      except MeshError as error:
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        raise MeshError(f'parameter {name}: {error}') from None

    return jax.tree_util.tree_map_with_path(
      one, axes, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple)
    )

  def batch_sharding(self, leading: int = 0) -> NamedSharding:
    """Sharding of a batch: split over 'data' after `leading` whole axes."""
    place = dict(reversed(self.axis_rules))['batch']
    return NamedSharding(self.mesh, PartitionSpec(*[None] * leading, place))

  def check_batch_size(self, batch_size: int, microbatches: int) -> None:
    """Raises MeshError unless microbatches divide over the data axis."""
    parts = self.mesh.shape['data'] * microbatches
    if batch_size % parts:
      raise MeshError(
        f'a batch of {batch_size} cannot be divided into {microbatches} '
        f'microbatches over {self.mesh.shape["data"]} groups of devices: use a '
        f'multiple of {parts}'
      )

  @property
  def share(self) -> shares.Share:
    """The rows of a batch that this process reads.

    Raises:
      MeshError: The mesh and the processes do not fit together.
    """
    try:
      return shares.of(self.batch_sharding())
    except shares.ShareError as error:
      raise MeshError(str(error)) from None

  def put_batch(
    self, batch: Mapping[str, np.ndarray], leading: int = 0
  ) -> dict[str, jax.Array]:
    """Moves one batch to the devices, split over 'data'.

    Args:
      batch: Arrays of this process: its share of the batch on axis `leading`.
      leading: Axes before the batch axis, which stay whole.

    Raises:
      MeshError: The batch cannot be divided over the devices.
    """
    sharding, share = self.batch_sharding(leading), self.share
    own = next(iter(batch.values())).shape[leading]
    self.check_batch_size(share.batch_size(own), 1)
    if share == shares.WHOLE:
      return jax.device_put(dict(batch), sharding)
    return shares.put(batch, sharding, share, leading)

  def context(self) -> contextlib.AbstractContextManager[None]:
    """In this context, the rules shard activations that name their axes."""
    return named_axes.mesh_context(self.mesh, self.axis_rules)
