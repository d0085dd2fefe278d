"""Batches whose padding is left out of all layers but attention.

On a CPU, where computing takes time by the product, an encoder's dense layers
see the tokens of a batch one after the other, [1, room, ...]; only attention
sees them by text, [batch, length, ...]. Whoever compiles a network knows how
many tokens its batches hold, and says so with `room`. Accelerators, which are
slow at moving single rows, keep the padding. Not here: which texts make a batch
(`inference/filling.py`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

_ROOM: contextvars.ContextVar[int | None] = contextvars.ContextVar(
  'tokens of a batch', default=None
)


@contextlib.contextmanager
def room(tokens: int | None) -> Iterator[None]:
  """Within it, encoders that are traced compute so many tokens of a batch.

  Args:
    tokens: At least those of any batch that the network is then called with,
      at most the batch with its padding; None computes padding too.
  """
  token = _ROOM.set(tokens)
  try:
    yield
  finally:
    _ROOM.reset(token)


class Layout(NamedTuple):
  """Where the tokens of a batch stand in the two arrangements.

  Attributes:
    of_room: The place in [batch * length] of each token in the room, int
      [room]; of the rest of the room, the last place.
    of_batch: The place in the room of each token, int [batch, length]; of
      padding, that of some token.
  """

  of_room: Array
  of_batch: Array


def layout(inside: Array) -> Layout | None:
  """The layout of a batch; None where padding is computed.

  Args:
    inside: Which places hold tokens, bool [batch, length]; all places before a
      row's last one count.
  """
  size = _ROOM.get()
  if size is None:
    return None
  # A text may hold the padding's id, as a token of its own.
  inside = jax.lax.cummax(inside.astype(jnp.int32), axis=1, reverse=True) > 0
  flat = inside.reshape(-1)
  (of_room,) = jnp.nonzero(flat, size=size, fill_value=flat.size - 1)
  of_batch = jnp.clip(jnp.cumsum(flat) - 1, 0, size - 1)
  return Layout(of_room, of_batch.reshape(inside.shape))


def pack(x: Array, places: Layout | None) -> Array:
  """[batch, length, ...] -> [1, room, ...]."""
  if places is None:
    return x
  flat = x.reshape(-1, *x.shape[2:])
  return jnp.take(flat, places.of_room, axis=0)[None]


def unpack(x: Array, places: Layout | None, rows: int | None = None) -> Array:
  """[1, room, ...] -> [batch, length, ...], undefined at padding.

  Args:
    x: In the room; without a layout, the batch itself.
    places: The layout.
    rows: Number of first tokens of each text to return; default all.
  """
  if places is None:
    return x[:, :rows]
  return jnp.take(x[0], places.of_batch[:, :rows], axis=0)
