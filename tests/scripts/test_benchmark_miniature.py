"""`benchmarks/frugalscore.py`: what it prints, and its errors."""

import json
import os
import pathlib
import runpy
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


# What is called of the published program.
_FUNCTIONS = """\
import sys
import ot
assert 'tensorflow' not in sys.modules

def get_idf_dict(texts):
  return {}

def word_mover_score(references, hypotheses, *_, **options):
  return [len(text) for text in hypotheses]
"""


@pytest.mark.parity
def test_the_published_program_is_timed_without_tensorflow(tmp_path):
  encoder = tiny_encoder.make(tmp_path / 'encoder')
  replaced = [old for old, _ in runpy.run_path(str(_SCRIPT))['_REPLACED']]
  (tmp_path / 'moverscore_v2.py').write_text(
    '\n'.join(['"""', *replaced, '"""', _FUNCTIONS])
  )
  pairs = tmp_path / 'pairs.jsonl'
  texts = ('a cat', 'a cat sat', 'the dog ran .')
  rows = [{'hypothesis': text, 'reference': 'a cat sat .'} for text in texts]
  pairs.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  kept = {k: v for k, v in os.environ.items() if not k.startswith('POT_')}
  command = [sys.executable, _SCRIPT, pairs, '--encoder', encoder]
  done = subprocess.run(
    [*command, '--rounds', '1', '--published', tmp_path],
    capture_output=True,
    text=True,
    env={**kept, 'JAX_PLATFORMS': 'cpu'},
  )
  assert done.returncode == 0, done.stderr
  assert 'MoverScore, published: ' in done.stdout
