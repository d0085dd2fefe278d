"""The losses of T5Score, as pure functions of arrays.

Equations are those of Qin et al. 2022 (T5Score). Losses come back as a sum and
the weight it is a sum over, so that microbatches and devices add up exactly:
the loss is always ``sum / weight``. Not here: networks, batches, parameters.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from t5score_jax.nn import axes

Array = jax.Array

# Logits held at a time: 2**26 float32 values are 256 MiB.
DEFAULT_BLOCK_ELEMENTS = 2**26
# On a mesh every device holds its part of them, and may hold this many.
_ELEMENTS_A_DEVICE = 2**24


def block_length(
  rows: int,
  length: int,
  vocab_size: int,
  elements: int = DEFAULT_BLOCK_ELEMENTS,
) -> int:
  """Positions a row whose logits fit ``elements``; at least 1."""
  return max(1, min(length, elements // max(1, rows * vocab_size)))


def token_log_probs(
  hidden: Array,
  kernel: Array,
  targets: Array,
  block_elements: int | None = None,
) -> Array:
  """Log p(target token), the summands of equation 1, without all logits.

  ``hidden @ kernel`` would be [batch, length, vocab], with mT5's 250,112
  pieces by far the largest array of a training step. This goes through the
  length in blocks, and its own gradient recomputes each block instead of
  storing it.

  On a mesh whose rules divide 'logits', training's, the vocabulary is divided
  over all devices and every device takes all rows, where there are fewer tokens
  than pieces in the vocabulary: then hidden states are gathered, and neither
  the kernel nor its gradient, which are larger, ever moves. Otherwise rows are
  divided, as everywhere else.

  Args:
    hidden: [batch, length, emb_dim], float32 or bfloat16.
    kernel: [emb_dim, vocab_size]; cast to hidden's dtype for the product,
      which accumulates in float32.
    targets: int [batch, length], each in [0, vocab_size).
    block_elements: how many logits may exist at once, those of all devices
      together; by default 2**26, or 2**24 a device of a mesh of five or more.

  Returns:
    float32 [batch, length], each at most 0.
  """
  rows, length, _ = hidden.shape
  if block_elements is None:
    block_elements = max(
      DEFAULT_BLOCK_ELEMENTS, axes.mesh_size() * _ELEMENTS_A_DEVICE
    )
  block = block_length(rows, length, kernel.shape[1], block_elements)
  return _token_log_probs(hidden, kernel, targets, block)


def _places(hidden: Array, kernel: Array) -> tuple[str | None, str]:
  """Logical names of the logits' rows and columns on a mesh."""
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
  """Inverse of ``_blocks``."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _logits(hidden: Array, kernel: Array) -> Array:
  return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _token_log_probs(
  hidden: Array, kernel: Array, targets: Array, block: int
) -> Array:
  return _forward(hidden, kernel, targets, block)[0]


def _forward(
  hidden: Array, kernel: Array, targets: Array, block: int
) -> tuple[Array, tuple[Array, ...]]:
  rows, columns = _places(hidden, kernel)
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
  rows, columns = _places(hidden, kernel)
  cast_kernel = axes.constrain(kernel.astype(hidden.dtype), (None, columns))
  placed = axes.constrain(hidden, (rows, None, None))

  def step(d_kernel: Array, xs: tuple[Array, ...]) -> tuple[Array, Array]:
    hidden, targets, log_z, cotangent = xs
    logits = _logits(hidden, cast_kernel)
    logits = axes.constrain(logits, (rows, None, columns))
    # d log p(target) / d logits = onehot(target) - softmax
    probs = jnp.exp(logits - log_z[..., None])
    classes = lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    onehot = (classes == targets[..., None]).astype(probs.dtype)
    d_logits = ((onehot - probs) * cotangent[..., None]).astype(hidden.dtype)
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


_token_log_probs.defvjp(_forward, _backward)


def sequence_scores(
  log_probs: Array, weights: Array, lengths: Array | None = None
) -> Array:
  """T5Score, equation 1: the mean log-probability of a target's tokens.

  Args:
    log_probs: [..., length].
    weights: [..., length], 1 for tokens of the target (its end included), 0
      for padding.
    lengths: [...], divisor instead of the target's own token count. The
      published trainer divides by the source's length.

  Returns:
    [...], at most 0; exactly 0 for a row without any token.
  """
  total = jnp.sum(log_probs * weights, axis=-1)
  count = jnp.sum(weights, axis=-1) if lengths is None else lengths
  return total / jnp.maximum(count, 1.0)


def nll(
  log_probs: Array, weights: Array, normalize: str = 'sequence'
) -> tuple[Array, Array]:
  """Generative loss, equation 2: negative mean log-probability.

  Args:
    log_probs: [batch, length].
    weights: [batch, length], 0 on padding.
    normalize: 'sequence' averages each target's own mean, which is equation
      2; 'tokens' averages over all tokens of the batch, which is T5X's loss;
      'padded' is 'tokens' with padding counted, which is what the published
      trainer does.

  Returns:
    The loss's sum and its weight, two scalars.
  """
  if normalize == 'sequence':
    present = (jnp.sum(weights, axis=-1) > 0).astype(log_probs.dtype)
    scores = sequence_scores(log_probs, weights)
    return -jnp.sum(scores * present), jnp.sum(present)
  if normalize == 'tokens':
    return -jnp.sum(log_probs * weights), jnp.sum(weights)
  if normalize == 'padded':
    return -jnp.sum(log_probs), jnp.asarray(log_probs.size, log_probs.dtype)
  raise ValueError(
    f"normalize={normalize!r}: use 'sequence', 'tokens' or 'padded'"
  )


def pair_margin(
  better: Array,
  worse: Array,
  better_rating: Array,
  worse_rating: Array,
  alpha: float = 1.0,
) -> tuple[Array, Array]:
  """Contrastive loss, equation 3, over pairs.

  max(0, f(worse) - f(better) + alpha (m_better - m_worse)), where f is the
  score of ``sequence_scores`` and m the human rating.

  Args:
    better: [pairs], scores of the hypotheses that humans prefer.
    worse: [pairs].
    better_rating: [pairs], at least ``worse_rating``.
    worse_rating: [pairs].
    alpha: weight of the margin, at least 0.

  Returns:
    The loss's sum and its weight, the number of pairs with unlike ratings: a
    row of equal ratings is padding, or no preference.
  """
  gap = better_rating - worse_rating
  loss = jnp.maximum(0.0, worse - better + alpha * gap)
  valid = (gap > 0).astype(loss.dtype)
  return jnp.sum(loss * valid), jnp.sum(valid)


def group_margin(
  scores: Array,
  ratings: Array,
  mask: Array,
  alpha: float = 1.0,
  min_gap: float = 0.0,
) -> tuple[Array, Array]:
  """Equation 3 over all pairs of each group, from one score a hypothesis.

  Equal to ``pair_margin`` over the listed pairs, but n hypotheses take n
  decoder passes instead of n (n - 1).

  Args:
    scores: [groups, n].
    ratings: [groups, n], human ratings of the same scale within a group.
    mask: [groups, n], 1 for a hypothesis, 0 for padding.
    alpha: weight of the margin, at least 0.
    min_gap: pairs count whose ratings differ by more than this.

  Returns:
    The loss's sum and its weight, the number of pairs.
  """
  # [groups, better, worse]
  gap = ratings[:, :, None] - ratings[:, None, :]
  loss = scores[:, None, :] - scores[:, :, None] + alpha * gap
  valid = (gap > min_gap) * mask[:, :, None] * mask[:, None, :]
  valid = valid.astype(scores.dtype)
  return jnp.sum(jnp.maximum(0.0, loss) * valid), jnp.sum(valid)


def mse(predictions: Array, ratings: Array) -> tuple[Array, Array]:
  """Mean square error (FrugalScore, equation 5) over what was rated.

  Args:
    predictions: [batch, outputs].
    ratings: [batch, outputs]; NaN where a dimension was not rated, which then
      counts for nothing.

  Returns:
    The loss's sum and its weight, the number of ratings.
  """
  rated = ~jnp.isnan(ratings)
  # The gap itself is masked: a NaN that is only multiplied by 0 stays one, in
  # gradients too.
  gap = predictions - jnp.where(rated, ratings, 0.0)
  gap = jnp.where(rated, gap, 0.0)
  return jnp.sum(jnp.square(gap)), jnp.sum(rated).astype(predictions.dtype)
