"""UScore from two monolingual files to scores, with tiny random models."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints import uscore
from t5score_jax.checkpoints.bundle import save_bundle
from t5score_jax.crosslingual import remap
from t5score_jax.data.vocab import SentencePieceVocabulary
from t5score_jax.fitting import contrastive
from tests.commands.test_mine import SENTENCES
from tests.conftest import make_bundle

# All is trained for a step or two.
_LITTLE = (
  '--gin.TRANSLATOR_EPOCHS=0.2',
  '--gin.LANGUAGE_MODEL_EPOCHS=0.2',
  '--gin.TRANSLATOR_BATCH_SIZE=8',
  '--gin.BATCH_SIZE=8',
  '--gin.ROUNDS=1',
  '--gin.BEST=8',
  '--gin.REMAP_SHARE=0.5',
  '--gin.TRANSLATOR_SHARE=0.5',
)


@pytest.fixture(scope='module')
def models(tmp_path_factory, sentencepiece_model):
  folder = tmp_path_factory.mktemp('uscore')
  tiny_encoder.make(folder / 'encoder')
  vocabulary = SentencePieceVocabulary(sentencepiece_model)
  save_bundle(folder / 't5', make_bundle(vocabulary, max_length=24))
  return folder


@pytest.fixture
def run(models, tmp_path, monkeypatch, capsys):
  for module in ('faiss', 'py3langid', 'rapidfuzz'):
    pytest.importorskip(module)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'x').write_text('\n'.join(SENTENCES) + '\n')
  (tmp_path / 'y').write_text('\n'.join(reversed(SENTENCES)) + '\n')
  rows = [{'source': s, 'target': s} for s in SENTENCES[:8]]
  (tmp_path / 'p.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')

  def run(*words):
    arguments = ('--sources', 'x', '--targets', 'y', '--max-overlap', '1')
    chosen = ('-m', models / 'encoder', '--translator', models / 't5')
    words = ('uscore', *arguments, *chosen, *_LITTLE, '-o', 'metric', *words)
    code = cli.main([str(word) for word in words])
    return code, capsys.readouterr().err

  return run


@pytest.mark.slow
def test_from_two_files_to_scores_with_a_stop(
  run, tmp_path, monkeypatch, capsys
):
  def stopped(*unused, **more):
    raise contrastive.Stopped('interrupted')

  with monkeypatch.context() as patch:
    patch.setattr(contrastive, 'rounds', stopped)
    code, err = run('--work', 'work')
  assert code == 130 and 'resumes' in err
  assert not (tmp_path / 'metric').exists()
  work = tmp_path / 'work'
  made = {
    name: (work / name).stat().st_mtime_ns
    for name in ('map', 'pairs.jsonl', 'translator', 'language_model')
  }
  # Another run is refused, and keeps what is there.
  code, err = run('--work', 'work', '--gin.REMAP_ROUNDS=2')
  assert code == 1 and 'rounds: 1 before, 2 now' in err
  kept = {name: (work / name).stat().st_mtime_ns for name in made}
  assert kept == made
  code, err = run('--work', 'work')
  assert code == 0, err
  assert {name: (work / name).stat().st_mtime_ns for name in made} == made
  parts = uscore.load(tmp_path / 'metric')
  assert parts.names() == [
    'encoder',
    'map',
    'language_model',
    'pseudo_references',
    'sentence_encoder',
  ]
  assert parts.weights == uscore.WEIGHTS['paper']
  assert remap.load(parts.map).method == 'umd'
  words = ['score', '-m', './metric', '-s', 'x', '-t', 'y', '-o', 'out.jsonl']
  assert cli.main(words) == 0, capsys.readouterr().err
  rows = [json.loads(line) for line in open('out.jsonl')]
  for row in rows:
    word = 0.5 * row['wmd'] + 0.4 * row['pseudo'] + 0.1 * row['lm']
    assert row['word'] == pytest.approx(word, abs=1e-5)
    total = 0.6 * word + 0.4 * row['sentence']
    assert row['score'] == pytest.approx(total, abs=1e-5)


@pytest.mark.slow
def test_parallel_text(run, tmp_path):
  code, err = run('--gin_file=recipes/uscore_word.gin', '--parallel', 'p.jsonl')
  assert code == 0, err
  assert 'translator_tuned: 8 sentence pairs' in err
  parts = uscore.load(tmp_path / 'metric')
  assert remap.load(parts.map).method == 'clp'
  np.testing.assert_allclose(
    dataclasses.astuple(parts.weights), (0.5, 0.4, 0.1, 1.0)
  )
  assert not (tmp_path / 'metric.work').exists()


def test_given_models_are_taken_as_they_are(run, models, tmp_path):
  rows = [{'source': s, 'translation': s} for s in SENTENCES]
  (tmp_path / 't.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  code, err = run(
    '--gin_file=recipes/uscore_word.gin',
    '--gin.REMAP=None',
    *('--translations', 't.jsonl', '--language-model', models / 't5'),
  )
  assert code == 0, err
  parts = uscore.load(tmp_path / 'metric')
  assert not parts.map and parts.pseudo_references.endswith('.jsonl')


@pytest.mark.parametrize(
  ('words', 'code', 'named'),
  [
    (('--gin.WEIGHTS="best"',), 2, 'uniform'),
    (('--gin.PARTS=("pseudo",)',), 2, "'wmd'"),
    (('--gin.PARTS=()',), 2, 'no parts'),
    (('--gin.ROUNDZ=2',), 2, 'ROUNDS'),
    (('-o', 'x'), 1, 'x'),
    (('--parallel', 'absent.jsonl'), 1, 'absent.jsonl'),
    (('--language-model', 'absent'), 1, 'absent'),
    (('--translations', 'absent.tsv'), 1, 'absent.tsv'),
  ],
)
def test_wrong_input(run, tmp_path, words, code, named):
  found, err = run(*words)
  assert found == code, err
  assert named in err.splitlines()[-1]
  assert not (tmp_path / 'metric').exists()
  assert not (tmp_path / 'metric.work').exists()


def test_help_needs_no_jax(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jax', None)
  with pytest.raises(SystemExit, match='0'):
    cli.main(['uscore', '--help'])
