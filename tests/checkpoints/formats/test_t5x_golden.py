"""T5X's own checkpoints score as T5X scored them, read directly and converted.

The checkpoints and scores are what upstream wrote (see the README beside them).
"""

import json
import pathlib
import tarfile

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.data.vocab import ByteVocabulary

_FOLDER = pathlib.Path(__file__).resolve().parents[4] / 'shared/data/t5x_golden'
pytestmark = pytest.mark.skipif(
  not _FOLDER.is_dir(), reason=f'{_FOLDER} is not there'
)


@pytest.fixture(scope='module', params=['legacy', 'orbax_8_devices'])
def golden(request, tmp_path_factory):
  """A checkpoint's folder and what T5X wrote of it."""
  folder = tmp_path_factory.mktemp(request.param)
  with tarfile.open(
    _FOLDER / f'{request.param}_checkpoint_20.tar.gz'
  ) as packed:
    packed.extractall(folder, filter='data')
  text = (_FOLDER / f'{request.param}_scores.jsonl').read_text('utf-8')
  return folder / 'checkpoint_20', [json.loads(x) for x in text.splitlines()]


def _score(model, lines, folder):
  """Scores through the command, as a user would."""
  rows = [
    {
      'system': 'x',
      'segment': str(number),
      'reference': line['inputs']['inputs_pretokenized'],
      'hypothesis': line['inputs']['targets_pretokenized'],
    }
    for number, line in enumerate(lines)
  ]
  path = folder / 'rows.jsonl'
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n', 'utf-8')
  arguments = [
    'score',
    '-m',
    model,
    '--input',
    path,
    '-o',
    folder / 'out.jsonl',
  ]
  arguments += ['--direction', 'precision', '--quiet']
  assert cli.main(list(map(str, arguments))) == 0
  made = (folder / 'out.jsonl').read_text('utf-8').splitlines()
  return np.array([json.loads(line)['score'] for line in made])


def _expected(lines):
  """T5X writes sums over tokens, `</s>` among them."""
  counts = [
    len(ByteVocabulary().encode(line['inputs']['targets_pretokenized'])) + 1
    for line in lines
  ]
  return np.array([line['score'] for line in lines]) / counts


def test_scores_equal_those_of_t5x(golden, tmp_path):
  checkpoint, lines = golden
  np.testing.assert_allclose(
    _score(checkpoint, lines, tmp_path), _expected(lines), rtol=0, atol=1e-4
  )


@pytest.mark.parametrize(
  'arguments',
  [pytest.param(['bundle'], marks=pytest.mark.slow), ['orbax', '--scan']],
)
def test_converted_checkpoints_score_the_same(golden, tmp_path, arguments):
  checkpoint, lines = golden
  command = ['convert', '--quiet', checkpoint, tmp_path / 'out', '--to']
  assert cli.main(list(map(str, command + arguments))) == 0
  np.testing.assert_allclose(
    _score(tmp_path / 'out', lines, tmp_path),
    _expected(lines),
    rtol=0,
    atol=1e-4,
  )
