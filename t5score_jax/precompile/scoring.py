"""The programs of `inference/scoring.py`, compiled ahead of time for a slice.

Not here: training (`precompile/train_step.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.data import vocab
from t5score_jax.inference import scoring
from t5score_jax.models import losses, t5score
from t5score_jax.nn import t5
from t5score_jax.precompile import flops, topologies, train_step


@dataclasses.dataclass(frozen=True)
class Scoring:
  """Programs that score pairs of texts, to be compiled.

  Attributes:
    config: The network's shape.
    dtype: Arithmetic.
    batch: Pairs at a time.
    lengths: Tokens of 'inputs' and 'targets'.
    num_partitions: Chips that share one copy of the weights.
  """

  config: t5.T5Config
  dtype: str
  batch: int
  lengths: Mapping[str, int]
  num_partitions: int = 1

  def on(self, topology: topologies.Topology) -> train_step.Report:
    """Compiles encoder and decoder for a slice; memory is the larger's.

    Raises:
      PrecompileError: The batch can't be divided that way.
    """
    copies = len(topology.devices) // self.num_partitions
    if copies == 0 or self.batch % copies:
      raise train_step.PrecompileError(
        f'{self.batch} pairs cannot be divided over {copies} copies of the '
        f'network: use a multiple of {copies}'
      )
    start = time.perf_counter()
    shapes = jax.eval_shape(
      lambda: t5.init_params(self.config, jax.random.key(0))
    )
    bundle = Bundle(self.config, cast(Any, shapes), vocab.ByteVocabulary())
    try:
      scorer = scoring.Scorer(
        bundle,
        dtype=self.dtype,
        devices=list(topology.devices),
        num_partitions=self.num_partitions,
      )
    except ValueError as error:
      raise train_step.PrecompileError(str(error)) from error
    rows, inputs = self.batch, self.lengths['inputs']
    targets = self.lengths['targets']
    weights = train_step.shard_bytes(scorer.params)
    # What each program is given besides weights; the encoder's result lies
    # whole on every chip.
    ids = 4 * rows // copies
    encoded = rows * inputs * self.config.emb_dim
    encoded *= jnp.dtype(self.dtype).itemsize
    programs = []
    for shape, given in (
      ((rows, inputs), ids * inputs),
      ((rows, inputs, rows, targets), encoded + ids * (inputs + 1 + targets)),
    ):
      compiled, memory = train_step.compile_or_measure(
        functools.partial(scorer.compile_for, shape), topology
      )
      if compiled is not None:
        # Weights that the other program needs lie there all the same.
        idle = max(0, weights - (memory.arguments - given))
        memory = dataclasses.replace(
          memory,
          arguments=memory.arguments + idle,
          peak=memory.peak + idle if memory.peak else 0,
          needed=memory.needed + idle,
        )
      programs.append((compiled, memory))
    return train_step.report(
      'scoring step',
      topology,
      programs,
      seconds=time.perf_counter() - start,
      mesh={'data': copies, 'model': self.num_partitions},
      fully_sharded=False,
      microbatches=1,
      batch={'inputs': (rows, inputs), 'targets': (rows, targets)},
      pairs=rows,
      unit='pair of texts in one direction',
      parameters=sum(x.size for x in jax.tree.leaves(shapes)),
      flops=self._flops(shapes),
      model_flops=self._flops(shapes),
    )

  def _flops(self, shapes: Any) -> int:
    """FLOPs of both programs together."""

    def both(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
      encoded = t5score.encode(params, self.config, inputs)
      return t5score.target_log_probs(
        params,
        self.config,
        encoded,
        inputs,
        jnp.arange(self.batch),
        targets,
        losses.DEFAULT_BLOCK_ELEMENTS,
      )

    inputs, targets = (
      jax.ShapeDtypeStruct((self.batch, self.lengths[key]), jnp.int32)
      for key in ('inputs', 'targets')
    )
    return flops.count(jax.make_jaxpr(both)(shapes, inputs, targets))
