"""Our metrics as a module of Hugging Face's evaluate, without its hub."""

import pathlib
import subprocess
import sys

import pytest

import t5score_jax

pytest.importorskip('evaluate', reason='needs Hugging Face evaluate')
pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(t5score_jax.__path__[0]) / 'adapters' / 't5score'
_PROGRAM = """
import sys
import evaluate, numpy, t5score_jax
texts, references, sources = ['a cat', ''], ['the cat', 'a dog'], ['x', 'y']
metric = evaluate.load(sys.argv[1])
ours = t5score_jax.load()
for more in ({}, {'direction': 'precision'}):
  found = metric.compute(predictions=texts, references=references, **more)
  expected = t5score_jax.load(**more).score(texts, references)
  numpy.testing.assert_allclose(found['scores'], expected.values, atol=1e-5)
  assert found['signature'] == expected.signature
found = metric.compute(
  predictions=texts, references=references, sources=sources, direction='source'
)
expected = t5score_jax.load(direction='source').score(texts, None, sources)
numpy.testing.assert_allclose(found['scores'], expected.values, atol=1e-5)
several = [['the cat', 'a cat'], ['a dog']]
metric = evaluate.load(sys.argv[1], 'chrf++')
found = metric.compute(predictions=texts, references=several)
expected = t5score_jax.load('chrf++').score(texts, several)
assert found['system'] == expected.system
"""


def test_it_loads_and_scores(tmp_path, monkeypatch):
  monkeypatch.setenv('HF_HOME', str(tmp_path))
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM, str(FOLDER)],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2000:]
