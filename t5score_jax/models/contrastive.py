"""Contrastive training of a sentence encoder on translations.

See UScore, section 3.2. The counterpart of `models/regression.py` for sentence
vectors: mean-pooled encoder states and the contrastive loss of pairs. Not here:
mining and rounds (`fitting/contrastive.py`), scores (`metrics/cosine.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5score_jax.errors import OptionError
from t5score_jax.models import losses
from t5score_jax.nn import bert, heads
from t5score_jax.nn.axes import constrain
from t5score_jax.nn.shapes import param_shapes

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]


class ContrastiveModel:
  """Sentence vectors of an encoder, trained on pairs.

  Batch keys: 'source_tokens' and 'target_tokens', int [batch, length] each,
  padded at the end; their lengths may differ. Row i of both is a pair; a row
  with only padding is not. The negatives of a pair are all other pairs of the
  batch, except those with an equal source or target. Parameters: 'encoder'.

  Attributes:
    config: The configuration of the encoder.
  """

  #: Parts of a batch have a different loss; see `training/state.py`.
  WHOLE_BATCH = True

  def __init__(
    self,
    config: bert.BertConfig,
    temperature: float = 0.05,
    include_positive: bool = False,
    parts: int = 1,
  ):
    """Sets up the model.

    Args:
      config: The configuration of the encoder.
      temperature: See `losses.info_nce`.
      include_positive: Likewise.
      parts: Number of parts of a batch to encode one after the other; the
        backward pass encodes each again. Saves memory; the negatives still come
        from the whole batch.

    Raises:
      OptionError: A value is out of range.
    """
    if not temperature > 0:
      raise OptionError(f'temperature {temperature}: must be positive')
    if parts < 1:
      raise OptionError(f'parts {parts}: at least 1')
    self.config = config
    self._temperature = temperature
    self._include_positive = include_positive
    self._parts = parts

  def init(self, rng: Array) -> Params:
    """Random parameters, float32."""
    return {'encoder': bert.init_params(self.config, rng)}

  def logical_axes(self) -> Params:
    """The logical axis names of every parameter."""
    shapes = param_shapes(bert.init_params, self.config)
    return {'encoder': bert.logical_axes(shapes)}

  def embed(
    self, params: Params, tokens: Array, rng: Array | None = None
  ) -> Array:
    """Embeds texts: int [batch, length] -> float32 [batch, emb_dim].

    Args:
      params: Parameters of the network.
      tokens: Padded at the end.
      rng: Key for dropout; None for none.
    """
    states = bert.hidden_states(
      params['encoder'], self.config, tokens, rng=rng
    )[0]
    mask = (tokens != self.config.pad_id).astype(jnp.float32)
    return heads.pool(states, mask, 'mean')

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """The sum of the pairs' losses, with {'weight': number of pairs}."""
    keys: Any = (None, None) if rng is None else jax.random.split(rng)
    sides = batch['source_tokens'], batch['target_tokens']
    x, y = (
      self._embed_in_parts(params, tokens, key)
      for tokens, key in zip(sides, keys, strict=True)
    )
    pad_id = self.config.pad_id
    present = jnp.any(sides[0] != pad_id, axis=1)
    present = present & jnp.any(sides[1] != pad_id, axis=1)
    loss, weight = losses.info_nce(
      x,
      y,
      present,
      self._temperature,
      self._include_positive,
      _equal_rows(sides[0]) | _equal_rows(sides[1]),
    )
    return loss, {'weight': weight, 'metrics': {}}

  def _embed_in_parts(
    self, params: Params, tokens: Array, rng: Array | None
  ) -> Array:
    parts = self._parts
    if parts == 1:
      return self.embed(params, tokens, rng)
    rows, length = tokens.shape
    if rows % parts:
      raise OptionError(
        f'a batch of {rows} cannot be divided into {parts} parts'
      )
    # Part n has rows n, n + parts, ..., so that rows stay on their devices.
    split = tokens.reshape(rows // parts, parts, length).swapaxes(0, 1)
    split = constrain(split, (None, 'batch', 'length'))

    @jax.checkpoint
    def one(part: Array, key: Array | None) -> Array:
      return self.embed(params, part, key)

    if rng is None:
      vectors = lax.map(lambda part: one(part, None), split)
    else:
      keys = jax.random.split(rng, parts)
      vectors = lax.map(lambda pair: one(*pair), (split, keys))
    # [parts, rows / parts, width] -> [rows, width]
    return vectors.swapaxes(0, 1).reshape(rows, -1)


def _equal_rows(tokens: Array) -> Array:
  """Which texts are equal, bool [batch, batch]."""
  return jnp.all(tokens[:, None, :] == tokens[None, :, :], axis=-1)
