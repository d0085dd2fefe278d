"""Log-probabilities of target tokens, computed in blocks of the logits.

The logits [batch, length, vocab] are never held as one array. `by_positions`
splits them along the length, which suits accelerators and sharded vocabularies.
`by_vocabulary` splits them along the vocabulary, for one CPU, where each block
has to stay in the cache. The gradients of both recompute the blocks. `losses`
chooses between them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5score_jax.nn import axes

Array = jax.Array

# Default columns of a block, and the factor that their number is a multiple of:
# the number of values in a vector register.
_COLUMNS = 2048
_VECTOR = 16
# Maximum tokens of a tile.
_MOST_TOKENS = 2048


def _logits(hidden: Array, kernel: Array) -> Array:
  return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)


def _d_logits(
  logits: Array, log_z: Array, targets: Array, cotangent: Array
) -> Array:
  """Gradient of log p(target), onehot(target) - softmax: [..., vocab]."""
  probs = jnp.exp(logits - log_z[..., None])
  classes = lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
  onehot = (classes == targets[..., None]).astype(probs.dtype)
  return (onehot - probs) * cotangent[..., None]


# By positions.


def _logits_axes(hidden: Array, kernel: Array) -> tuple[str | None, str]:
  """Logical axes of rows and columns of the logits."""
  few = hidden.shape[0] * hidden.shape[1] <= kernel.shape[1]
  if few and axes.is_sharded('logits'):
    return None, 'logits'
  return 'batch', 'vocab'


def _blocks(x: Array, block: int) -> Array:
  """[batch, length, ...] -> [blocks, batch, block, ...], zero-padded."""
  rows, length = x.shape[:2]
  count = -(-length // block)
  padding = [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, padding).reshape(rows, count, block, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)


def _unblocks(x: Array, length: int) -> Array:
  """Inverse of `_blocks`."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def by_positions(
  hidden: Array, kernel: Array, targets: Array, block: int
) -> Array:
  """Log p(target), float32 [batch, length], `block` positions at a time.

  Args:
    hidden: [batch, length, emb_dim].
    kernel: [emb_dim, vocab_size].
    targets: Int [batch, length].
    block: Positions of each row whose logits are held at a time.
  """
  return _forward(hidden, kernel, targets, block)[0]


def _forward(
  hidden: Array, kernel: Array, targets: Array, block: int
) -> tuple[Array, tuple[Array, ...]]:
  rows, columns = _logits_axes(hidden, kernel)
  cast_kernel = axes.constrain(kernel.astype(hidden.dtype), (None, columns))
  placed = axes.constrain(hidden, (rows, None, None))

  def step(_: None, xs: tuple[Array, Array]) -> tuple[None, Array]:
    hidden, targets = xs
    # [batch, block, vocab]
    logits = _logits(hidden, cast_kernel)
    logits = axes.constrain(logits, (rows, None, columns))
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)
    return None, jnp.stack([target[..., 0] - log_z, log_z])

  length = hidden.shape[1]
  xs = (_blocks(placed, block), _blocks(targets, block))
  _, stacked = lax.scan(step, None, xs)
  # [blocks, 2, batch, block] -> twice [batch, length]
  log_probs, log_z = (
    _unblocks(stacked[:, i], length) for i in range(stacked.shape[1])
  )
  return log_probs, (hidden, kernel, targets, log_z)


def _backward(
  block: int, residuals: tuple[Array, ...], cotangent: Array
) -> tuple[Array, Array, None]:
  hidden, kernel, targets, log_z = residuals
  rows, columns = _logits_axes(hidden, kernel)
  cast_kernel = axes.constrain(kernel.astype(hidden.dtype), (None, columns))
  placed = axes.constrain(hidden, (rows, None, None))

  def step(d_kernel: Array, xs: tuple[Array, ...]) -> tuple[Array, Array]:
    hidden, targets, log_z, cotangent = xs
    logits = _logits(hidden, cast_kernel)
    logits = axes.constrain(logits, (rows, None, columns))
    d_logits = _d_logits(logits, log_z, targets, cotangent)
    d_logits = d_logits.astype(hidden.dtype)
    d_hidden = jnp.dot(d_logits, cast_kernel.T)
    d_kernel += jnp.einsum(
      'bld,blv->dv', hidden, d_logits, preferred_element_type=jnp.float32
    )
    d_kernel = axes.constrain(d_kernel, (None, columns))
    d_hidden = axes.constrain(d_hidden, ('batch', None, None))
    return d_kernel, d_hidden.astype(hidden.dtype)

  xs = tuple(_blocks(x, block) for x in (placed, targets, log_z, cotangent))
  d_kernel, d_hidden = lax.scan(step, jnp.zeros(kernel.shape, jnp.float32), xs)
  d_hidden = _unblocks(d_hidden, hidden.shape[1])
  return d_hidden, d_kernel.astype(kernel.dtype), None


