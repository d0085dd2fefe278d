"""Hidden states of many texts under one encoder, fast and in order.

Each distinct text is encoded once, the longest first, in batches of few shapes
(`inference/buckets.py`) on all local devices. Not here: what uses the states
(`inference/embedding.py`, `metrics/bertscore.py`), and T5
(`inference/scoring.py`).
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
from t5score_jax.inference import balance, buckets, filling, placement
from t5score_jax.inference.programs import Programs
from t5score_jax.nn import bert, ragged
from t5score_jax.runtime import forks

_BATCH_TOKENS = {'cpu': 2048}
_ACCELERATOR_BATCH_TOKENS = 65536
# Seconds per layer to compile one more shape, and operations per second. They
# only weigh padding against programs. The seconds are below the true value,
# since files are often scored more than once and programs are kept.
_COMPILE_SECONDS = 0.05
_RATE = {'cpu': 5e10}
_ACCELERATOR_RATE = 3e13

# Called with the number of texts done and the total number; with several
# processes, assumes that all are as far as this one.
Progress = placement.Progress

#: Maximum number of texts whose tokens are in memory at a time.
WINDOW = 32768

# Cost per operation of attention's small products and softmax, relative to
# dense layers. Only used to weigh padding.
_ATTENTION = 3.0

# The kind of result and the shape of a batch: rows, length and room (see
# `filling.Filled`), which is None if padding is computed.
_Key = tuple[str, int, int, int | None]


@dataclasses.dataclass(frozen=True)
class TextStates:
  """A text's hidden states.

  Attributes:
    states: float32 [layers, tokens, emb_dim], special tokens included.
    encoded: The tokens they belong to.
  """

  states: np.ndarray
  encoded: Encoded


class TextEncoder:
  """An encoder on all local devices.

  States do not depend on batch size, order, other texts, or the number of
  devices and processes (float32: within 1e-5).

  Args:
    bundle: The encoder.
    layers: The layers whose states are returned: 0 is the embeddings,
      num_layers the last; negative numbers count from the end. Layers after the
      largest are never computed.
    max_length: Tokens per text, special tokens included; longer texts are
      truncated. Default and maximum: the encoder's number of positions.
    **options: See `placement.Devices`.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(
    self,
    bundle: EncoderBundle,
    layers: Sequence[int] = (-1,),
    *,
    max_length: int | None = None,
    **options: Any,
  ):
    longest = bundle.config.max_length
    if max_length is not None and not 3 <= max_length <= longest:
      raise OptionError(
        f'max_length {max_length}: the encoder takes 3 to {longest} tokens'
      )
    self.layers = resolve_layers(layers, bundle.config.num_layers)
    self.max_length = max_length or longest
    self.tokenizer = bundle.tokenizer
    self._pad_id = bundle.config.pad_id
    self._place(bundle.config, bundle.params, **options)

  def _place(
    self, config: Any, params: Mapping[str, Any], **options: Any
  ) -> None:
    """Puts a network on the devices; for subclasses with one of their own."""
    self._devices = placement.Devices(**options)
    self._config = dataclasses.replace(config, dtype=self.dtype)
    platform = self._devices.platform
    self._batch_tokens = self._devices.batch_tokens(
      _BATCH_TOKENS.get(platform, _ACCELERATOR_BATCH_TOKENS)
    )
    self._params = self._devices.put(dict(params), self._logical_axes)
    self._rate = _RATE.get(platform, _ACCELERATOR_RATE)
    self._programs: Programs[_Key] = Programs()

  @property
  def dtype(self) -> str:
    """The data type of the computation."""
    return self._devices.dtype

  def tokenize(self, texts: Sequence[str]) -> list[Encoded]:
    """Encodes texts as ids, truncated to `max_length`."""
    forks.claim()
    return self.tokenizer.encode_batch(texts, self.max_length)

  def states(
    self, texts: Sequence[str], progress: Progress | None = None
  ) -> list[TextStates]:
    """Returns the hidden states of texts in order; equal texts share theirs.

    This process computes all of them: states are too large to exchange.
    """
    distinct = list(dict.fromkeys(texts))
    encoded = self.tokenize(distinct)
    found: dict[str, TextStates] = {}
    for chosen, states in self.run([e.ids for e in encoded]):
      for column, index in enumerate(chosen):
        length = len(encoded[index].ids)
        # A copy, so that a text does not keep its whole batch alive.
        found[distinct[index]] = TextStates(
          states[:, column, :length].copy(), encoded[index]
        )
      if progress:
        progress(len(found), len(distinct))
    return [found[text] for text in texts]

  def share(self, costs: np.ndarray, identity: Iterable[Any]) -> np.ndarray:
    """Splits work across the processes: int [N], the process of each item.

    Args:
      costs: The cost of each item, [N].
      identity: Values that must be equal in all processes.

    Raises:
      processes.ProcessError: They differ.
    """
    if self._devices.processes > 1:
      balance.agree(identity, 'the texts')
    return balance.owners(costs, self._devices.processes)

  def own(self, owner: np.ndarray) -> np.ndarray:
    """This process's items, int [n], from the result of `share`."""
    return np.flatnonzero(owner == self._devices.process)

  def exchange(self, values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Gathers the values of all processes, [N, ...].

    Raises:
      placement.ScoringError: A value is not finite.
    """
    if self._devices.processes > 1:
      values = balance.exchange(values, owner)
    self._devices.check_finite(values)
    return values

  def run(
    self,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    kind: str = 'states',
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes sequences of ids in this process, the longest first.

    Args:
      ids: N sequences, none longer than `max_length`.
      types: The segment (0 or 1) of each id; all 0 by default.
      kind: The kind of result; subclasses have others.

    Yields:
      Indices into `ids` [n], and float32 states [layers, n, length, emb_dim],
      undefined at padding; or the result of another `kind`.
    """
    forks.claim()
    if ids:
      yield from placement.fetched(
        self._computed(ids, types, kind), 1, self._row_axis(kind)
      )

  def _computed(
    self,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None,
    kind: str,
  ) -> Iterator[tuple[np.ndarray, jax.Array]]:
    """Yields indices and results on the devices, with padded rows."""
    batches = self._plan(np.array([len(row) for row in ids]), kind)
    keys = [(kind, *shape) for _, shape in batches]
    with self._programs.compiling(self._compile, keys) as programs:
      for (chosen, (rows, length, _)), key in zip(batches, keys, strict=True):
        tokens = np.full((rows, length), self._pad_id, np.int32)
        segments = np.zeros((rows, length), np.int32)
        for row, index in enumerate(chosen):
          tokens[row, : len(ids[index])] = ids[index]
          if types is not None:
            segments[row, : len(ids[index])] = types[index]
        yield (
          chosen,
          programs[key](
            self._params,
            *jax.device_put((tokens, segments), self._devices.rows),
          ),
        )

  # Subclasses override these: the program, its weights, and the axis of rows.
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

  def _plan(
    self, lengths: np.ndarray, kind: str
  ) -> list[tuple[np.ndarray, tuple[int, int, int | None]]]:
    """Indices and (rows, length, room) of batches, the longest first."""
    c = self._config
    depth = max(self.layers)
    token = depth * (4 * c.emb_dim**2 + 2 * c.emb_dim * c.mlp_dim) / self._rate
    cost = _COMPILE_SECONDS * depth
    ready = [key[1:] for key in self._programs if key[0] == kind]
    if self._devices.on_one_cpu and self._ragged:
      filled = filling.fill(
        lengths,
        max_length=self.max_length,
        batch_tokens=self._batch_tokens,
        token_cost=token,
        attention_cost=_ATTENTION * depth * 2 * c.emb_dim / self._rate,
        program_cost=cost,
        ready=[(r, length, room) for r, length, room in ready if room],
      )
      return [(batch.texts, batch.shape) for batch in filled]
    order = np.argsort(-lengths, kind='stable')
    bounds = buckets.boundaries(self.max_length, steps=4)
    needed = buckets.round_up(lengths, bounds)
    weights = {int(r): token * int(np.sum(needed == r)) for r in set(needed)}
    known = {length for _, length, _ in ready}
    chosen = buckets.choose_boundaries(weights, cost, known)
    length_of = buckets.round_up(lengths, chosen)[order]
    batches: list[tuple[np.ndarray, tuple[int, int, int | None]]] = []
    start = 0
    while start < len(order):
      length = int(length_of[start])
      rows = self._batch_rows(length, len(order) - start)
      # Shorter sequences fill a batch that would not be full.
      batches.append((order[start : start + rows], (rows, length, None)))
      start += rows
    return batches

  @property
  def _ragged(self) -> bool:
    """Whether the network can leave padding out."""
    return getattr(self._config, 'network', None) is bert.Encoder

  def _batch_rows(self, length: int, left: int) -> int:
    rows = max(1, self._batch_tokens // length)
    if left <= buckets.SMALL_ROWS < rows:
      rows = buckets.SMALL_ROWS
    return self._devices.batch_rows(rows)

  def _compile(self, key: _Key) -> Callable[..., jax.Array]:
    kind, rows, length, room = key
    ids = self._devices.ids(rows, length)
    with ragged.room(room):
      return self._devices.compile(
        functools.partial(self._apply, kind),
        *(self._params, ids, ids),
        out=self._devices.rows_on(self._row_axis(kind)),
      )


class RowEncoder(TextEncoder):
  """A `TextEncoder` whose subclasses compute one small array per row."""

  def _row_axis(self, kind: str) -> int:
    return 0

  # Subclasses whose results are as long as their batch override it.
  def _fit(self, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return part

  def rows(
    self,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    *,
    kind: str,
    shape: tuple[int, ...] = (),
    done: Callable[[float], None] | None = None,
  ) -> np.ndarray:
    """Computes the result of N sequences, float32 [N, *shape], in order.

    Args:
      ids: See `run`.
      types: See `run`.
      kind: See `run`.
      shape: The shape of one row's result.
      done: Called with the share of this process's rows that are done.

    Raises:
      placement.ScoringError: A number is not finite.
      processes.ProcessError: The processes have different texts.
    """
    owner = self.share(np.array([len(row) for row in ids]), ids)
    own = self.own(owner)
    values = np.zeros((len(ids), *shape), np.float32)
    own_types = None if types is None else [types[i] for i in own]
    count = 0
    for chosen, part in self.run([ids[i] for i in own], own_types, kind):
      values[own[chosen]] = self._fit(part, shape)
      count += len(chosen)
      if done:
        done(count / len(own))
    return self.exchange(values, owner)


def within(
  progress: Progress | None, start: int, count: int, total: int
) -> Callable[[float], None] | None:
  """Reports shares of the `count` items after `start`, of `total`."""
  if progress is None:
    return None
  return lambda share: progress(start + round(share * count), total)


def resolve_layers(layers: Sequence[int], depth: int) -> tuple[int, ...]:
  """Returns layers as ascending numbers from 0 to `depth`.

  Raises:
    OptionError: The encoder has no such layer.
  """
  for layer in layers:
    if not -depth - 1 <= layer <= depth:
      raise OptionError(
        f'layer {layer}: the encoder has {depth} (0 is the embeddings)'
      )
  if not layers:
    raise OptionError('no layers: give at least one')
  return tuple(sorted({n % (depth + 1) for n in layers}))
