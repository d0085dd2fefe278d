"""Which rows of a batch each process reads.

A batch is split over groups of devices. A process reads the rows of the groups
that its devices belong to, so that the batch is the same set of rows in the
same places however many processes there are, and processes that hold parts of
the same copy of a model read the same rows. Not here: the mesh
(`training/partitioning.py`), and reading (`inputs/datasets.py`).
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
  """A batch or a mesh that cannot be divided over the processes."""


@dataclasses.dataclass(frozen=True)
class Share:
  """A process's part of every batch.

  Attributes:
    groups: Those of this process, ascending; a batch has as many equal blocks
      of rows as there are groups, in their order.
    num_groups: Over all processes.
    index: Place of this share among the different ones.
    count: Different shares; processes that hold parts of one copy of the model
      have the same.
  """

  groups: tuple[int, ...] = (0,)
  num_groups: int = 1
  index: int = 0
  count: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    """This share's rows of a batch, int64, ascending.

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
    """Rows of a batch of which this share has `own`."""
    return own * self.num_groups // len(self.groups)


WHOLE = Share()


def of(sharding: NamedSharding) -> Share:
  """This process's share of batches that lie so, rows on axis 0.

  Raises:
    ShareError: Processes share some of their rows and not others.
  """
  num_groups = _num_groups(sharding)
  held: dict[int, set[int]] = {}
  places: Mapping[Any, Any] = sharding.devices_indices_map((num_groups,))
  for device, (rows,) in places.items():
    held.setdefault(device.process_index, set()).add(rows.start or 0)
  shares = {process: tuple(sorted(groups)) for process, groups in held.items()}
  if len(shares) == 1:
    return WHOLE
  different = sorted(set(shares.values()))
  if sum(map(len, different)) > num_groups:
    raise ShareError(
      f'{num_groups} groups of devices over {len(shares)} processes: some '
      'processes would share a part of their rows. Choose NUM_PARTITIONS so '
      'that it divides the devices of a process, or is a multiple of them'
    )
  own = shares[jax.process_index()]
  return Share(own, num_groups, different.index(own), len(different))


def put(
  batch: Mapping[str, np.ndarray],
  sharding: NamedSharding,
  share: Share,
  axis: int = 0,
) -> dict[str, jax.Array]:
  """Makes arrays over all processes of the rows that each has.

  Args:
    batch: This process's rows, on `axis`.
    sharding: Of the whole arrays.
    share: Which rows they are.
    axis: Of the rows.
  """

  def one(value: np.ndarray) -> jax.Array:
    shape = list(value.shape)
    shape[axis] = share.batch_size(value.shape[axis])
    rows = share.rows(shape[axis])

    def part(index: Any) -> np.ndarray:
      first, stop, _ = index[axis].indices(shape[axis])
      place = int(np.searchsorted(rows, first))
      own = (*index[:axis], slice(place, place + stop - first))
      return value[(*own, *index[axis + 1 :])]

    return jax.make_array_from_callback(tuple(shape), sharding, part)

  return {key: one(value) for key, value in batch.items()}


def spread(
  batch: Mapping[str, np.ndarray], sharding: NamedSharding
) -> dict[str, jax.Array]:
  """Makes arrays over all processes of a batch that each has whole.

  Args:
    batch: The same in all processes, rows on axis 0.
    sharding: Of the arrays; whole on every device where it does not divide the
      rows.
  """

  def one(value: np.ndarray) -> jax.Array:
    place = sharding
    if len(value) % _num_groups(sharding):
      place = NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return jax.make_array_from_callback(
      value.shape, place, lambda index: value[index]
    )

  return {key: one(value) for key, value in batch.items()}


def _num_groups(sharding: NamedSharding) -> int:
  """Groups of devices over which axis 0 is split."""
  devices = sharding.mesh.size
  return devices // sharding.shard_shape((devices,))[0]
