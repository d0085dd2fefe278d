"""A network and an objective over named batch keys.

``loss_fn`` is what ``training/loop.py`` differentiates, ``encode`` and
``target_log_probs`` are what ``inference/scoring.py`` compiles. Every model
works on arrays that ``inputs/feature_converters.py`` makes. Not here:
optimisers, files, text.

A loss comes back as a sum and its weight (``aux['weight']``): dividing sums
over microbatches and devices by summed weights gives the loss of the whole
batch exactly, however the batch was split.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, cast

import gin
import jax
import jax.numpy as jnp

from t5score_jax.models import losses
from t5score_jax.nn import t5, t5_axes

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]
# The loss's sum, and {'weight': ..., 'metrics': {name: (sum, weight)}}.
LossOutput = tuple[Array, dict[str, Any]]

EOS_ID = 1


def shift_right(tokens: Array) -> Array:
  """Decoder inputs: targets moved one to the right, 0 in front."""
  widths = [(0, 0)] * (tokens.ndim - 1) + [(1, 0)]
  return jnp.pad(tokens, widths)[..., :-1]


def token_weights(tokens: Array) -> Array:
  """float32, 1 where a token is not padding."""
  return (tokens > 0).astype(jnp.float32)


def encode(params: Params, config: t5.T5Config, tokens: Array) -> Array:
  """Encodes texts once, for any number of targets: [rows, length] -> states.

  Args:
    params: the network's parameters.
    config: its shape.
    tokens: int [rows, length], ending in ``</s>``, padded with 0.

  Returns:
    [rows, length, emb_dim] in the configuration's dtype.
  """
  encoded = t5.Transformer(config).apply(
    {'params': params}, tokens, method='encode'
  )
  return cast(Array, encoded)


def target_log_probs(
  params: Params,
  config: t5.T5Config,
  encoded: Array,
  encoder_tokens: Array,
  rows: Array,
  target_tokens: Array,
  block_elements: int = losses.DEFAULT_BLOCK_ELEMENTS,
) -> Array:
  """Log p(token | earlier tokens, input) of each target token, equation 1.

  Args:
    params: the network's parameters.
    config: its shape.
    encoded: [inputs, input_length, emb_dim], from ``encode``.
    encoder_tokens: int [inputs, input_length].
    rows: int [batch], the input that each target is conditioned on.
    target_tokens: int [batch, target_length], ending in ``</s>``.
    block_elements: see ``losses.token_log_probs``.

  Returns:
    float32 [batch, target_length], 0 on padding.
  """
  hidden = t5.Transformer(config).apply(
    {'params': params},
    encoded[rows],
    encoder_tokens[rows],
    shift_right(target_tokens),
    method='decode',
  )
  log_probs = losses.token_log_probs(
    cast(Array, hidden),
    t5.output_kernel(params, config),
    target_tokens,
    block_elements,
  )
  return log_probs * token_weights(target_tokens)


class T5ScoreModel(abc.ABC):
  """A T5 network with one of the paper's objectives.

  Attributes:
    config: the network's shape.
    input_noise: in training, the share of input tokens that are replaced by
      random pieces, which keeps a small network from only copying; [0, 1).
  """

  def __init__(self, config: t5.T5Config, input_noise: float = 0.0):
    if not 0.0 <= input_noise < 1.0:
      raise ValueError(f'input_noise={input_noise}: must be in [0, 1)')
    self.config = config
    self.input_noise = input_noise

  def init(self, rng: Array) -> Params:
    """Random parameters with T5X's names, float32."""
    return t5.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """The logical axis names of every parameter."""
    return t5_axes.logical_axes(jax.eval_shape(self.init, jax.random.key(0)))

  @abc.abstractmethod
  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Equation 1 of each target that the loss looks at; as ``loss_fn``."""

  @abc.abstractmethod
  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> LossOutput:
    """The loss's sum over a batch, with its weight.

    Args:
      params: the network's parameters.
      batch: arrays by name; each model names the keys it reads.
      rng: key for dropout and input noise; None for evaluation.

    Returns:
      The sum, and a dict of 'weight' (what to divide by) and 'metrics'
      (pairs of a sum and its weight by name).
    """

  def _log_probs(
    self,
    params: Params,
    inputs: Array,
    targets: Array,
    rng: Array | None,
  ) -> Array:
    """Token log-probabilities [batch * k, length] of k targets an input.

    All that losses need of the network; ``module_models`` has another one.
    """
    rngs = None
    if rng is not None:
      noise_rng, dropout_rng = jax.random.split(rng)
      inputs = self._noisy(inputs, noise_rng)
      rngs = {'dropout': dropout_rng}
    network = t5.Transformer(self.config, deterministic=rng is None)
    hidden = network.apply(
      {'params': params}, inputs, shift_right(targets), rngs=rngs
    )
    kernel = t5.output_kernel(params, self.config)
    return losses.token_log_probs(cast(Array, hidden), kernel, targets)

  def _noisy(self, tokens: Array, rng: Array) -> Array:
    """Replaces a share of the pieces; never padding or ``</s>``."""
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

  Reads ``encoder_input_tokens`` [batch, input_length] and
  ``decoder_target_tokens`` [batch, target_length], with
  ``decoder_loss_weights`` where the batch has them.

  Attributes:
    normalize: see ``losses.nll``.
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
    return self._log_probs(params, inputs, targets, rng), weights

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
  """Equation 2 between texts of one meaning, paired anew at every step.

  Reads the same batches as ``GroupModel``, ratings unused: all translations
  of a source and its reference are paraphrases. Each hypothesis makes one
  example a step. Its partner is the shared text or, with probability
  ``pseudo_reference``, another hypothesis of the group; a coin says which of
  the two is the target, so that both directions of the F score are learned.

  Attributes:
    pseudo_reference: probability of a partner other than the shared text,
      [0, 1]; groups of one hypothesis always take the shared text.
    normalize: see ``losses.nll``.
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
      raise ValueError(
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
    inputs, targets = self._pairs(batch, pair_rng)
    weights = token_weights(targets) * batch['group_mask'].reshape(-1, 1)
    return self._log_probs(params, inputs, targets, rng), weights

  def _pairs(self, batch: Batch, rng: Array | None) -> tuple[Array, Array]:
    """Inputs and targets [groups * n, length]; without rng they alternate."""
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
      # [groups, n, n]: any present hypothesis but the example's own.
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
  """What pair and group objectives share.

  Attributes:
    alpha: weight of the margin in equation 3.
    generative_weight: weight of an added equation 2 on the same texts, 0 for
      the paper's loss. Its mean is that of each microbatch, so that with
      microbatches of unequal size the sum is not exactly the whole batch's.
    length_normalization: 'target' divides a score by the target's tokens as
      equation 3 does, 'source' by the input's as the published trainer does.
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
      raise ValueError(
        f'length_normalization={length_normalization!r}: '
        "use 'target' or 'source'"
      )
    self.alpha = alpha
    self.generative_weight = generative_weight
    self.length_normalization = length_normalization

  def _scores(
    self, params: Params, inputs: Array, targets: Array, rng: Array | None
  ) -> Array:
    """Scores [rows * k] of targets [rows * k, length], k targets an input."""
    log_probs = self._log_probs(params, inputs, targets, rng)
    lengths = None
    if self.length_normalization == 'source':
      count = jnp.sum(token_weights(inputs), axis=-1)
      lengths = jnp.repeat(count, targets.shape[0] // inputs.shape[0])
    return losses.sequence_scores(log_probs, token_weights(targets), lengths)

  def _output(
    self,
    margin: tuple[Array, Array],
    scores: Array,
    score_mask: Array,
    correct: Array,
  ) -> LossOutput:
    """Adds the generative term and collects what is logged."""
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
  """Equation 3 over pairs, both members of a pair in full.

  Reads ``encoder_input_tokens`` [batch, 2, input_length],
  ``decoder_target_tokens`` [batch, 2, target_length] and ``ratings``
  [batch, 2]; index 0 is what humans prefer.
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

  Reads ``shared_tokens`` [batch, shared_length], ``hypothesis_tokens``
  [batch, n, hypothesis_length], ``ratings`` [batch, n] and ``group_mask``
  [batch, n]. The shared text, a reference or a source, is encoded once for
  its n hypotheses.

  Attributes:
    directions: which of 'precision' (shared -> hypothesis) and 'recall'
      (hypothesis -> shared) are trained; the paper trains both.
    min_gap: pairs count whose ratings differ by more than this.
    joint: whether the margin is on the F score, the mean of the directions,
      instead of on each direction apart as in the paper.
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
      raise ValueError(
        f"directions={directions!r}: use 'precision', 'recall' or both"
      )
    self.directions = tuple(directions)
    self.min_gap = min_gap
    self.joint = joint

  def scores(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Scores [batch, n], the directions' mean; 0 on padding."""
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
