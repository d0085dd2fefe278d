"""T5Score's models: a T5 network and a training objective.

`training/loop.py` differentiates `loss_fn`. Batches are named arrays from
`inputs/feature_converters.py`. Not here: optimizers, files, text, scoring
(`models/likelihood.py`).

A loss is returned as a sum and its weight (`aux['weight']`). The sum over
microbatches and devices, divided by the sum of weights, is exactly the loss of
the whole batch, however it was split.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, cast

import gin
import jax
import jax.numpy as jnp

from t5score_jax.errors import OptionError
from t5score_jax.models import losses
from t5score_jax.models.likelihood import EOS_ID, shift_right, token_weights
from t5score_jax.nn import t5, t5_axes
from t5score_jax.nn.shapes import param_shapes

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]
# The sum of the loss, and {'weight': ..., 'metrics': {name: (sum, weight)}}.
LossOutput = tuple[Array, dict[str, Any]]


class T5ScoreModel(abc.ABC):
  """A T5 network with one of the paper's objectives.

  Attributes:
    config: The configuration of the network.
    input_noise: Share of input tokens that are replaced by random pieces in
      training, [0, 1). It keeps a small network from merely copying.
  """

  def __init__(self, config: t5.T5Config, input_noise: float = 0.0):
    if not 0.0 <= input_noise < 1.0:
      raise OptionError(f'input_noise={input_noise}: must be in [0, 1)')
    self.config = config
    self.input_noise = input_noise

  def init(self, rng: Array) -> Params:
    """Random parameters with T5X's names, float32."""
    return t5.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """The logical axis names of every parameter."""
    return t5_axes.logical_axes(param_shapes(t5.init_params, self.config))

  @abc.abstractmethod
  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores, equation 1, of the targets; arguments as `loss_fn`."""

  @abc.abstractmethod
  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> LossOutput:
    """The sum of the loss over a batch, and its weight.

    Args:
      params: Parameters of the network.
      batch: Arrays by name; each model documents the keys it reads.
      rng: Key for dropout and input noise; None for evaluation.

    Returns:
      The sum, and a dict of 'weight' (the divisor) and 'metrics' (name ->
      sum and weight).
    """

  def _log_probs(
    self,
    params: Params,
    inputs: Array,
    targets: Array,
    weights: Array | None,
    rng: Array | None,
  ) -> Array:
    """Token log-probabilities [batch * k, length] of k targets per input.

    Positions of weight 0 may have any value; without weights all positions
    count. Only this method uses the network; `models/external.py` overrides it.
    """
    rngs = None
    if rng is not None:
      noise_rng, dropout_rng = jax.random.split(rng)
      inputs = self.add_noise(inputs, noise_rng)
      rngs = {'dropout': dropout_rng}
    network = t5.Transformer(self.config, deterministic=rng is None)
    hidden = network.apply(
      {'params': params}, inputs, shift_right(targets), rngs=rngs
    )
    kernel = t5.output_kernel(params, self.config)
    return losses.token_log_probs(cast(Array, hidden), kernel, targets, weights)

  def add_noise(self, tokens: Array, rng: Array) -> Array:
    """Replaces a share of the pieces, but never padding or `</s>`."""
    if not self.input_noise:
      return tokens
    chosen_rng, piece_rng = jax.random.split(rng)
    chosen = jax.random.bernoulli(chosen_rng, self.input_noise, tokens.shape)
    pieces = jax.random.randint(
      piece_rng, tokens.shape, EOS_ID + 2, self.config.vocab_size
    )
    return jnp.where(chosen & (tokens > EOS_ID), pieces, tokens)


@gin.configurable
class GenerativeModel(T5ScoreModel):
  """Equation 2: maximum likelihood of targets given inputs.

  Reads `encoder_input_tokens` [batch, input_length] and
  `decoder_target_tokens` [batch, target_length]; `decoder_loss_weights` is
  optional.

  Attributes:
    normalize: See `losses.nll`.
  """

  def __init__(
    self,
    config: t5.T5Config,
    input_noise: float = 0.0,
    normalize: str = 'sequence',
  ):
    super().__init__(config, input_noise)
    self.normalize = normalize

  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores [batch]; see the base class."""
    return losses.sequence_scores(*self._weighted(params, batch, rng))

  def _weighted(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, Array]:
    """Log-probabilities and weights, each [batch, target_length]."""
    targets = batch['decoder_target_tokens']
    weights = batch.get('decoder_loss_weights', token_weights(targets))
    inputs = batch['encoder_input_tokens']
    return self._counted(params, inputs, targets, weights, rng), weights

  def _counted(
    self,
    params: Params,
    inputs: Array,
    targets: Array,
    weights: Array,
    rng: Array | None,
  ) -> Array:
    """Log-probabilities of the positions that the loss counts."""
    counted = None if self.normalize == 'padded' else weights
    return self._log_probs(params, inputs, targets, counted, rng)

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> LossOutput:
    """Equation 2; see the base class."""
    log_probs, weights = self._weighted(params, batch, rng)
    loss, weight = losses.nll(log_probs, weights, self.normalize)
    metrics = {
      'loss': (loss, weight),
      'nll_per_token': losses.nll(log_probs, weights, 'tokens'),
      'tokens': (jnp.sum(weights), jnp.ones(())),
    }
    return loss, {'weight': weight, 'metrics': metrics}


