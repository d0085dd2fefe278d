"""Caches tasks offline, in the files that `seqio_cache_tasks` writes.

A cached task is read with `use_cached=True` (T5X's `USE_CACHED_TASKS`) from the
folders of `seqio.add_global_cache_dirs`, without parsing and tokenizing.
SeqIO's own program needs Apache Beam, which is worthwhile for corpora of many
gigabytes; this module needs no Beam and runs in one process.

It writes the same files as SeqIO: TFRecord shards, `info.*.json`,
`stats.*.json` and, at the end, `COMPLETED`. A folder appears under its name
only when it is complete. `scripts/prepare/cache_tasks.py` is the command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5score_jax.data import folders


def cache_task(
  name: str,
  cache_dir: str | os.PathLike[str],
  *,
  shards: int = 16,
  seed: int = 0,
  overwrite: bool = False,
) -> dict[str, dict[str, int]]:
  """Caches one task.

  Args:
    name: A registered task.
    cache_dir: The folder of all caches, with a folder per task.
    shards: TFRecord files per split; more shuffle better in training.
    seed: The seed of random preprocessing.
    overwrite: Whether to replace an existing cache.

  Returns:
    The statistics by split: `examples`, and by feature `..._tokens` and
    `..._max_tokens` where it is tokenized.

  Raises:
    ValueError: No such task, it has no cache step, or a number is too small.
    FileExistsError: The task is already cached there.
  """
  if shards < 1:
    raise ValueError(f'shards is {shards}; it must be at least 1')
  task = seqio.TaskRegistry.get(name)
  if not task.supports_caching:
    raise ValueError(
      f'the task {name!r} has no seqio.CacheDatasetPlaceholder: it cannot be'
      ' cached'
    )
  target = os.path.join(cache_dir, seqio.get_task_dir_from_name(name))
  if os.path.exists(target) and not overwrite:
    raise FileExistsError(f'{target} is there already; use overwrite, or go on')
  with folders.new_folder(target) as partial:
    stats = {
      split: _cache_split(task, split, str(partial), shards, seed)
      for split in task.splits
    }
    (partial / 'COMPLETED').touch()
  return stats


def _cache_split(
  task: seqio.Task, split: str, folder: str, shards: int, seed: int
) -> dict[str, int]:
  """Writes one split, its examples to the shards in turn."""
  dataset = task.source.get_dataset(split=split, shuffle=False, seed=seed)
  dataset = task.preprocess_precache(dataset, seed=seed)
  prefix = seqio.get_cached_tfrecord_prefix(folder, split)
  writers = [
    tf.io.TFRecordWriter(f'{prefix}-{index:05d}-of-{shards:05d}')
    for index in range(shards)
  ]
  stats = {'examples': 0}
  for example in dataset:
    proto = seqio.dict_to_tfexample(example)
    writers[stats['examples'] % shards].write(proto.SerializeToString())
    stats['examples'] += 1
    _count_tokens(example, task.output_features, stats)
  for writer in writers:
    writer.close()
  info = {
    'num_shards': shards,
    'seqio_version': seqio.__version__,
    'features': {
      name: _describe(spec) for name, spec in dataset.element_spec.items()
    },
  }
  for path, content in (
    (seqio.get_cached_info_path(folder, split), info),
    (seqio.get_cached_stats_path(folder, split), stats),
  ):
    with open(path, 'w', encoding='utf-8') as out:
      json.dump(content, out, indent=2, sort_keys=True)
  return stats


def _describe(spec: tf.TypeSpec) -> dict[str, Any]:
  """Shape and type of a feature, whose first axis varies."""
  shape = spec.shape.as_list()
  return {
    'shape': [None, *shape[1:]] if shape else [],
    'dtype': spec.dtype.name,
  }


def _count_tokens(
  example: Mapping[str, Any],
  features: Mapping[str, seqio.Feature],
  stats: dict[str, int],
) -> None:
  """Adds an example's tokens to the statistics, as SeqIO counts them."""
  for name, feature in features.items():
    value = example.get(name)
    if value is None or value.dtype not in (tf.int32, tf.int64):
      continue
    flat = value.flat_values if isinstance(value, tf.RaggedTensor) else value
    ids = flat.numpy()
    vocabulary = feature.vocabulary
    real = (ids != vocabulary.eos_id) & (ids != vocabulary.pad_id)
    tokens = int(np.sum(real))
    stats[f'{name}_tokens'] = stats.get(f'{name}_tokens', 0) + tokens
    largest = max(stats.get(f'{name}_max_tokens', 0), tokens)
    stats[f'{name}_max_tokens'] = largest
