"""Word mover's distance between two texts, exact, bounded and entropic.

The cost of moving the words of one text to those of the other (Kusner et al.
2015): the optimal transport between their vectors with uniform weights. The
vectors have unit length and the cost is the squared Euclidean distance,
2 - 2 cos, as in UScore's program (Belouadi and Eger 2023, section 3.1), so
distances are in [0, 4].

    exact       linear program (POT); `distances` computes many at once
    relaxed     lower bound: each word moves to its nearest word
    centroid    lower bound: the squared distance of the means
    entropic    upper bound, many pairs at once on the accelerator (Sinkhorn)

    centroid <= exact,   relaxed <= exact <= entropic

Two texts without words have distance 0. A text without words has the maximum
distance, 4, from any text with words.

Not here: which vectors a text has (`crosslingual/words.py`).
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from t5score_jax.inference import placement

#: The squared distance of opposite unit vectors.
MAXIMUM = 4.0

# OpenBLAS runs products of more multiplications in its own threads. For two
# texts this costs more than it saves; if cores are shared or pairs are already
# spread over threads, it costs many times as much.
_ONE_THREAD = 2**18
# For the network simplex; POT's default.
_ITERATIONS = 100000
_OPTIMAL = 1
# Pairs that one thread takes at a time.
_CHUNK = 32
# Pairs of one program of Sinkhorn's.
_SINKHORN_ROWS = 256

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')


def cost(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Squared distances of two texts' unit vectors, float64 [n, m].

  Args:
    first: Unit vectors, float [n, width].
    second: Unit vectors, float [m, width].
  """
  if len(second) > len(first):
    # Blocks of the longer text's rows are written in one piece.
    return cost(second, first).T
  # Single precision would decide between equal flows at random.
  x, y = first.astype(np.float64), second.astype(np.float64)
  products = np.empty((len(x), len(y)))
  step = max(8, _ONE_THREAD // max(1, y.size))
  for start in range(0, len(x), step):
    rows = slice(start, start + step)
    np.matmul(x[rows], y.T, out=products[rows])
  products *= -2.0
  products += 2.0
  return np.maximum(products, 0.0, out=products)


def exact(costs: np.ndarray) -> float:
  """The word mover's distance of two texts, in [0, 4].

  Args:
    costs: Of moving words, [n, m]; see `cost`.

  Raises:
    RuntimeError: The solver did not converge.
  """
  n, m = costs.shape
  if not (n and m):
    return 0.0 if n == m else MAXIMUM
  if n == m:
    # An assignment: the vertices of the flows are the permutations.
    return float(costs[scipy.optimize.linear_sum_assignment(costs)].mean())
  # Without `emd2`, whose checks take as long as the solution.
  whole = np.ascontiguousarray(costs, np.float64)
  _, distance, _, _, code = _simplex()(
    _uniform(n), _uniform(m), whole, _ITERATIONS, 1
  )
  if code != _OPTIMAL:
    raise RuntimeError(f'no optimal transport of {n} to {m} words: code {code}')
  return float(distance)


def distances(
  first: Sequence[np.ndarray],
  second: Sequence[np.ndarray],
  progress: Callable[[int], None] | None = None,
) -> np.ndarray:
  """The exact distances of many pairs of texts, on all cores.

  Args:
    first: P texts' unit vectors, float [n_i, width].
    second: Likewise.
    progress: Called with the number of pairs done, from time to time.

  Returns:
    float64 [P], each as `exact` has it.
  """
  found = np.zeros(len(first))
  pairs = list(zip(first, second, strict=True))
  for n, value in enumerate(in_threads(lambda p: exact(cost(*p)), pairs)):
    found[n] = value
    if progress and ((n + 1) % _CHUNK == 0 or n + 1 == len(pairs)):
      progress(n + 1)
  return found


def in_threads(
  function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[_Result]:
  """Applies a function to each item on all cores; yields results in order.

  Solvers and matrix products let other threads run.
  """
  threads = min(placement.cores(), -(-len(items) // _CHUNK))
  if threads < 2:
    yield from map(function, items)
    return
  chunks = [items[n : n + _CHUNK] for n in range(0, len(items), _CHUNK)]
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for results in pool.map(lambda c: [function(one) for one in c], chunks):
      yield from results


def relaxed(costs: np.ndarray) -> float:
  """A lower bound of `exact` in O(n m): the larger one-sided relaxation."""
  n, m = costs.shape
  if not (n and m):
    return 0.0 if n == m else MAXIMUM
  return float(max(costs.min(0).mean(), costs.min(1).mean()))


def relaxed_many(costs: np.ndarray, ends: np.ndarray) -> np.ndarray:
  """`relaxed` between one text and each of several others, float64 [texts].

  Args:
    costs: Costs of moving words to the concatenated words of all others, [n,
      words].
    ends: Where the words of each text end; ascending, none is empty.
  """
  starts = np.concatenate([[0], ends[:-1]])
  inward = np.add.reduceat(costs.min(0), starts) / np.diff(ends, prepend=0)
  outward = np.minimum.reduceat(costs, starts, axis=1).mean(0)
  return np.asarray(np.maximum(inward, outward))


def centroid(vectors: np.ndarray) -> np.ndarray:
  """The mean of a text's vectors [n, width]; zeros for a text without words.

  Squared distances of centroids are lower bounds of `exact`, by Jensen's
  inequality (Kusner et al. 2015, section 4.1, for this cost).
  """
  if not len(vectors):
    return np.zeros(vectors.shape[1:], vectors.dtype)
  return np.asarray(vectors.mean(0))


def entropic(
  first: Sequence[np.ndarray],
  second: Sequence[np.ndarray],
  strength: float = 0.02,
  iterations: int = 200,
) -> np.ndarray:
  """Sinkhorn's approximation of many distances at once, on the accelerator.

  It is the cost of a feasible plan, hence never below `exact` except for
  rounding. A smaller `strength` reduces the error but needs more iterations.

  Args:
    first: P texts' unit vectors, float [n_i, width]. None may be empty.
    second: Likewise.
    strength: Weight of the entropy relative to the cost; positive.
    iterations: Number of updates of both sides.

  Returns:
    float32 [P].
  """
  found = np.zeros(len(first), np.float32)
  longest = [max(map(len, pair)) for pair in zip(first, second, strict=True)]
  lengths = np.array([_shape(length, 16) for length in longest], np.int64)
  for length in np.unique(lengths):
    members = np.flatnonzero(lengths == length)
    for start in range(0, len(members), _SINKHORN_ROWS):
      rows = members[start : start + _SINKHORN_ROWS]
      # Repeated pairs fill the batch.
      filled = np.resize(rows, _shape(len(rows), 1)).tolist()
      x, x_mask = _padded([first[n] for n in filled], length)
      y, y_mask = _padded([second[n] for n in filled], length)
      values = _sinkhorn(x, x_mask, y, y_mask, strength, iterations)
      found[rows] = np.asarray(values)[: len(rows)]
  return found


def _shape(size: int, least: int) -> int:
  """Rounds up to a power of two, so that few programs are compiled."""
  return max(least, 1 << (size - 1).bit_length())


def _padded(
  texts: Sequence[np.ndarray], longest: int
) -> tuple[np.ndarray, np.ndarray]:
  """Vectors [P, longest, width], and which of them are words."""
  padded = np.zeros((len(texts), longest, texts[0].shape[1]), np.float32)
  mask = np.zeros((len(texts), longest), bool)
  for row, text in enumerate(texts):
    padded[row, : len(text)] = text
    mask[row, : len(text)] = True
  return padded, mask


@functools.partial(jax.jit, static_argnames='iterations')
def _sinkhorn(
  x: jax.Array,
  x_mask: jax.Array,
  y: jax.Array,
  y_mask: jax.Array,
  strength: float,
  iterations: int,
) -> jax.Array:
  costs = jnp.maximum(
    2.0 - 2.0 * jnp.einsum('pnd,pmd->pnm', x, y, precision='highest'), 0.0
  )
  mask = x_mask[:, :, None] & y_mask[:, None, :]
  kernel = jnp.where(mask, -costs / strength, -jnp.inf)
  log_a = -jnp.log(x_mask.sum(1, keepdims=True)) + jnp.zeros(x_mask.shape)
  log_b = -jnp.log(y_mask.sum(1, keepdims=True)) + jnp.zeros(y_mask.shape)

  def update(_: int, pair: tuple[jax.Array, jax.Array]) -> Any:
    g = pair[1]
    f = log_a - _logsumexp(kernel + g[:, None, :], 2)
    g = log_b - _logsumexp(kernel + f[:, :, None], 1)
    return f, g

  start = jnp.zeros(x_mask.shape), jnp.zeros(y_mask.shape)
  f, g = jax.lax.fori_loop(0, iterations, update, start)
  plan: jax.Array = jnp.exp(kernel + f[:, :, None] + g[:, None, :])
  # The last update met the second margin; what the first one lacks travels by
  # the product of what is missing, so that the plan is feasible (Altschuler et
  # al. 2017, algorithm 2).
  a, b = jnp.exp(log_a) * x_mask, jnp.exp(log_b) * y_mask
  plan = plan * _ratio(a, plan.sum(2))[:, :, None]
  plan = plan * _ratio(b, plan.sum(1))[:, None, :]
  rows, columns = a - plan.sum(2), b - plan.sum(1)
  missing = jnp.maximum(jnp.sum(rows, 1), 1e-30)[:, None, None]
  plan = plan + rows[:, :, None] * columns[:, None, :] / missing
  return jnp.sum(jnp.where(mask, plan * costs, 0.0), (1, 2))


def _logsumexp(values: jax.Array, axis: int) -> jax.Array:
  """Log-sum-exp; 0 if all are -inf, which occurs only at padding."""
  total = jax.nn.logsumexp(values, axis)
  return jnp.where(jnp.isfinite(total), total, 0.0)


def _ratio(wanted: jax.Array, present: jax.Array) -> jax.Array:
  """Factors of at most 1 that reduce sums to the wanted values."""
  return jnp.minimum(1.0, wanted / jnp.maximum(present, 1e-30))


@functools.lru_cache(maxsize=1024)
def _uniform(count: int) -> np.ndarray:
  return np.full(count, 1 / count)


@functools.cache
def _simplex() -> Callable[..., Any]:
  """POT's network simplex, which `emd` and `emd2` wrap."""
  optimal_transport()
  from ot.lp import emd_wrap

  solver: Callable[..., Any] = emd_wrap.emd_c
  return solver


@functools.cache
def optimal_transport() -> Any:
  """Imports POT without TensorFlow and PyTorch, which it loads if present."""
  for backend in ('TENSORFLOW', 'PYTORCH', 'JAX', 'CUPY'):
    os.environ.setdefault(f'POT_BACKEND_DISABLE_{backend}', '1')
  import ot

  return ot
