"""How `t5score` finds its verbs."""

import os
import subprocess
import sys
import types

import pytest

import t5score_jax
from t5score_jax import cli


def test_help_lists_every_verb(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['--help'])
  assert caught.value.code == 0
  shown = capsys.readouterr().out
  assert {'score', 'demo', 'train', 'correlate'} <= set(cli.verbs())
  for verb in cli.verbs():
    assert f'\n    {verb}' in shown


def test_version(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['--version'])
  assert caught.value.code == 0
  assert capsys.readouterr().out == f't5score {t5score_jax.__version__}\n'


@pytest.mark.parametrize('arguments', [[], ['score', '--no-such-option']])
def test_wrong_usage(arguments, capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(arguments)
  assert caught.value.code == 2
  assert 'usage: t5score' in capsys.readouterr().err


def test_an_unknown_verb(capsys):
  assert cli.main(['scroe', '-t', 'x']) == 2
  err = capsys.readouterr().err
  assert err.startswith("t5score: there is no verb 'scroe'. Did you mean")
  assert "'score'" in err
  assert err.count('\n') == 1


@pytest.mark.parametrize('verb', cli.verbs())
def test_help_of_a_verb(verb, capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main([verb, '--help'])
  assert caught.value.code == 0
  assert f'usage: t5score {verb}' in capsys.readouterr().out


@pytest.mark.parametrize('verb', [None, *cli.verbs()])
def test_help_imports_no_jax_and_no_tensorflow(verb):
  arguments = [verb, '--help'] if verb else ['--help']
  program = (
    'import sys\n'
    'from t5score_jax import cli\n'
    'try:\n'
    f'  cli.main({arguments!r})\n'
    'except SystemExit:\n'
    "  print(*({'jax', 'tensorflow', 'seqio'} & set(sys.modules)),"
    ' file=sys.stderr)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.stderr.strip() == ''


def test_python_m():
  done = subprocess.run(
    [sys.executable, '-m', 't5score_jax', '--version'],
    capture_output=True,
    text=True,
  )
  assert done.stdout.startswith('t5score ')
  assert done.returncode == 0


def _fake_verb(monkeypatch, run):
  module = types.ModuleType('t5score_jax.commands.fake')
  module.SUMMARY = 'a test'
  module.add_arguments = lambda parser: None
  module.run = run
  monkeypatch.setitem(sys.modules, module.__name__, module)
  monkeypatch.setattr(cli, 'verbs', lambda: ['fake'])


def test_the_exit_code_is_that_of_the_verb(monkeypatch):
  _fake_verb(monkeypatch, lambda args: 7)
  assert cli.main(['fake']) == 7


def test_interruption(monkeypatch, capsys):
  def run(args):
    raise KeyboardInterrupt

  _fake_verb(monkeypatch, run)
  assert cli.main(['fake']) == 130
  assert capsys.readouterr().err == 't5score fake: interrupted\n'


def test_a_reader_that_goes_away(tmp_path):
  """Much more than a pipe holds, and a reader that takes one line."""
  texts = tmp_path / 'texts'
  texts.write_text('a b c\n' * 20_000)
  read, write = os.pipe()
  process = subprocess.Popen(
    [sys.executable, '-m', 't5score_jax', 'score', '-m', 'chrf']
    + ['-t', str(texts), '-r', str(texts)],
    stdout=write,
    stderr=subprocess.PIPE,
    text=True,
  )
  os.close(write)
  with os.fdopen(read) as reader:
    assert reader.readline().startswith('{')
  assert process.communicate()[1] == ''
  assert process.returncode == 141
