"""Hidden states of many texts under one encoder, fast and in order.

Each distinct text is encoded once, the longest first, in batches of few shapes
(``inference/buckets.py``) on all local devices. Not here: what is made of the
states (``inference/embedding.py``, ``metrics/bertscore.py`` and its kin), nor
T5 (``inference/scoring.py``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import balance, buckets, placement
from t5score_jax.inference.programs import Programs
from t5score_jax.nn import bert
from t5score_jax.runtime import forks, processes

_BATCH_TOKENS = {'cpu': 2048}
_ACCELERATOR_BATCH_TOKENS = 65536
# Seconds a layer to compile one more shape, and operations a second: only to
# weigh padding against programs. Less than it takes, as files are often scored
# more than once and programs are kept.
_COMPILE_SECONDS = 0.1
_RATE = {'cpu': 5e10}
_ACCELERATOR_RATE = 3e13

# Called with the number of texts done and the number of all; with several
# processes, as if all were as far as this one.
Progress = placement.Progress

#: Texts whose tokens are in memory at one time.
WINDOW = 32768


@dataclasses.dataclass(frozen=True)
class TextStates:
  """A text's hidden states.

  Attributes:
    states: float32 [layers, tokens, emb_dim], special tokens included.
    encoded: the tokens they belong to.
  """

  states: np.ndarray
  encoded: Encoded


class TextEncoder:
  """An encoder on all local devices.

  States don't depend on batch size, order, other texts, nor the number of
  devices and processes (float32: within 1e-5).

  Args:
    bundle: the encoder.
    layers: which hidden states: 0 the embeddings, num_layers the last;
      negative numbers count from the end. Those after the largest are never
      computed.
    max_length: tokens a text, special ones included; the rest is cut. Default
      and maximum: what the encoder has positions for.
    batch_tokens: tokens a batch on one copy of the encoder, padding included.
    dtype: of the computation, 'float32' or 'bfloat16'.
    devices: default all local devices.
    num_partitions: devices over which one copy of the weights is divided, for
      encoders that don't fit one; the other devices hold copies.
    spread: whether all processes work on the same texts: each does its share
      and has all results.

  Raises:
    ValueError: an argument is out of range.
  """

  def __init__(
    self,
    bundle: EncoderBundle,
    layers: Sequence[int] = (-1,),
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    devices: Sequence[jax.Device] | None = None,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    if dtype not in placement.DTYPES:
      raise OptionError(
        f'dtype {dtype!r}: use one of {", ".join(placement.DTYPES)}'
      )
    if batch_tokens is not None and batch_tokens < 1:
      raise OptionError(f'batch_tokens {batch_tokens}: must be positive')
    longest = bundle.config.max_length
    if max_length is not None and not 3 <= max_length <= longest:
      raise OptionError(
        f'max_length {max_length}: the encoder takes 3 to {longest} tokens'
      )
    self.layers = resolve_layers(layers, bundle.config.num_layers)
    self.max_length = max_length or longest
    self.dtype = dtype
    self.tokenizer = bundle.tokenizer
    self._config = dataclasses.replace(bundle.config, dtype=dtype)
    self._devices = placement.Devices(devices, num_partitions)
    platform = self._devices.platform
    self._batch_tokens = self._devices.copies * (
      batch_tokens or _BATCH_TOKENS.get(platform, _ACCELERATOR_BATCH_TOKENS)
    )
    self._params = self._devices.put(dict(bundle.params), self._logical_axes)
    self._rate = _RATE.get(platform, _ACCELERATOR_RATE)
    self._programs: Programs[tuple[str, int, int]] = Programs()
    self._processes = processes.count() if spread else 1
    self._process = processes.index() if spread else 0

  def tokenize(self, texts: Sequence[str]) -> list[Encoded]:
    """Encodes texts as ids, cut to ``max_length``."""
    forks.claim()
    return self.tokenizer.encode_batch(texts, self.max_length)

  def states(
    self, texts: Sequence[str], progress: Progress | None = None
  ) -> list[TextStates]:
    """Hidden states of texts, in their order; equal texts share theirs.

    All of them are computed in this process: states are too large to tell.
    """
    distinct = list(dict.fromkeys(texts))
    encoded = self.tokenize(distinct)
    found: list[TextStates | None] = [None] * len(distinct)
    done = 0
    for chosen, states in self.run([e.ids for e in encoded]):
      for column, index in enumerate(chosen):
        length = len(encoded[index].ids)
        # A copy, so that a text does not keep its whole batch alive.
        found[index] = TextStates(
          states[:, column, :length].copy(), encoded[index]
        )
      done += len(chosen)
      if progress:
        progress(done, len(distinct))
    by_text = dict(zip(distinct, found, strict=True))
    return [by_text[text] for text in texts]  # type: ignore[misc]

  def share(self, costs: np.ndarray, identity: Iterable[Any]) -> np.ndarray:
    """Divides work over the processes: int [N], the process of each item.

    Args:
      costs: [N], of each item.
      identity: what all processes must have alike.

    Raises:
      processes.ProcessError: they don't.
    """
    if self._processes > 1:
      balance.agree(identity, 'the texts')
    return balance.owners(costs, self._processes)

  def own(self, owner: np.ndarray) -> np.ndarray:
    """The items that are this process's, int [n], by what ``share`` gave."""
    return np.flatnonzero(owner == self._process)

  def exchange(self, values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Puts together what the processes have computed, [N, ...].

    Raises:
      placement.ScoringError: a value is not finite.
    """
    if self._processes > 1:
      values = balance.exchange(values, owner)
    if not np.isfinite(values).all():
      raise placement.ScoringError(placement.not_finite(self.dtype))
    return values

  def run(
    self,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    kind: str = 'states',
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes sequences of ids in this process, the longest first.

    Args:
      ids: N sequences, none longer than ``max_length``.
      types: their segments; all 0 by default.
      kind: what is made of them; a subclass may know others.

    Yields:
      Indices into ``ids`` [n], and float32 states [layers, n, length,
      emb_dim], of which those of padding mean nothing; or whatever ``kind``
      gives.
    """
    forks.claim()
    if not ids:
      return
    lengths = np.array([len(row) for row in ids])
    order = np.argsort(-lengths, kind='stable')
    batches = list(self._plan(lengths, order, kind))
    keys = [(kind, rows, length) for _, rows, length in batches]
    waiting: tuple[np.ndarray, jax.Array] | None = None
    with self._programs.compiling(self._compile, keys) as programs:
      for (chosen, rows, length), key in zip(batches, keys, strict=True):
        tokens = np.full((rows, length), self._config.pad_id, np.int32)
        segments = np.zeros((rows, length), np.int32)
        for row, index in enumerate(chosen):
          tokens[row, : lengths[index]] = ids[index]
          if types is not None:
            segments[row, : lengths[index]] = types[index]
        result = programs[key](
          self._params, *jax.device_put((tokens, segments), self._devices.rows)
        )
        if waiting is not None:
          yield self._fetched(kind, *waiting)
        waiting = chosen, result
    if waiting is not None:
      yield self._fetched(kind, *waiting)

  # What a subclass makes of the states: the program, its weights, and on
  # which axis of the result rows stand.
  def _row_axis(self, kind: str) -> int:
    return 1

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return bert.logical_axes(params)

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    states = bert.hidden_states(
      params, self._config, tokens, types, self.layers
    )
    return states.astype(jnp.float32)

  def _fetched(
    self, kind: str, chosen: np.ndarray, result: jax.Array
  ) -> tuple[np.ndarray, np.ndarray]:
    found = np.asarray(result)
    index = (slice(None),) * self._row_axis(kind) + (slice(0, len(chosen)),)
    return chosen, found[index]

  def _plan(
    self, lengths: np.ndarray, order: np.ndarray, kind: str
  ) -> Iterator[tuple[np.ndarray, int, int]]:
    """Yields (indices, rows, length) of batches, the longest first."""
    rungs = np.array(buckets.ladder(self.max_length))
    needed = rungs[np.searchsorted(rungs, lengths)]
    c = self._config
    depth = max(self.layers)
    token = depth * (4 * c.emb_dim**2 + 2 * c.emb_dim * c.mlp_dim) / self._rate
    weights = {int(r): token * int(np.sum(needed == r)) for r in set(needed)}
    ready = {length for k, _, length in self._programs if k == kind}
    cost = _COMPILE_SECONDS * depth
    chosen = np.array(buckets.choose_rungs(weights, cost, ready))
    length_of = chosen[np.searchsorted(chosen, lengths)]
    for length in sorted(set(length_of.tolist()), reverse=True):
      members = order[length_of[order] == length]
      rows = self._batch_rows(length, len(members))
      for start in range(0, len(members), rows):
        yield members[start : start + rows], rows, length

  def _batch_rows(self, length: int, members: int) -> int:
    rows = max(1, self._batch_tokens // length)
    if members <= buckets.SMALL_ROWS < rows:
      rows = buckets.SMALL_ROWS
    copies = self._devices.copies
    return -(-rows // copies) * copies

  def _compile(self, key: tuple[str, int, int]) -> Callable[..., jax.Array]:
    kind, rows, length = key
    ids = self._devices.ids(rows, length)
    return self._devices.compile_in(
      self.dtype,
      functools.partial(self._apply, kind),
      *(self._params, ids, ids),
      out=self._devices.rows_on(self._row_axis(kind)),
    )


class RowEncoder(TextEncoder):
  """As ``TextEncoder``, where a subclass makes one small array of a row."""

  def _row_axis(self, kind: str) -> int:
    return 0

  def rows(
    self,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    *,
    kind: str,
    shape: tuple[int, ...] = (),
    done: Callable[[float], None] | None = None,
  ) -> np.ndarray:
    """What becomes of N sequences, float32 [N, *shape], in their order.

    Args:
      ids: as for ``run``.
      types: likewise.
      kind: likewise.
      shape: that of one row's result.
      done: told what share of its rows this process has done.

    Raises:
      placement.ScoringError: a number is not finite.
      processes.ProcessError: the processes have different texts.
    """
    owner = self.share(np.array([len(row) for row in ids]), ids)
    own = self.own(owner)
    found = np.zeros((len(ids), *shape), np.float32)
    own_types = None if types is None else [types[i] for i in own]
    count = 0
    for chosen, values in self.run([ids[i] for i in own], own_types, kind):
      found[own[chosen]] = values
      count += len(chosen)
      if done:
        done(count / len(own))
    return self.exchange(found, owner)


def within(
  progress: Progress | None, start: int, count: int, total: int
) -> Callable[[float], None] | None:
  """Tells of a share of ``count`` items, after ``start``, of ``total``."""
  if progress is None:
    return None
  return lambda share: progress(start + round(share * count), total)


def resolve_layers(layers: Sequence[int], depth: int) -> tuple[int, ...]:
  """Layers as ascending numbers from 0 to ``depth``.

  Raises:
    ValueError: a layer that the encoder does not have.
  """
  for layer in layers:
    if not -depth - 1 <= layer <= depth:
      raise OptionError(
        f'layer {layer}: the encoder has {depth} (0 is the embeddings)'
      )
  if not layers:
    raise OptionError('no layers: give at least one')
  return tuple(sorted({n % (depth + 1) for n in layers}))
