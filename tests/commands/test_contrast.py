"""Rounds of mining and contrastive training, with a tiny random encoder."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.training import loop

SENTENCES = [
  f'{article} {thing} {verb} {place}'
  for article in ('the', 'a')
  for thing in ('cat', 'dog', 'green bird')
  for verb in ('sat on', 'ran over')
  for place in ('the hill', 'a mat')
]
CONFIG = dataclasses.replace(tiny_encoder.CONFIG, num_layers=1)


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('contrast') / 'tiny', CONFIG)


@pytest.fixture
def run(encoder, tmp_path, monkeypatch, capsys):
  """Runs `t5score contrast` on sentences and others that resemble them."""
  for module in ('faiss', 'rapidfuzz'):
    pytest.importorskip(module)
  monkeypatch.chdir(tmp_path)
  others = [text.replace('cat', 'dog') + ' .' for text in SENTENCES[::-1]]
  (tmp_path / 'x').write_text('\n'.join(SENTENCES) + '\n')
  (tmp_path / 'y').write_text('\n'.join(dict.fromkeys(others)) + '\n')

  def run(*words, model=encoder, mined=True):
    files = ('--sources', 'x', '--targets', 'y', '--max-overlap', '1')
    code = cli.main(
      ['contrast', *(files if mined else ()), '-m', str(model)]
      + ['--batch-size', '8', '--learning-rate', '1e-2', *map(str, words)]
    )
    return code, capsys.readouterr().err

  return run


def _params(folder):
  return encoders.load_encoder(folder).params['layers_0']['wi']['kernel']


def _pairs(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_rounds_resume_where_they_were_stopped(run, tmp_path, monkeypatch):
  words = ('--rounds', 2, '--work', 'w', '--held-out', 'x', 'x')
  real = loop.train
  code, err = run(*words, '-o', 'whole')
  assert code == 0, err
  assert 'round 0: P@1 1.0000' in err and 'round 2: P@1' in err
  first, second = (tmp_path / 'w' / f'round_{n}' for n in (1, 2))
  assert sorted(path.name for path in second.iterdir()) == [
    *('model', 'pairs.jsonl', 'precision.json')
  ]
  rows = _pairs(first / 'pairs.jsonl')
  assert len({row['target'] for row in rows}) == len(rows) > 10
  expected = _params('whole')
  assert np.abs(_params(first / 'model') - expected).max() > 1e-4

  # Stopped in the second round's training, after the first of its steps.
  kept = (first / 'model' / 'model.safetensors').stat().st_mtime_ns
  shutil.rmtree(second / 'model')

  def stopped(**options):
    real(**{**options, 'train_steps': 1})
    return loop.Result(1, None, 'preempted')

  monkeypatch.setattr(loop, 'train', stopped)
  code, err = run(*words, '-o', 'again')
  assert code == 75 and 'resumes' in err and not (tmp_path / 'again').exists()
  assert (second / 'run' / 'checkpoint_1').is_dir()
  monkeypatch.setattr(loop, 'train', real)
  assert run(*words, '-o', 'again')[0] == 0
  np.testing.assert_array_equal(_params('again'), expected)
  assert kept == (first / 'model' / 'model.safetensors').stat().st_mtime_ns

  # Both rounds started from the initial encoder: the second's pairs on it
  # give the second's encoder.
  pairs = second / 'pairs.jsonl'
  code, err = run('--pairs', pairs, '-o', 'given', mined=False)
  assert code == 0, err
  np.testing.assert_allclose(_params('given'), expected, atol=1e-6)
  assert not (tmp_path / 'given.work').exists()
  # Other settings are another run, and an encoder is never overwritten.
  code, err = run(*words, '-o', 'third', '--temperature', '0.1')
  assert code == 1 and 'temperature' in err
  code, err = run(*words, '-o', 'whole')
  assert code == 1 and 'whole' in err
  # What mining and metrics read.
  score = ['score', '--metric', 'cosine', '-m', 'whole', '-s', 'x', '-t', 'x']
  assert cli.main([*score, '--quiet']) == 0
  mine = ['mine', '--sources', 'x', '--targets', 'x', '-m', 'whole']
  assert cli.main([*mine, '--max-overlap', '1', '-o', 'mined.jsonl']) == 0
  about = json.loads((tmp_path / 'whole' / 'contrast.json').read_text())
  assert about['round'] == 2 and about['training']['temperature'] == 0.05


@pytest.mark.slow
def test_training_brings_pairs_together(run, tmp_path):
  """Sentences and 'translations' by other words become neighbours."""
  words = {'cat': '1', 'dog': '2', 'bird': '.', 'hill': ',', 'mat': '!'}
  words |= {'the': 'small', 'a': 'un', 'sat': 'able', 'ran': 'green'}
  translated = [
    ' '.join(words.get(word, word) for word in text.split())
    for text in SENTENCES
  ]
  (tmp_path / 'z').write_text('\n'.join(translated) + '\n')
  (tmp_path / 'pairs.tsv').write_text(
    'source\ttarget\n'
    + ''.join(f'{s}\t{t}\n' for s, t in zip(SENTENCES, translated, strict=True))
  )
  code, err = run(
    *('--pairs', 'pairs.tsv', '-o', 'out', '--epochs', 30, '--parts', 2),
    *('--held-out', 'x', 'z', '--work', 'w', '--layer', 2),
    # Of larger weights a few steps make nothing.
    model=tiny_encoder.make(tmp_path / 'deep', spread=0.15),
    mined=False,
  )
  assert code == 0, err
  assert encoders.load_encoder(tmp_path / 'out').config.num_layers == 2
  before, after = (
    json.loads((tmp_path / 'w' / f'round_{n}/precision.json').read_text())
    for n in (0, 1)
  )
  assert before['source_to_target'] < 0.5 < after['source_to_target']


def test_an_encoder_of_fewer_layers(tmp_path):
  deep = encoders.load_encoder(tiny_encoder.make(tmp_path / 'deep'))
  cut = encoders.truncated(deep, 2)
  assert cut.config.num_layers == 2 and 'layers_2' not in cut.params
  assert encoders.truncated(deep, -1) is deep
  for layer, named in ((0, 'layer 0'), (4, 'layer 4')):
    with pytest.raises(ValueError, match=named):
      encoders.truncated(deep, layer)


@pytest.mark.parametrize(
  ('words', 'mined', 'code', 'named'),
  [
    (('--pairs', 'x'), True, 2, '--sources'),
    (('--pairs', 'x', '--rounds', 2), False, 2, '--rounds'),
    ((), False, 2, '--pairs'),
    (('--batch-size', 1), True, 2, 'batch_size 1'),
    (('--temperature', 0), True, 2, 'temperature'),
    (('--max-length', 99), True, 2, 'max_length 99'),
    (('--min-tokens', 20), True, 1, '0 pairs'),
    (('--held-out', 'x', 'y'), True, 1, '--held-out'),
    (('--layer', 9), True, 2, 'layer 9'),
  ],
)
def test_wrong_usage(run, tmp_path, words, mined, code, named):
  found, err = run(*words, '-o', 'out', mined=mined)
  assert found == code and named in err, err
  assert not (tmp_path / 'out').exists()
