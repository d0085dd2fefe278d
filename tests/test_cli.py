"""How `t5score` finds its verbs."""

import os
import subprocess
import sys
import types

import gin
import pytest

import t5score_jax
from t5score_jax import cli, errors


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
  assert err.startswith("t5score: unknown verb 'scroe'; did you mean score?")
  assert err.count('\n') == 1


@pytest.mark.parametrize('verb', cli.verbs())
def test_help_of_a_verb(verb, capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main([verb, '--help'])
  assert caught.value.code == 0
  assert f'usage: t5score {verb}' in capsys.readouterr().out


def test_help_imports_no_jax_and_no_tensorflow():
  program = (
    'import contextlib, sys\n'
    'from t5score_jax import cli\n'
    'for verb in cli.verbs() + [None]:\n'
    '  with contextlib.suppress(SystemExit):\n'
    "    cli.main([verb, '--help'] if verb else ['--help'])\n"
    "  heavy = {'jax', 'tensorflow', 'seqio'} & set(sys.modules)\n"
    '  assert not heavy, (verb, heavy)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize(
  'error, code, line',
  [
    (errors.T5ScoreError('a\n  b'), 1, 'a b'),
    (errors.UsageError('flag'), 2, 'flag'),
    (errors.ConfigurationError('X has no value'), 2, 'X has no value'),
    (
      FileNotFoundError(2, 'No such file', 'f'),
      1,
      "[Errno 2] No such file: 'f'",
    ),
    (RuntimeError('RESOURCE_EXHAUSTED: 8 GiB'), 1, 'out of memory'),
    (ModuleNotFoundError('no', name='uvicorn.main'), 1, 't5score-jax[server]'),
    (KeyboardInterrupt(), 130, 'interrupted'),
  ],
)
def test_an_error_is_one_line(error, code, line, monkeypatch, capsys):
  def run(args):
    raise error

  _fake_verb(monkeypatch, run)
  assert cli.main(['fake']) == code
  err = capsys.readouterr().err
  assert err.startswith('t5score fake: ') and line in err
  assert err.count('\n') == 1 and err.endswith('\n')


@pytest.mark.parametrize(
  'error', [AssertionError('x'), ModuleNotFoundError('x', name='x')]
)
def test_a_fault_of_the_library_is_a_traceback(error, monkeypatch):
  def run(args):
    raise error

  _fake_verb(monkeypatch, run)
  with pytest.raises(type(error)):
    cli.main(['fake'])


def test_an_error_through_gin_keeps_its_code(monkeypatch, capsys):
  @gin.configurable(module='test_cli')
  def refusing():
    raise errors.UsageError('no')

  _fake_verb(monkeypatch, lambda args: refusing())
  assert cli.main(['fake']) == 2
  assert capsys.readouterr().err == 't5score fake: no\n'


def test_an_unknown_flag_names_the_nearest(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['score', '--direcion', 'f'])
  assert caught.value.code == 2
  err = capsys.readouterr().err
  assert err.startswith('usage: t5score score ')
  assert err.splitlines()[-1] == (
    't5score score: unknown flag --direcion; did you mean --direction?'
  )


def test_an_unknown_flag_of_a_subcommand(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['board', 'rank', 'x.db', '--fromat', 'json'])
  assert caught.value.code == 2
  err = capsys.readouterr().err
  assert err.startswith('usage: t5score board rank ')
  assert '--format?' in err.splitlines()[-1]


def test_interruption_while_a_verb_is_imported(monkeypatch, capsys):
  def interrupt(name):
    raise KeyboardInterrupt

  monkeypatch.setattr(cli.importlib, 'import_module', interrupt)
  assert cli.main(['score']) == 130
  assert capsys.readouterr().err == 't5score score: interrupted\n'


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
