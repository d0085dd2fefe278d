"""Generates texts from texts, fast and in order.

Used for pseudo-references, back-translations, and to inspect what a model
learned. Each distinct input is computed once. Batches have few shapes, which
compile in threads during the computation. Tokens are chosen in
`inference/search.py`; existing texts are scored in `inference/scoring.py`.
"""

from __future__ import annotations

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
from t5score_jax.models import likelihood
from t5score_jax.runtime import processes

# Results that may wait on the device while the next batches are prepared.
_IN_FLIGHT = 2

# Decoding proceeds token by token with short rows, so it needs more rows than
# scoring to fill a device.
_SHORTEST = 32


@dataclasses.dataclass(frozen=True)
class Output:
  """A text generated for an input.

  Attributes:
    text: The text, without `</s>`.
    log_prob: log p(text | input) under the model, the sum over its tokens.
    tokens: Number of tokens, `</s>` included where it was reached.
    finished: Whether `</s>` was reached; otherwise the text is cut.
  """

  text: str
  log_prob: float
  tokens: int
  finished: bool

  @property
  def score(self) -> float:
    """Mean log-probability per token: the text's T5Score given the input."""
    return self.log_prob / self.tokens


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The texts generated for N inputs.

  Attributes:
    outputs: The outputs of each input, in order; with beam search, the best
      first.
    truncated: Number of distinct inputs longer than max_length, which were
      truncated.
  """

  outputs: list[list[Output]]
  truncated: int


class Generator:
  """A model on all local devices, ready to generate.

  May be used from several threads. Outputs do not depend on batch size, order,
  other inputs or the number of devices, except where two tokens are equally
  probable to within rounding.

  Args:
    bundle: The network, its weights and vocabulary.
    method: How tokens are chosen; greedy by default.
    **options: `max_length` and `batch_tokens` (outputs included) as in
      `placement.Placed`, the others as in `placement.Devices`.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(
    self, bundle: Bundle, method: Method | None = None, **options: Any
  ):
    self.method = method or Method()
    self._placed = Placed(bundle, **options)
    self.programs: Programs[tuple[int, int]] = Programs()
    self._lock = threading.Lock()

  @property
  def max_length(self) -> int:
    """Tokens per input, `</s>` included."""
    return self._placed.max_length

  def generate(
    self, texts: Sequence[Text], progress: Progress | None = None
  ) -> Outputs:
    """Generates outputs for each text.

    Args:
      texts: N inputs; a repeated text costs nothing and has the same outputs,
        samples included.
      progress: Called with the number of distinct inputs done.

    Returns:
      The outputs in the order of the inputs.

    Raises:
      ScoringError: A probability is not finite: the weights are unusable.
    """
    with self._lock:
      return self._generate(texts, progress)

  def _generate(
    self, texts: Sequence[Text], progress: Progress | None
  ) -> Outputs:
    places: dict[Text, int] = {}
    inverse = [places.setdefault(text, len(places)) for text in texts]
    inputs, cut = self._placed.encode(list(places))
    several = self._placed.processes > 1
    owner = balance.owners([len(ids) for ids in inputs], self._placed.processes)
    if several:
      balance.agree(places, 'the inputs')
    own = np.flatnonzero(owner == self._placed.process)
    written: list[list[Output]] = [[]] * len(inputs)
    done = 0
    for chosen, (tokens, log_probs) in self.sequences([inputs[i] for i in own]):
      for row, index in enumerate(own[chosen]):
        written[index] = self._outputs(
          np.asarray(tokens[row]), np.asarray(log_probs[row])
        )
      done += len(chosen)
      if progress:
        progress(done, len(own))
    if several:
      _exchange(written, owner)
    self._placed.check_finite([o.log_prob for some in written for o in some])
    return Outputs([written[i] for i in inverse], int(cut.sum()))

  def _outputs(self, tokens: np.ndarray, log_probs: np.ndarray) -> list[Output]:
    made = []
    for ids, log_prob in zip(tokens, log_probs, strict=True):
      ends = np.flatnonzero(ids == likelihood.EOS_ID)
      length = int(ends[0]) + 1 if len(ends) else len(ids)
      text = self._placed.vocabulary.decode(ids[:length])
      made.append(Output(text, float(log_prob), length, bool(len(ends))))
    return made

  def sequences(
    self, inputs: Sequence[np.ndarray]
  ) -> Iterator[tuple[np.ndarray, search.Sequences]]:
    """Generates for encoded inputs, in this process.

    Args:
      inputs: N sequences of ids, `</s>` last.

    Yields:
      Indices of inputs [n], and their sequences as NumPy arrays, the longest
      inputs first.
    """
    return placement.fetched(self._run(inputs), _IN_FLIGHT)

  def _run(
    self, inputs: Sequence[np.ndarray]
  ) -> Iterator[tuple[np.ndarray, search.Sequences]]:
    batches = list(self._plan(np.asarray([len(ids) for ids in inputs], int)))
    shapes = [shape for _, shape in batches]
    with self.programs.compiling(self._compile, shapes) as programs:
      for chosen, shape in batches:
        yield chosen, self._start(programs[shape], inputs, chosen, shape)

  def _plan(
    self, lengths: np.ndarray
  ) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Yields indices of inputs and the shape of their batch, longest first."""
    bounds = buckets.boundaries(self._placed.max_length)
    needed = buckets.round_up(lengths, bounds)
    order = np.argsort(-lengths, kind='stable')
    start = 0
    while start < len(order):
      length = int(needed[order[start]])
      rows = self._rows(length, len(order))
      # A batch is not filled with inputs of less than half its length.
      fits = needed[order[start : start + rows]] * 2 > length
      stop = start + (rows if fits.all() else int(np.argmin(fits)))
      yield order[start:stop], (rows, length)
      start = stop

  def _rows(self, length: int, inputs: int) -> int:
    width = self.method.width
    tokens = max(_SHORTEST, length + width * self.method.max_tokens)
    rows = self._placed.tokens // tokens
    if inputs <= buckets.SMALL_ROWS:
      rows = min(rows, buckets.SMALL_ROWS)
    return self._placed.batch_rows(rows)

  def _start(
    self,
    program: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int],
  ) -> search.Sequences:
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
    return placed.compile(
      function, placed.params, placed.ids(*shape), keys, out=placed.rows
    )


def _search(
  config: Any, method: Any, vocab_size: Any, params: Any, tokens: Any, keys: Any
) -> Any:
  return search.search(params, config, method, vocab_size, tokens, keys)


def _exchange(written: list[list[Output]], owner: np.ndarray) -> None:
  """Adds the outputs of the other processes."""
  own = np.flatnonzero(owner == processes.index())
  rows = [[dataclasses.astuple(o) for o in written[i]] for i in own]
  for process, data in enumerate(balance.gather(json.dumps(rows).encode())):
    for place, some in zip(
      np.flatnonzero(owner == process), json.loads(data), strict=True
    ):
      written[place] = [Output(*values) for values in some]
