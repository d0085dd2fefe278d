"""Networks that predict ratings: COMES's, FrugalScore's and MetricX's.

The counterpart of `models/t5score.py`: a network and the mean squared error
over named batch keys. `training/loop.py` differentiates `loss_fn`; evaluators
compile `predict`. Not here: optimizers, text.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.data import prompts
from t5score_jax.errors import OptionError
from t5score_jax.models import losses
from t5score_jax.nn import (
  bert,
  cross_encoder,
  first_step,
  heads,
  t5,
  t5_axes,
  unified,
)
from t5score_jax.nn.shapes import param_shapes

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]

ROLES = ('hypothesis', 'source', 'reference')


class Regressor(abc.ABC):
  """A network and the mean squared error of its outputs.

  Batch keys: 'ratings' float [batch, outputs], NaN where a dimension was not
  rated, and the keys that the subclass adds.

  Attributes:
    config: The configuration of the network.
  """

  config: Any

  @abc.abstractmethod
  def init(self, rng: Array) -> Params:
    """Random parameters, float32."""

  @abc.abstractmethod
  def logical_axes(self) -> Params:
    """The logical axis names of every parameter."""

  @abc.abstractmethod
  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """Predicts the outputs: float32 [batch, outputs].

    Args:
      params: Parameters of the network.
      batch: Arrays by name.
      rng: Key for dropout; None for none.
    """

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """Sum of squared errors, with {'weight': number of ratings, 'metrics'}.

    The only metric is 'absolute_error', a mean like the loss.
    """
    predictions = self.predict(params, batch, rng)
    ratings = batch['ratings']
    loss, weight = losses.mse(predictions, ratings)
    error = jnp.nansum(jnp.abs(predictions - ratings))
    return loss, {
      'weight': weight,
      'metrics': {'absolute_error': (error, weight)},
    }


class CrossEncoderModel(Regressor):
  """FrugalScore's cross-encoder (section 3.2): one output per pair of texts.

  Batch keys: 'tokens' and 'token_types', int [batch, length], both texts as
  one sequence, padded at the end; 'ratings' [batch, 1] or [batch].
  """

  def __init__(self, config: bert.BertConfig):
    """Sets up the model.

    Args:
      config: The configuration of the encoder.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See `Regressor.init`."""
    return cross_encoder.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See `Regressor.logical_axes`."""
    shapes = param_shapes(cross_encoder.init_params, self.config)
    return cross_encoder.logical_axes(shapes)

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See `Regressor.predict`; one output."""
    scores = cross_encoder.predict(
      params, self.config, batch['tokens'], batch['token_types'], rng
    )
    return scores[:, None]

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """See `Regressor.loss_fn`."""
    ratings = batch['ratings'].reshape(batch['tokens'].shape[0], 1)
    return super().loss_fn(params, {**batch, 'ratings': ratings}, rng)


class FirstStepModel(Regressor):
  """MetricX: a T5 whose first decoder step predicts an error score.

  The prediction is the logit of one piece, by default not clamped in training:
  a clamped prediction has no gradient outside the bounds, where the predictions
  of a new network may lie. `clamped` clamps it anyway, as the published class
  does.

  Batch keys: 'encoder_input_tokens' int [batch, length], padded with 0;
  'ratings' [batch, 1], error scores.
  """

  def __init__(
    self,
    config: t5.T5Config,
    output_id: int = prompts.METRICX_ID,
    clamped: bool = False,
  ):
    """Sets up the model.

    Args:
      config: The configuration of the network.
      output_id: The piece whose logit is the prediction.
      clamped: Whether predictions are clamped to MetricX's range in training.

    Raises:
      OptionError: The network has no such piece.
    """
    if not 0 <= output_id < config.vocab_size:
      raise OptionError(
        f'output_id={output_id}: the network has the ids 0 to '
        f'{config.vocab_size - 1}'
      )
    self.config = config
    self.output_id = output_id
    self.clamped = clamped

  def init(self, rng: Array) -> Params:
    """See `Regressor.init`; the whole T5, with T5X's names."""
    return t5.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See `Regressor.logical_axes`."""
    return t5_axes.logical_axes(param_shapes(t5.init_params, self.config))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See `Regressor.predict`; one output."""
    tokens = batch['encoder_input_tokens']
    predictions = first_step.logits(
      params, self.config, tokens, (self.output_id,), rng
    )
    if self.clamped:
      return jnp.clip(predictions, *prompts.METRICX_RANGE)
    return predictions


