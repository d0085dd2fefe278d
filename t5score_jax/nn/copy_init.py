"""Initial weights with which a small T5 can copy before it has learned to.

A translation metric mostly asks which reference tokens recur in order. Large
pretrained models arrive with attention heads that copy ("induction heads"); a
network of a few million parameters trained from nothing spends most of its
budget on finding them. This writes one such circuit into random weights; the
architecture is unchanged and training is free to undo it. Not from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
import gin
import jax
import jax.numpy as jnp

from t5score_jax.nn.t5 import T5Config

# Relative-position bucket of the previous token in T5's encoder.
_PREVIOUS = 1


@gin.configurable
def with_copy_heads(
  params: Mapping[str, Any],
  config: T5Config,
  rng: jax.Array,
  heads: int = 1,
  sharpness: float = 6.0,
) -> dict[str, Any]:
  """Returns ``params`` with ``heads`` copying circuits written in.

  1. In the encoder's first layer, head i attends to the previous token (by
     its position bias) and writes a random projection of it, P, into a
     random subspace Q of the residual stream.
  2. In the decoder's last cross-attention, head i compares the current
     decoder input, projected by P, with what the encoder wrote into Q: it
     attends to the positions that follow an occurrence of the same token.
  3. Its value and output, W_O = 2 W_V^T, carry those positions' embedding
     over, which tied output weights turn into the prediction of that token.

  Args:
    params: from ``init_params``, with T5X's names, layers not scanned.
    config: must have tied weights (``logits_via_embedding``).
    rng: key for the random projections.
    heads: how many heads take part, at most ``config.num_heads``.
    sharpness: scale of the attention logit of a match.

  Returns:
    A new tree; ``params`` is left alone.

  Raises:
    ValueError: untied weights, scanned layers, or too many heads.
  """
  if not config.logits_via_embedding or config.scan_layers:
    raise ValueError(
      'copy heads need tied weights and unscanned layers; got '
      f'logits_via_embedding={config.logits_via_embedding}, '
      f'scan_layers={config.scan_layers}'
    )
  if not 0 < heads <= config.num_heads:
    raise ValueError(
      f'heads={heads}: must be in 1..{config.num_heads} (num_heads)'
    )
  flat = dict(flatten_dict(params, sep='/'))
  dim, width = config.emb_dim, config.head_dim
  last = config.num_decoder_layers - 1
  encoder = 'encoder/layers_0/attention'
  cross = f'decoder/layers_{last}/encoder_decoder_attention'

  def put(name: str, head: int, matrix: jax.Array) -> None:
    """Writes one head's slice; ``out`` kernels have heads in front."""
    part = slice(head * width, (head + 1) * width)
    index = (part,) if name.endswith('out/kernel') else (slice(None), part)
    flat[name] = flat[name].at[index].set(matrix)

  bias = 'encoder/relpos_bias/rel_embedding'
  for head in range(heads):
    rng, p_rng, q_rng, v_rng = jax.random.split(rng, 4)
    # Columns of length one: a projected token has about unit entries.
    project, write, carry = (
      jax.random.normal(key, (dim, width)) / jnp.sqrt(dim)
      for key in (p_rng, q_rng, v_rng)
    )
    flat[bias] = flat[bias].at[head, _PREVIOUS].set(8.0)
    put(f'{encoder}/value/kernel', head, project)
    put(f'{encoder}/out/kernel', head, 4.0 * write.T * dim / width)
    scale = jnp.sqrt(sharpness / width)
    put(f'{cross}/query/kernel', head, scale * project)
    put(f'{cross}/key/kernel', head, scale * write)
    put(f'{cross}/value/kernel', head, carry)
    put(f'{cross}/out/kernel', head, 2.0 * carry.T * dim / width)
  return unflatten_dict(flat, sep='/')
