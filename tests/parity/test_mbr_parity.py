"""Expected utilities and choices equal those of mbrs and comet-mbr.

Both need PyTorch and have an environment of their own (`pip install mbrs
unbabel-comet`), whose interpreter the variable T5SCORE_MBRS_PYTHON names.
"""

import json
import os
import pathlib
import random
import subprocess

import jax
import numpy as np
import pytest
import tiny_encoder

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.mbr import decoding
from t5score_jax.mbr.candidates import Item
from t5score_jax.metrics import registry
from t5score_jax.nn import heads

PYTHON = os.environ.get('T5SCORE_MBRS_PYTHON')
PEER = pathlib.Path(__file__).parent.parent / 'support' / 'mbr_peer.py'
COUNT = 24

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(
    not PYTHON, reason='T5SCORE_MBRS_PYTHON names no mbrs and unbabel-comet'
  ),
]
PROGRAMS = {
  'comet-mbr': ('comes', {'exclude_self': True}),
  'comet MBR': ('comes', {}),
  'comet AggregateMBR': ('comes', {'method': 'aggregate'}),
  'comet PruningMBR': ('comes', {'method': 'pruned'}),
  'chrf MBR': ('chrf', {}),
  'chrf AggregateMBR': ('chrf', {'method': 'aggregate'}),
  'chrf PruningMBR': ('chrf', {'method': 'pruned'}),
  'bleu MBR': ('bleu', {}),
}


def items():
  """Segments with candidates, among them duplicates and odd texts."""
  rng = random.Random(4)
  words = [w for w in tiny_encoder.WORDS if w.isalpha()]
  made = []
  for n in range(4):
    base = rng.choices(words, k=8)
    texts = [
      ' '.join(w if rng.random() < 0.7 else rng.choice(words) for w in base)
      for _ in range(COUNT - 4)
    ]
    odd = ['', texts[0], '\u732b\u304c mat', ' '.join(words * 3)]
    made.append(Item((*odd, *texts), f'{base[0]} {n}'))
  return made


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A COMET checkpoint with random weights."""
  root = tmp_path_factory.mktemp('models')
  tiny_encoder.make(root / 'encoder')
  encoder = encoders.load_encoder(root / 'encoder')
  config = heads.RegressorConfig(encoder.config, hidden_sizes=(12, 8))
  params = heads.init_params(config, jax.random.key(3), encoder.params)
  model = regressors.Regressor(config, params, encoder.tokenizer)
  comet.save_comet(model, root / 'comet')
  return root / 'comet'


@pytest.fixture(scope='module')
def theirs(folder, tmp_path_factory):
  root = tmp_path_factory.mktemp('job')
  job = {
    'checkpoint': str(folder / 'checkpoints' / 'model.ckpt'),
    'programs': list(PROGRAMS),
    'groups': [
      {'source': item.source, 'candidates': item.candidates} for item in items()
    ],
  }
  (root / 'job.json').write_text(json.dumps(job))
  done = subprocess.run(
    [PYTHON, PEER, root / 'job.json', root / 'result.json'],
    cwd=root,
    capture_output=True,
    text=True,
    env={**os.environ, 'HF_HUB_OFFLINE': '1', 'PYTHONPATH': ''},
  )
  assert not done.returncode, done.stderr
  return json.loads((root / 'result.json').read_text())


@pytest.mark.parametrize('program', PROGRAMS)
def test_utilities_are_theirs(program, folder, theirs):
  name, options = PROGRAMS[program]
  model = {'model': folder} if name == 'comes' else {}
  metric = registry.load_metric(name, **model)
  pruned = options.get('method') == 'pruned'
  chosen, _ = decoding.decode(
    metric,
    items(),
    decoding.Options(top=1 if pruned else COUNT, **options),
  )
  for item, choices, scores in zip(
    items(), chosen, theirs[program]['scores'], strict=True
  ):
    if pruned:
      # mbrs goes on to score a single candidate that is left.
      assert choices[0].text == item.candidates[scores[0]]
      continue
    first = item.candidates.index
    distinct = [n for n, t in enumerate(item.candidates) if first(t) == n]
    ours = {choice.index: choice.score for choice in choices}
    assert sorted(ours) == distinct
    np.testing.assert_allclose(
      [ours[n] for n in distinct], [scores[n] for n in distinct], atol=1e-4
    )
    assert choices[0].index == int(np.argmax(scores))