by_positions.defvjp(_forward, _backward)


# By vocabulary.


def by_vocabulary(
  hidden: Array,
  kernel: Array,
  targets: Array,
  counted: Array | None,
  elements: int | None = None,
) -> Array:
  """Log p(target), float32 [batch, length], by blocks of columns of `kernel`.

  Counted positions are computed first, and tiles without any are skipped, so
  padding costs no products.

  Args:
    hidden: [batch, length, emb_dim].
    kernel: [emb_dim, vocab_size].
    targets: Int [batch, length].
    counted: Bool [batch, length]; the result is 0 elsewhere. None: all.
    elements: Maximum number of logits held at a time; by default as many as
      stay in a cache.
  """
  shape = targets.shape
  size = targets.size
  # NumPy arrays cannot be indexed by traced arrays.
  hidden, kernel, targets = map(jnp.asarray, (hidden, kernel, targets))
  hidden = hidden.reshape(size, -1)
  targets = targets.reshape(size)
  if counted is None:
    count = jnp.asarray(size, jnp.int32)
    log_probs = _packed(hidden, kernel, targets, count, True, elements)
    return log_probs.reshape(shape)
  counted = jnp.asarray(counted).reshape(size)
  # Zeros: a non-finite value would get into the gradient.
  hidden = jnp.where(counted[:, None], hidden, 0)
  order = jnp.argsort(~counted, stable=True)
  count = jnp.sum(counted, dtype=jnp.int32)
  log_probs = _packed(
    hidden[order], kernel, targets[order], count, False, elements
  )
  back = jnp.zeros(size, order.dtype).at[order].set(jnp.arange(size))
  return log_probs[back].reshape(shape)


