"""`minilm_da_pairs.py`: which pairs there are, and their targets."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

from t5score_jax.metrics import registry

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def script():
  path = ROOT / 'scripts' / 'reproduce' / 'minilm_da_pairs.py'
  spec = importlib.util.spec_from_file_location('minilm_da_pairs', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def files(tmp_path):
  lines = ['hypothesis\treference\tlanguage_pair\tda_z']
  for lp in ('cs-en', 'de-en'):
    for n in range(6):
      texts = f'good {lp} {n}{" the" * n}\tthe reference of {lp} number {n}'
      lines += [f'{texts}\t{lp}\t{n / 10}'] * (2 if n == 3 else 1)
  lines.append('good\ta secret reference\tcs-en\t0.9')
  lines.append(f'{"long " * 99}\tsecond\tcs-en\t0.9')
  (tmp_path / 'judged.tsv').write_text('\n'.join(lines) + '\n')
  (tmp_path / 'test.tsv').write_text(
    'hypothesis\tsource\nA SECRET reference\tx'
  )
  return tmp_path


def test_pairs(script, files, monkeypatch, capsys):
  monkeypatch.setattr(
    registry, 'load', lambda *_, **__: registry.load_metric('chrf')
  )
  arguments = ['--input', f'{files}/judged.tsv', '--limit', '4']
  arguments += ['--held-out', f'{files}/test.tsv', '--perturbed', '3']
  arguments += ['-o', f'{files}/out.jsonl']
  assert script.main(arguments) == 0
  rows = [json.loads(x) for x in (files / 'out.jsonl').read_text().splitlines()]
  judged = [row for row in rows if row['hypothesis'].startswith('good')]
  assert len(judged) == 8 and len(rows) == 11
  for lp in ('cs-en', 'de-en'):
    assert sum(f'good {lp} ' in row['hypothesis'] for row in judged) == 4
  # Two judgments are taken before one; nothing held out, and nothing long.
  assert any(row['hypothesis'].startswith('good cs-en 3') for row in judged)
  assert not any('secret' in row['reference'] for row in rows)
  assert not any('long' in row['hypothesis'] for row in rows)
  assert '1 records have a text that is held out' in capsys.readouterr().err


def test_targets(script):
  scores = np.array([0.2, 0.4, 0.9, 0.5, 0.1])
  ratings = np.array([-1.0, 0.0, 1.0, 0.2])
  found = script.targets(scores, ratings)
  x = (scores - scores[:4].mean()) / scores[:4].std()
  z = (ratings - ratings.mean()) / ratings.std()
  np.testing.assert_allclose(found[:4], x[:4] + z / 2)
  slope = np.corrcoef(scores[:4], ratings)[0, 1]
  np.testing.assert_allclose(found[4], x[4] * (1 + slope / 2))
