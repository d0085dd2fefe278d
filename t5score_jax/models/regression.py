"""Encoders that learn a number: COMES's estimator and FrugalScore's miniature.

The counterpart of ``models/t5score.py`` for encoders: a network and the mean
square error over named batch keys. ``loss_fn`` is what ``training/loop.py``
differentiates, ``predict`` is what evaluators compile. Not here: T5,
optimisers, text.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.models import losses
from t5score_jax.nn import bert, cross_encoder, heads

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]

ROLES = ('hypothesis', 'source', 'reference')


class Regressor(abc.ABC):
  """A network with the mean square error of its outputs.

  Batch keys: 'ratings' float [batch, outputs], NaN where a dimension was not
  rated, and what the subclass reads.

  Attributes:
    config: the network's shape.
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
    """The outputs: float32 [batch, outputs].

    Args:
      params: the network's parameters.
      batch: arrays by name.
      rng: key for dropout; None for none.
    """

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """Sum of square errors, with {'weight': number of ratings, 'metrics'}.

    The metric is 'absolute_error', a mean like the loss.
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
  """FrugalScore's miniature (section 3.2): one output for a pair of texts.

  Batch keys: 'tokens' and 'token_types', int [batch, length], both texts as
  one sequence, padded at its end; 'ratings' [batch, 1], or [batch].
  """

  def __init__(self, config: bert.BertConfig):
    """Sets up the model.

    Args:
      config: the encoder's shape.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See ``Regressor.init``."""
    return cross_encoder.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See ``Regressor.logical_axes``."""
    shapes = jax.eval_shape(self.init, jax.random.key(0))
    return cross_encoder.logical_axes(shapes)

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See ``Regressor.predict``; one output."""
    scores = cross_encoder.predict(
      params, self.config, batch['tokens'], batch['token_types'], rng
    )
    return scores[:, None]

  def loss_fn(
    self, params: Params, batch: Batch, rng: Array | None
  ) -> tuple[Array, dict[str, Any]]:
    """See ``Regressor.loss_fn``."""
    ratings = batch['ratings'].reshape(batch['tokens'].shape[0], 1)
    return super().loss_fn(params, {**batch, 'ratings': ratings}, rng)


class RegressorModel(Regressor):
  """COMET's and COMES's estimator (COMES, section 3), encoder included.

  Batch keys: 'hypothesis_tokens', 'source_tokens' and, where the estimator
  reads one, 'reference_tokens', int [batch, length] each, of lengths of their
  own; 'ratings' [batch, outputs]. Where 'ROLE_rows' int [batch] are given, the
  tokens of that role are of distinct texts, in any number, of which these
  choose (``inputs/documents.py``).
  """

  def __init__(self, config: heads.RegressorConfig):
    """Sets up the model.

    Args:
      config: the estimator's shape.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See ``Regressor.init``."""
    return heads.init_params(self.config, rng)

  def logical_axes(self) -> Params:
    """See ``Regressor.logical_axes``."""
    return heads.logical_axes(jax.eval_shape(self.init, jax.random.key(0)))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See ``Regressor.predict``."""
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


class HeadModel(Regressor):
  """The estimator alone, on vectors of an encoder that is frozen.

  What ``RegressorModel`` learns while its encoder stands still, without running
  the encoder: parameters are 'estimator' and 'mix'.

  Batch keys: 'hypothesis_vectors', 'source_vectors' and, where the estimator
  reads one, 'reference_vectors', float [batch, layers, emb_dim], from
  ``heads.layer_vectors``; 'ratings' [batch, outputs].
  """

  def __init__(self, config: heads.RegressorConfig):
    """Sets up the model.

    Args:
      config: the estimator's shape, encoder included.
    """
    self.config = config

  def init(self, rng: Array) -> Params:
    """See ``Regressor.init``; random numbers are ``RegressorModel``'s."""
    return _without_encoder(heads.init_params(self.config, rng))

  def logical_axes(self) -> Params:
    """See ``Regressor.logical_axes``."""
    whole = jax.eval_shape(
      lambda rng: heads.init_params(self.config, rng), jax.random.key(0)
    )
    return _without_encoder(heads.logical_axes(whole))

  def predict(
    self, params: Params, batch: Batch, rng: Array | None = None
  ) -> Array:
    """See ``Regressor.predict``."""
    vectors = [
      heads.mix_vectors(params, self.config, batch[f'{role}_vectors'])
      for role in _roles(self.config)
    ]
    hypothesis, source, *rest = vectors
    reference = rest[0] if rest else None
    return heads.predict(
      params, self.config, hypothesis, source, reference, rng
    )


def _roles(config: heads.RegressorConfig) -> tuple[str, ...]:
  return ROLES if config.reference else ROLES[:2]


def _without_encoder(params: Params) -> Params:
  return {name: part for name, part in params.items() if name != 'encoder'}
