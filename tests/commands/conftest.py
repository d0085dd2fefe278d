"""`t5score score` on parallel files, for the tests of its parts."""

import json

import pytest

import t5score_jax
from t5score_jax import cli

REFERENCES = ['the cat sees the moon.', 'a dog follows music.', 'this town']
SECOND = ['her bicycle', 'a dog', 'this town repairs music.']
SOURCES = ['die Katze', 'ein Hund', 'diese Stadt']
A = ['a cat sees music.', '', 'this town']
B = ['the moon', 'a dog follows the old ship.', 'some bread']


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Parallel files; the test runs in their folder."""
  for name, texts in {
    'ref.txt': REFERENCES,
    'ref2.txt': SECOND,
    'src.txt': SOURCES,
    'A.txt': A,
    'B.txt': B,
  }.items():
    (tmp_path / name).write_text(''.join(f'{text}\n' for text in texts))
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def run(folder, random_bundle, capsys):
  """Runs the verb with the random model, unless -m is given."""

  def call(*arguments, code=0):
    arguments = [str(a) for a in arguments]
    if '-m' not in arguments:
      arguments = ['-m', str(random_bundle), *arguments]
    assert cli.main(['score', *arguments]) == code
    return capsys.readouterr()

  return call


@pytest.fixture
def fails(run):
  """Runs the verb; returns the one line that it says, and no output."""

  def call(*arguments, code=1):
    shown = run(*arguments, code=code)
    assert shown.out == ''
    assert shown.err.count('\n') == 1
    assert shown.err.startswith('t5score score: ')
    return shown.err

  return call


@pytest.fixture(scope='module')
def metric(random_bundle):
  return t5score_jax.load(str(random_bundle))


def lines_of(text):
  """The objects of JSONL."""
  return [json.loads(line) for line in text.splitlines()]
