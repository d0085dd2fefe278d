"""Logical axes of the T5 family's parameters, by their T5X names.

What each dimension of a parameter is called, for `training/partitioning.py` to
split over a mesh. Not here: the network (``nn/t5.py``), axes of activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

Params = Mapping[str, Any]

# Logical axes by the end of a parameter's name, without its layer axis.
_JOINED = ('joined_kv',)
_HEADS = ('heads', 'kv')
_LOGICAL_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
  ('token_embedder/embedding', ('vocab', 'embed')),
  ('logits_dense/kernel', ('embed', 'vocab')),
  ('relpos_bias/rel_embedding', ('heads', 'relpos_buckets')),
  ('mlp/wo/kernel', ('mlp', 'embed')),
  ('mlp/wi/kernel', ('embed', 'mlp')),
  ('mlp/wi_0/kernel', ('embed', 'mlp')),
  ('mlp/wi_1/kernel', ('embed', 'mlp')),
  ('norm/scale', ('embed',)),
)


def logical_axes(params: Params) -> Params:
  """Names every axis of every parameter, as T5X does.

  Args:
    params: the tree, or its ``jax.eval_shape``.

  Returns:
    The same tree with a tuple of axis names per parameter, to be mapped onto
    a mesh by ``training.partitioning``.

  Raises:
    ValueError: a parameter that no T5 network has.
  """
  axes = {}
  for path, leaf in flatten_dict(params).items():
    name = '/'.join(path)
    scanned = path[:2] in (('encoder', 'encoder'), ('decoder', 'decoder'))
    joined = _HEADS if scanned else _JOINED
    found = next((a for end, a in _LOGICAL_AXES if name.endswith(end)), None)
    if found is None and path[-2] in ('query', 'key', 'value'):
      found = ('embed', *joined)
    elif found is None and path[-2] == 'out':
      found = (*joined, 'embed')
    if found is None:
      raise ValueError(f'no logical axes are known for parameter {name}')
    if scanned:
      found = (found[0], 'layers', *found[1:])
    if len(found) != len(leaf.shape):
      raise ValueError(
        f'parameter {name} has shape {leaf.shape}; expected axes {found}'
      )
    axes[path] = found
  return unflatten_dict(axes)
