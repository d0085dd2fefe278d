"""The losses of all models, as pure functions of arrays.

Equations are from Qin et al. 2022 (T5Score) unless another paper is named. A
loss is returned as a sum and its weight, so that microbatches and devices add
up exactly; the loss itself is `sum / weight`. Not here: networks, batches,
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from t5score_jax.errors import OptionError
from t5score_jax.models import _logit_blocks
from t5score_jax.nn import axes

Array = jax.Array

# Maximum logits held at a time: 2**26 float32 values are 256 MiB.
DEFAULT_BLOCK_ELEMENTS = 2**26
# On a mesh each device holds its shard of them, and may hold this many.
_ELEMENTS_PER_DEVICE = 2**24
# The logit of entries that a softmax leaves out.
_EXCLUDED = -1e9


def block_length(
  rows: int,
  length: int,
  vocab_size: int,
  elements: int = DEFAULT_BLOCK_ELEMENTS,
) -> int:
  """Number of positions per row whose logits fit in `elements`; at least 1."""
  return max(1, min(length, elements // max(1, rows * vocab_size)))


def token_log_probs(
  hidden: Array,
  kernel: Array,
  targets: Array,
  counted: Array | None = None,
  block_elements: int | None = None,
) -> Array:
  """Log p(target token), the summands of equation 1, in blocks of logits.

  `hidden @ kernel` would be [batch, length, vocab]; with mT5's 250,112 pieces
  it would be by far the largest array of a training step. This function
  computes it in blocks; its custom gradient recomputes each block instead of
  storing it.

  On a CPU, a block is a range of vocabulary columns, and positions that do not
  count are left out of the products. On accelerators and meshes, it is a range
  of positions of every row. If the mesh rules shard 'logits', as in training,
  and there are fewer tokens than pieces in the vocabulary, the vocabulary is
  sharded over all devices and each device takes all rows. The hidden states are
  then gathered; the kernel and its gradient, which are larger, never move.
  Otherwise rows are sharded as everywhere else.

  Args:
    hidden: [batch, length, emb_dim], float32 or bfloat16.
    kernel: [emb_dim, vocab_size]; cast to the dtype of `hidden` for the
      product, which accumulates in float32.
    targets: Int [batch, length], each in [0, vocab_size).
    counted: [batch, length], 0 or false at padding. Default: all count.
    block_elements: Maximum number of logits held at a time, on all devices
      together. Default: at most 2**22 on a CPU, else 2**26, or 2**24 per device
      on a mesh of five or more.

  Returns:
    float32 [batch, length], each at most 0; 0 where `counted` is 0.
  """
  rows, length, _ = hidden.shape
  used = None if counted is None else counted != 0
  if axes.on_one_cpu():
    return _logit_blocks.by_vocabulary(
      hidden, kernel, targets, used, block_elements
    )
  if block_elements is None:
    block_elements = max(
      DEFAULT_BLOCK_ELEMENTS, axes.mesh_size() * _ELEMENTS_PER_DEVICE
    )
  block = block_length(rows, length, kernel.shape[1], block_elements)
  log_probs = _logit_blocks.by_positions(hidden, kernel, targets, block)
  return log_probs if used is None else jnp.where(used, log_probs, 0.0)


def sequence_scores(
  log_probs: Array, weights: Array, lengths: Array | None = None
) -> Array:
  """T5Score, equation 1: the mean log-probability of the tokens of a target.

  Args:
    log_probs: [..., length].
    weights: [..., length], 1 for tokens of the target (`</s>` included), 0 for
      padding.
    lengths: [...], divisors that replace the number of target tokens. The
      published trainer divides by the length of the source.

  Returns:
    [...], at most 0; exactly 0 for a row without tokens.
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
    normalize: 'sequence' averages the targets' means (equation 2); 'tokens'
      averages over all tokens of the batch (T5X's loss); 'padded' also counts
      padding (the published trainer).

  Returns:
    The sum of the loss and its weight, two scalars.
  """
  if normalize == 'sequence':
    present = (jnp.sum(weights, axis=-1) > 0).astype(log_probs.dtype)
    scores = sequence_scores(log_probs, weights)
    return -jnp.sum(scores * present), jnp.sum(present)
  if normalize == 'tokens':
    return -jnp.sum(log_probs * weights), jnp.sum(weights)
  if normalize == 'padded':
    return -jnp.sum(log_probs), jnp.asarray(log_probs.size, log_probs.dtype)
  raise OptionError(
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
  score of `sequence_scores` and m the human rating.

  Args:
    better: [pairs], scores of the hypotheses that humans prefer.
    worse: [pairs], scores of the other hypotheses.
    better_rating: [pairs], at least `worse_rating`.
    worse_rating: [pairs].
    alpha: Weight of the margin, at least 0.

  Returns:
    The sum of the loss and its weight, the number of pairs with different
    ratings. Equal ratings mean padding or no preference.
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
  """Equation 3 over all pairs of each group, from one score per hypothesis.

  Equal to `pair_margin` over the listed pairs, but n hypotheses take n
  decoder passes instead of n (n - 1).

  Args:
    scores: [groups, n].
    ratings: [groups, n], human ratings on the same scale within a group.
    mask: [groups, n], 1 for a hypothesis, 0 for padding.
    alpha: Weight of the margin, at least 0.
    min_gap: Minimum rating difference of a pair, exclusive.

  Returns:
    The sum of the loss and its weight, the number of pairs.
  """
  # [groups, better, worse]
  gap = ratings[:, :, None] - ratings[:, None, :]
  loss = scores[:, None, :] - scores[:, :, None] + alpha * gap
  valid = (gap > min_gap) * mask[:, :, None] * mask[:, None, :]
  valid = valid.astype(scores.dtype)
  return jnp.sum(jnp.maximum(0.0, loss) * valid), jnp.sum(valid)


def mse(predictions: Array, ratings: Array) -> tuple[Array, Array]:
  """Mean squared error (FrugalScore, equation 5) over the given ratings.

  Args:
    predictions: [batch, outputs].
    ratings: [batch, outputs]; NaN (left out) where a dimension was not rated.

  Returns:
    The sum of the loss and its weight, the number of ratings.
  """
  rated = ~jnp.isnan(ratings)
  # Masks the gap itself: NaN times 0 is NaN, in gradients too.
  gap = predictions - jnp.where(rated, ratings, 0.0)
  gap = jnp.where(rated, gap, 0.0)
  return jnp.sum(jnp.square(gap)), jnp.sum(rated).astype(predictions.dtype)


def tagging(logits: Array, tags: Array, weights: Sequence[float] = ()) -> Array:
  """Cross-entropy of word tags (COMET's word-level loss).

  Args:
    logits: [batch, length, number of tags].
    tags: Int [batch, length]; -1 where there is none.
    weights: The weight of each tag; by default 1.

  Returns:
    The weighted mean over each text's tags, float32 [batch]; 0 without tags.
  """
  count = logits.shape[-1]
  scale = jnp.asarray(weights or [1.0] * count, jnp.float32)
  chosen = jnp.maximum(tags, 0)
  of_tags = jnp.where(tags >= 0, scale[chosen], 0.0)
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  right = jnp.take_along_axis(log_probs, chosen[..., None], -1)[..., 0]
  total = jnp.sum(of_tags, axis=1)
  loss = -jnp.sum(right * of_tags, axis=1)
  return jnp.where(total > 0, loss / jnp.where(total > 0, total, 1.0), 0.0)


def info_nce(
  sources: Array,
  targets: Array,
  mask: Array,
  temperature: float = 0.05,
  include_positive: bool = False,
  same: Array | None = None,
) -> tuple[Array, Array]:
  """Contrastive loss of sentence pairs (UScore, equation 4), both directions.

  L_i = -cos(x_i, y_i) / tau + log sum_j exp(cos(x_i, y_j) / tau), and the same
  with x and y exchanged; a pair's loss is the sum of both. The negatives are
  the other pairs of the batch, on all devices. As in the printed equation, the
  sum leaves out j = i, so the loss may be negative; its minimum with n
  negatives is 2 (log n - 2 / tau).

  Args:
    sources: [batch, width], vectors of any length.
    targets: [batch, width].
    mask: [batch], 1 for pairs, 0 for padding.
    temperature: tau, positive.
    include_positive: Whether the sum includes j = i, as in Gao et al. 2021 and
      the published program; the loss is then at least 0.
    same: Bool [batch, batch], symmetric: pairs that share a text, which are not
      negatives of each other. Default: none.

  Returns:
    The sum of the loss and its weight, the number of pairs. A pair without
    negatives counts in neither.
  """
  x, y = _unit(sources), _unit(targets)
  # [batch, batch]; rows stay on their devices, columns come from all devices.
  cosines = jnp.einsum('iw,jw->ij', x, y, precision='highest')
  cosines = axes.constrain(cosines, ('batch', None))
  logits = cosines / temperature
  present = mask > 0
  itself = jnp.eye(mask.shape[0], dtype=bool)
  negative = present[:, None] & present[None, :] & ~itself
  if same is not None:
    negative = negative & ~same
  valid = (present & jnp.any(negative, axis=1)).astype(logits.dtype)
  counted = negative | itself if include_positive else negative
  # Finite, so that rows without a summand have gradient 0 instead of NaN.
  kept = jnp.where(counted, logits, _EXCLUDED)
  positive = jnp.sum(jnp.where(itself, logits, 0.0), axis=1)
  forward = jax.nn.logsumexp(kept, axis=1)
  backward = jax.nn.logsumexp(kept, axis=0)
  loss = forward + backward - 2.0 * positive
  return jnp.sum(loss * valid), jnp.sum(valid)


def _unit(vectors: Array) -> Array:
  """Normalizes vectors [batch, width], float32; zeros (padding) stay zero."""
  x = vectors.astype(jnp.float32)
  squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * lax.rsqrt(jnp.maximum(squares, 1e-24))
