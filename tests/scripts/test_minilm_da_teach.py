"""`minilm_da_teach.py`: targets of several metrics."""

import json
import pathlib
import runpy

import numpy as np
import pytest

from t5score_jax.metrics import registry

_SCRIPT = (
  pathlib.Path(__file__).parents[2] / 'scripts/reproduce/minilm_da_teach.py'
)


@pytest.fixture(scope='module')
def main():
  return runpy.run_path(str(_SCRIPT))['main']


def test_targets_are_means_of_standardised_scores(main, tmp_path):
  pairs = [('a cat', 'the cat'), ('a dog ran', 'a dog ran'), ('x', 'a hill')]
  lines = [json.dumps({'hypothesis': h, 'reference': r}) for h, r in pairs]
  given, out = tmp_path / 'pairs.jsonl', tmp_path / 'taught.jsonl'
  given.write_text('\n'.join(lines) + '\n')
  teachers = ['--teacher', 'chrf', '--teacher', 'rouge:variant=2']
  assert main([str(given), *teachers, '-o', str(out)]) == 0
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  assert [(row['hypothesis'], row['reference']) for row in rows] == pairs
  texts = [h for h, _ in pairs], [[r] for _, r in pairs]
  scores = [
    np.array(registry.load_metric(name).score(*texts).values)
    for name in ('chrf', 'rouge2')
  ]
  expected = sum((s - s.mean()) / s.std() for s in scores) / 2
  np.testing.assert_allclose([row['target'] for row in rows], expected)


def test_an_unknown_teacher_is_an_error(main, tmp_path, capsys):
  given, out = tmp_path / 'pairs.jsonl', tmp_path / 'taught.jsonl'
  given.write_text('{"hypothesis": "a", "reference": "b"}\n')
  assert main([str(given), '--teacher', 'chrt', '-o', str(out)]) == 1
  assert "'chrt'" in capsys.readouterr().err and not out.exists()


def test_a_teacher_that_tells_nothing_apart_is_an_error(main, tmp_path, capsys):
  given, out = tmp_path / 'pairs.jsonl', tmp_path / 'taught.jsonl'
  given.write_text('{"hypothesis": "a", "reference": "b"}\n')
  assert main([str(given), '--teacher', 'chrf', '-o', str(out)]) == 1
  assert 'one score' in capsys.readouterr().err and not out.exists()
