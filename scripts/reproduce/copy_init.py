"""Initial weights that make a small T5 copy before training.

A translation metric mostly checks which reference tokens recur in order. Large
pretrained models have attention heads that copy ("induction heads"); a network
of a few million parameters trained from scratch spends most of its budget on
learning them. This module writes one such circuit into random weights; the
architecture is unchanged, and training may change it. Not from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t5score_jax.nn.t5 import T5Config

# Relative-position bucket of the previous token in T5's encoder, and the
# fewest buckets with which that bucket holds no other distance.
_PREVIOUS = 1
_MIN_BUCKETS = 8
# Position bias of the previous token: exp(8) outweighs 60 other tokens 50:1.
_PREVIOUS_BIAS = 8.0
# Weight of previous relative to current tokens in the encoder's states, and of
# copied tokens relative to the decoder's own state.
_WRITE_STRENGTH = 3.0
_COPY_STRENGTH = 4.0


@gin.configurable
def with_copy_heads(
  params: Mapping[str, Any],
  config: T5Config,
  rng: jax.Array,
  heads: int | None = None,
  sharpness: float = 10.0,
  quiet: float = 0.25,
) -> dict[str, Any]:
  """Returns `params` with a copying circuit.

  Random orthonormal directions split the residual stream in a small subspace
  Q, as wide as a head, and the rest, R.

  1. In the encoder's first layer, head 0 attends to the previous token (by
     its position bias) and writes a random projection P of it into Q.
  2. In the decoder's last cross-attention, each of the copy heads compares
     the current decoder input, projected by P, with what Q holds: it attends
     to the positions after occurrences of the same token.
  3. Its value and output, W_O = W_V^T up to scale, copy the embedding at
     those positions, each head a part of R. Tied output weights turn it into
     the prediction of that token. Q is left out: it holds the previous
     token.

  A copied text of distinct random pieces then has a mean log-probability of
  about -0.9 per token with 128 dimensions and 4,096 pieces, a shuffled or
  different text less than -9.

  Args:
    params: from `init_params`, with T5X's names, layers not scanned.
    config: must have tied weights (`logits_via_embedding`) and at least 8
      position buckets.
    rng: key for the random directions.
    heads: how many heads of the decoder copy; None takes as many as R needs,
      which is `emb_dim / head_dim - 1`, or all.
    sharpness: attention logit of a match, at least 0; others vary around 0
      with a deviation of about `sharpness / sqrt(head_dim)`.
    quiet: factor on all other output kernels of attention and MLP, at least
      0. Random layers drown the circuit at 1.

  Returns:
    A new tree; `params` is left alone.

  Raises:
    ValueError: untied weights, scanned layers, too few buckets or dimensions,
      or a number of heads that the network does not have.
  """
  dim, width = config.emb_dim, config.head_dim
  heads = _check(config, heads)
  flat = {
    name: leaf * quiet if _is_output(name) else leaf
    for name, leaf in flatten_dict(params, sep='/').items()
  }

  def put(name: str, head: int, matrix: jax.Array) -> None:
    """Writes one head's slice; in `out` kernels heads are the first axis."""
    part = slice(head * width, (head + 1) * width)
    index = (part,) if name.endswith('out/kernel') else (slice(None), part)
    flat[name] = flat[name].at[index].set(matrix)

  basis_rng, project_rng, carry_rng = jax.random.split(rng, 3)
  basis = _orthonormal(basis_rng, dim, dim)
  write, rest = basis[:, :width], basis[:, width:]
  project = _orthonormal(project_rng, dim, width)
  # [emb_dim, heads * head_dim]
  carry = rest @ _orthonormal(carry_rng, dim - width, heads * width)
  # The divisor in the normalisation of the encoder's states.
  norm = (1.0 + _WRITE_STRENGTH**2 * width / dim) ** 0.5
  scale = (sharpness * norm / (width * _WRITE_STRENGTH)) ** 0.5

  layer = 'encoder/layers_0/' if config.biases_per_layer else 'encoder/'
  bias = f'{layer}relpos_bias/rel_embedding'
  flat[bias] = flat[bias].at[0, _PREVIOUS].set(_PREVIOUS_BIAS)
  encoder = 'encoder/layers_0/attention'
  put(f'{encoder}/value/kernel', 0, project)
  put(f'{encoder}/out/kernel', 0, _WRITE_STRENGTH * write.T)

  last = config.num_decoder_layers - 1
  cross = f'decoder/layers_{last}/encoder_decoder_attention'
  for head in range(heads):
    part = carry[:, head * width : (head + 1) * width]
    put(f'{cross}/query/kernel', head, scale * project)
    put(f'{cross}/key/kernel', head, scale * write)
    put(f'{cross}/value/kernel', head, part)
    put(f'{cross}/out/kernel', head, _COPY_STRENGTH * norm * part.T)
  return unflatten_dict(flat, sep='/')


def _check(config: T5Config, heads: int | None) -> int:
  """Checks the arguments of `with_copy_heads`; returns the number of heads."""
  if not config.logits_via_embedding or config.scan_layers:
    raise ValueError(
      'copy heads need tied weights and unscanned layers; got '
      f'logits_via_embedding={config.logits_via_embedding}, '
      f'scan_layers={config.scan_layers}'
    )
  if config.relative_attention_num_buckets < _MIN_BUCKETS:
    raise ValueError(
      'copy heads need a bucket for the previous token alone; got '
      'relative_attention_num_buckets='
      f'{config.relative_attention_num_buckets}, use {_MIN_BUCKETS} or more'
    )
  if config.emb_dim <= config.head_dim:
    raise ValueError(
      'copy heads need emb_dim > head_dim; got '
      f'emb_dim={config.emb_dim}, head_dim={config.head_dim}'
    )
  if heads is None:
    needed = -(-config.emb_dim // config.head_dim) - 1
    return min(config.num_heads, needed)
  if not 0 < heads <= config.num_heads:
    raise ValueError(
      f'heads={heads}: must be in 1..{config.num_heads} (num_heads)'
    )
  return heads


def _is_output(name: str) -> bool:
  return name.endswith(('/out/kernel', '/wo/kernel'))


def _orthonormal(rng: jax.Array, rows: int, columns: int) -> jax.Array:
  """A random matrix with orthonormal columns or, if it is wide, rows."""
  matrix = jax.random.normal(rng, (rows, columns))
  if rows < columns:
    return jnp.linalg.qr(matrix.T)[0].T
  return jnp.linalg.qr(matrix)[0]
