"""Describes a run: model-info.txt, and the first and last lines it prints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from t5score_jax.inputs import batch_checks, datasets
from t5score_jax.runtime import processes
from t5score_jax.training import optimizers, partitioning
from t5score_jax.training import state as states


def describe(
  plan: states.StatePlan,
  partitioner: partitioning.Partitioner,
  dataset: datasets.Dataset,
  model: states.Model,
  microbatches: int = 1,
) -> str:
  """Describes the parameters, the mesh and the batch of a run.

  Each parameter has one line: its name, its shape, and the mesh axis over which
  each dimension is split, or 'whole'.

  Raises:
    MeshError: The batch cannot be divided over the devices.
    DatasetError: The batch does not suit the model.
  """
  leaves = jax.tree_util.tree_leaves_with_path(plan.shapes.params)
  lines = [
    f'parameters: {sum(math.prod(x.shape) for _, x in leaves):,}',
    f'mesh: {dict(partitioner.mesh.shape)} of {jax.device_count()} '
    f'{jax.default_backend()} devices, {processes.count()} process(es)',
    '',
    *(
      f'{optimizers.parameter_name(path):<60} {str(leaf.shape):<20} '
      f'{tuple(leaf.sharding.spec) or "whole"}'
      for path, leaf in leaves
    ),
    '',
    'batch:',
  ]
  share = partitioner.share
  batch = next(iter(dataset.batches(0, share=share)))
  batch_checks.check_fit(batch, model, plan.shapes.params)
  for key, value in sorted(batch.items()):
    shape = (share.batch_size(len(value)), *value.shape[1:])
    partitioner.check_batch_size(shape[0], microbatches)
    lines.append(f'{key:<60} {str(shape):<20} {value.dtype}')
  return '\n'.join(lines) + '\n'


def greeting(
  folder: Path,
  start: int,
  train_steps: int,
  plan: states.StatePlan,
  settings: Mapping[str, Any],
) -> str:
  """The first line that a run prints."""
  if start >= train_steps:
    return (
      f'{folder}: already trained to step {start}; TRAIN_STEPS = {train_steps}'
    )
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(plan.shapes.params))
  verb = f'resumes at step {start}' if start else 'starts'
  return (
    f'{folder}: training {verb}, to step {train_steps}; {count:,} parameters '
    f'on {jax.device_count()} {jax.default_backend()} device(s)'
    + (f' of {processes.count()} processes' if processes.count() > 1 else '')
    + (f'; settings for scoring: {dict(settings)}' if settings else '')
  )


def farewell(
  folder: Path, step: int, best: int | None, reason: str, saved: int
) -> str:
  """The last line that a run prints."""
  text = f'{folder}: {reason} at step {step} ({time.strftime("%H:%M:%S")})'
  if best is not None:
    text += f'; best: checkpoint_{best}'
  if reason in ('interrupted', 'preempted'):
    text += f'; the same command resumes from checkpoint_{saved}'
  return text