@gin.configurable
class ParaphraseModel(GenerativeModel):
  """Equation 2 between paraphrases, paired at random in every step.

  Reads the batches of `GroupModel` without ratings: the translations of a
  source and its reference are paraphrases. Each hypothesis gives one example
  per step. Its partner is the shared text or, with probability
  `pseudo_reference`, another hypothesis of the group. Which of the two is the
  target is random, so both directions of the F score are trained.

  Attributes:
    pseudo_reference: Probability of a partner other than the shared text,
      [0, 1]; a group of one hypothesis always uses the shared text.
    normalize: See `losses.nll`.
  """

  def __init__(
    self,
    config: t5.T5Config,
    input_noise: float = 0.0,
    pseudo_reference: float = 0.0,
    normalize: str = 'sequence',
  ):
    super().__init__(config, input_noise, normalize)
    if not 0.0 <= pseudo_reference <= 1.0:
      raise OptionError(
        f'pseudo_reference={pseudo_reference}: must be in [0, 1]'
      )
    self.pseudo_reference = pseudo_reference

  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores [batch, n] of the drawn pairs; see the base class."""
    scores = super().scores(params, batch, rng)
    return scores.reshape(batch['group_mask'].shape)

  def _weighted(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, Array]:
    """Log-probabilities and weights of pairs, each [batch * n, length]."""
    pair_rng = None
    if rng is not None:
      rng, pair_rng = jax.random.split(rng)
    inputs, targets = self.draw_pairs(batch, pair_rng)
    weights = token_weights(targets) * batch['group_mask'].reshape(-1, 1)
    return self._counted(params, inputs, targets, weights, rng), weights

  def draw_pairs(self, batch: Batch, rng: Array | None) -> tuple[Array, Array]:
    """Inputs and targets [groups * n, length]; alternating if rng is None."""
    shared, hypotheses = batch['shared_tokens'], batch['hypothesis_tokens']
    groups, size, _ = hypotheses.shape
    length = max(shared.shape[-1], hypotheses.shape[-1])

    def padded(tokens: Array) -> Array:
      widths = [(0, 0)] * (tokens.ndim - 1)
      return jnp.pad(tokens, [*widths, (0, length - tokens.shape[-1])])

    shared, hypotheses = padded(shared), padded(hypotheses)
    partners = jnp.broadcast_to(shared[:, None], hypotheses.shape)
    if rng is None:
      index = jnp.arange(groups * size).reshape(groups, size)
      is_target = index % 2 == 0
    else:
      coin_rng, pseudo_rng, draw_rng = jax.random.split(rng, 3)
      is_target = jax.random.bernoulli(coin_rng, 0.5, (groups, size))
      # [groups, n, n]: any present hypothesis but the one of the example.
      others = batch['group_mask'][:, None, :] * (1.0 - jnp.eye(size))
      pseudo = jax.random.bernoulli(
        pseudo_rng, self.pseudo_reference, (groups, size)
      ) & (jnp.sum(others, axis=-1) > 0)
      drawn = jax.random.categorical(draw_rng, jnp.log(others))
      other = jnp.take_along_axis(hypotheses, drawn[..., None], axis=1)
      partners = jnp.where(pseudo[..., None], other, partners)
    is_target = is_target[..., None]
    inputs = jnp.where(is_target, partners, hypotheses)
    targets = jnp.where(is_target, hypotheses, partners)
    return inputs.reshape(-1, length), targets.reshape(-1, length)


class _ContrastiveModel(T5ScoreModel):
  """Base of pair and group objectives.

  Attributes:
    alpha: Weight of the margin in equation 3.
    generative_weight: Weight of an additional equation 2 term on the same
      texts; 0 is the paper's loss. The term's mean is taken per microbatch, so
      microbatches of unequal size do not add up exactly to the whole batch.
    length_normalization: 'target' divides a score by the number of target
      tokens, as in equation 3; 'source' divides by the number of input tokens,
      as in the published trainer.
  """

  def __init__(
    self,
    config: t5.T5Config,
    input_noise: float = 0.0,
    alpha: float = 1.0,
    generative_weight: float = 0.0,
    length_normalization: str = 'target',
  ):
    super().__init__(config, input_noise)
    if length_normalization not in ('target', 'source'):
      raise OptionError(
        f'length_normalization={length_normalization!r}: '
        "use 'target' or 'source'"
      )
    self.alpha = alpha
    self.generative_weight = generative_weight
    self.length_normalization = length_normalization

  def _scores(
    self, params: Params, inputs: Array, targets: Array, rng: Array | None
  ) -> Array:
    """Scores [rows * k] of targets [rows * k, length], k targets per input."""
    weights = token_weights(targets)
    log_probs = self._log_probs(params, inputs, targets, weights, rng)
    lengths = None
    if self.length_normalization == 'source':
      count = jnp.sum(token_weights(inputs), axis=-1)
      lengths = jnp.repeat(count, targets.shape[0] // inputs.shape[0])
    return losses.sequence_scores(log_probs, weights, lengths)

  def _output(
    self,
    margin: tuple[Array, Array],
    scores: Array,
    score_mask: Array,
    correct: Array,
  ) -> LossOutput:
    """Adds the generative term and collects the metrics."""
    loss, weight = margin
    generative = -jnp.sum(scores * score_mask), jnp.sum(score_mask)
    metrics = {
      'margin_loss': margin,
      'pair_accuracy': (correct, weight),
      'nll': generative,
    }
    if self.generative_weight:
      mean = generative[0] / jnp.maximum(generative[1], 1.0)
      loss += self.generative_weight * mean * weight
    metrics['loss'] = (loss, weight)
    return loss, {'weight': weight, 'metrics': metrics}


@gin.configurable
class PairModel(_ContrastiveModel):
  """Equation 3 over pairs.

  Reads `encoder_input_tokens` [batch, 2, input_length],
  `decoder_target_tokens` [batch, 2, target_length] and `ratings`
  [batch, 2]; humans prefer index 0.
  """

  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores [batch, 2]; see the base class."""
    inputs = batch['encoder_input_tokens']
    targets = batch['decoder_target_tokens']
    # [batch, 2, length] -> [batch * 2, length]
    return self._scores(
      params,
      inputs.reshape(-1, inputs.shape[-1]),
      targets.reshape(-1, targets.shape[-1]),
      rng,
    ).reshape(-1, 2)

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> LossOutput:
    """Equation 3 over pairs; see the base class."""
    ratings = batch['ratings']
    scores = self.scores(params, batch, rng)
    margin = losses.pair_margin(
      scores[:, 0], scores[:, 1], ratings[:, 0], ratings[:, 1], self.alpha
    )
    valid = ratings[:, 0] > ratings[:, 1]
    correct = jnp.sum((scores[:, 0] > scores[:, 1]) & valid)
    mask = jnp.broadcast_to(valid[:, None], scores.shape)
    return self._output(
      margin, scores, mask.astype(jnp.float32), correct.astype(jnp.float32)
    )


