"""Compiled programs by shape, compiled in parallel with the computation.

Scoring, encoding and generation share this cache of compiled programs. The
cache on disk is `runtime/compilation_cache.py`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from t5score_jax.inference import placement

Key = TypeVar('Key', bound=Hashable)
Program = Callable[..., Any]


class Programs(Generic[Key]):
  """The programs of one model, by key. May be used from several threads."""

  def __init__(self) -> None:
    self._compiled: dict[Key, Program] = {}

  def __iter__(self) -> Iterator[Key]:
    """The keys of the programs compiled so far."""
    return iter(list(self._compiled))

  def values(self) -> list[Program]:
    """The programs compiled so far."""
    return list(self._compiled.values())

  @contextlib.contextmanager
  def compiling(
    self, compile_for: Callable[[Key], Program], keys: Iterable[Key]
  ) -> Iterator[Compiling[Key]]:
    """Compiles missing programs in threads, in the order of the keys.

    Args:
      compile_for: Compiles the program of a key.
      keys: The keys that are used inside the context.

    Yields:
      The programs.
    """
    with concurrent.futures.ThreadPoolExecutor(
      max_workers=min(4, placement.cores()),
      thread_name_prefix='t5score-compile',
    ) as executor:
      try:
        pending = {
          key: executor.submit(compile_for, key)
          for key in dict.fromkeys(keys)
          if key not in self._compiled
        }
        yield Compiling(self._compiled, pending)
      finally:
        # Anything is left only after an error: Ctrl-C should not wait for it.
        executor.shutdown(wait=False, cancel_futures=True)


class Compiling(Generic[Key]):
  """Programs, some of which are still being compiled."""

  def __init__(
    self,
    compiled: dict[Key, Program],
    pending: dict[Key, concurrent.futures.Future[Program]],
  ):
    self._compiled = compiled
    self._pending = pending

  def __getitem__(self, key: Key) -> Program:
    """The program of a key; waits for it, and raises what compiling raised."""
    if key not in self._compiled:
      self._compiled[key] = self._pending[key].result()
    return self._compiled[key]

  def ready(self, key: Key) -> bool:
    """Whether a program is available without waiting."""
    return key in self._compiled or self._pending[key].done()
