"""Scores of many (input, target) pairs under one model, fast and in order.

The score of a pair is equation 1 of T5Score (Qin et al. 2022): the mean
log-probability of the target's tokens, ``</s>`` included, given the input. Each
distinct input is encoded once, each distinct pair decoded once; batches have
few shapes (``inference/buckets.py``), which compile in threads beside the
computation.

Not here: which texts are paired, and what the numbers are called
(``metrics/t5score.py``).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.inference import balance, buckets, placement
from t5score_jax.inference.placement import (
  DEFAULT_MAX_LENGTH,
  DTYPES,
  Placed,
  Progress,
  ScoringError,
  Text,
  padded,
)
from t5score_jax.inference.programs import Compiling, Programs
from t5score_jax.models import losses, t5score
from t5score_jax.nn.t5 import T5Config
from t5score_jax.runtime import processes

__all__ = [
  'DEFAULT_MAX_LENGTH',
  'DTYPES',
  'Pair',
  'PairScores',
  'Progress',
  'Scorer',
  'ScoringError',
]

Pair = tuple[Text, Text]

# Logits held at a time. Those of a CPU should stay in its cache.
_BLOCK_ELEMENTS = {'cpu': 2**20}

# Distinct pairs whose tokens are in memory at one time.
_WINDOW = 32768

# Results that may wait on the device while the next batches are prepared.
_IN_FLIGHT = 4


@dataclasses.dataclass(frozen=True)
class PairScores:
  """What is known of N pairs, in their order.

  Attributes:
    values: float32 [N], mean log-probability a target token; at most 0.
    truncated: how many distinct texts were longer than max_length, and cut.
    texts: how many distinct texts there are.
    lengths: int64 [N], tokens of each target.
    token_log_probs: for each pair float32 [target tokens], in the target's
      order with ``</s>`` last; None unless asked for.
  """

  values: np.ndarray
  truncated: int
  texts: int
  lengths: np.ndarray
  token_log_probs: list[np.ndarray] | None = None


class Scorer:
  """A model on all local devices, ready to score pairs of texts.

  May be used from several threads. Scores don't depend on batch size, order,
  other pairs or the number of devices (float32: within 1e-5).

  Args:
    bundle: network, weights and vocabulary.
    max_length: tokens a text, ``</s>`` included; the rest is cut. Default: the
      bundle's setting, else 1024.
    batch_tokens: tokens a batch on one copy of the model, padding included.
      Bounds memory, does not change scores. Default: 1024 a core on a CPU (at
      most 16384), else 32768.
    dtype: of the computation, 'float32' (full precision also where the
      hardware would round products) or 'bfloat16'.
    devices: default all local devices.
    num_partitions: devices over which one copy of the weights is divided, for
      models that don't fit one; the other devices hold copies.
    spread: whether all processes call for the scores of the same pairs; each
      does its share and has all scores.

  Raises:
    ValueError: an argument is out of range.
  """

  def __init__(
    self,
    bundle: Bundle,
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    devices: Sequence[jax.Device] | None = None,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    self._placed = Placed(
      bundle,
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      devices=devices,
      num_partitions=num_partitions,
    )
    platform = self._placed.platform
    self._block_elements = self._placed.copies * _BLOCK_ELEMENTS.get(
      platform, losses.DEFAULT_BLOCK_ELEMENTS
    )
    self._costs = _costs(bundle.config, platform)
    self._programs: Programs[tuple[int, ...]] = Programs()
    self._processes = processes.count() if spread else 1
    self._process = processes.index() if spread else 0
    self._shapes: set[tuple[int, ...]] = set()
    self._lock = threading.Lock()

  @property
  def params(self) -> Any:
    """The weights as they lie on the devices."""
    return self._placed.params

  @property
  def max_length(self) -> int:
    """Tokens a text, ``</s>`` included."""
    return self._placed.max_length

  @property
  def dtype(self) -> str:
    """Of the computation."""
    return self._placed.dtype

  @property
  def shapes(self) -> list[tuple[int, ...]]:
    """Those of the batches so far, which later ones take where they fit."""
    return sorted(self._shapes)

  def expect(self, shapes: Collection[Sequence[int]]) -> None:
    """Goes on as after calls that ended with these ``shapes``.

    Shapes of batches, and with them the last digits of scores, depend on those
    that there were before. With this a run that was broken off continues with
    the very digits.
    """
    self._shapes.update(tuple(shape) for shape in shapes)

  def use_params(self, params: Mapping[str, Any]) -> None:
    """Scores with other weights of the same shapes; programs are kept."""
    with self._lock:
      self._placed.use_params(params)

  def scores(
    self, pairs: Sequence[Pair], progress: Progress | None = None
  ) -> np.ndarray:
    """Float32 [N]: the mean log-probability a target token of each pair."""
    return self.score_pairs(pairs, progress=progress).values

  def token_log_probs(
    self, pairs: Sequence[Pair], progress: Progress | None = None
  ) -> list[np.ndarray]:
    """For each pair the log-probability of each target token, </s> last."""
    result = self.score_pairs(pairs, token_log_probs=True, progress=progress)
    assert result.token_log_probs is not None
    return result.token_log_probs

  def score_pairs(
    self,
    pairs: Sequence[Pair],
    *,
    token_log_probs: bool = False,
    progress: Progress | None = None,
  ) -> PairScores:
    """Scores pairs of (input, target).

    A text without any token is the sequence ``</s>`` alone, as an input and
    as a target, so every pair has a finite score.

    Args:
      pairs: N pairs of texts; the same pair twice costs nothing.
      token_log_probs: whether to keep the scores of single tokens.
      progress: told how many pairs are done.

    Returns:
      The scores in the order of the pairs.

    Raises:
      ScoringError: a score is not finite: the weights are unusable.
    """
    with self._lock:
      return self._score_pairs(pairs, token_log_probs, progress)

  def _score_pairs(
    self,
    pairs: Sequence[Pair],
    token_log_probs: bool,
    progress: Progress | None,
  ) -> PairScores:
    texts: dict[Text, int] = {}
    ids = np.empty((len(pairs), 2), np.int64)
    for row, pair in enumerate(pairs):
      ids[row] = [texts.setdefault(text, len(texts)) for text in pair]
    # Distinct pairs, grouped by input: one number a pair is cheap to sort.
    keys, inverse, counts = np.unique(
      ids[:, 0] * max(1, len(texts)) + ids[:, 1],
      return_inverse=True,
      return_counts=True,
    )
    distinct = np.stack(np.divmod(keys, max(1, len(texts))), axis=1)
    if self._processes > 1:
      balance.agree(texts, 'the texts')
      processes.agree(repr(keys.tolist()), 'the pairs')
    known = _Known(len(keys), token_log_probs)
    cut = np.zeros(len(texts), bool)
    all_texts = list(texts)
    done = 0
    for start in range(0, len(keys), _WINDOW):
      chosen_keys = slice(start, start + _WINDOW)
      window = _window(distinct[chosen_keys], all_texts, self._placed, cut)
      owner = balance.owners(window.costs(), self._processes)
      owner = owner[window.input_of_pair]
      known.owner[chosen_keys] = owner
      known.lengths[chosen_keys] = window.target_lengths
      own = np.flatnonzero(owner == self._process)
      if self._processes > 1:
        window = window.part(own)
      for chosen, log_probs in self._run(window):
        known.add(start + own[chosen], log_probs)
        done += int(counts[start + own[chosen]].sum())
        if progress:
          progress(done, len(pairs))
    if self._processes > 1:
      known.exchange()
    if not np.isfinite(known.values).all():
      raise ScoringError(placement.not_finite(self.dtype))
    return PairScores(
      known.values[inverse],
      int(cut.sum()),
      len(texts),
      known.lengths[inverse],
      None if known.tokens is None else [known.tokens[i] for i in inverse],
    )

  def _run(self, window: _Window) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields indices of pairs and their log-probs [n, length], any order."""
    placed = self._placed
    pools = buckets.plan(
      window.input_of_pair,
      window.input_lengths,
      window.target_lengths,
      max_length=self.max_length,
      batch_tokens=placed.batch_tokens * placed.copies,
      costs=self._costs,
      row_multiple=placed.copies,
      ready=self._shapes,
    )
    self._shapes.update(shape for pool in pools for shape in pool.shapes)
    in_flight: collections.deque[Any] = collections.deque()
    for pool, programs in self._as_compiled(pools):
      tokens = padded(
        [window.inputs[i] for i in pool.inputs], pool.rows, pool.length
      )
      encoder_tokens = jax.device_put(tokens, placed.rows)
      encoded = programs[pool.rows, pool.length](placed.params, encoder_tokens)
      for batch in pool.batches:
        shape = (pool.rows, pool.length, batch.rows, batch.length)
        targets = padded(
          [window.targets[i] for i in batch.pairs], batch.rows, batch.length
        )
        rows = np.zeros(batch.rows, np.int32)
        rows[: len(batch.input_rows)] = batch.input_rows
        log_probs = programs[shape](
          placed.params,
          encoded,
          encoder_tokens,
          *jax.device_put((rows, targets), placed.rows),
        )
        in_flight.append((batch.pairs, log_probs))
        if len(in_flight) > _IN_FLIGHT:
          chosen, log_probs = in_flight.popleft()
          yield chosen, np.asarray(log_probs)[: len(chosen)]
    for chosen, log_probs in in_flight:
      yield chosen, np.asarray(log_probs)[: len(chosen)]

  def _as_compiled(
    self, pools: Sequence[buckets.Pool]
  ) -> Iterator[tuple[buckets.Pool, Compiling[Any]]]:
    """Yields pools with their programs, first those that are compiled."""
    by_shapes: dict[tuple[Any, ...], list[buckets.Pool]] = (
      collections.defaultdict(list)
    )
    for pool in pools:
      by_shapes[pool.shapes].append(pool)
    # The shapes with the most work first: while they run, others compile.
    waiting = sorted(by_shapes, key=lambda shapes: -len(by_shapes[shapes]))
    every = [shape for shapes in waiting for shape in shapes]
    with self._programs.compiling(self.compile_for, every) as programs:
      while waiting:
        shapes = next(
          (w for w in waiting if all(map(programs.ready, w))), waiting[0]
        )
        waiting.remove(shapes)
        for pool in by_shapes[shapes]:
          yield pool, programs

  def compile_for(self, shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Compiles the encoder or the decoder.

    Args:
      shape: rows and length of inputs; and, for the decoder, of targets.

    Returns:
      The compiled program of the weights and arrays of these shapes.
    """
    placed = self._placed
    if len(shape) == 2:
      function = functools.partial(_encode, placed.config)
      return placed.compile(function, placed.ids(*shape), out=placed.everywhere)
    pool_rows, input_length, rows, length = shape
    encoded = jax.ShapeDtypeStruct(
      (pool_rows, input_length, placed.config.emb_dim),
      placed.config.array_dtype,
      sharding=placed.everywhere,
    )
    return placed.compile(
      functools.partial(_log_probs, placed.config, self._block_elements),
      encoded,
      placed.ids(pool_rows, input_length),
      placed.ids(rows),
      placed.ids(rows, length),
      out=placed.rows,
    )


class _Known:
  """What is known of the distinct pairs so far.

  Attributes:
    values: float32 [pairs], the scores.
    lengths: int [pairs], tokens of the target.
    owner: int [pairs], the process that computes a pair.
    tokens: float32 [length] for each pair, or None where not wanted.
  """

  def __init__(self, pairs: int, tokens: bool):
    self.values = np.full(pairs, np.nan, np.float32)
    self.lengths = np.ones(pairs, np.int64)
    self.owner = np.zeros(pairs, np.int64)
    self.tokens: list[np.ndarray] | None = None
    if tokens:
      self.tokens = [np.empty(0, np.float32)] * pairs

  def add(self, pairs: np.ndarray, log_probs: np.ndarray) -> None:
    """Takes log-probs [n, length] of some pairs, 0 on padding."""
    lengths = self.lengths[pairs]
    self.values[pairs] = log_probs.sum(1, dtype=np.float64) / lengths
    if self.tokens is not None:
      for pair, row, length in zip(pairs, log_probs, lengths, strict=True):
        self.tokens[pair] = row[:length].copy()

  def exchange(self) -> None:
    """Fills in what the other processes have computed."""
    own = np.flatnonzero(self.owner == processes.index())
    told = [self.values[own]]
    if self.tokens is not None:
      told += [self.tokens[pair] for pair in own]
    for process, data in enumerate(
      balance.gather(np.concatenate(told).astype('<f4').tobytes())
    ):
      pairs = np.flatnonzero(self.owner == process)
      numbers = np.frombuffer(data, '<f4')
      self.values[pairs] = numbers[: len(pairs)]
      if self.tokens is not None:
        ends = len(pairs) + np.cumsum(self.lengths[pairs])
        for pair, end in zip(pairs, ends, strict=True):
          self.tokens[pair] = numbers[end - self.lengths[pair] : end]


@dataclasses.dataclass(frozen=True)
class _Window:
  """The tokens of some distinct pairs, and which belongs to which."""

  inputs: list[np.ndarray]
  targets: list[np.ndarray]
  input_of_pair: np.ndarray
  input_lengths: np.ndarray
  target_lengths: np.ndarray

  def costs(self) -> np.ndarray:
    """Tokens of each input and all its targets, int [inputs]."""
    return self.input_lengths + np.bincount(
      self.input_of_pair, self.target_lengths, len(self.inputs)
    )

  def part(self, pairs: np.ndarray) -> _Window:
    """Those pairs alone, int [n]; all pairs of an input or none."""
    inputs, input_of_pair = np.unique(
      self.input_of_pair[pairs], return_inverse=True
    )
    return _Window(
      [self.inputs[i] for i in inputs],
      [self.targets[i] for i in pairs],
      input_of_pair,
      self.input_lengths[inputs],
      self.target_lengths[pairs],
    )


def _window(
  pairs: np.ndarray, texts: Sequence[Text], placed: Placed, cut: np.ndarray
) -> _Window:
  """Encodes what int [n, 2] ``pairs`` name; marks ``cut`` texts, bool."""
  used, places = np.unique(pairs, return_inverse=True)
  encoded, cut[used] = placed.encode([texts[i] for i in used])
  lengths = np.asarray([len(ids) for ids in encoded], np.int64)
  places = places.reshape(pairs.shape)
  inputs, input_of_pair = np.unique(places[:, 0], return_inverse=True)
  return _Window(
    [encoded[i] for i in inputs],
    [encoded[i] for i in places[:, 1]],
    input_of_pair,
    lengths[inputs],
    lengths[places[:, 1]],
  )


def _encode(config: Any, params: Any, tokens: Any) -> Any:
  return t5score.encode(params, config, tokens)


def _log_probs(
  config: Any,
  block: Any,
  params: Any,
  encoded: Any,
  encoder_tokens: Any,
  rows: Any,
  targets: Any,
) -> Any:
  return t5score.target_log_probs(
    params, config, encoded, encoder_tokens, rows, targets, block
  )


def _costs(config: T5Config, platform: str) -> buckets.Costs:
  """About how many seconds computing and compiling take.

  A rough model is enough: it only decides between a little more padding and
  one more program. Its constants were measured on two cores of a server.
  """
  joined = config.num_heads * config.head_dim
  attention = 4 * config.emb_dim * joined
  mlp = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
  encoder = config.num_encoder_layers * (attention + mlp)
  decoder = config.num_decoder_layers * (2 * attention + mlp)
  decoder += config.emb_dim * config.vocab_size
  on_cpu = platform == 'cpu'
  # Multiplications and additions a second.
  rate = 3e10 * min(placement.cores(), 8) if on_cpu else 1.5e13
  depths = [config.num_encoder_layers, config.num_decoder_layers]
  if config.scan_layers:
    depths = [1, 1]
  slower = 1.0 if on_cpu else 3.0
  return buckets.Costs(
    encoder_token=encoder / rate,
    decoder_token=decoder / rate,
    encoder=slower * (0.2 + 0.1 * depths[0]),
    decoder=slower * (0.25 + 0.2 * depths[1]),
  )
