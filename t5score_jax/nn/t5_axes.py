"""Logical axes of the T5 family's parameters, by their T5X names.

Names each dimension of a parameter; the rules of `nn/axes.py` map the names to
a mesh. Not here: the network (`nn/t5.py`), axes of activations.
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
  # A few columns of it (`nn/first_step.py`).
  ('first_step/kernel', ('embed', 'one')),
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
    params: The tree, or its `jax.eval_shape`.

  Returns:
    The same tree with a tuple of axis names per parameter.

  Raises:
    ValueError: No T5 network has such a parameter.
  """
  axes = {}
  for path, leaf in flatten_dict(params).items():
    name = '/'.join(path)
    scanned = path[:2] in (('encoder', 'encoder'), ('decoder', 'decoder'))
    joined = _HEADS if scanned else _JOINED
    names = next((a for end, a in _LOGICAL_AXES if name.endswith(end)), None)
    if names is None and path[-2] in ('query', 'key', 'value'):
      names = ('embed', *joined)
    elif names is None and path[-2] == 'out':
      names = (*joined, 'embed')
    if names is None:
      raise ValueError(f'no logical axes are known for parameter {name}')
    if scanned:
      names = (names[0], 'layers', *names[1:])
    if len(names) != len(leaf.shape):
      raise ValueError(
        f'parameter {name} has shape {leaf.shape}; expected axes {names}'
      )
    axes[path] = names
  return unflatten_dict(axes)
