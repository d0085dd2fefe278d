"""`benchmarks/frugalscore.py`: what it prints, and its errors."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tiny_encoder

_SCRIPT = pathlib.Path(__file__).parents[2] / 'benchmarks/frugalscore.py'


def _run(*arguments):
  return subprocess.run(
    [sys.executable, _SCRIPT, *map(str, arguments)],
    capture_output=True,
    text=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  )


@pytest.mark.slow
def test_both_are_timed(tmp_path):
  encoder = tiny_encoder.make(tmp_path / 'encoder')
  rows = [
    {'hypothesis': 'the cat sat', 'reference': 'a cat sat .'},
    {'hypothesis': 'a dog ran', 'reference': 'the dog ran over the hill'},
  ]
  pairs = tmp_path / 'pairs.jsonl'
  pairs.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  done = _run(pairs, '--encoder', encoder, '--rounds', 1)
  assert done.returncode == 0, done.stderr
  first, second = done.stdout.splitlines()
  assert first.startswith('frugalscore-tiny: ') and '1.0 times' in first
  assert second.startswith('MoverScore: ') and 'pairs/s' in second
  # One line where something is missing.
  done = _run(tmp_path / 'none.jsonl', '--encoder', encoder)
  assert done.returncode == 1
  (line,) = [x for x in done.stderr.splitlines() if 'none.jsonl' in x]
  assert line.startswith('error: ') and 'Traceback' not in done.stderr
  assert _run(pairs, '--encoder', encoder, '--rounds', 0).returncode == 2
