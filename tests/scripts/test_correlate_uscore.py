"""The correlations of UScore's parts: readers, weights, and the heat map."""

import gzip

import numpy as np
import pytest

from scripts.reproduce import correlate_uscore
from t5score_jax.checkpoints import uscore


@pytest.fixture
def columns():
  values = np.random.default_rng(0).normal(size=(4, 30))
  return dict(zip(('wmd', 'pseudo', 'lm', 'sentence'), values, strict=True))


def test_the_heat_map_has_every_mixture(columns, tmp_path):
  ratings = columns['wmd'] + columns['lm']
  found = correlate_uscore.heat_map(columns, ratings)
  assert found.shape == (11, 11)
  # As many cells as there are shares of three parts in tenths.
  assert np.isfinite(found).sum() == 66
  mixed = 0.5 * columns['wmd'] + 0.2 * columns['pseudo'] + 0.3 * columns['lm']
  assert found[3, 2] == pytest.approx(np.corrcoef(mixed, ratings)[0, 1])
  assert found[5, 0] == pytest.approx(1.0)
  correlate_uscore.draw(found, 'ne-en', str(tmp_path / 'map.png'))
  assert (tmp_path / 'map.png').stat().st_size > 1000


def test_weights_are_those_of_the_equations(columns):
  word, whole = correlate_uscore.combined(columns, uscore.WEIGHTS['plus'])
  expected = (
    0.45 * columns['wmd'] + 0.45 * columns['pseudo'] + 0.1 * columns['lm']
  )
  np.testing.assert_allclose(word, expected)
  np.testing.assert_allclose(whole, (expected + columns['sentence']) / 2)


def test_files_of_ratings(tmp_path):
  path = tmp_path / 'mlqe.tsv.gz'
  head = 'split\tlp\tsrc\tmt\tz_mean\n'
  rows = ['test20\tne-en\t"a\tb\t0.5', 'train\tne-en\tc\td\t1']
  path.write_bytes(gzip.compress((head + '\n'.join(rows) + '\n').encode()))
  segments, ratings = correlate_uscore.read_mlqe(str(path), 'ne-en', 'test20')
  assert [(s.source, s.hypothesis) for s in segments] == [('"a', 'b')]
  assert ratings.tolist() == [0.5]
  head = 'year\tlp\tsrc\tref\thyp\tda_z\n'
  path.write_bytes(
    gzip.compress((head + '2017\tde-en\ta\tb\tc\t-1\n').encode())
  )
  segments, ratings = correlate_uscore.read_wmt(str(path), 'de-en', '2017')
  assert segments[0].references == ('b',) and ratings.tolist() == [-1]


def test_mixtures_are_those_of_the_parts_that_are_there(columns):
  assert len(correlate_uscore.mixtures(columns)) == 9
  del columns['lm'], columns['pseudo']
  [(name, values)] = correlate_uscore.mixtures(columns).items()
  assert name == 'wmd, sentence'
  np.testing.assert_allclose(
    values, 0.6 * columns['wmd'] + 0.4 * columns['sentence']
  )


def test_the_mixture_is_compared_with_each_column(columns):
  ratings = columns['wmd'] + 0.1 * columns['lm']
  columns['wmd, sentence'] = columns['wmd']
  found = correlate_uscore.compare(columns, ratings)
  assert found.keys() == {'wmd', 'pseudo', 'lm', 'sentence'}
  expected = (
    np.corrcoef(columns['wmd'], ratings)[0, 1]
    - np.corrcoef(columns['pseudo'], ratings)[0, 1]
  )
  assert found['pseudo']['difference'] == pytest.approx(expected, abs=1e-4)
  assert found['pseudo']['p'] < 0.05 and found['wmd']['p'] == 1.0
