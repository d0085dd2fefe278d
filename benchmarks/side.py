"""One side of a comparison, in a process of its own (started by `turns.py`).

    PYTHON side.py NAME FUNCTION JOB.json SCORES.npy

FUNCTION of `comparisons/NAME.py` is called with the job; it loads what it needs
and returns what is timed, a function without arguments that returns a mapping:
'scores', an array, and what else is to be recorded. For every line on standard
input that is run once, and a line of JSON is printed: seconds of the clock and
of the processor, the largest resident memory so far and what else there was.
Either interpreter runs this file: it imports nothing but the standard library
and NumPy.
"""

import importlib
import json
import os
import pathlib
import resource
import sys
import time
import warnings

import numpy as np


def main() -> int:
  """Runs one side."""
  name, function, job, scores = sys.argv[1:]
  # What libraries print is not an answer.
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  warnings.filterwarnings('ignore')
  module = importlib.import_module(f'comparisons.{name}')
  start = time.perf_counter()
  run = getattr(module, function)(json.loads(pathlib.Path(job).read_text()))
  load = time.perf_counter() - start
  print(json.dumps({'load': load}), file=answers, flush=True)
  for _ in sys.stdin:
    wall, cpu = time.perf_counter(), _processor()
    result = dict(run())
    times = time.perf_counter() - wall, _processor() - cpu
    values = result.pop('scores', None)
    if values is not None:
      np.save(scores, np.asarray(values, np.float64))
    answer = {'seconds': times[0], 'cpu': times[1], 'memory': _peak()}
    # A side may time itself, where it measures programs of its own.
    print(json.dumps(answer | result), file=answers, flush=True)
  return 0


def _processor() -> float:
  """Seconds of this process, and of those that it started and that ended."""
  children = resource.getrusage(resource.RUSAGE_CHILDREN)
  return time.process_time() + children.ru_utime + children.ru_stime


def _peak() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == '__main__':
  sys.exit(main())
