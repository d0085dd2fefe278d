"""Mining and remapping from the command line, with a tiny random encoder."""

import json
import sys

import numpy as np
import pytest
import tiny_encoder

from t5score_jax import cli
from t5score_jax.crosslingual import corpus, remap

# Word pieces of the tiny vocabulary: every sentence has four words or more.
SENTENCES = [
  f'{article} {thing} {verb} {place}'
  for article in ('the', 'a')
  for thing in ('cat', 'dog', 'green bird')
  for verb in ('sat on', 'ran over')
  for place in ('the hill', 'a mat')
]


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('mine') / 'tiny')


@pytest.fixture
def run(encoder, tmp_path, monkeypatch, capsys):
  """Runs a verb on the sentences and the same ones in another order."""
  for module in ('faiss', 'py3langid', 'rapidfuzz'):
    pytest.importorskip(module)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(corpus, 'SHARD', 10)
  order = np.random.default_rng(0).permutation(len(SENTENCES))
  (tmp_path / 'x').write_text('\n'.join([*SENTENCES, 'the cat']) + '\n')
  (tmp_path / 'y').write_text('\n'.join(SENTENCES[n] for n in order) + '\n')

  def run(verb, *words):
    files = ('--sources', 'x', '--targets', 'y', '-m', str(encoder))
    code = cli.main([verb, *files, '--max-overlap', '1', *map(str, words)])
    return code, capsys.readouterr().err

  return run


def _rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize('method', ['margin', 'distance'])
def test_the_same_sentences_are_pairs(run, tmp_path, method):
  code, err = run('mine', '--method', method, '-o', 'out.jsonl')
  assert code == 0, err
  rows = _rows(tmp_path / 'out.jsonl')
  assert len(rows) == len(SENTENCES)
  lines = (tmp_path / 'y').read_text().splitlines()
  for row in rows:
    assert row['source'] == row['target'] == SENTENCES[row['source_line'] - 1]
    assert lines[row['target_line'] - 1] == row['target']
  scores = [row['score'] for row in rows]
  assert scores == sorted(scores, reverse=True)
  if method == 'distance':
    # Vectors are kept in half precision.
    np.testing.assert_allclose(scores, 1, atol=1e-3)
  assert '1 too short' in err and not (tmp_path / 'out.jsonl.work').exists()


@pytest.mark.parametrize(
  'method', ['margin', pytest.param('distance', marks=pytest.mark.slow)]
)
def test_a_run_resumes(run, tmp_path, method):
  words = ('--method', method, '-o', 'out.jsonl', '--work', 'work')
  assert run('mine', *words)[0] == 0
  expected = (tmp_path / 'out.jsonl').read_text()
  work = sorted((tmp_path / 'work').iterdir())
  kept = [path for path in work if not path.name.startswith('target')]
  before = {path: path.stat().st_mtime_ns for path in kept}
  for path in set(work) - set(kept):
    path.unlink()
  assert run('mine', *words)[0] == 0
  assert (tmp_path / 'out.jsonl').read_text() == expected
  assert before == {path: path.stat().st_mtime_ns for path in kept}
  # Other filters are another run.
  code, err = run('mine', *words, '--min-tokens', 5)
  assert code == 1 and 'work' in err and 'tokens' in err


def test_near_copies_are_dropped_and_nothing_is_left(run, tmp_path):
  code, err = run('mine', '-o', 'out.jsonl', '--max-overlap', 0)
  assert code == 0 and 'no pairs' in err
  assert (tmp_path / 'out.jsonl').read_text() == ''


def test_the_best_are_kept(run, tmp_path):
  assert run('mine', '-o', 'out.jsonl', '--best', 3)[0] == 0
  assert len(_rows(tmp_path / 'out.jsonl')) == 3
  assert run('mine', '-o', 'out.jsonl', '--share', 0.25)[0] == 0
  assert len(_rows(tmp_path / 'out.jsonl')) == len(SENTENCES) // 4


@pytest.mark.parametrize(
  'method', ['umd', pytest.param('clp', marks=pytest.mark.slow)]
)
def test_a_map_says_what_it_is_for(run, tmp_path, method, encoder):
  # One language on both sides: every word is its own translation.
  code, err = run(
    *('remap', '--method', method, '--rounds', 2, '--share', 1),
    *('-o', 'a.map', '--threshold', '0.3'),
  )
  assert code == 0, err
  found = remap.load(tmp_path / 'a.map')
  assert (found.method, found.rounds, found.layer) == (method, 2, 3)
  assert (found.encoder, found.source) == (encoder.name, '')
  assert found.pairs > 0 and f'{method}@{found.digest()}' in err
  words = ('--method', 'distance', '--map', 'a.map')
  assert run('mine', *words, '-o', 'out.jsonl')[0] == 0
  assert run('mine', *words, '-o', 'out.jsonl', '--layer', 1)[0] == 1


def test_a_map_from_nothing(run, tmp_path):
  code, err = run('remap', '-o', 'a.map', '--min-tokens', 20)
  assert code == 1 and 'x: no sentence' in err
  assert not list(tmp_path.glob('a.map*'))


@pytest.mark.parametrize(
  ('words', 'named'),
  [
    (('mine', '--map', 'a.map'), '--map'),
    (('mine', '--min-tokens', '9', '--max-tokens', '8'), '--min-tokens'),
    (('mine', '--share', '2'), '--share'),
    (('mine', '--share', '0_5'), '--share'),
    (('mine', '--best', '1', '--share', '1'), '--share'),
    (('remap', '--layer', '1', '--align-layer', '2'), '--align-layer'),
  ],
)
def test_wrong_usage(run, tmp_path, words, named):
  try:
    code, err = run(*words, '-o', 'out')
  except SystemExit as error:
    code, err = error.code, named
  assert code == 2 and named in err
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
  ('module', 'words'),
  [
    ('faiss', ('--backend', 'faiss')),
    ('py3langid', ('--source-language', 'en')),
    ('rapidfuzz', ()),
  ],
)
def test_a_missing_extra_is_named_before_the_work(
  run, tmp_path, monkeypatch, module, words
):
  for name in (module, 'py3langid.langid', 'rapidfuzz.distance'):
    if name.startswith(module):
      monkeypatch.setitem(sys.modules, name, None)
  # It is imported again, and by the package's attribute.
  from t5score_jax.crosslingual import filters

  monkeypatch.delitem(sys.modules, filters.__name__)
  monkeypatch.delattr('t5score_jax.crosslingual.filters')
  code, err = run('mine', '-o', 'out.jsonl', *words)
  assert code == 1
  assert f"needs {module}: pip install 't5score-jax[mining]'" in err
  assert not (tmp_path / 'out.jsonl.work').exists()
