"""How `t5score` finds its verbs."""

import argparse
import os
import subprocess
import sys
import types

import gin
import pytest

import t5score_jax
from t5score_jax import __main__, cli, errors


def test_help_lists_every_verb(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['--help'])
  assert caught.value.code == 0
  shown = capsys.readouterr().out
  assert {'score', 'demo', 'train', 'correlate'} <= set(cli.verbs())
  for verb in cli.verbs():
    assert f'\n    {verb}' in shown


def test_every_argument_and_exit_code_is_explained():
  def parsers(parser, path):
    yield path, parser
    for action in parser._actions:
      if isinstance(action, argparse._SubParsersAction):
        for name, below in action.choices.items():
          yield from parsers(below, f'{path} {name}')

  for path, parser in parsers(cli.make_parser(), 't5score'):
    for action in parser._actions:
      assert action.help or action.dest in ('verb', 'subcommand'), (
        path,
        action.dest,
      )
    if path != 't5score':
      assert 'example' in parser.epilog and 'exit code' in parser.epilog, path


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
      'f: there is no such file or folder',
    ),
    (OSError(28, 'No space left on device', 'f'), 1, 'f: No space left on'),
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


def test_a_misspelt_flag_is_not_called_missing(capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(['calibrate', '--input', 'f', '--humna', 'z'])
  assert caught.value.code == 2
  err = capsys.readouterr().err
  assert err.startswith('usage: t5score calibrate ')
  assert '--human?' in err.splitlines()[-1]


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


def test_warnings_are_one_line_without_a_place(monkeypatch, capsys):
  code = (
    'import sys, warnings; from t5score_jax import cli\n'
    "cli._run = lambda *a: warnings.warn('two\\nlines') or 0\n"
    "sys.exit(cli.main(['score']))"
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True
  )
  assert done.stderr == 't5score score: warning: two lines\n'


@pytest.mark.parametrize(
  ('redirected', 'code', 'message'),
  [
    ('score -m chrf --input - <&-', 1, 'standard input: is closed'),
    ('correlate - --human a <&-', 1, 'standard input: is closed'),
    ('correlate scores.tsv --human h --metrics m >&-', 1, 'output is closed'),
    ('correlate scores.tsv --human h --metrics m >/dev/full', 1, 'output'),
    ('correlate scores.tsv --human h --metrics m -o /dev/full', 1, '/dev/full'),
    pytest.param(
      'demo | true; exit ${PIPESTATUS[0]}', 141, '', marks=pytest.mark.slow
    ),
    pytest.param(
      'demo >/dev/full', 1, 'standard output', marks=pytest.mark.slow
    ),
    ('scor 2>&-', 2, ''),
    ('score -m chrf -r a -t a -o b >/dev/full', 1, 'standard output'),
    ('score -m chrf -r a -t a -o b >&-', 0, ''),
  ],
)
def test_streams_that_are_closed(tmp_path, redirected, code, message):
  rows = ['system\tsegment\th\tm', 'A\t1\t1\t1', 'A\t2\t2\t2']
  (tmp_path / 'scores.tsv').write_text('\n'.join(rows) + '\n')
  (tmp_path / 'a').write_text('a cat\n')
  # What is in a buffer fails to be written again as the process exits.
  buffered = {n: v for n, v in os.environ.items() if n != 'PYTHONUNBUFFERED'}
  done = subprocess.run(
    ['bash', '-c', f'"$0" -m t5score_jax {redirected}', sys.executable],
    cwd=tmp_path,
    env=buffered,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert done.returncode == code, done.stderr
  assert message in done.stderr
  assert done.stderr.count('\n') == (1 if message else 0), done.stderr


def test_ctrl_c_while_the_program_is_imported(monkeypatch, capsys):
  def interrupt(*arguments):
    raise KeyboardInterrupt

  monkeypatch.setattr('builtins.__import__', interrupt)
  code = __main__.main()
  monkeypatch.undo()
  assert code == 130
  assert capsys.readouterr().err == 't5score: interrupted\n'


@pytest.mark.parametrize(
  'verb', [['serve', '-m', 'chrf'], ['board', 'serve', 'b']]
)
def test_ports_that_do_not_exist(verb, capsys):
  with pytest.raises(SystemExit) as end:
    cli.main([*verb, '--port', '99999'])
  assert end.value.code == 2
  assert '0 to 65535' in capsys.readouterr().err
