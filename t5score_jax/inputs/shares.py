"""Which rows of a batch each process reads.

A batch is split over groups of devices. A process reads the rows of the groups
of its devices, so that the batch does not depend on the number of processes,
and processes with shards of the same replica read the same rows. The mesh is in
`training/partitioning.py`, reading in `inputs/datasets.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from t5score_jax.errors import T5ScoreError


class ShareError(T5ScoreError, ValueError):
  """A batch or a mesh cannot be divided over the processes."""


@dataclasses.dataclass(frozen=True)
class Share:
  """A process's part of every batch.

  Attributes:
    groups: The groups of this process, ascending; each has an equal block of a
      batch's rows, in order.
    num_groups: Number of groups over all processes.
    index: Index of this share among the distinct ones.
    count: Number of distinct shares; processes with shards of one replica have
      the same share.
  """

  groups: tuple[int, ...] = (0,)
  num_groups: int = 1
  index: int = 0
  count: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    """Returns this share's rows of a batch, int64, ascending.

    Raises:
      ShareError: The batch cannot be divided over the groups.
    """
    if batch_size % self.num_groups:
      raise ShareError(
        f'a batch of {batch_size} cannot be divided over {self.num_groups} '
        f'groups of devices: use a multiple of {self.num_groups}'
      )
    block = batch_size // self.num_groups
    starts = np.asarray(self.groups, np.int64) * block
    return (starts[:, None] + np.arange(block)).reshape(-1)

  def batch_size(self, own: int) -> int:
    """Returns the size of a batch of which this share has `own` rows."""
    return own * self.num_groups // len(self.groups)


WHOLE = Share()


def of(sharding: NamedSharding) -> Share:
  """Returns this process's share of batches sharded so on axis 0.

  Raises:
    ShareError: The rows of two processes overlap partially.
  """
  num_groups = _num_groups(sharding)
  held: dict[int, set[int]] = {}
  slices: Mapping[Any, Any] = sharding.devices_indices_map((num_groups,))
  for device, (rows,) in slices.items():
    held.setdefault(device.process_index, set()).add(rows.start or 0)
  shares = {process: tuple(sorted(groups)) for process, groups in held.items()}
  if len(shares) == 1:
    return WHOLE
  different = sorted(set(shares.values()))
  if sum(map(len, different)) > num_groups:
    raise ShareError(
      f'{num_groups} groups of devices over {len(shares)} processes: some '
      'processes would share a part of their rows; choose a NUM_PARTITIONS '
      'that divides the devices of a process, or is a multiple of them'
    )
  own = shares[jax.process_index()]
  return Share(own, num_groups, different.index(own), len(different))


def put(
  batch: Mapping[str, np.ndarray],
  sharding: NamedSharding,
  share: Share,
  axis: int = 0,
) -> dict[str, jax.Array]:
  """Makes global arrays of the rows of each process.

  Args:
    batch: This process's rows.
    sharding: Sharding of the global arrays.
    share: This process's share.
    axis: The axis of the rows.
  """

  def one(value: np.ndarray) -> jax.Array:
    shape = list(value.shape)
    shape[axis] = share.batch_size(value.shape[axis])
    rows = share.rows(shape[axis])

    def part(index: Any) -> np.ndarray:
      first, stop, _ = index[axis].indices(shape[axis])
      start = int(np.searchsorted(rows, first))
      own = (*index[:axis], slice(start, start + stop - first))
      return value[(*own, *index[axis + 1 :])]

    return jax.make_array_from_callback(tuple(shape), sharding, part)

  return {key: one(value) for key, value in batch.items()}


def spread(
  batch: Mapping[str, np.ndarray], sharding: NamedSharding
) -> dict[str, jax.Array]:
  """Makes global arrays of a batch that is the same in every process.

  Args:
    batch: The batch, with rows on axis 0.
    sharding: Sharding of the arrays; those that it cannot divide are
      replicated.
  """

  def one(value: np.ndarray) -> jax.Array:
    own = sharding
    if len(value) % _num_groups(sharding):
      own = NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return jax.make_array_from_callback(
      value.shape, own, lambda index: value[index]
    )

  return {key: one(value) for key, value in batch.items()}


def _num_groups(sharding: NamedSharding) -> int:
  """Number of groups of devices over which axis 0 is split."""
  devices = sharding.mesh.size
  return devices // sharding.shard_shape((devices,))[0]
