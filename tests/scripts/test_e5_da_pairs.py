"""`e5_da_pairs.py`: which pairs there are, and their targets."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest

from t5score_jax.metrics import registry

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def script():
  path = ROOT / 'scripts' / 'reproduce' / 'e5_da_pairs.py'
  spec = importlib.util.spec_from_file_location('e5_da_pairs', path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module  # Its dataclass looks there.
  spec.loader.exec_module(module)
  return module


def _table(path, columns, rows):
  lines = ['\t'.join(map(str, row)) for row in (columns, *rows)]
  path.write_text('\n'.join(lines) + '\n', 'utf-8')


@pytest.fixture
def files(tmp_path):
  sources = [f'Satz Nummer {n}' for n in range(6)]
  _table(
    tmp_path / 'plain.tsv',
    ['src', 'mt', 'lp', 'z'],
    [[s, f'sentence {n}', 'de-en', n / 2] for n, s in enumerate(sources)]
    + [['a secret', 'ein Geheimnis', 'en-de', 1.0]],
  )
  _table(
    tmp_path / 'referenced.tsv',
    ['src', 'mt', 'ref', 'lp', 'z'],
    [
      [s, f'{"the " * n}sentence {n}', f'the sentence {n}', 'de-en', value]
      for n, (s, value) in enumerate(
        zip(sources, (3, 1, 4, 1, 5, 9), strict=True)
      )
    ]
    # Rated twice: taken first, with the mean.
    + [
      [sources[5], 'the the the the the sentence 5', 'the sentence 5']
      + ['de-en', 0]
    ]
    + [['a tree', 'ein Baum', 'ein Baum', 'en-de', value] for value in (2, 4)],
  )
  _table(tmp_path / 'test.tsv', ['source', 'hypothesis'], [['A SECRET', 'x']])
  return tmp_path


def _run(script, files, *more):
  given = []
  for name in ('plain', 'referenced'):
    given += ['--input', f'{files}/{name}.tsv', 'source=src', 'hypothesis=mt']
    given += ['language_pair=lp', 'rating=z']
    given += ['reference=ref'] if name == 'referenced' else []
  given += ['--held-out', f'{files}/test.tsv', '--teacher', 'chrf']
  given += ['-o', f'{files}/out.jsonl', *more]
  assert script.main(given) == 0
  lines = (files / 'out.jsonl').read_text('utf-8').splitlines()
  return [json.loads(line) for line in lines]


def test_pairs(script, files, capsys):
  rows = _run(script, files, '--limit', '4', '--perturbed', '3')
  assert '1 records have a text that is held out' in capsys.readouterr().out
  assert not any('secret' in row['source'] for row in rows)
  plain = [row for row in rows if row['hypothesis'].startswith('sentence')]
  rated = [row for row in rows if row['hypothesis'].startswith('the ')]
  assert len(plain) == 4 and len(rated) >= 4
  assert any(row['hypothesis'].endswith('sentence 5') for row in rated)
  assert sum(row['language_pair'] == 'en-de' for row in rows) == 1
  assert len(rows) <= 4 + 4 + 1 + 3


def test_targets(script, files):
  rows = _run(script, files, '--perturbed', '0')
  values = np.array([row['target'] for row in rows])
  z = np.arange(6) / 2
  np.testing.assert_allclose(np.sort(values[:6]), (z - z.mean()) / z.std())
  found = {row['hypothesis']: row['target'] for row in rows[6:]}
  hypotheses = [f'{"the " * n}sentence {n}' for n in range(6)]
  ratings = np.array([3, 1, 4, 1, 5, 4.5, 3])  # The last one: en-de.
  z = (ratings - ratings.mean()) / ratings.std()
  # Without a reference in English, the rating alone.
  np.testing.assert_allclose(found['ein Baum'], z[-1])
  scores = np.array(
    registry.load_metric('chrf')
    .score(hypotheses, [[f'the sentence {n}'] for n in range(6)])
    .values
  )
  both = (scores - scores.mean()) / scores.std() + z[:6] / 2
  expected = dict(zip(hypotheses, both / both.std(), strict=True))
  for text, value in expected.items():
    np.testing.assert_allclose(found[text], value, err_msg=text)


def test_errors(script, files, capsys):
  given = ['--input', f'{files}/plain.tsv', 'hypothesis=mt', 'rating=z']
  assert script.main([*given, '-o', f'{files}/out.jsonl']) == 1
  assert 'no record with a source' in capsys.readouterr().err
  assert not (files / 'out.jsonl').exists()
