"""After a fork JAX would hang: an error says so at once."""

import subprocess
import sys

import pytest

# A worker that hangs is ended with the whole program, by its time limit.
_PROGRAM = """
import multiprocessing
import sys

import t5score_jax

method, model, before = sys.argv[1], sys.argv[2], sys.argv[3] == 'before'
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
  works = [load_and_score] + ([score] if before and method == 'fork' else [])
  for work in works:
    with multiprocessing.get_context(method).Pool(2) as pool:
      try:
        one, other = pool.map(work, range(2))
        assert one == other and expected in (None, one), (one, other, expected)
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


def test_a_forked_worker_is_refused(tmp_path, random_bundle):
  lines = _run(tmp_path, 'fork', random_bundle, 'before')
  assert len(lines) == 2
  for line in lines:
    assert line.startswith('ForkError: process ') and "'spawn'" in line


@pytest.mark.parametrize(
  ('method', 'when'), [('spawn', 'before'), ('fork', 'only')]
)
def test_other_workers_score(tmp_path, random_bundle, method, when):
  assert _run(tmp_path, method, random_bundle, when) == ['scored']


def test_metrics_without_jax_may_be_forked(tmp_path):
  assert _run(tmp_path, 'fork', 'chrf', 'before') == ['scored', 'scored']
