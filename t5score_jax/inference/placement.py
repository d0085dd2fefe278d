"""A model on this process's devices: what all that scores and generates shares.

Weights lie on every device, or in parts over a few of them where one is too
small; rows of a batch are divided over the copies. Not here: which texts make a
batch, and what is computed of them (``inference/scoring.py``,
``inference/generation.py``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.data.vocab import encode_batch_for_model
from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.nn import axes, t5, t5_axes
from t5score_jax.runtime import compilation_cache, forks

DTYPES = ('float32', 'bfloat16')


class ScoringError(T5ScoreError, RuntimeError):
  """The model gave something that is not a probability."""


# Called with the number of items done and the number of all.
Progress = Callable[[int, int], None]

# A text, or the ids of one as a model takes them, `</s>` last.
Text = str | tuple[int, ...]

# The paper truncates at 1,024 tokens.
DEFAULT_MAX_LENGTH = 1024

# Tokens a batch. A batch of few tokens leaves little room for padding, and one
# core needs no more to work at full speed; an accelerator wants to be filled.
_BATCH_TOKENS_A_CORE = 1024
_MOST_CPU_BATCH_TOKENS = 16384
_ACCELERATOR_BATCH_TOKENS = 32768

# Shared with training, which also shards the logits for their gradients.
_RULES = axes.standard_rules(training=False)


class Devices:
  """This process's devices, as places for copies of a model.

  Attributes:
    platform: 'cpu', 'gpu' or 'tpu'.
    copies: copies of the model; a batch has a multiple of them as rows.
    rows: the sharding of a batch, its rows divided over the copies.
    everywhere: the sharding of what every device holds whole.

  Args:
    devices: default all local devices.
    num_partitions: devices over which one copy of the weights is divided.

  Raises:
    ValueError: ``num_partitions`` does not divide the devices.
    ForkError: the process was forked from one that used JAX.
  """

  def __init__(
    self,
    devices: Sequence[jax.Device] | None = None,
    num_partitions: int = 1,
  ):
    forks.claim()
    devices = list(devices or jax.local_devices())
    self._mesh = axes.make_mesh(devices, num_partitions)
    compilation_cache.enable()
    self.platform = devices[0].platform
    self.copies = self._mesh.shape['data']
    self.rows = self.rows_on(0)
    self.everywhere = NamedSharding(self._mesh, PartitionSpec())

  def rows_on(self, axis: int) -> NamedSharding:
    """The sharding of an array whose rows stand on some axis."""
    return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, 'data'))

  def put(self, params: Any, logical_axes: Callable[[Any], Any]) -> Any:
    """Puts parameters on the devices, divided as the rules say.

    Args:
      params: a tree of arrays, or of ``jax.ShapeDtypeStruct`` to be compiled
        for, on devices that need not be there.
      logical_axes: names the axes of such a tree's leaves.
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
    """Stands for int32 ids of a batch, to be compiled for."""
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.rows)

  def compile_in(
    self,
    dtype: str,
    function: Callable[..., Any],
    *arguments: Any,
    out: NamedSharding,
  ) -> Callable[..., Any]:
    """Compiles a function of parameters and of arrays of some shapes.

    Args:
      dtype: of the computation; float32 means full precision also where the
        hardware would round products.
      function: what to compile.
      *arguments: arrays on the devices, or what stands for them.
      out: how the result lies.
    """
    precision = 'float32' if dtype == 'float32' else 'default'
    with (
      jax.default_matmul_precision(precision),
      axes.mesh_context(self._mesh, _RULES),
    ):
      program = jax.jit(function, out_shardings=out)
      return program.lower(*arguments).compile()


class Placed(Devices):
  """A T5 model on this process's devices, ready to be compiled for.

  Attributes:
    config: the network's shape, in the dtype of the computation.
    params: its weights on the devices.
    max_length: tokens a text, ``</s>`` included.
    batch_tokens: tokens a batch on one copy of the model.
    dtype: 'float32' or 'bfloat16'.

  Args:
    bundle: network, weights and vocabulary.
    max_length: default: the bundle's setting, else 1024.
    batch_tokens: default: 1024 a core on a CPU (at most 16384), else 32768.
    dtype: see the attributes.
    devices: default all local devices.
    num_partitions: devices over which one copy of the weights is divided.

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
  ):
    if dtype not in DTYPES:
      raise OptionError(f'dtype {dtype!r}: use one of {", ".join(DTYPES)}')
    if max_length is None:
      max_length = int(bundle.settings.get('max_length', DEFAULT_MAX_LENGTH))
    if max_length < 2:
      raise OptionError(
        f'max_length {max_length}: at least 2 tokens (one and </s>)'
      )
    if batch_tokens is not None and batch_tokens < 1:
      raise OptionError(f'batch_tokens {batch_tokens}: must be positive')
    super().__init__(devices, num_partitions)
    self.max_length = max_length
    self.batch_tokens = batch_tokens or _default_batch_tokens(self.platform)
    self.dtype = dtype
    self.vocabulary = bundle.vocabulary
    self.config = dataclasses.replace(bundle.config, dtype=dtype, remat='none')
    self.use_params(bundle.params)

  def use_params(self, params: Mapping[str, Any]) -> None:
    """Takes other weights of the same shapes."""
    self.params: t5.Params = self.put(params, t5_axes.logical_axes)

  def encode(
    self, texts: Sequence[Text]
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """The ids of each text, ``</s>`` last, and whether it was cut, bool [n].

    A text that is given as ids is taken as it is; one that is too long loses
    what stands before ``</s>``.
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

  def compile(
    self,
    function: Callable[..., Any],
    *shapes: jax.ShapeDtypeStruct,
    out: NamedSharding,
  ) -> Callable[..., Any]:
    """Compiles a function of the parameters and of arrays of some shapes."""
    return self.compile_in(self.dtype, function, self.params, *shapes, out=out)


def not_finite(dtype: str) -> str:
  """What a ScoringError says of a number that is not finite."""
  return (
    'the model gives scores that are not finite: its weights are damaged'
    + ('' if dtype == 'float32' else ', or need dtype float32')
  )


def padded(texts: Sequence[np.ndarray], rows: int, length: int) -> np.ndarray:
  """Ids of several texts as int32 [rows, length], 0 where there are none."""
  tokens = np.zeros((rows, length), np.int32)
  for row, ids in enumerate(texts):
    tokens[row, : len(ids)] = ids
  return tokens


def cores() -> int:
  """Those that this process may use, where the system tells."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _default_batch_tokens(platform: str) -> int:
  if platform != 'cpu':
    return _ACCELERATOR_BATCH_TOKENS
  return min(_BATCH_TOKENS_A_CORE * cores(), _MOST_CPU_BATCH_TOKENS)
