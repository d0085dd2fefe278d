r"""Measures this library beside what its users would take instead.

    make bench
    python benchmarks/bench.py [--quick] [--only NAME ...] [--data DIR]
      [--platform gpu] [--peers PYTHON]

Each comparison (`comparisons/NAME.py`) runs the same weights and texts in this
library and in its peers, on the same machine, in turns, each side in a process
of its own. Scores must be equal within the comparison's tolerance. Writes
results/NAME.json, and from all of them BENCHMARKS.md and its picture.

PYTHON is an interpreter with the packages of peers.txt, by default that of
build/bench-peers, which `make bench` makes. Without one only sides of this
library are measured. DIR has WMT20's texts (`texts.py`); without it, texts are
made up. --quick takes tiny sizes: a check that everything runs; its results go
to build/bench/quick.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import machine
import numpy as np
import report
import turns
from comparisons import ORDER

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / 'results'
BUILD = HERE.parent / 'build'
_JAX_PLATFORM = {'cpu': 'cpu', 'gpu': 'cuda', 'tpu': 'tpu'}


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument(
    '--only', nargs='+', metavar='NAME', choices=ORDER, help=', '.join(ORDER)
  )
  result.add_argument(
    '--quick',
    action='store_true',
    help='smaller sizes, to see that all of it runs',
  )
  result.add_argument('--data', metavar='DIR', help='real texts')
  result.add_argument(
    '--platform',
    choices=tuple(_JAX_PLATFORM),
    default='cpu',
    help='device that JAX computes on (default: %(default)s)',
  )
  result.add_argument(
    '--peers',
    metavar='PYTHON',
    default=str(BUILD / 'bench-peers/bin/python'),
    help='the interpreter of the environment with benchmarks/peers.txt '
    '(default: %(default)s)',
  )
  result.add_argument(
    '--rounds', type=int, default=2, help='after the first (default: 2)'
  )
  result.add_argument(
    '--output',
    type=pathlib.Path,
    metavar='DIR',
    help='folder of the results (default: benchmarks/results, which '
    'BENCHMARKS.md shows; with --quick build/bench/quick)',
  )
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  work = BUILD / 'bench'
  shutil.rmtree(work / 'xla', ignore_errors=True)
  output = args.output or (work / 'quick' if args.quick else RESULTS)
  output.mkdir(parents=True, exist_ok=True)
  if not pathlib.Path(args.peers).exists():
    print(f'{args.peers}: absent, no peers are measured', file=sys.stderr)
    args.peers = ''
  failed = []
  spent = [0.0, 0.0]
  for name in args.only or ORDER:
    if not (HERE / 'comparisons' / f'{name}.py').exists():
      continue
    start = time.perf_counter(), _processor()
    try:
      result = measure(name, args, work / name)
    except (turns.SideError, ValueError, OSError) as error:
      print(f'error: {name}: {error}', file=sys.stderr)
      failed.append(name)
      continue
    text = json.dumps(result, indent=1) + '\n'
    (output / f'{name}.json').write_text(text, 'utf-8')
    took = time.perf_counter() - start[0], _processor() - start[1]
    spent = [sum(both) for both in zip(spent, took, strict=True)]
    print(f'{report.line(result)} [{_times(*took)}]', flush=True)
    print(*report.tables(result), sep='\n', end='', flush=True)
  print(f'all: {_times(*spent)}')
  report.write(output, HERE.parent if output == RESULTS else output)
  return 1 if failed else 0


def _processor() -> float:
  """Seconds of processes that have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _times(wall: float, processor: float) -> str:
  return f'{wall:.0f} s, {processor:.0f} s of a core'


def measure(
  name: str, args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
  """Runs one comparison.

  Args:
    name: Its module.
    args: The command line.
    folder: Its scratch, which is emptied.

  Returns:
    The result, a JSON value; `report.py` says what is in it.

  Raises:
    turns.SideError: A side failed.
    ValueError: Scores differ.
  """
  module = importlib.import_module(f'comparisons.{name}')
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  size = {'quick': args.quick, 'data': args.data, 'platform': args.platform}
  job = turns.prepare(name, size, folder)
  sides = {side: (f, sys.executable) for side, f in module.OURS.items()}
  if args.peers:
    sides |= {side: (f, args.peers) for side, f in module.PEERS.items()}
  load = machine.describe(args.platform)
  summaries, scores = turns.compare(
    name,
    sides,
    folder,
    min(args.rounds, getattr(module, 'ROUNDS', args.rounds)),
    _environments(args),
  )
  first = next(iter(sides))
  differences = {
    side: float(np.abs(scores[side] - scores[first]).max())
    for side in scores
    if side != first
  }
  for side, difference in differences.items():
    if not difference <= module.TOLERANCE:
      raise ValueError(
        f'scores of {side} differ by {difference:.2g}, more than '
        f'{module.TOLERANCE:.0e}'
      )
  ours = summaries[first]
  shutil.rmtree(folder)
  return {
    'title': module.TITLE,
    'about': ' '.join((module.__doc__ or '').split()),
    'unit': module.UNIT,
    'measure': module.MEASURE,
    'items': job['items'],
    'texts': job.get('texts'),
    'flops': job.get('flops'),
    'quick': args.quick,
    'machine': load,
    'versions': machine.versions() | _peer_versions(args.peers),
    'sides': summaries,
    'ratios': {
      side: {
        key: other[key] / ours[key] for key in ('seconds', 'cpu', 'memory')
      }
      for side, other in summaries.items()
      if side != first
    },
    'differences': differences,
    'tolerance': module.TOLERANCE,
  }


def _environments(args: argparse.Namespace) -> Mapping[str, Mapping[str, str]]:
  """Variables of both interpreters' processes."""
  path = {'PYTHONPATH': str(HERE), 'HF_HUB_OFFLINE': '1'}
  ours = {
    'JAX_PLATFORMS': _JAX_PLATFORM[args.platform],
    'T5SCORE_COMPILATION_CACHE': str(BUILD / 'bench' / 'xla'),
    # JAX's own variable would take the place of the library's cache.
    'JAX_COMPILATION_CACHE_DIR': '',
  }
  return {sys.executable: path | ours, args.peers: path}


def _peer_versions(python: str) -> dict[str, str]:
  if not python:
    return {}
  lines = (HERE / 'peers.txt').read_text('utf-8').splitlines()
  names = [line.split('==')[0] for line in lines if '==' in line]
  found = machine.versions_of(python, names)
  return {f'peers: {name}': version for name, version in found.items()}


if __name__ == '__main__':
  sys.exit(main())
