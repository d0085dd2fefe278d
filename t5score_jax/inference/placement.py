"""Places a model on this process's devices, for scoring and generation.

Weights are replicated, or sharded over a few devices if one is too small. The
rows of a batch are sharded over the replicas. Not here: which texts make a
batch (`inference/buckets.py`), and what is computed from them.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.data.vocab import encode_batch_for_model
from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.nn import axes, t5, t5_axes
from t5score_jax.runtime import compilation_cache, forks, processes

DTYPES = ('float32', 'bfloat16')


class ScoringError(T5ScoreError, RuntimeError):
  """A model's outputs are not finite."""


# Called with the number of items done and the total number.
Progress = Callable[[int, int], None]

# A text, or its ids as the model reads them, `</s>` last.
Text = str | tuple[int, ...]

# The paper truncates at 1,024 tokens.
DEFAULT_MAX_LENGTH = 1024

# Tokens per batch. A batch of few tokens has little padding and keeps one core
# busy; an accelerator has to be filled.
_BATCH_TOKENS_PER_CORE = 1024
_MOST_CPU_BATCH_TOKENS = 16384
_ACCELERATOR_BATCH_TOKENS = 32768

# Shared with training, which also shards the logits for their gradients.
_RULES = axes.standard_rules(training=False)


class Devices:
  """This process's devices, on which a model is placed.

  All classes that compute on devices take these arguments and pass them on.

  Args:
    batch_tokens: Tokens per batch on one replica of the model, padding
      included. Bounds memory; scores do not depend on it. The default depends
      on the model and the device.
    dtype: Data type of the computation: 'float32' (full precision, also where
      the hardware would round products) or 'bfloat16' (faster on an
      accelerator; differs in the third digit).
    devices: The devices; by default all local ones.
    num_partitions: Number of devices over which the weights are sharded, for
      models that do not fit on one; the other devices hold replicas.
    spread: Whether all processes of `runtime/processes.py` work on the same
      texts: each computes a share and receives all results.

  Attributes:
    platform: 'cpu', 'gpu' or 'tpu'.
    replicas: Number of model replicas; the rows of a batch are a multiple.
    rows: The sharding of a batch over the replicas, by rows.
    everywhere: The sharding of an array that every device holds whole.
    dtype: The data type of the computation.
    processes: Number of processes that share the work.
    process: The number of this process among them.

  Raises:
    OptionError: A value is out of range, or `num_partitions` does not divide
      the number of devices.
    ForkError: The process was forked from one that used JAX.
  """

  def __init__(
    self,
    *,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    devices: Sequence[jax.Device] | None = None,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    if dtype not in DTYPES:
      raise OptionError(f'dtype {dtype!r}: use one of {", ".join(DTYPES)}')
    if batch_tokens is not None and batch_tokens < 1:
      raise OptionError(f'batch_tokens {batch_tokens}: must be positive')
    forks.claim()
    devices = list(devices or jax.local_devices())
    self._mesh = axes.make_mesh(devices, num_partitions)
    compilation_cache.enable()
    self.platform = devices[0].platform
    self.replicas = self._mesh.shape['data']
    self.rows = self.rows_on(0)
    self.everywhere = NamedSharding(self._mesh, PartitionSpec())
    self.dtype = dtype
    self._tokens = batch_tokens
    self.processes = processes.count() if spread else 1
    self.process = processes.index() if spread else 0

  @property
  def on_one_cpu(self) -> bool:
    """Whether the only device is a CPU."""
    return self.platform == 'cpu' and self._mesh.size == 1

  def batch_tokens(self, default: int) -> int:
    """Tokens per batch on all replicas, from the default per replica."""
    return (self._tokens or default) * self.replicas

  def batch_rows(self, rows: int) -> int:
    """The number of rows, rounded up to a multiple of the replicas."""
    return -(-max(1, rows) // self.replicas) * self.replicas

  def rows_on(self, axis: int) -> NamedSharding:
    """The sharding by rows of an array whose rows are on some axis."""
    return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, 'data'))

  def put(self, params: Any, logical_axes: Callable[[Any], Any]) -> Any:
    """Puts parameters on the devices, sharded by the rules of `nn/axes.py`.

    Args:
      params: A tree of arrays; or of `jax.ShapeDtypeStruct`, to compile for
        devices that are absent.
      logical_axes: Names the axes of the leaves of such a tree.
    """
    abstract = isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)
    if self._mesh.shape['model'] == 1 and not abstract:
      return jax.device_put(params, self.everywhere)
    sizes = dict(self._mesh.shape)

    def put(names: tuple[str, ...], leaf: Any) -> Any:
      spec = axes.partition_spec(names, leaf.shape, _RULES, sizes)
      sharding = NamedSharding(self._mesh, spec)
      if abstract:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
      return jax.device_put(leaf, sharding)

    return jax.tree.map(
      put,
      logical_axes(params),
      params,
      is_leaf=lambda leaf: isinstance(leaf, tuple),
    )

  def ids(self, *shape: int) -> jax.ShapeDtypeStruct:
    """Shape and sharding of a batch of int32 ids, to compile for."""
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.rows)

  def compile(
    self,
    function: Callable[..., Any],
    *arguments: Any,
    out: NamedSharding,
  ) -> Callable[..., Any]:
    """Compiles a function.

    Args:
      function: The function.
      *arguments: Arrays on the devices, or their `jax.ShapeDtypeStruct`.
      out: The sharding of the result.
    """
    precision = 'float32' if self.dtype == 'float32' else 'default'
    with (
      jax.default_matmul_precision(precision),
      axes.mesh_context(self._mesh, _RULES),
    ):
      program = jax.jit(function, out_shardings=out)
      return program.lower(*arguments).compile()

  def check_finite(self, values: Any) -> None:
    """Raises ScoringError unless all values are finite."""
    if not np.isfinite(values).all():
      raise ScoringError(
        'the model gives scores that are not finite: its weights are damaged'
        + ('' if self.dtype == 'float32' else ', or need dtype float32')
      )


