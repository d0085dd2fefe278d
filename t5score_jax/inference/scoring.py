"""Scores of many (input, target) pairs under one model, fast and in order.

The score of a pair is equation 1 of T5Score (Qin et al. 2022): the mean
log-probability of the target's tokens, `</s>` included, given the input. Each
distinct input is encoded once, and each distinct pair is decoded once. Batches
have few shapes (`inference/buckets.py`), which are compiled in threads during
the computation.

Not here: which texts are paired, and the names of scores
(`metrics/t5score.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.inference import (
  apart,
  balance,
  buckets,
  costs,
  packing,
  placement,
)
from t5score_jax.inference.placement import Placed, Progress, Text, padded
from t5score_jax.inference.programs import Compiling, Programs
from t5score_jax.models import likelihood
from t5score_jax.runtime import processes

Pair = tuple[Text, Text]

# Maximum number of distinct pairs whose tokens are in memory at a time.
_WINDOW = 32768

# Results that may wait on the device while the next batches are prepared.
_IN_FLIGHT = 4


@dataclasses.dataclass(frozen=True)
class PairScores:
  """The scores of N pairs, in their order.

  Attributes:
    values: Mean log-probability per target token, float32 [N]; at most 0.
    truncated: Number of distinct texts longer than max_length, which were cut.
    texts: Number of distinct texts.
    lengths: Tokens of each target, int64 [N].
    token_log_probs: For each pair, float32 [target tokens], `</s>` last; None
      unless requested.
  """

  values: np.ndarray
  truncated: int
  texts: int
  lengths: np.ndarray
  token_log_probs: list[np.ndarray] | None = None


class Scorer:
  """A model on all local devices, ready to score pairs of texts.

  May be used from several threads. Scores do not depend on batch size, order,
  other pairs or the number of devices (float32: within 1e-5).

  Attributes:
    packs: Whether the product with the vocabulary is a separate program
      (`inference/packing.py`), as on one CPU.

  Args:
    bundle: The network, its weights and vocabulary.
    **options: `max_length` and `batch_tokens` as in `placement.Placed`, the
      others as in `placement.Devices`.

  Raises:
    OptionError: A value is out of range.
  """

  #: What is computed, and the axes of weights; subclasses have other networks.
  NETWORK: ClassVar[Any] = likelihood

  def __init__(self, bundle: Bundle, **options: Any):
    axes = self.NETWORK.logical_axes
    self._placed = Placed(bundle, logical_axes=axes, **options)
    self._costs = costs.estimate(bundle.config, self._placed.platform)
    # On one CPU the product with the vocabulary is a separate program.
    self.packs = self._placed.on_one_cpu
    self._programs: Programs[tuple[int, ...]] = Programs()
    self._shapes: set[tuple[int, ...]] = set()
    self._lock = threading.Lock()

  @property
  def params(self) -> Any:
    """The weights on the devices."""
    return self._placed.params

  @property
  def max_length(self) -> int:
    """Tokens per text, `</s>` included."""
    return self._placed.max_length

  @property
  def dtype(self) -> str:
    """The data type of the computation."""
    return self._placed.dtype

  @property
  def shapes(self) -> list[tuple[int, ...]]:
    """Shapes of the batches so far; later batches reuse them where they fit."""
    return sorted(self._shapes)

  def expect(self, shapes: Collection[Sequence[int]]) -> None:
    """Adds the shapes of an earlier run.

    Shapes of batches, and with them the last digits of scores, depend on
    earlier shapes. This makes a resumed run bit-identical to an uninterrupted
    one.
    """
    self._shapes.update(tuple(shape) for shape in shapes)

  def use_params(self, params: Mapping[str, Any]) -> None:
    """Replaces the weights with others of the same shapes; keeps programs."""
    with self._lock:
      self._placed.use_params(params)

  def scores(
    self, pairs: Sequence[Pair], progress: Progress | None = None
  ) -> np.ndarray:
    """Mean log-probability per target token of each pair, float32 [N]."""
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

    A text without tokens is read as `</s>` alone, as input and as target, so
    every pair has a finite score.

    Args:
      pairs: N pairs of texts; a repeated pair costs nothing.
      token_log_probs: Whether to return the scores of single tokens.
      progress: Called with the number of pairs done.

    Returns:
      The scores in the order of the pairs.

    Raises:
      ScoringError: A score is not finite: the weights are unusable.
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
    # Distinct pairs, grouped by input: one number per pair is cheap to sort.
    keys, inverse, counts = np.unique(
      ids[:, 0] * max(1, len(texts)) + ids[:, 1],
      return_inverse=True,
      return_counts=True,
    )
    distinct = np.stack(np.divmod(keys, max(1, len(texts))), axis=1)
    several = self._placed.processes > 1
    if several:
      balance.agree(texts, 'the texts')
      processes.agree(repr(keys.tolist()), 'the pairs')
    known = _Known(len(keys), token_log_probs)
    cut = np.zeros(len(texts), bool)
    all_texts = list(texts)
    done = 0
    for start in range(0, len(keys), _WINDOW):
      chosen_keys = slice(start, start + _WINDOW)
      window = _window(distinct[chosen_keys], all_texts, self._placed, cut)
      owner = balance.owners(window.costs(), self._placed.processes)
      owner = owner[window.input_of_pair]
      known.owner[chosen_keys] = owner
      known.lengths[chosen_keys] = window.target_lengths
      own = np.flatnonzero(owner == self._placed.process)
      if several:
        window = window.part(own)
      for chosen, log_probs in self._run(window):
        known.add(start + own[chosen], log_probs)
        done += int(counts[start + own[chosen]].sum())
        if progress:
          progress(done, len(pairs))
    if several:
      known.exchange()
    self._placed.check_finite(known.values)
    return PairScores(
      known.values[inverse],
      int(cut.sum()),
      len(texts),
      known.lengths[inverse],
      None if known.tokens is None else [known.tokens[i] for i in inverse],
    )

  def _run(self, window: _Window) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields indices of pairs and log-probs, float32 [pairs, length]."""
    if self.packs:
      return self._packed(window)
    placed = self._placed
    pools = buckets.plan(
      window.input_of_pair,
      window.input_lengths,
      window.target_lengths,
      max_length=self.max_length,
      batch_tokens=placed.tokens,
      costs=self._costs,
      row_multiple=placed.replicas,
      ready=self._shapes,
    )
    self._shapes.update(shape for pool in pools for shape in pool.shapes)
    return placement.fetched(self._decoded(window, pools), _IN_FLIGHT)

  def _packed(self, window: _Window) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`_run` on one CPU, in programs for inputs, targets and target tokens."""
    placed = self._placed
    parts = apart.plan(
      window.input_of_pair,
      window.input_lengths,
      window.target_lengths,
      max_length=self.max_length,
      batch_tokens=placed.tokens,
      costs=self._costs,
      ready=self._shapes,
    )
    order = [b.pairs for part in parts for b in part.decodes]
    chunks = packing.plan(
      np.concatenate([np.zeros(0, np.int64), *order]),
      window.target_lengths,
      most=placed.tokens,
      token_cost=self._costs.vocabulary_token,
      program_cost=self._costs.vocabulary,
      ready=[shape[0] for shape in self._shapes if len(shape) == 1],
    )
    shapes = [shape for part in parts for shape in part.shapes]
    shapes += [(chunk.size,) for chunk in chunks]
    self._shapes.update(shapes)
    with self._programs.compiling(self.compile_for, shapes) as programs:

      def run(shape: tuple[int, ...], *arrays: np.ndarray) -> jax.Array:
        given = jax.device_put(arrays, placed.everywhere)
        return programs[shape](placed.params, *given)

      hidden = apart.states(
        parts,
        window.inputs,
        window.targets,
        window.input_of_pair,
        lambda ids: run(ids.shape, ids),
        lambda encoded, ids, rows, targets: run(
          (*ids.shape, *targets.shape), encoded, ids, rows, targets
        ),
      )
      log_probs = packing.packed(
        hidden, chunks, window.targets, lambda h, ids: run(ids.shape, h, ids)
      )
      for of_token, values in placement.fetched(log_probs, 1):
        yield packing.by_pair(of_token, values)

  def _decoded(
    self, window: _Window, pools: Sequence[buckets.Pool]
  ) -> Iterator[tuple[np.ndarray, jax.Array]]:
    """Yields indices of pairs and log-probs [rows, length] on the devices."""
    placed = self._placed
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
        yield batch.pairs, log_probs

  def _as_compiled(
    self, pools: Sequence[buckets.Pool]
  ) -> Iterator[tuple[buckets.Pool, Compiling[Any]]]:
    """Yields pools with their programs, compiled ones first."""
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
    """Compiles the encoder, the decoder or the product with the vocabulary.

    Args:
      shape: Rows and length of inputs; for the decoder, also of targets. The
        product has a number of tokens alone.

    Returns:
      The compiled function of the weights and of arrays of these shapes.
    """
    placed = self._placed
    if len(shape) == 1:
      hidden = jax.ShapeDtypeStruct(
        (*shape, placed.config.emb_dim),
        placed.config.array_dtype,
        sharding=placed.rows,
      )
      function = functools.partial(_call, self.NETWORK.log_probs, placed.config)
      ids = placed.ids(*shape)
      return placed.compile(
        function, placed.params, hidden, ids, out=placed.rows
      )
    if len(shape) == 2:
      function = functools.partial(_call, self.NETWORK.encode, placed.config)
      ids = placed.ids(*shape)
      return placed.compile(function, placed.params, ids, out=placed.everywhere)
    pool_rows, input_length, rows, length = shape
    decode = self.NETWORK.target_log_probs
    if self.packs:
      decode = self.NETWORK.target_states
    encoded = jax.ShapeDtypeStruct(
      (pool_rows, input_length, placed.config.emb_dim),
      placed.config.array_dtype,
      sharding=placed.everywhere,
    )
    return placed.compile(
      functools.partial(_call, decode, placed.config),
      placed.params,
      encoded,
      placed.ids(pool_rows, input_length),
      placed.ids(rows),
      placed.ids(rows, length),
      out=placed.rows,
    )


class _Known:
  """Results for the distinct pairs so far.

  Attributes:
    values: The scores, float32 [pairs].
    lengths: Tokens of the targets, int [pairs].
    owner: The process that computes a pair, int [pairs].
    tokens: float32 [length] for each pair; None unless requested.
  """

  def __init__(self, pairs: int, tokens: bool):
    self.values = np.full(pairs, np.nan, np.float32)
    self.lengths = np.ones(pairs, np.int64)
    self.owner = np.zeros(pairs, np.int64)
    self.tokens: list[np.ndarray] | None = None
    if tokens:
      self.tokens = [np.empty(0, np.float32)] * pairs

  def add(self, pairs: np.ndarray, log_probs: np.ndarray) -> None:
    """Adds log-probs [n, length] of some pairs, 0 on padding."""
    lengths = self.lengths[pairs]
    self.values[pairs] = log_probs.sum(1, dtype=np.float64) / lengths
    if self.tokens is not None:
      for pair, row, length in zip(pairs, log_probs, lengths, strict=True):
        self.tokens[pair] = row[:length].copy()

  def exchange(self) -> None:
    """Adds the results of the other processes."""
    own = np.flatnonzero(self.owner == processes.index())
    parts = [self.values[own]]
    if self.tokens is not None:
      parts += [self.tokens[pair] for pair in own]
    for process, data in enumerate(
      balance.gather(np.concatenate(parts).astype('<f4').tobytes())
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
  """The tokens of some distinct pairs."""

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
    """Selects pairs, int [n]: for each input, all of its pairs or none."""
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
  """Encodes the texts of `pairs`, int [n, 2]; marks truncated ones in `cut`."""
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


def _call(function: Any, config: Any, params: Any, *arrays: Any) -> Any:
  return function(params, config, *arrays)
