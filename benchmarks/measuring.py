"""Clock and memory of what benchmarks run."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Clock:
  """Collects times of programs that run in turns."""

  def __init__(self) -> None:
    self._times: dict[str, list[tuple[float, float]]] = {}

  def __call__(self, name: str, program: Callable[[], Any]) -> Any:
    """Runs a program and returns what it does."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = program()
    self.add(name, time.perf_counter() - wall, time.process_time() - cpu)
    return found

  def add(self, name: str, wall: float, cpu: float) -> None:
    """Notes a run that was timed elsewhere."""
    self._times.setdefault(name, []).append((wall, cpu))

  def medians(self) -> dict[str, dict[str, float]]:
    """The medians, seconds of the clock and of the processor."""
    found = {}
    for name, times in self._times.items():
      wall, cpu = np.median(times, 0)
      found[name] = {'seconds': float(wall), 'cpu': float(cpu)}
    return found


class Memory:
  """The largest resident memory while a block runs, bytes."""

  def __enter__(self) -> Memory:
    self.start = self.peak = _resident()
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._stop.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._stop.wait(0.02):
      self.peak = max(self.peak, _resident())


def children() -> tuple[float, int]:
  """Seconds of the processor and largest memory, bytes, of live children."""
  processes = pathlib.Path('/proc')
  seconds, memory = 0.0, 0
  for task in (processes / 'self' / 'task').iterdir():
    for child in (task / 'children').read_text().split():
      # Fields 14 and 15 of the process, which follow its name in brackets.
      fields = (processes / child / 'stat').read_text().rpartition(')')[2]
      ticks = sum(map(int, fields.split()[11:13]))
      seconds += ticks / os.sysconf('SC_CLK_TCK')
      status = (processes / child / 'status').read_text()
      memory += 1024 * int(status.partition('VmHWM:')[2].split()[0])
  return seconds, memory


def _resident() -> int:
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * 4096
