"""Decoding methods for T5: greedy search, sampling, beam search.

Pure functions of arrays, to be jitted. Each row is decoded independently of the
other rows and of padding. Not here: text, batches, devices
(`inference/generation.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from t5score_jax.errors import OptionError
from t5score_jax.models import likelihood
from t5score_jax.nn import decoding, t5

Array = jax.Array

# Below any possible log-probability.
_NEVER = -1.0e9


@dataclasses.dataclass(frozen=True)
class Method:
  """How the next tokens are chosen.

  By default the most probable token at every step (greedy search).

  Attributes:
    max_tokens: Maximum number of tokens of an output, `</s>` included.
    beams: Width of beam search; 1 for none.
    length_penalty: Beam search ranks by log-probability / tokens ** this; 0
      favours short outputs, 1 is the mean.
    temperature: Temperature of sampling; 1 samples from the model's
      distribution, 0 does not sample.
    top_k: Samples from this number of the most probable tokens; 0: all.
    top_p: Samples from the fewest tokens whose probabilities sum to at least
      this, in (0, 1].
    seed: Seed of sampling. A draw depends only on the seed, the input and the
      index of the output.
    outputs: Outputs per input: samples, or the best beams.

  Raises:
    OptionError: Values are out of range or contradict each other.
  """

  max_tokens: int = 128
  beams: int = 1
  length_penalty: float = 1.0
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  outputs: int = 1

  def __post_init__(self) -> None:
    for name, least in (('max_tokens', 1), ('beams', 1), ('outputs', 1)):
      if getattr(self, name) < least:
        raise OptionError(f'{name} {getattr(self, name)}: at least {least}')
    if self.temperature < 0 or self.top_k < 0:
      raise OptionError('temperature and top_k must not be negative')
    if not 0 < self.top_p <= 1:
      raise OptionError(f'top_p {self.top_p}: above 0 and at most 1')
    if self.beams > 1 and self.temperature:
      raise OptionError(
        'beams and temperature: beam search or sampling, not both'
      )
    if not self.temperature and (self.top_k or self.top_p < 1):
      raise OptionError('top_k and top_p are for sampling: give a temperature')
    if not self.temperature and self.outputs > self.beams:
      raise OptionError(
        f'outputs {self.outputs}: more than beams {self.beams}; beams or a '
        'temperature make more than one'
      )

  @property
  def width(self) -> int:
    """Number of sequences decoded in parallel for an input."""
    return self.outputs if self.temperature else self.beams

  @property
  def program(self) -> Method:
    """The part of the method on which a compiled program depends."""
    return dataclasses.replace(self, seed=0)


class Sequences(NamedTuple):
  """The sequences generated for each input.

  Attributes:
    tokens: int32 [batch, outputs, max_tokens], 0 after `</s>`.
    log_probs: float32 [batch, outputs], log p(output | input): the sum over
      its tokens, `</s>` included where it was reached.
  """

  tokens: Array
  log_probs: Array


@dataclasses.dataclass(frozen=True)
class _Model:
  """A model with encoded inputs; gives next-token probabilities."""

  params: t5.Params
  config: t5.T5Config
  vocab_size: int
  encoder_tokens: Array

  def start(self, rows: int, most: int) -> decoding.KVCache:
    encoded = likelihood.encode(self.params, self.config, self.encoder_tokens)
    return decoding.start(self.params, self.config, encoded, rows, most)

  def log_probs(
    self, cache: decoding.KVCache, tokens: Array, position: Array
  ) -> tuple[Array, decoding.KVCache]:
    """float32 [rows, vocab_size], and the cache with these tokens."""
    logits, cache = decoding.step(
      self.params, self.config, cache, self.encoder_tokens, tokens, position
    )
    ids = jnp.arange(logits.shape[-1])
    possible = (ids > 0) & (ids < self.vocab_size)
    # Not renormalised: these remain the model's own probabilities.
    return jnp.where(possible, jax.nn.log_softmax(logits), _NEVER), cache


def search(
  params: t5.Params,
  config: t5.T5Config,
  method: Method,
  vocab_size: int,
  encoder_tokens: Array,
  keys: Array,
) -> Sequences:
  """Generates outputs for a batch of inputs.

  Args:
    params: The network's parameters.
    config: Its configuration.
    method: How tokens are chosen.
    vocab_size: Ids at or above this, and padding, are never chosen.
    encoder_tokens: Int [batch, input_length], ending in `</s>`, padded with 0;
      a batch may be filled with rows of padding only.
    keys: Random bits of each input for sampling, uint32 [batch, 2].

  Returns:
    The outputs; with beam search, the best first.
  """
  model = _Model(params, config, vocab_size, encoder_tokens)
  if method.beams > 1:
    return _beam_search(model, method)
  return _one_by_one(model, method, keys)


class _Lines(NamedTuple):
  """State of greedy search and of sampling; a row is a sequence."""

  position: Array
  cache: decoding.KVCache
  tokens: Array
  last: Array
  log_probs: Array
  ended: Array


def _one_by_one(model: _Model, method: Method, keys: Array) -> Sequences:
  batch, most, width = keys.shape[0], method.max_tokens, method.width
  rows = batch * width
  # One stream of random numbers per sequence, independent of the others.
  own = jax.vmap(jax.random.fold_in)(
    jax.random.wrap_key_data(jnp.repeat(keys, width, axis=0)),
    jnp.tile(jnp.arange(width), batch),
  )

  def step(s: _Lines) -> _Lines:
    scores, cache = model.log_probs(s.cache, s.last, s.position)
    choice = scores
    if method.temperature:
      at = jax.vmap(jax.random.fold_in, (0, None))(own, s.position)
      noise = jax.vmap(lambda k: jax.random.gumbel(k, scores.shape[1:]))(at)
      choice = restrict(scores / method.temperature, method) + noise
    token = jnp.argmax(choice, axis=-1).astype(jnp.int32)
    score = jnp.take_along_axis(scores, token[:, None], axis=-1)[:, 0]
    token = jnp.where(s.ended, 0, token)
    return _Lines(
      s.position + 1,
      cache,
      _put(s.tokens, token, s.position),
      token,
      s.log_probs + jnp.where(s.ended, 0.0, score),
      s.ended | (token == likelihood.EOS_ID),
    )

  state = _Lines(
    jnp.int32(0),
    model.start(rows, most),
    jnp.zeros((rows, most), jnp.int32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows, jnp.float32),
    jnp.repeat(model.encoder_tokens[:, 0] == 0, width),
  )
  state = lax.while_loop(
    lambda s: (s.position < most) & ~jnp.all(s.ended), step, state
  )
  return Sequences(
    state.tokens.reshape(batch, width, most),
    state.log_probs.reshape(batch, width),
  )


def restrict(logits: Array, method: Method) -> Array:
  """Restricts a distribution by `top_k` and `top_p`.

  Args:
    logits: float32 [rows, vocab_size], of any normalisation.
    method: The limits; tokens of equal probability are kept or removed
      together.

  Returns:
    The logits, very small for removed tokens.
  """
  if method.top_k and method.top_k < logits.shape[-1]:
    least = _top_k(logits, method.top_k)[0][:, -1:]
    logits = jnp.where(logits < least, _NEVER, logits)
  if method.top_p < 1:
    ordered = -jnp.sort(-logits, axis=-1)
    probs = jax.nn.softmax(ordered, axis=-1)
    # Keeps the first token, and each whose predecessors sum to less.
    stays = jnp.cumsum(probs, axis=-1) - probs < method.top_p
    least = jnp.min(jnp.where(stays, ordered, jnp.inf), axis=-1, keepdims=True)
    logits = jnp.where(logits < least, _NEVER, logits)
  return logits


class _Beams(NamedTuple):
  """State of beam search: open sequences, and the best finished ones.

  Arrays are [batch, beams, ...]; `done_scores` include the length penalty,
  `filled` marks the used slots of `done`, and `open` [batch] the rows that
  are still decoded.
  """

  position: Array
  cache: decoding.KVCache
  tokens: Array
  log_probs: Array
  done: Array
  done_scores: Array
  done_log_probs: Array
  filled: Array
  open: Array


def _beam_search(model: _Model, method: Method) -> Sequences:
  """Beam search with the defaults and the stopping rule of transformers.

  Twice as many continuations as beams are considered, so that enough remain
  when the best ones end. A row closes when its best open sequence, at the
  current length, scores below all kept finished sequences.
  """
  batch, beams, most = (
    model.encoder_tokens.shape[0],
    method.beams,
    method.max_tokens,
  )

  def step(s: _Beams) -> _Beams:
    last = jnp.where(s.position > 0, s.tokens[:, :, s.position - 1], 0)
    scores, cache = model.log_probs(s.cache, last.reshape(-1), s.position)
    vocab_size = scores.shape[-1]
    scores = scores.reshape(batch, beams, -1) + s.log_probs[..., None]
    # [batch, 2 * beams]
    sums, index = _top_k(scores.reshape(batch, -1), 2 * beams)
    origin, token = index // vocab_size, (index % vocab_size).astype(jnp.int32)
    length = s.position + 1
    tokens = _put(_pick(s.tokens, origin), token, s.position)
    ends = (token == likelihood.EOS_ID) | (length == most)

    going, place = _top_k(jnp.where(ends, sums + _NEVER, sums), beams)
    cache = decoding.reorder(cache, model.config, _pick(origin, place))

    divisor = length.astype(jnp.float32) ** method.length_penalty
    enters = ends & (jnp.arange(2 * beams) < beams) & s.open[:, None]
    ended = jnp.where(enters, sums / divisor, _NEVER)
    merged = (
      (s.done, tokens),
      (s.done_scores, ended),
      (s.done_log_probs, sums),
      (s.filled, enters),
    )
    whole = [jnp.concatenate(pair, axis=1) for pair in merged]
    best = _top_k(whole[1], beams)[1]
    done, done_scores, done_log_probs, filled = (_pick(x, best) for x in whole)
    worst = jnp.where(jnp.all(filled, axis=1), done_scores[:, -1], _NEVER)
    return _Beams(
      length,
      cache,
      _pick(tokens, place),
      going,
      done,
      done_scores,
      done_log_probs,
      filled,
      s.open & (going[:, 0] / divisor > worst),
    )

  # All beams start equal. Only the first counts; else they would remain equal.
  first = jnp.where(jnp.arange(beams) > 0, _NEVER, 0.0)
  state = _Beams(
    jnp.int32(0),
    model.start(batch * beams, most),
    jnp.zeros((batch, beams, most), jnp.int32),
    jnp.tile(first, (batch, 1)),
    jnp.zeros((batch, beams, most), jnp.int32),
    jnp.full((batch, beams), _NEVER),
    jnp.zeros((batch, beams)),
    jnp.zeros((batch, beams), bool),
    model.encoder_tokens[:, 0] > 0,
  )
  state = lax.while_loop(
    lambda s: (s.position < most) & jnp.any(s.open), step, state
  )
  return Sequences(
    state.done[:, : method.outputs], state.done_log_probs[:, : method.outputs]
  )


def _top_k(x: Array, k: int) -> tuple[Array, Array]:
  """The largest of each row [rows, n] and their indices, [rows, k].

  If rows are sharded, each device computes its own rows. XLA would gather all
  rows on every device.
  """
  mesh = jax.sharding.get_abstract_mesh()
  parts = 1 if mesh.empty else dict(mesh.shape).get('data', 1)
  if parts == 1 or x.shape[0] % parts:
    return lax.top_k(x, k)
  rows = PartitionSpec('data')
  own: Callable[..., Any] = jax.shard_map(
    lambda x: tuple(lax.top_k(x, k)), in_specs=rows, out_specs=(rows, rows)
  )
  largest, index = own(x)
  return largest, index


def _pick(x: Array, index: Array) -> Array:
  """[batch, n, ...], int [batch, m] -> [batch, m, ...]."""
  index = index.reshape(*index.shape, *[1] * (x.ndim - 2))
  return jnp.take_along_axis(x, index, axis=1)


def _put(tokens: Array, token: Array, position: Array) -> Array:
  """Writes [...] at one position of [..., most]."""
  return lax.dynamic_update_slice_in_dim(
    tokens, token[..., None], position, axis=-1
  )
