"""scripts/prepare/train_vocabulary.py: vocabularies, the same every time."""

import gzip
import importlib.util
import io
import pathlib
import sys

import pytest

from t5score_jax.data import vocab
from tests.conftest import made_up_text

_PATH = (
  pathlib.Path(__file__).parents[2] / 'scripts/prepare/train_vocabulary.py'
)


@pytest.fixture(scope='module')
def script():
  spec = importlib.util.spec_from_file_location('train_vocabulary', _PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  """A compressed file of plain sentences."""
  path = tmp_path_factory.mktemp('texts') / 'texts.txt.gz'
  path.write_bytes(gzip.compress('\n'.join(made_up_text()).encode()))
  return str(path)


def test_ids_are_those_of_t5_and_the_file_is_the_same_again(
  script, texts, tmp_path, capsys
):
  paths = [tmp_path / name for name in ('one.model', 'two.model')]
  for path in paths:
    assert script.main([texts, '-o', str(path), '--size', '48']) == 0
  assert paths[0].read_bytes() == paths[1].read_bytes()
  made = vocab.load_vocabulary(paths[0])
  assert (made.pad_id, made.eos_id, made.unk_id) == (0, 1, 2)
  assert made.vocab_size == 48
  text = 'the old ship follows the moon.'
  assert made.decode(made.encode(text)) == text
  out = capsys.readouterr().out
  assert '48 ids from 216 texts' in out
  assert made.fingerprint()[:12] in out


def test_options(script, texts, tmp_path, capsys):
  path = tmp_path / 'made.model'
  command = [texts, '-o', str(path), '--size', '320', '--model-type', 'bpe']
  command += ['--lowercase', '--byte-fallback', '--extra-ids', '10']
  assert script.main([*command, '--quiet']) == 0
  assert capsys.readouterr().out == ''
  made = vocab.load_vocabulary(path)
  assert (made.vocab_size, made.extra_ids) == (330, 10)
  assert made.encode('THE Moon') == made.encode('the moon')
  # Bytes stand for what has no piece: nothing is unknown.
  assert made.unk_id not in made.encode('日本')
  assert made.decode(made.encode('日本')) == '日本'


def test_standard_input(script, tmp_path, monkeypatch):
  content = '\n'.join(made_up_text()).encode()
  stream = io.TextIOWrapper(io.BytesIO(content), encoding='utf-8')
  monkeypatch.setattr(sys, 'stdin', stream)
  path = tmp_path / 'made.model'
  assert script.main(['-', '-o', str(path), '--size', '48', '--quiet']) == 0
  assert vocab.load_vocabulary(path).vocab_size == 48


def test_a_sample_is_uniform_seeded_and_in_order(script):
  texts = [str(i) for i in range(100)]
  made = script.sample(texts, 10, seed=1)
  assert made == script.sample(texts, 10, seed=1)
  assert made != script.sample(texts, 10, seed=2)
  assert [int(x) for x in made] == sorted(int(x) for x in made)
  assert len(set(made)) == 10
  assert script.sample(texts, 200, seed=0) == texts
  drawn = [
    int(x) for seed in range(200) for x in script.sample(texts, 10, seed)
  ]
  assert abs(sum(drawn) / len(drawn) - 49.5) < 3


def test_long_texts_are_cut_at_spaces_and_blank_ones_left_out(script, tmp_path):
  path = tmp_path / 'long.txt'
  words = ' '.join(['word'] * 5000)
  path.write_text(f'short\n \n{words}\n{"x" * 9000}\n', encoding='utf-8')
  made = list(script.read_texts([str(path)]))
  assert made[0] == 'short'
  assert ''.join(made[1:]) == words + 'x' * 9000
  assert max(len(x.encode()) for x in made) <= 16_000
  assert all(x.endswith(' ') for x in made[1:6])


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--size', '3'], '--size must be at least 8'),
    (['--coverage', '0'], '--coverage'),
    (['--max-texts', '0'], '--max-texts must be at least 1'),
  ],
)
def test_usage(script, texts, tmp_path, capsys, arguments, message):
  with pytest.raises(SystemExit) as caught:
    script.main([texts, '-o', str(tmp_path / 'x.model'), *arguments])
  assert caught.value.code == 2
  assert message in capsys.readouterr().err


def test_failures_leave_nothing(script, texts, tmp_path, capsys):
  out = tmp_path / 'x.model'
  empty = tmp_path / 'empty.txt'
  empty.touch()
  for path, size, message in (
    (texts, '100000', 'SentencePiece could not train'),
    (str(empty), '48', 'no text in there'),
    (str(tmp_path / 'none.txt'), '48', 'none.txt'),
  ):
    assert script.main([path, '-o', str(out), '--size', size]) == 1
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert message in error
    assert not out.exists()