class RegressorModel(Regressor):
  """COMET's and COMES's regressor (COMES, section 3), encoder included.

  Batch keys: 'hypothesis_tokens', 'source_tokens' and, if the regressor reads a
  reference, 'reference_tokens', int [batch, length] each, whose lengths may
  differ; 'ratings' [batch, outputs]. If 'ROLE_rows' int [batch] is present, the
  tokens of that role belong to any number of distinct texts, which 'ROLE_rows'
  indexes (`inputs/documents.py`).
  """

  def __init__(self, config: heads.RegressorConfig):
    """Sets up the model.

    Args:
      config: The configuration of the regressor.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See `Regressor.init`."""
    return heads.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See `Regressor.logical_axes`."""
    return heads.logical_axes(param_shapes(heads.init_params, self.config))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See `Regressor.predict`."""
    roles = _roles(self.config)
    rngs: Sequence[Array | None] = [None] * (len(roles) + 1)
    if rng is not None:
      rngs = list(jax.random.split(rng, len(roles) + 1))
    vectors = [
      heads.embed(params, self.config, batch[f'{role}_tokens'], key)
      for role, key in zip(roles, rngs[1:], strict=True)
    ]
    vectors = [
      vector[batch[f'{role}_rows']] if f'{role}_rows' in batch else vector
      for role, vector in zip(roles, vectors, strict=True)
    ]
    hypothesis, source, *rest = vectors
    reference = rest[0] if rest else None
    return heads.predict(
      params, self.config, hypothesis, source, reference, rngs[0]
    )