class Placed(Devices):
  """A T5 model on this process's devices, ready to compile for.

  Args:
    bundle: The network, its weights and vocabulary.
    max_length: Tokens per text, `</s>` included; longer texts are cut. By
      default the bundle's setting, else 1024.
    logical_axes: Names the axes of the weights, of a network other than T5.
    **options: See `Devices`.

  Attributes:
    config: The network's configuration, in the dtype of the computation.
    params: Its weights on the devices.
    max_length: Tokens per text, `</s>` included.
    tokens: Tokens per batch on all replicas, padding included: by default 1024
      per core on a CPU (at most 16384), else 32768 per replica.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(
    self,
    bundle: Bundle,
    *,
    max_length: int | None = None,
    logical_axes: Callable[[Any], Any] = t5_axes.logical_axes,
    **options: Any,
  ):
    if max_length is None:
      max_length = int(bundle.settings.get('max_length', DEFAULT_MAX_LENGTH))
    if max_length < 2:
      raise OptionError(
        f'max_length {max_length}: at least 2 tokens (one and </s>)'
      )
    super().__init__(**options)
    self.max_length = max_length
    self.tokens = self.batch_tokens(
      min(_BATCH_TOKENS_PER_CORE * cores(), _MOST_CPU_BATCH_TOKENS)
      if self.platform == 'cpu'
      else _ACCELERATOR_BATCH_TOKENS
    )
    self.vocabulary = bundle.vocabulary
    self._logical_axes = logical_axes
    config: Any = bundle.config
    self.config = dataclasses.replace(config, dtype=self.dtype)
    if isinstance(config, t5.T5Config):
      self.config = dataclasses.replace(self.config, remat='none')
    self.use_params(bundle.params)

  def use_params(self, params: Mapping[str, Any]) -> None:
    """Replaces the weights with others of the same shapes."""
    self.params: t5.Params = self.put(params, self._logical_axes)

  def encode(
    self, texts: Sequence[Text]
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns texts' ids, `</s>` last, and truncation flags, bool [n].

    Texts given as ids are used unchanged. If they are too long, they lose ids
    before `</s>`.
    """
    forks.claim()
    plain = [text for text in texts if isinstance(text, str)]
    encoded = iter(
      zip(
        *encode_batch_for_model(plain, self.vocabulary, self.max_length),
        strict=True,
      )
    )
    rows, cut = [], np.zeros(len(texts), bool)
    for n, text in enumerate(texts):
      if isinstance(text, str):
        ids, cut[n] = next(encoded)
      else:
        cut[n] = len(text) > self.max_length
        ids = list(text)
        if cut[n]:
          ids = [*text[: self.max_length - 1], text[-1]]
      rows.append(np.asarray(ids, np.int32))
    return rows, cut


def fetched(
  batches: Iterable[tuple[np.ndarray, Any]], in_flight: int, axis: int = 0
) -> Iterator[tuple[np.ndarray, Any]]:
  """Fetches results from the devices while later batches are prepared.

  Args:
    batches: Yields indices of items [n], and an array on the devices, or a
      tuple of arrays, whose first n rows belong to them.
    in_flight: Number of results that may wait on the devices.
    axis: The axis of the rows.

  Yields:
    The indices, and the rows as NumPy arrays.
  """

  def fetch(chosen: np.ndarray, result: Any) -> tuple[np.ndarray, Any]:
    index = (slice(None),) * axis + (slice(0, len(chosen)),)
    return chosen, jax.tree.map(lambda x: np.asarray(x)[index], result)

  waiting: collections.deque[tuple[np.ndarray, Any]] = collections.deque()
  for batch in batches:
    waiting.append(batch)
    if len(waiting) > in_flight:
      yield fetch(*waiting.popleft())
  for batch in waiting:
    yield fetch(*batch)


def padded(texts: Sequence[np.ndarray], rows: int, length: int) -> np.ndarray:
  """Ids of several texts as int32 [rows, length], padded with 0."""
  tokens = np.zeros((rows, length), np.int32)
  for row, ids in enumerate(texts):
    tokens[row, : len(ids)] = ids
  return tokens


def cores() -> int:
  """Number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
