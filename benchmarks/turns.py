"""Runs the sides of a comparison in turns, each in a process of its own.

The first run of a side loads and compiles: it is the cold one. Then every side
runs once a round, in an order that is turned round every time; medians of these
count. No two sides run at a time.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

_SIDE = pathlib.Path(__file__).with_name('side.py')


class SideError(RuntimeError):
  """A side of a comparison failed; the message is its last line."""


class Side:
  """A side's process."""

  def __init__(
    self,
    module: str,
    function: str,
    python: str,
    folder: pathlib.Path,
    environment: Mapping[str, str],
  ):
    """Starts the process, and waits until it has loaded its model.

    Args:
      module: Name of the comparison.
      function: Its function that loads this side.
      python: The interpreter.
      folder: Has `job.json`; takes the scores and what the process prints.
      environment: Variables beside this process's; see `_merged`.
    """
    self.scores = folder / f'{function}.npy'
    self._log = folder / f'{function}.log'
    self._start = time.perf_counter()
    with self._log.open('w') as log:
      self._process = subprocess.Popen(
        [python, _SIDE, module, function, folder / 'job.json', self.scores],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=_merged(environment),
      )
    self.load = self._answer()['load']
    self.runs: list[dict[str, Any]] = []
    self.run()
    # From the start of the process to its first results.
    self.cold = time.perf_counter() - self._start

  def run(self) -> dict[str, Any]:
    """Runs once; the measured numbers are kept in `runs`."""
    assert self._process.stdin is not None
    self._process.stdin.write('run\n')
    self._process.stdin.flush()
    self.runs.append(self._answer())
    return self.runs[-1]

  def close(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.wait()

  def _answer(self) -> dict[str, Any]:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      self._process.wait()
      text = self._log.read_text('utf-8', 'replace').strip()
      last = text.splitlines()[-1] if text else 'no message'
      raise SideError(f'{last} (all of it: {self._log})')
    answer: dict[str, Any] = json.loads(line)
    return answer

  def summary(self) -> dict[str, Any]:
    """Medians of the warm runs, and what a run recorded beside its times."""
    warm = self.runs[1:] or self.runs
    one = dict(self.runs[-1])
    for key in ('seconds', 'cpu'):
      one[key] = float(np.median([run[key] for run in warm]))
    # What is freed stays resident, so that later runs may grow by nothing.
    one['memory'] = max(run['memory'] for run in self.runs)
    spread = [run['seconds'] for run in warm]
    return {
      **one,
      'fastest': min(spread),
      'slowest': max(spread),
      'runs': len(warm),
      'cold': self.cold,
    }


def _merged(environment: Mapping[str, str]) -> dict[str, str]:
  """This process's variables with others; an empty one is taken away."""
  return {k: v for k, v in {**os.environ, **environment}.items() if v}


def compare(
  module: str,
  sides: Mapping[str, tuple[str, str]],
  folder: pathlib.Path,
  rounds: int,
  environments: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
  """Runs all sides in turns.

  Args:
    module: Name of the comparison.
    sides: Name -> (function, interpreter).
    folder: Has `job.json`.
    rounds: Number of rounds after the first runs.
    environments: Variables of the processes, by interpreter.

  Returns:
    Each side's summary, and its scores where it has any.

  Raises:
    SideError: A side failed.
  """
  running: dict[str, Side] = {}
  try:
    for name, (function, python) in sides.items():
      running[name] = Side(
        module, function, python, folder, environments[python]
      )
    for turn in range(rounds):
      names = list(running)
      for name in reversed(names) if turn % 2 else names:
        running[name].run()
    return (
      {name: side.summary() for name, side in running.items()},
      {
        name: np.load(side.scores)
        for name, side in running.items()
        if side.scores.exists()
      },
    )
  finally:
    for side in running.values():
      side.close()


def prepare(
  module: str, size: Mapping[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
  """Makes the weights and texts of a comparison, in a process of its own.

  A process that forks others must not hold JAX, and what one comparison leaves
  in memory is not to slow the next one.
  """
  code = (
    'import json, pathlib, sys, importlib\n'
    f'sys.path.insert(0, {str(_SIDE.parent)!r})\n'
    f'module = importlib.import_module("comparisons.{module}")\n'
    'folder = pathlib.Path(sys.argv[1])\n'
    'job = module.prepare(folder, json.loads(sys.argv[2]))\n'
    '(folder / "job.json").write_text(json.dumps(job))\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code, folder, json.dumps(size)],
    capture_output=True,
    text=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ['no message']
    raise SideError(lines[-1])
  job: dict[str, Any] = json.loads((folder / 'job.json').read_text('utf-8'))
  return job
