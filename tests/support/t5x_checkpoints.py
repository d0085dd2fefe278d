"""Writes checkpoints in T5X's layouts, for tests of their readers.

Made after what upstream (commit cc342d4) writes: file names, msgpack keys, zarr
metadata. Values are whatever parameters are given.
"""

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax import serialization

from t5score_jax.checkpoints import bundle


def write_legacy(
  folder: pathlib.Path,
  params: Mapping,
  step: int = 7,
  inline: tuple[str, ...] = (),
  chunks: Mapping[str, tuple[int, ...]] | None = None,
  bucket: bool = False,
) -> pathlib.Path:
  """The layout of T5X itself: `checkpoint` and a folder an array.

  Args:
    folder: MODEL_DIR.
    params: Nested dict of arrays.
    step: Of the checkpoint.
    inline: Ends of the names that are kept in the msgpack file.
    chunks: Shapes of the chunks by name; whole arrays by default.
    bucket: Whether it is a copy of what was saved into a bucket.

  Returns:
    The checkpoint's folder.
  """
  made = folder / f'checkpoint_{step}'
  made.mkdir(parents=True)
  target: dict = {}
  states: dict = {}
  for name, array in bundle.flatten_names(params):
    array = np.asarray(array)
    leaf: object = array
    if not name.endswith(inline or ('\0',)):
      key = f'target.{name.replace("/", ".")}'
      metadata = {
        'chunks': list((chunks or {}).get(name, array.shape)),
        'compressor': {'id': 'gzip', 'level': 1},
        'shape': list(array.shape),
      }
      spec = {
        'driver': 'zarr',
        'dtype': array.dtype.name,
        'kvstore': {'driver': 'file', 'path': f'{made}/{key}/'},
        'metadata': metadata,
      }
      tensorstore.open(spec, create=True).result().write(array).result()
      leaf = {**spec, 'kvstore': {'driver': 'file', 'path': f'{key}/'}}
      if bucket:
        store = {'driver': 'gcs', 'bucket': 't5x-dummy-bucket'}
        leaf = {**leaf, 'kvstore': store, 'path': f'some/where/{key}/'}
    _put(target, name, leaf)
    # Factored moments are small and stay inline, as upstream keeps them.
    _put(states, f'{name}/v', np.zeros(1, np.float32))
  contents = {
    'version': 3,
    'optimizer': {
      'target': target,
      'state': {'step': np.int32(step), 'param_states': states},
    },
  }
  (made / 'checkpoint').write_bytes(serialization.msgpack_serialize(contents))
  return made


def write_orbax(
  folder: pathlib.Path, params: Mapping, step: int = 7, ocdbt: bool = True
) -> pathlib.Path:
  """The layout of T5X with Orbax: `state/`, which Orbax itself writes here.

  Args:
    folder: MODEL_DIR.
    params: Nested dict of arrays; sharded ones are stored in their shards.
    step: Of the checkpoint.
    ocdbt: Whether arrays share a store or have folders of their own.

  Returns:
    The checkpoint's folder.
  """
  made = folder / f'checkpoint_{step}'
  tree = {
    'target': dict(params),
    'state': {
      'step': np.int32(step),
      'param_states': jax.tree.map(
        lambda _: {'v': np.zeros(1, np.float32)}, dict(params)
      ),
    },
  }
  handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
  with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(made.absolute() / 'state', tree)
  (made / 'dataset').mkdir()
  return made


def _put(tree: dict, name: str, leaf: object) -> None:
  *parents, last = name.split('/')
  for parent in parents:
    tree = tree.setdefault(parent, {})
  tree[last] = leaf
