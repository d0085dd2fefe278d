"""Batches whose padding is left out of all layers except attention.

On a CPU, time is proportional to the number of products. An encoder's dense
layers there see the tokens of a batch in one row, [1, room, ...]; only
attention sees them by text, [batch, length, ...]. The caller that compiles a
network passes the number of tokens that its batches hold as `room`.
Accelerators, which are slow at moving single rows, keep the padding. Not here:
which texts make a batch (`inference/filling.py`).
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
  """In this context, traced encoders compute this many tokens per batch.

  Args:
    tokens: At least the tokens of any batch that the network is then called
      with, at most the batch with its padding; None computes padding too.
  """
  token = _ROOM.set(tokens)
  try:
    yield
  finally:
    _ROOM.reset(token)


class Layout(NamedTuple):
  """The positions of a batch's tokens in the two arrangements.

  Attributes:
    of_room: For each position of the room, int [room], the token's index in
      [batch * length]; the last index for the unused rest of the room.
    of_batch: For each position of the batch, int [batch, length], the token's
      index in the room; for padding, the index of some token.
  """

  of_room: Array
  of_batch: Array


def layout(inside: Array) -> Layout | None:
  """Returns the layout of a batch; None if padding is computed.

  Args:
    inside: Marks positions that hold tokens, bool [batch, length]; all
      positions before a row's last token count.
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
    x: An array in the room; without a layout, the batch itself.
    places: The layout.
    rows: Number of first tokens of each text to return; default all.
  """
  if places is None:
    return x[:, :rows]
  return jnp.take(x[0], places.of_batch[:, :rows], axis=0)
