"""Compiles the scoring programs ahead of time for a slice.

These are the programs of `inference/scoring.py`, or of
`inference/first_step.py` for MetricX.

Not here: training (`precompile/train_step.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.data import vocab
from t5score_jax.inference import scoring
from t5score_jax.inference.first_step import FirstStepScorer
from t5score_jax.models import likelihood
from t5score_jax.nn import first_step, t5
from t5score_jax.precompile import collectives, flops, reports, topologies


@dataclasses.dataclass(frozen=True)
class Scoring:
  """Programs that score pairs of texts, to be compiled.

  Attributes:
    config: The network's shape.
    dtype: The data type of computation.
    batch: Number of pairs per step.
    lengths: Numbers of tokens of 'inputs' and 'targets'.
    num_partitions: Number of chips that share one replica of the weights.
    output_id: The piece whose logit is the score, of MetricX; None for T5Score.
  """

  config: t5.T5Config
  dtype: str
  batch: int
  lengths: Mapping[str, int]
  num_partitions: int = 1
  output_id: int | None = None

  def on(self, topology: topologies.Topology) -> reports.Report:
    """Compiles encoder and decoder for a slice; memory is that of the larger.

    Raises:
      PrecompileError: The batch cannot be divided that way.
    """
    replicas = len(topology.devices) // self.num_partitions
    if replicas == 0 or self.batch % replicas:
      raise reports.PrecompileError(
        f'{self.batch} pairs cannot be divided over {replicas} replicas of the '
        f'network: use a multiple of {replicas}'
      )
    start = time.perf_counter()
    shapes = jax.eval_shape(
      lambda: t5.init_params(self.config, jax.random.key(0))
    )
    try:
      params, compilations = self._compilations(shapes, topology, replicas)
    except ValueError as error:
      raise reports.PrecompileError(str(error)) from error
    rows, inputs = self.batch, self.lengths['inputs']
    targets = 1 if self.output_id is not None else self.lengths['targets']
    weights = reports.shard_bytes(params)
    programs = []
    total: dict[str, collectives.Traffic] = {}
    for compilation, given in compilations:
      memory, traffic = reports.measure(compilation, topology)
      for kind, one in traffic.items():
        total[kind] = total.get(kind, collectives.Traffic()) + one
      if memory.arguments:
        # The weights of the other program occupy memory, too.
        idle = max(0, weights - (memory.arguments - given))
        memory = dataclasses.replace(
          memory,
          arguments=memory.arguments + idle,
          peak=memory.peak + idle if memory.peak else 0,
          needed=memory.needed + idle,
        )
      programs.append(memory)
    # A program that XLA rejects has no arguments.
    memory = max(programs, key=lambda one: (not one.arguments, one.needed))
    products = self._flops(shapes)
    return reports.make(
      topology,
      memory,
      products,
      products,
      what='scoring step',
      collectives=total,
      seconds=time.perf_counter() - start,
      mesh={'data': replicas, 'model': self.num_partitions},
      fully_sharded=False,
      microbatches=1,
      batch={'inputs': (rows, inputs), 'targets': (rows, targets)},
      pairs=rows,
      unit='pair of texts in one direction'
      if self.output_id is None
      else 'input',
      parameters=sum(x.size for x in jax.tree.leaves(shapes)),
    )

  def _compilations(
    self, shapes: Any, topology: topologies.Topology, replicas: int
  ) -> tuple[Any, list[tuple[Callable[[], Any], int]]]:
    """The compilations of the programs, and the weights that they read.

    Returns:
      The weights; for each program its compilation, and the bytes of its
      arguments beside the weights.
    """
    placing: dict[str, Any] = {
      'dtype': self.dtype,
      'devices': list(topology.devices),
      'num_partitions': self.num_partitions,
    }
    rows, inputs = self.batch, self.lengths['inputs']
    ids = 4 * rows // replicas
    vocabulary = vocab.ByteVocabulary()
    if self.output_id is not None:
      bundle = Bundle(self.config, _for_first_step(shapes), vocabulary)
      first = FirstStepScorer(bundle, (self.output_id,), inputs, **placing)
      compilation = functools.partial(first.compile_for, rows, inputs)
      # Token types are not read, and XLA drops them.
      return first.params, [(compilation, ids * inputs)]
    bundle = Bundle(self.config, cast(Any, shapes), vocabulary)
    scorer = scoring.Scorer(bundle, **placing)
    targets = self.lengths['targets']
    # The encoder's result is replicated.
    encoded = rows * inputs * self.config.emb_dim
    encoded *= jnp.dtype(self.dtype).itemsize
    arguments = {
      (rows, inputs): ids * inputs,
      (rows, inputs, rows, targets): encoded + ids * (inputs + 1 + targets),
    }
    if scorer.packs:
      states = rows * targets * self.config.emb_dim
      states *= jnp.dtype(self.dtype).itemsize
      arguments[rows * targets,] = states + ids * targets
    return scorer.params, [
      (functools.partial(scorer.compile_for, shape), given)
      for shape, given in arguments.items()
    ]

  def _flops(self, shapes: Any) -> int:
    """FLOPs of both programs together."""
    if (output_id := self.output_id) is not None:
      tokens = jax.ShapeDtypeStruct(
        (self.batch, self.lengths['inputs']), jnp.int32
      )
      predict = jax.make_jaxpr(
        lambda params, ids: first_step.logits(
          params, self.config, ids, (output_id,)
        )
      )
      return flops.count(predict(shapes, tokens))

    def both(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
      encoded = likelihood.encode(params, self.config, inputs)
      return likelihood.target_log_probs(
        params,
        self.config,
        encoded,
        inputs,
        jnp.arange(self.batch),
        targets,
      )

    inputs, targets = (
      jax.ShapeDtypeStruct((self.batch, self.lengths[key]), jnp.int32)
      for key in ('inputs', 'targets')
    )
    return flops.count(jax.make_jaxpr(both)(shapes, inputs, targets))


def _for_first_step(shapes: Any) -> Any:
  """Shapes of a network with a single column of its output matrix."""
  decoder = {k: v for k, v in shapes['decoder'].items() if k != 'logits_dense'}
  width = shapes['token_embedder']['embedding'].shape[1]
  kernel = jax.ShapeDtypeStruct((width, 1), jnp.float32)
  return {
    **shapes,
    'decoder': decoder,
    first_step.COLUMNS: {'kernel': kernel},
  }
