"""The documented runs print the numbers that their headers state."""

import argparse
import json
import math
import re
from pathlib import Path

import gin
import jax
import pytest

from t5score_jax.commands import train

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / 'gin_configs' / 'recipes'
# As the headers say, for other machines and releases of the libraries.
LOSS_TOLERANCE = 0.02
AGREEMENT_TOLERANCE = 0.05


def _run(*arguments):
  parser = argparse.ArgumentParser(prog='t5score train')
  train.add_arguments(parser)
  return train.run(parser.parse_args([str(x) for x in arguments]))


def _stated(recipe):
  """The numbers of a header: {'loss': ..., 'judgments/pearson': ...}."""
  header = (RECIPES / recipe).read_text().partition('\nfrom ')[0]
  printed = '\n'.join(re.findall(r'^#   (.*)', header, re.M))
  pairs = re.findall(r'\b([a-z_]+(?:/[a-z_]+)?)\s+(-?\d\.\d+)\b', printed)
  return {name: float(value) for name, value in pairs}


def _measured(folder):
  """The last number of each name in a run's metrics.jsonl."""
  found = {}
  for line in (folder / 'metrics.jsonl').read_text().splitlines():
    found.update(json.loads(line))
  return found


def _check(recipe, folder):
  stated, measured = _stated(recipe), _measured(folder)
  assert {'loss', 'held_out/loss', 'judgments/pearson'} <= set(stated)
  for name, value in stated.items():
    is_loss = name.endswith('loss')
    tolerance = LOSS_TOLERANCE if is_loss else AGREEMENT_TOLERANCE
    assert measured[name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.slow
def test_both_stages_of_the_tiny_run(tmp_path):
  pytest.importorskip('seqio')
  model_dir = f"--gin.MODEL_DIR='{tmp_path}/run'"
  assert _run('--gin_file=recipes/tiny_run.gin', model_dir, '--quiet') == 0
  _check('tiny_run.gin', tmp_path / 'run')
  code = _run(
    '--gin_file=recipes/tiny_run_contrastive.gin',
    f"--gin.MODEL_DIR='{tmp_path}/run2'",
    f"--gin.INITIAL_CHECKPOINT_PATH='{tmp_path}/run'",
    '--quiet',
  )
  assert code == 0
  _check('tiny_run_contrastive.gin', tmp_path / 'run2')
  before, after = _measured(tmp_path / 'run'), _measured(tmp_path / 'run2')
  name = 'judgments/pearson'
  assert after[name] > before[name] + 0.1


@pytest.mark.parametrize('path', sorted((RECIPES.parent / 'models').glob('*')))
def test_networks_have_as_many_parameters_as_stated(path):
  train.configure(
    [str(path), 'runs/train_generative.gin'],
    ["MODEL_DIR='x'", 'TRAIN_STEPS=1', "VOCABULARY='bytes'"],
  )
  model = gin.query_parameter('%MODEL').scoped_configurable_fn()
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
  header = ' '.join(re.findall('^#(.*)$', path.read_text(), re.M))
  exact = re.search(r'([\d,]{5,}) parameters', header)
  rounded = re.search(r'([\d.]+) M parameters', header)
  if exact:
    assert f'{count:,}' == exact[1]
  else:
    assert f'{count / 1e6:.1f}' == rounded[1]


def test_the_made_up_corpus_is_what_it_says():
  pytest.importorskip('seqio')
  from t5score_jax.tasks import made_up

  train_set = set(made_up.meanings('train'))
  held_out = set(made_up.meanings('validation'))
  assert len(train_set) == 630 and len(held_out) == 90
  assert not train_set & held_out
  segments = made_up.segments()
  assert len(segments) == 4 * 90
  for row in range(0, len(segments), 4):
    group = segments[row : row + 4]
    assert len({s.references for s in group}) == 1
    assert [s.system for s in group] == ['alpha', 'beta', 'gamma', 'delta']
  for pair in made_up.text_pairs('train'):
    assert pair['inputs'] != pair['targets']
