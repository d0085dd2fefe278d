"""`cut_layers.py`: the student of some layers, and its errors."""

import pathlib
import runpy

import jax
import numpy as np
import pytest

from t5score_jax.metrics import frugalscore, registry

_SCRIPT = pathlib.Path(__file__).parents[2] / 'scripts/reproduce/cut_layers.py'
_PAIR = ['a cat sat on the mat'], [['the cat sat on a mat']]


@pytest.fixture(scope='module')
def main():
  return runpy.run_path(str(_SCRIPT))['main']


def test_the_student_has_these_layers_of_the_teacher(main, tmp_path):
  out = tmp_path / 'out'
  assert main(['frugalscore-tiny', '--layers', '2', '-o', str(out)]) == 0
  teacher, student = frugalscore.load('frugalscore-tiny'), frugalscore.load(out)
  assert student.config.num_layers == 1
  expected = dict(teacher.params['encoder'])
  expected['layers_0'] = expected.pop('layers_1')
  expected = {**teacher.params, 'encoder': expected}
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(np.asarray(y), np.asarray(x)),
    expected,
    dict(student.params),
  )
  # An existing folder is not replaced.
  assert main(['frugalscore-tiny', '--layers', '1', '-o', str(out)]) == 1


def test_all_layers_score_as_the_teacher(main, tmp_path):
  out = tmp_path / 'out'
  assert main(['frugalscore-tiny', '--layers', '1,2', '-o', str(out)]) == 0
  expected, found = (
    registry.load(model).score(*_PAIR).values
    for model in ('frugalscore-tiny', str(out))
  )
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('layers', ['0', '1,1', '2,1', '3', '-1'])
def test_other_layers_are_refused(main, tmp_path, capsys, layers):
  out = tmp_path / 'out'
  given = ['frugalscore-tiny', f'--layers={layers}', '-o', str(out)]
  assert main(given) == 1
  assert 'layers' in capsys.readouterr().err
  assert not out.exists()


@pytest.mark.parametrize('layers', ['two', '', '1,', '1.5'])
def test_other_words_are_no_layers(main, tmp_path, capsys, layers):
  with pytest.raises(SystemExit, match='2'):
    main(['frugalscore-tiny', f'--layers={layers}', '-o', str(tmp_path / 'x')])
  assert f'{layers!r}: give numbers' in capsys.readouterr().err
