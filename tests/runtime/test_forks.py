"""After a fork JAX would hang: an error is raised instead."""

import subprocess
import sys

import pytest

# A worker that hangs is killed with the whole program, by its time limit.
_PROGRAM = """
import multiprocessing
import sys

import t5score_jax

model, before = sys.argv[1], sys.argv[2] == 'before'
metric = None


def load_and_score(n):
  return float(t5score_jax.load(model).score(['a b'], ['a c']).values[0])


def score(n):
  return float(metric.score(['a b'], ['a c']).values[0])


if __name__ == '__main__':
  expected = None
  if before:
    metric = t5score_jax.load(model)
    expected = score(0)
  work = [('fork', load_and_score)]
  if before:
    work += [('fork', score), ('spawn', load_and_score)]
  for method, function in work:
    with multiprocessing.get_context(method).Pool(1) as pool:
      try:
        (value,) = pool.map(function, range(1))
        assert expected in (None, value), (value, expected)
        print('scored')
      except RuntimeError as error:
        print(f'{type(error).__name__}: {error}')
"""


def _run(tmp_path, *arguments):
  (tmp_path / 'program.py').write_text(_PROGRAM)
  done = subprocess.run(
    [sys.executable, 'program.py', *map(str, arguments)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


@pytest.mark.slow
def test_workers_of_a_process_that_uses_jax(tmp_path, random_bundle):
  *forked, spawned = _run(tmp_path, random_bundle, 'before')
  assert len(forked) == 2
  for line in forked:
    assert line.startswith('ForkError: process ') and "'spawn'" in line
  assert spawned == 'scored'


@pytest.mark.slow
def test_a_worker_forked_before_jax_is_used_scores(tmp_path, random_bundle):
  assert _run(tmp_path, random_bundle, 'only') == ['scored']


def test_metrics_without_jax_may_be_forked(tmp_path):
  assert _run(tmp_path, 'chrf', 'before') == ['scored'] * 3