@gin.configurable
class GroupModel(_ContrastiveModel):
  """Equation 3 over all pairs of a group, each hypothesis scored once.

  Reads `shared_tokens` [batch, shared_length], `hypothesis_tokens`
  [batch, n, hypothesis_length], `ratings` [batch, n] and `group_mask`
  [batch, n]. The shared text, a reference or a source, is encoded once for
  its n hypotheses.

  Attributes:
    directions: Which of 'precision' (shared -> hypothesis) and 'recall'
      (hypothesis -> shared) are trained; the paper trains both.
    min_gap: Minimum rating difference of a pair, exclusive.
    joint: Whether the margin applies to the F score, the mean of the
      directions, instead of to each direction separately as in the paper.
  """

  def __init__(
    self,
    config: t5.T5Config,
    input_noise: float = 0.0,
    alpha: float = 1.0,
    generative_weight: float = 0.0,
    length_normalization: str = 'target',
    directions: tuple[str, ...] = ('precision', 'recall'),
    min_gap: float = 0.0,
    joint: bool = False,
  ):
    super().__init__(
      config, input_noise, alpha, generative_weight, length_normalization
    )
    unknown = set(directions) - {'precision', 'recall'}
    if unknown or not directions:
      raise OptionError(
        f"directions={directions!r}: use 'precision', 'recall' or both"
      )
    self.directions = tuple(directions)
    self.min_gap = min_gap
    self.joint = joint

  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores [batch, n], the mean of the directions; 0 on padding."""
    scores = jnp.mean(self._by_direction(params, batch, rng), axis=0)
    return scores * batch['group_mask']

  def _by_direction(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> Array:
    """Scores [directions, batch, n]."""
    shared = batch['shared_tokens']
    hypotheses = batch['hypothesis_tokens']
    groups, size, length = hypotheses.shape
    # [groups, n, length] -> [groups * n, length]
    flat = hypotheses.reshape(-1, length)
    rngs = (None, None) if rng is None else jax.random.split(rng)
    by_direction = []
    if 'precision' in self.directions:
      by_direction.append(self._scores(params, shared, flat, rngs[0]))
    if 'recall' in self.directions:
      targets = jnp.repeat(shared, size, axis=0)
      by_direction.append(self._scores(params, flat, targets, rngs[1]))
    return jnp.stack(by_direction).reshape(-1, groups, size)

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> LossOutput:
    """Equation 3 over groups; see the base class."""
    # [directions, groups, n]
    scores = self._by_direction(params, batch, rng)
    if self.joint:
      scores = jnp.mean(scores, axis=0, keepdims=True)
    ratings = jnp.tile(batch['ratings'], (scores.shape[0], 1))
    mask = jnp.tile(batch['group_mask'], (scores.shape[0], 1))
    scores = scores.reshape(-1, scores.shape[-1])
    margin = losses.group_margin(
      scores, ratings, mask, self.alpha, self.min_gap
    )

    gap = ratings[:, :, None] - ratings[:, None, :]
    valid = (gap > self.min_gap) * mask[:, :, None] * mask[:, None, :]
    correct = jnp.sum((scores[:, :, None] > scores[:, None, :]) * valid)
    return self._output(margin, scores, mask, correct)