class UnifiedModel(Regressor):
  """The network of UniTE, CometKiwi and XCOMET (`nn/unified.py`).

  The hypothesis is read with the source, with the reference and with both. Each
  reading learns the rating, and the word tags if the batch has them. The loss
  is the sum over the readings (Wan et al. 2022, section 3.3).

  Batch keys: those of `RegressorModel`, with one rating; and
  'hypothesis_tags', int [batch, length], the tag of each token of the
  hypothesis, -1 where it is unknown.
  """

  def __init__(
    self,
    config: unified.UnifiedConfig,
    max_length: int | None = None,
    tag_share: float = 0.055,
    tag_weights: Sequence[float] = (),
  ):
    """Sets up the model.

    Args:
      config: The configuration of the network.
      max_length: Joint sequences are truncated to this many tokens; by default
        to the encoder's positions.
      tag_share: Weight of the tag loss, in [0, 1]; the rest is the weight of
        the rating loss. XCOMET uses .055, CometKiwi .65.
      tag_weights: Weights of 'no error' and of each label in the tag loss; by
        default uniform.

    Raises:
      OptionError: A value is out of range.
    """
    if not 0 <= tag_share <= 1:
      raise OptionError(f'tag_share = {tag_share}: 0 to 1')
    if tag_weights and len(tag_weights) != config.num_tags:
      raise OptionError(
        f'{len(tag_weights)} tag_weights: the network has {config.num_tags} '
        'tags, of which "no error" is the first'
      )
    self.config = config
    self._max_length = max_length or config.encoder.max_length
    self._tag_share = tag_share
    self._tag_weights = tuple(tag_weights)

  @property
  def text_length(self) -> int:
    """Maximum tokens of a text, to which `fitting/text_cache.py` truncates."""
    return unified.text_length(self._max_length)

  def init(self, rng: Array) -> Params:
    """See `Regressor.init`."""
    return heads.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See `Regressor.logical_axes`."""
    return heads.logical_axes(param_shapes(heads.init_params, self.config))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See `Regressor.predict`; the mean score over the readings."""
    scores = [score for score, _ in self._readings(params, batch, rng)]
    return jnp.mean(jnp.stack(scores), axis=0)[:, None]

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """See `Regressor.loss_fn`; also 'tag_loss' if there are tags."""
    ratings = batch['ratings'].reshape(-1, 1)
    tags = batch.get('hypothesis_tags') if self.config.labels else None
    rated = ~jnp.isnan(ratings[:, 0])
    total = tag_total = jnp.zeros((), jnp.float32)
    scores = []
    for score, logits in self._readings(params, batch, rng):
      scores.append(score)
      loss, weight = losses.mse(score[:, None], ratings)
      if tags is not None and logits is not None:
        tagged = losses.tagging(
          logits[:, : tags.shape[1]], tags, self._tag_weights
        )
        tag_loss = jnp.sum(jnp.where(rated, tagged, 0.0))
        tag_total += tag_loss
        share = self._tag_share
        loss = (1 - share) * loss + share * tag_loss
      total += loss
    mean = jnp.mean(jnp.stack(scores), axis=0)[:, None]
    metrics = {'absolute_error': (jnp.nansum(jnp.abs(mean - ratings)), weight)}
    if tags is not None:
      metrics['tag_loss'] = (tag_total / len(scores), weight)
    return total, {'weight': weight, 'metrics': metrics}

  def _readings(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> list[tuple[Array, Array | None]]:
    """Scores and tag logits of each input."""
    texts = {'hypothesis': _tokens(batch, 'hypothesis')}
    found = []
    for n, name in enumerate(self.config.inputs):
      for role in unified.INPUTS[name]:
        texts.setdefault(role, _tokens(batch, role))
      joint = [texts['hypothesis'], *(texts[r] for r in unified.INPUTS[name])]
      tokens, types = unified.join(self.config, joint, self._max_length)
      key = None if rng is None else jax.random.fold_in(rng, n)
      found.append(unified.predict(params, self.config, tokens, types, key))
    return found


class HeadModel(Regressor):
  """The head alone, on cached vectors of a frozen encoder.

  Equivalent to training `RegressorModel` with a frozen encoder, without running
  the encoder. Parameters: 'estimator' and 'mix'.

  Batch keys: 'hypothesis_vectors', 'source_vectors' and, if the regressor reads
  a reference, 'reference_vectors', float [batch, layers, emb_dim], from
  `heads.layer_vectors`; 'ratings' [batch, outputs].
  """

  def __init__(self, config: heads.RegressorConfig):
    """Sets up the model.

    Args:
      config: The configuration of the regressor, encoder included.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See `Regressor.init`; same random numbers as `RegressorModel`."""
    return _without_encoder(heads.init_params(self.config, rng))

  def logical_axes(self) -> Params:
    """See `Regressor.logical_axes`."""
    whole = param_shapes(heads.init_params, self.config)
    return _without_encoder(heads.logical_axes(whole))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See `Regressor.predict`."""
    vectors = [
      heads.mix_vectors(params, self.config, batch[f'{role}_vectors'])
      for role in _roles(self.config)
    ]
    hypothesis, source, *rest = vectors
    reference = rest[0] if rest else None
    return heads.predict(
      params, self.config, hypothesis, source, reference, rng
    )


def _tokens(batch: Batch, role: str) -> Array:
  tokens = batch[f'{role}_tokens']
  rows = batch.get(f'{role}_rows')
  return tokens if rows is None else tokens[rows]


def _roles(config: heads.RegressorConfig) -> tuple[str, ...]:
  return ROLES if config.reference else ROLES[:2]


def _without_encoder(params: Params) -> Params:
  return {
    name: part
    for name, part in params.items()
    if name not in heads.ENCODER_PARTS
  }