def _tiled(x: Array, tile: int) -> Array:
  """[tokens, ...] -> [tiles, tile, ...], zero-padded."""
  tiles = max(1, -(-x.shape[0] // tile))
  padding = [(0, tiles * tile - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
  return jnp.pad(x, padding).reshape(tiles, tile, *x.shape[1:])


def _untiled(x: Array, size: int) -> Array:
  """Inverse of `_tiled`."""
  return x.reshape(-1, *x.shape[2:])[:size]


def _cut(
  tokens: int, vocab_size: int, parts: int, elements: int | None
) -> tuple[int, int, Array]:
  """Chooses tiles of tokens and blocks of columns.

  Args:
    tokens: Number of tokens.
    vocab_size: Number of columns.
    parts: Number of tiles for many tokens. More tiles waste less computation.
    elements: See `by_vocabulary`.

  Returns:
    Tokens per tile; columns per block; first column of each block, int
    [blocks].
  """
  most = min(_MOST_TOKENS, max(128, -(-tokens // parts)))
  if elements is not None:
    most = max(1, min(most, elements))
  tile = max(1, -(-tokens // max(1, -(-tokens // most))))
  most = _COLUMNS if elements is None else max(1, elements // tile)
  block = -(-vocab_size // -(-vocab_size // most))
  block = min(vocab_size, -(-block // _VECTOR) * _VECTOR)
  return tile, block, jnp.arange(-(-vocab_size // block)) * block


def _block(kernel: Array, start: Array, block: int) -> tuple[Array, Array]:
  """Returns the block's columns from `start` on, and which of them are new.

  The last block may begin before its `start`, so that it has as many columns
  as the others.
  """
  first = jnp.minimum(start, kernel.shape[1] - block)
  columns = lax.dynamic_slice_in_dim(kernel, first, block, axis=1)
  return columns, first + jnp.arange(block) >= start


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _packed(
  hidden: Array,
  kernel: Array,
  targets: Array,
  count: Array,
  all_count: bool,
  elements: int | None,
) -> Array:
  """`by_vocabulary` for the first `count` of [tokens, emb_dim]; others 0."""
  return _packed_forward(hidden, kernel, targets, count, all_count, elements)[0]


def _packed_forward(
  hidden: Array,
  kernel: Array,
  targets: Array,
  count: Array,
  all_count: bool,
  elements: int | None,
) -> tuple[Array, tuple[Array, ...]]:
  size, vocab_size = hidden.shape[0], kernel.shape[1]
  parts = 1 if all_count else 16
  tile, block, starts = _cut(size, vocab_size, parts, elements)
  tiles = _tiled(hidden, tile), _tiled(targets, tile)
  index = jnp.arange(tiles[1].shape[0])

  def step(state: tuple[Array, ...], start: Array) -> tuple[Any, None]:
    columns, new = _block(kernel, start, block)
    columns = columns.astype(hidden.dtype)
    first = jnp.minimum(start, vocab_size - block)

    def tile_step(_: None, xs: Any) -> tuple[None, tuple[Array, ...]]:
      index, (hidden, targets), state = xs

      def update() -> tuple[Array, ...]:
        highest, total, target = state
        logits = jnp.where(new, _logits(hidden, columns), -jnp.inf)
        higher = jnp.maximum(highest, jnp.max(logits, axis=-1))
        total *= jnp.exp(highest - higher)
        total += jnp.sum(jnp.exp(logits - higher[:, None]), axis=-1)
        place = jnp.clip(targets - first, 0, block - 1)[:, None]
        here = jnp.take_along_axis(logits, place, axis=-1)[:, 0]
        inside = (targets >= start) & (targets < first + block)
        return higher, total, jnp.where(inside, here, target)

      return None, lax.cond(index * tile < count, update, lambda: state)

    return lax.scan(tile_step, None, (index, tiles, state))[1], None

  zeros = jnp.zeros(tiles[1].shape, jnp.float32)
  (highest, total, target), _ = lax.scan(
    step, (zeros - jnp.inf, zeros, zeros), starts
  )
  highest, total, target = (_untiled(x, size) for x in (highest, total, target))
  used = jnp.arange(size) < count
  log_z = jnp.where(used, highest + jnp.log(total), 0.0)
  log_probs = jnp.where(used, target - log_z, 0.0)
  return log_probs, (hidden, kernel, targets, count, log_z)


def _packed_backward(
  all_count: bool,
  elements: int | None,
  residuals: tuple[Array, ...],
  cotangent: Array,
) -> tuple[Array, Array, None, None]:
  hidden, kernel, targets, count, log_z = residuals
  size, vocab_size = hidden.shape[0], kernel.shape[1]
  # Each tile adds to the gradient of a block: larger tiles, fewer additions.
  parts = 1 if all_count else 8
  tile, block, starts = _cut(size, vocab_size, parts, elements)
  used = jnp.arange(size) < count
  cotangent = jnp.where(used, cotangent, 0.0)
  tiles = tuple(_tiled(x, tile) for x in (hidden, targets, log_z, cotangent))
  index = jnp.arange(tiles[1].shape[0])

  def step(
    gradients: tuple[Array, Array], start: Array
  ) -> tuple[tuple[Array, Array], None]:
    d_hidden, d_kernel = gradients
    columns, new = _block(kernel, start, block)
    columns = columns.astype(hidden.dtype)
    first = jnp.minimum(start, vocab_size - block)

    def tile_step(d_columns: Array, xs: Any) -> tuple[Array, Array]:
      index, (hidden, targets, log_z, cotangent), d_hidden = xs

      def update() -> tuple[Array, Array]:
        logits = _logits(hidden, columns)
        d_logits = _d_logits(logits, log_z, targets - first, cotangent)
        d_logits = jnp.where(new, d_logits, 0.0).astype(hidden.dtype)
        return (
          d_columns + _logits(hidden.T, d_logits),
          d_hidden + _logits(d_logits, columns.T),
        )

      skip = d_columns, d_hidden
      return lax.cond(index * tile < count, update, lambda: skip)

    d_columns, _ = _block(d_kernel, start, block)
    d_columns, d_hidden = lax.scan(
      tile_step, d_columns, (index, tiles, d_hidden)
    )
    d_kernel = lax.dynamic_update_slice_in_dim(d_kernel, d_columns, first, 1)
    return (d_hidden, d_kernel), None

  zeros = (
    jnp.zeros(tiles[0].shape, jnp.float32),
    jnp.zeros(kernel.shape, jnp.float32),
  )
  (d_hidden, d_kernel), _ = lax.scan(step, zeros, starts)
  d_hidden = _untiled(d_hidden, size).astype(hidden.dtype)
  return d_hidden, d_kernel.astype(kernel.dtype), None, None


_packed.defvjp(_packed_forward, _packed_backward)
