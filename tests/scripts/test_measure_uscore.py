"""`scripts/reproduce/measure_uscore.py` and `benchmarks/crosslingual.py`."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest
import tiny_encoder

ROOT = pathlib.Path(__file__).parents[2]
MEASURE = ROOT / 'scripts' / 'reproduce' / 'measure_uscore.py'
BENCHMARK = ROOT / 'benchmarks' / 'crosslingual.py'

pytestmark = pytest.mark.slow


def _run(*arguments):
  return subprocess.run(
    [sys.executable, *map(str, arguments)],
    capture_output=True,
    text=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  )


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('measure') / 'encoder')


def _sentences(count, form):
  names = 'cat dog bird hill mat'.split()
  verbs = 'sat ran over'.split()
  return [
    form.format(names[n % 5], verbs[n // 5 % 3], names[n // 15 % 5])
    for n in range(count)
  ]


# Of other words, as near copies are no pairs.
FORMS = ('{1} unaffordable green {0}', 'the {0} {1} a {2}')


def _ntrex(folder):
  for language, form in zip(('nep', 'eng-US'), FORMS, strict=True):
    path = folder / f'ntrex.{language}.txt.gz'
    path.write_bytes(gzip.compress('\n'.join(_sentences(1420, form)).encode()))


def test_matching_over_rounds(tmp_path, encoder):
  _ntrex(tmp_path)
  output, plot = tmp_path / 'out.json', tmp_path / 'out.png'
  command = [MEASURE, 'matching', tmp_path, '-m', encoder, '--pairs', 'ne-en']
  command += ['--layers', '2', '--rounds', '2', '-o', output, '--plot', plot]
  done = _run(*command)
  assert done.returncode == 0, done.stderr
  rows = json.loads(output.read_text())['results']
  assert [(row['method'], row['round']) for row in rows] == [
    (None, 0),
    ('umd', 1),
    ('umd', 2),
    ('clp', 1),
    ('clp', 2),
  ]
  assert all(0 <= row['distance'] <= 1 for row in rows)
  assert plot.stat().st_size > 5000
  # Again: nothing is left to do.
  done = _run(*command)
  assert (done.returncode, done.stdout) == (0, '')
  done = _run(*command[:6], 'de-en', '-o', tmp_path / 'other.json')
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1].startswith('error: ')


def test_contrastive_rounds(tmp_path, encoder):
  _ntrex(tmp_path)
  output, plot = tmp_path / 'out.json', tmp_path / 'out.svg'
  command = [MEASURE, 'contrast', tmp_path, '-m', encoder, '--pairs', 'ne-en']
  command += ['--layer', '1', '--rounds', '1', '--best', '8', '--epochs', '1']
  command += ['--batch-size', '4', '--max-length', '16']
  command += ['--work', tmp_path / 'work', '-o', output, '--plot', plot]
  done = _run(*command)
  assert done.returncode == 0, done.stderr
  rows = json.loads(output.read_text())['results']
  assert [(row['method'], row['round'], row['layer']) for row in rows] == [
    ('contrast', 0, 1),
    ('contrast', 1, 1),
  ]
  assert rows[1]['sentence_pairs'] == 8
  assert all(0 <= row['cosine back'] <= 1 for row in rows)
  assert 'contrastive' in plot.read_text()
  # Again: nothing is left to do, and the remapped rows are added to these.
  done = _run(*command)
  assert (done.returncode, done.stdout) == (0, '')


def test_distances_and_mining_are_measured(tmp_path, encoder):
  pytest.importorskip('faiss')
  files = []
  for side, form in zip('xy', FORMS, strict=True):
    files.append(tmp_path / f'{side}.txt')
    files[-1].write_text('\n'.join(_sentences(30, form)) + '\n')
  output = tmp_path / 'out.json'
  common = [*files, '-m', encoder, '--work', tmp_path / 'work', '-o', output]
  common += ['--rounds', '1']
  done = _run(BENCHMARK, 'distances', *common, '--pairs', 20, '--encoded', 3)
  assert done.returncode == 0, done.stderr
  found = json.loads(output.read_text())
  for kind in ('translations', 'random'):
    assert found[kind]['largest difference from POT'] < 1e-6
    assert set(found[kind]['times']) == {'library', 'plain loop', 'entropic'}
  assert found['encoded']['largest difference'] < 1e-5
  done = _run(
    *(BENCHMARK, 'mining', *common),
    *('--sizes', '20,30', '--distance_sizes', '30'),
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(output.read_text())
  assert found['margin'][1]['recall']['jax'] > 0.9
  assert 0 <= found['distance'][0]['pruned'] <= 1
  assert found['calculated'][-1]['size'] == 4_000_000
