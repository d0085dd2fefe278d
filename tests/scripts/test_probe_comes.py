"""`probe_comes.py`: its numbers by linear algebra, its errors."""

import json
import pathlib
import runpy

import numpy as np
import pytest
import scipy.stats

from t5score_jax.data import instances, records
from t5score_jax.data.records import Segment

_SCRIPT = (
  pathlib.Path(__file__).parents[2] / 'scripts' / 'reproduce' / 'probe_comes.py'
)
_RATINGS = ('coh', 'flu')


@pytest.fixture(scope='module')
def main():
  return runpy.run_path(str(_SCRIPT))['main']


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """Records with two people and references, and vectors of two layers."""
  folder = tmp_path_factory.mktemp('probe')
  rng = np.random.default_rng(0)
  segments = [
    Segment(
      f'h {d} {s}', f's {d}', (f'r {d}', f'q {d}'), s, f'{d}',
      ratings={name: float(rng.integers(1, 6)) for name in _RATINGS},
    )
    for d in range(6) for s in 'ABCD' for _ in range(2)
  ]  # fmt: skip
  records.write_records(folder / 'rated.jsonl', segments)
  texts = instances.Texts()
  instances.build(instances.averaged(segments), _RATINGS, texts)
  (folder / 'texts').mkdir()
  vectors = rng.normal(size=(len(texts), 2, 5)).astype(np.float32)
  np.save(folder / 'texts' / 'vectors.npy', vectors)
  about = {'texts': texts.digest(), 'layers': [0, 3]}
  (folder / 'texts' / 'info.json').write_text(json.dumps(about))
  return folder, list(texts), vectors, instances.averaged(segments)


def _by_hand(texts, vectors, judged, strength, part='validation'):
  """Ridge by the normal equations, as the docstring says it."""
  v = {t: x.astype(float) for t, x in zip(texts, vectors, strict=True)}
  rows = []
  for one in judged:
    h, s = v[one.hypothesis], v[one.source]
    r = [v[t] for t in one.references]
    product = np.mean([h * x for x in r], axis=0)
    gap = np.mean([abs(h - x) for x in r], axis=0)
    rows.append(np.concatenate([h, h * s, abs(h - s), product, gap]))
  x = np.array(rows)
  y = np.array([[one.ratings[name] for name in _RATINGS] for one in judged])
  documents = np.array([one.document for one in judged])
  predicted, pearson = np.zeros_like(y), []
  for fold in instances.folds(documents.tolist(), 3):
    train = np.isin(documents, fold.train)
    held = np.isin(documents, getattr(fold, part))
    mean, deviation = x[train].mean(0), x[train].std(0)
    a, b = (x[train] - mean) / deviation, (x[held] - mean) / deviation
    centre = y[train].mean(0)
    w = np.linalg.solve(
      a.T @ a + strength * np.eye(a.shape[1]), a.T @ (y[train] - centre)
    )
    predicted[held] = b @ w + centre
    for n in range(2):
      pearson.append(np.corrcoef(predicted[held][:, n], y[held][:, n])[0, 1])
  systems = np.array([one.system for one in judged])
  tau = [
    scipy.stats.kendalltau(
      *([z[systems == s, n].mean() for s in 'ABCD'] for z in (predicted, y))
    )[0]
    for n in range(2)
  ]
  return [np.mean(pearson), *tau, np.mean(tau)]


def _run(main, folder, *more):
  return main(
    [
      str(folder / 'texts'),
      str(folder / 'rated.jsonl'),
      '--ratings=coh,flu',
      '--folds=3',
      '--strengths=0.5,50',
      '--table=json',
      *more,
    ]
  )


def test_numbers_by_linear_algebra(main, made, capsys):
  folder, texts, vectors, judged = made
  assert _run(main, folder) == 0
  rows = json.loads(capsys.readouterr().out)['results']
  assert [row['metric'] for row in rows] == [
    f'layer {layer}, strength {strength}'
    for layer in (0, 3)
    for strength in (0.5, 50)
  ]
  for n, row in enumerate(rows):
    expected = _by_hand(texts, vectors[:, n // 2], judged, (0.5, 50)[n % 2])
    found = [row[k] for k in ('pearson', *_RATINGS, 'mean tau')]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_test_part_by_linear_algebra(main, made, capsys):
  folder, texts, vectors, judged = made
  assert _run(main, folder, '--part=test') == 0
  row = json.loads(capsys.readouterr().out)['results'][0]
  expected = _by_hand(texts, vectors[:, 0], judged, 0.5, 'test')
  found = [row[k] for k in ('pearson', *_RATINGS, 'mean tau')]
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_texts_of_other_records_are_refused(main, made, capsys):
  folder, *_ = made
  assert _run(main, folder, '--no-reference') == 1
  assert 'texts of other records' in capsys.readouterr().err
  assert _run(main, folder, '--ratings=coh,nothing') == 1
  assert 'nothing' in capsys.readouterr().err
