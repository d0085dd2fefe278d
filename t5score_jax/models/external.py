"""The models of `models/t5score.py` on an external network that returns logits.

`models/t5score.py` computes log-probabilities from hidden states in blocks.
Here the network is any Flax module with a `config` and T5X's methods `encode`
and `decode`, which returns the logits. Losses, scores and metrics are
inherited. With a large vocabulary the logits are the largest array of a step,
so prefer `models/t5score.py` if its network suffices. Not here: T5X itself
(`models/t5x.py`).
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp

from t5score_jax.models import likelihood, t5score

Array = jax.Array


class LogitsModule(Protocol):
  """Interface of the network, a Flax module.

  Attributes:
    config: Any object with a `vocab_size`.
  """

  config: Any

  def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a method with variables, as in Flax."""

  def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
    """Initializes the variables, as in Flax."""

  def encode(self, encoder_input_tokens: Array, enable_dropout: bool) -> Array:
    """[rows, input_length] -> [rows, input_length, width]."""

  def decode(
    self,
    encoded: Array,
    encoder_input_tokens: Array,
    decoder_input_tokens: Array,
    decoder_target_tokens: Array,
    enable_dropout: bool,
  ) -> Array:
    """Logits [rows, target_length, vocab_size]."""


def token_log_probs(logits: Array, targets: Array) -> Array:
  """Log p(target token), the summands of equation 1, from logits.

  Equal to `losses.token_log_probs`, which never holds all logits.

  Args:
    logits: [..., length, vocab_size], of any floating dtype; normalized in
      float32.
    targets: Int [..., length], each in [0, vocab_size).

  Returns:
    float32 [..., length], each at most 0.
  """
  logits = logits.astype(jnp.float32)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  target = jnp.take_along_axis(logits, targets[..., None], axis=-1)
  return target[..., 0] - log_z


class _OnModule(t5score.T5ScoreModel):
  """Replaces this library's network with a module.

  Attributes:
    module: The network.
  """

  def __init__(self, module: LogitsModule, **settings: Any):
    # Of the configuration, only `vocab_size` is used (by input noise).
    super().__init__(module.config, **settings)
    self.module = module

  def init(self, rng: Array) -> t5score.Params:
    """Random parameters, with the names of the module."""
    tokens = jnp.ones((1, 2), jnp.int32)
    variables = self.module.init(
      rng, tokens, tokens, tokens, enable_dropout=False
    )
    return cast(t5score.Params, variables['params'])

  def _log_probs(
    self,
    params: t5score.Params,
    inputs: Array,
    targets: Array,
    weights: Array | None,
    rng: Array | None,
  ) -> Array:
    """See the base class; each input is encoded once for its k targets."""
    settings: dict[str, Any] = {'enable_dropout': rng is not None}
    if rng is not None:
      noise_rng, dropout_rng = jax.random.split(rng)
      inputs = self.add_noise(inputs, noise_rng)
      settings['rngs'] = {'dropout': dropout_rng}
    variables = {'params': params}
    encoded = self.module.apply(
      variables, inputs, method=self.module.encode, **settings
    )
    count = targets.shape[0] // inputs.shape[0]
    logits = self.module.apply(
      variables,
      jnp.repeat(encoded, count, axis=0),
      jnp.repeat(inputs, count, axis=0),
      likelihood.shift_right(targets),
      targets,
      method=self.module.decode,
      **settings,
    )
    return token_log_probs(logits, targets)


class GenerativeModel(_OnModule, t5score.GenerativeModel):
  """`t5score.GenerativeModel` on a module."""


class ParaphraseModel(_OnModule, t5score.ParaphraseModel):
  """`t5score.ParaphraseModel` on a module."""


class PairModel(_OnModule, t5score.PairModel):
  """`t5score.PairModel` on a module."""


class GroupModel(_OnModule, t5score.GroupModel):
  """`t5score.GroupModel` on a module."""
