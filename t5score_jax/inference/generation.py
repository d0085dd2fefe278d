"""Texts that a model writes for texts, fast and in order.

For pseudo-references, back-translations, and to see what a model has learned.
Each distinct input is computed once; batches have few shapes, which compile in
threads beside the computation. How tokens are chosen is
``inference/search.py``; scores of given texts are ``inference/scoring.py``.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.inference import balance, buckets, placement, search
from t5score_jax.inference.placement import Placed, Progress, Text
from t5score_jax.inference.programs import Programs
from t5score_jax.inference.search import Method
from t5score_jax.models import t5score
from t5score_jax.runtime import processes

# Results that may wait on the device while the next batches are prepared.
_IN_FLIGHT = 2

# Decoding goes token by token, and has short rows: it takes more of them than
# scoring to fill a device with as many tokens.
_SHORTEST = 32


@dataclasses.dataclass(frozen=True)
class Output:
  """What was written for an input.

  Attributes:
    text: without ``</s>``.
    log_prob: log p(text | input) under the model, the sum over its tokens.
    tokens: how many, ``</s>`` included where it was reached.
    finished: whether ``</s>`` was reached; otherwise the text is cut.
  """

  text: str
  log_prob: float
  tokens: int
  finished: bool

  @property
  def score(self) -> float:
    """Mean log-probability a token: the text's T5Score given the input."""
    return self.log_prob / self.tokens


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What was written for N inputs.

  Attributes:
    outputs: for each input, in order, its outputs: those of beam search from
      the best on.
    truncated: how many distinct inputs were longer than max_length, and cut.
  """

  outputs: list[list[Output]]
  truncated: int


class Generator:
  """A model on all local devices, ready to write.

  May be used from several threads. Outputs don't depend on batch size, order,
  other inputs or the number of devices, except where two tokens are equally
  probable to within rounding.

  Args:
    bundle: network, weights and vocabulary.
    method: how tokens are chosen; greedy by default.
    max_length: tokens an input, ``</s>`` included; the rest is cut. Default:
      the bundle's setting, else 1024.
    batch_tokens: tokens a batch on one copy of the model, padding and outputs
      included. Bounds memory. Default: 1024 a core on a CPU (at most 16384),
      else 32768.
    dtype: of the computation, 'float32' or 'bfloat16'.
    devices: default all local devices.
    num_partitions: devices over which one copy of the weights is divided.
    spread: whether all processes call ``generate`` with the same texts; each
      does its share and has all outputs.

  Raises:
    ValueError: an argument is out of range.
  """

  def __init__(
    self,
    bundle: Bundle,
    method: Method | None = None,
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    devices: Sequence[jax.Device] | None = None,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    self.method = method or Method()
    self._placed = Placed(
      bundle,
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      devices=devices,
      num_partitions=num_partitions,
    )
    self._processes = processes.count() if spread else 1
    self._process = processes.index() if spread else 0
    self.programs: Programs[tuple[int, int]] = Programs()
    self._lock = threading.Lock()

  @property
  def max_length(self) -> int:
    """Tokens an input, ``</s>`` included."""
    return self._placed.max_length

  def generate(
    self, texts: Sequence[Text], progress: Progress | None = None
  ) -> Outputs:
    """Writes outputs for each text.

    Args:
      texts: N inputs; the same text twice costs nothing, and has the same
        outputs, samples too.
      progress: told how many distinct inputs are done.

    Returns:
      The outputs in the order of the inputs.

    Raises:
      ScoringError: a probability is not finite: the weights are unusable.
    """
    with self._lock:
      return self._generate(texts, progress)

  def _generate(
    self, texts: Sequence[Text], progress: Progress | None
  ) -> Outputs:
    places: dict[Text, int] = {}
    inverse = [places.setdefault(text, len(places)) for text in texts]
    inputs, cut = self._placed.encode(list(places))
    owner = balance.owners([len(ids) for ids in inputs], self._processes)
    if self._processes > 1:
      balance.agree(places, 'the inputs')
    own = np.flatnonzero(owner == self._process)
    written: list[list[Output]] = [[]] * len(inputs)
    done = 0
    for chosen, found in self._run([inputs[i] for i in own]):
      for row, place in enumerate(own[chosen]):
        written[place] = self._outputs(
          np.asarray(found.tokens[row]), np.asarray(found.log_probs[row])
        )
      done += len(chosen)
      if progress:
        progress(done, len(own))
    if self._processes > 1:
      _exchange(written, owner)
    if not np.isfinite([o.log_prob for some in written for o in some]).all():
      raise placement.ScoringError(placement.not_finite(self._placed.dtype))
    return Outputs([written[i] for i in inverse], int(cut.sum()))

  def _outputs(self, tokens: np.ndarray, log_probs: np.ndarray) -> list[Output]:
    made = []
    for ids, log_prob in zip(tokens, log_probs, strict=True):
      ends = np.flatnonzero(ids == t5score.EOS_ID)
      length = int(ends[0]) + 1 if len(ends) else len(ids)
      text = self._placed.vocabulary.decode(ids[:length])
      made.append(Output(text, float(log_prob), length, bool(len(ends))))
    return made

  def _run(
    self, inputs: Sequence[np.ndarray]
  ) -> Iterator[tuple[np.ndarray, search.Found]]:
    """Yields places of inputs and what was found for them, in any order."""
    batches = list(self._plan(np.asarray([len(ids) for ids in inputs], int)))
    waiting: collections.deque[Any] = collections.deque()
    shapes = [shape for _, shape in batches]
    with self.programs.compiling(self._compile, shapes) as programs:
      for chosen, shape in batches:
        results = self._start(programs[shape], inputs, chosen, shape)
        waiting.append((chosen, results))
        if len(waiting) > _IN_FLIGHT:
          yield _fetched(*waiting.popleft())
    while waiting:
      yield _fetched(*waiting.popleft())

  def _plan(
    self, lengths: np.ndarray
  ) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Yields places of inputs and the shape of their batch, longest first."""
    rungs = np.asarray(buckets.ladder(self._placed.max_length))
    needed = rungs[np.searchsorted(rungs, lengths)]
    order = np.argsort(-lengths, kind='stable')
    start = 0
    while start < len(order):
      length = int(needed[order[start]])
      rows = self._rows(length, len(order))
      # A batch is not filled up with inputs of less than half its length.
      fits = needed[order[start : start + rows]] * 2 > length
      stop = start + (rows if fits.all() else int(np.argmin(fits)))
      yield order[start:stop], (rows, length)
      start = stop

  def _rows(self, length: int, inputs: int) -> int:
    width = self.method.width
    tokens = max(_SHORTEST, length + width * self.method.max_tokens)
    rows = max(1, self._placed.batch_tokens * self._placed.copies // tokens)
    if inputs <= buckets.SMALL_ROWS:
      rows = min(rows, buckets.SMALL_ROWS)
    return -(-rows // self._placed.copies) * self._placed.copies

  def _start(
    self,
    program: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int],
  ) -> search.Found:
    tokens = placement.padded([inputs[i] for i in chosen], *shape)
    keys = np.zeros((shape[0], 2), np.uint32)
    for row, place in enumerate(chosen):
      digest = hashlib.sha256(f'{self.method.seed}:'.encode())
      digest.update(inputs[place].astype('<i4').tobytes())
      keys[row] = np.frombuffer(digest.digest()[:8], '<u4')
    return program(
      self._placed.params, *jax.device_put((tokens, keys), self._placed.rows)
    )

  def _compile(self, shape: tuple[int, int]) -> Callable[..., Any]:
    placed = self._placed
    function = functools.partial(
      _search, placed.config, self.method.program, placed.vocabulary.vocab_size
    )
    keys = jax.ShapeDtypeStruct((shape[0], 2), jnp.uint32, sharding=placed.rows)
    return placed.compile(function, placed.ids(*shape), keys, out=placed.rows)


def _search(
  config: Any, method: Any, vocab_size: Any, params: Any, tokens: Any, keys: Any
) -> Any:
  return search.search(params, config, method, vocab_size, tokens, keys)


def _exchange(written: list[list[Output]], owner: np.ndarray) -> None:
  """Fills in what the other processes have written."""
  own = np.flatnonzero(owner == processes.index())
  told = [[dataclasses.astuple(o) for o in written[i]] for i in own]
  for process, data in enumerate(balance.gather(json.dumps(told).encode())):
    for place, some in zip(
      np.flatnonzero(owner == process), json.loads(data), strict=True
    ):
      written[place] = [Output(*values) for values in some]


def _fetched(
  chosen: np.ndarray, found: search.Found
) -> tuple[np.ndarray, search.Found]:
  host: Any = [np.asarray(x)[: len(chosen)] for x in found]
  return chosen, search.Found(*host)
