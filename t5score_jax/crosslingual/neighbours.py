"""Nearest neighbours among unit vectors, exact on hosts, sharded on devices.

All backends process the base in blocks and keep the best k of each query, so
memory is bounded by the block and k, not by the product of the sizes:

    faiss        exact, all cores of the host (faiss-cpu, extra `mining`)
    jax          matrix products and top-k on all local devices, the base
                 sharded over them; on TPUs `approximate`
    approximate  likewise with jax.lax.approx_max_k, expected recall 0.95; only
                 TPUs have a faster program for it

The order of equal products is not defined.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.errors import OptionError

BACKENDS = ('auto', 'faiss', 'jax', 'approximate')
# Rows of the base and of queries multiplied at a time: 0.5 GB.
_BLOCK = 2**17
_QUERIES = 2**10


def nearest(
  queries: np.ndarray, base: np.ndarray, k: int, backend: str = 'auto'
) -> tuple[np.ndarray, np.ndarray]:
  """The k vectors of the base with the largest dot products.

  Args:
    queries: Float32 [n, width]; of unit length for cosines.
    base: Float32 [m, width], an array or a memory map.
    k: Number of neighbours, at least 1; at most m are found.
    backend: 'faiss', 'jax', 'approximate', or 'auto': faiss if it is installed
      and this process runs on CPUs, else jax.

  Returns:
    Products float32 [n, min(k, m)], the largest first, and rows of the base
    int64 [n, min(k, m)].

  Raises:
    OptionError: An option is out of range.
    ImportError: The backend is 'faiss', but it is not installed.
  """
  shards = (
    (start, base[start : start + _BLOCK])
    for start in range(0, len(base), _BLOCK)
  )
  return nearest_in_shards(queries, shards, k, backend)


def nearest_in_shards(
  queries: np.ndarray,
  shards: Iterable[tuple[int, np.ndarray]],
  k: int,
  backend: str = 'auto',
) -> tuple[np.ndarray, np.ndarray]:
  """Like `nearest`, with a base in shards.

  Args:
    queries: Float32 [n, width].
    shards: The first row of each shard in the base, and its vectors.
    k: Number of neighbours.
    backend: See `nearest`.
  """
  if k < 1:
    raise OptionError(f'k {k}: at least 1')
  values = np.zeros((len(queries), 0), np.float32)
  rows = np.zeros((len(queries), 0), np.int64)
  search = _SEARCHES[resolve(backend)]
  if not len(queries):
    return values, rows
  for start, vectors in shards:
    block = np.ascontiguousarray(vectors, np.float32)
    found, index = search(queries, block, min(k, len(block)))
    values = np.concatenate([values, found], 1)
    rows = np.concatenate([rows, index + start], 1)
    order = np.argsort(-values, axis=1, kind='stable')[:, :k]
    values = np.take_along_axis(values, order, 1)
    rows = np.take_along_axis(rows, order, 1)
  return values, rows


def resolve(backend: str) -> str:
  """Returns the name of a backend that is available, not 'auto'.

  Raises:
    OptionError: There is no such backend.
    ImportError: It is 'faiss', but faiss is not installed.
  """
  if backend not in BACKENDS:
    raise OptionError(f'backend {backend!r}: use one of {", ".join(BACKENDS)}')
  if backend == 'auto':
    installed = importlib.util.find_spec('faiss') is not None
    on_host = jax.default_backend() == 'cpu'
    return 'faiss' if installed and on_host else 'jax'
  if backend == 'faiss':
    importlib.import_module('faiss')
  return backend


def _by_faiss(
  queries: np.ndarray, base: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
  import faiss

  queries = np.ascontiguousarray(queries, np.float32)
  found, rows = faiss.knn(queries, base, k, metric=faiss.METRIC_INNER_PRODUCT)
  return found, rows.astype(np.int64)


def _by_jax(
  queries: np.ndarray, base: np.ndarray, k: int, approximate: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  devices = jax.local_devices()
  approximate = approximate or devices[0].platform == 'tpu'
  mesh = jax.sharding.Mesh(np.array(devices), ('rows',))
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('rows'))
  whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  # Rows of padding must never be among the best.
  size = -(-len(base) // len(devices)) * len(devices)
  padded = np.zeros((size, base.shape[1]), np.float32)
  padded[: len(base)] = base
  on_devices = jax.device_put(padded, rows)
  values, found = [], []
  for start in range(0, len(queries), _QUERIES):
    part = np.asarray(queries[start : start + _QUERIES], np.float32)
    filled = np.zeros((_QUERIES, part.shape[1]), np.float32)
    filled[: len(part)] = part
    best, index = map(
      np.asarray,
      _top(
        jax.device_put(filled, whole),
        on_devices,
        len(base),
        mesh=mesh,
        k=min(k, size // len(devices)),
        approximate=approximate,
      ),
    )
    # [devices, queries, k] -> [queries, devices * k]: the best of each device.
    best = np.concatenate(list(best), 1)[: len(part)]
    index = np.concatenate(list(index), 1)[: len(part)]
    order = np.argsort(-best, axis=1, kind='stable')[:, :k]
    values.append(np.take_along_axis(best, order, 1))
    found.append(np.take_along_axis(index, order, 1).astype(np.int64))
  return np.concatenate(values), np.concatenate(found)


@functools.partial(jax.jit, static_argnames=('mesh', 'k', 'approximate'))
def _top(
  queries: jax.Array,
  base: jax.Array,
  count: int,
  *,
  mesh: jax.sharding.Mesh,
  k: int,
  approximate: bool,
) -> tuple[jax.Array, jax.Array]:
  """The best k of each device's rows, [devices, queries, k]."""

  # By hand: the partitioner gathers the products of all devices before a top-k.
  def local(
    queries: jax.Array, rows: jax.Array, count: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    first = jax.lax.axis_index('rows') * len(rows)
    products = jnp.einsum('qd,bd->qb', queries, rows, precision='highest')
    inside = first + jnp.arange(len(rows)) < count
    products = jnp.where(inside, products, -jnp.inf)
    top_k = jax.lax.approx_max_k if approximate else jax.lax.top_k
    best, index = top_k(products, k)
    return best[None], first + index[None]

  whole, by_rows = (
    jax.sharding.PartitionSpec(),
    jax.sharding.PartitionSpec('rows'),
  )
  best, index = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(whole, by_rows, whole),
    out_specs=(by_rows, by_rows),
  )(queries, base, jnp.asarray(count))
  return best, index


_SEARCHES: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
  'faiss': _by_faiss,
  'jax': _by_jax,
  'approximate': functools.partial(_by_jax, approximate=True),
}
