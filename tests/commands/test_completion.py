"""`t5score completion`: the script completes in a real shell."""

import shutil
import subprocess

import pytest

from t5score_jax import cli

pytest.importorskip('shtab', reason='needs the extra `completion`')

# What a shell does at TAB: calls the function that the script registered.
_TRY = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMPREPLY=()
$(complete -p t5score | sed 's/.* -F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope='module')
def script(tmp_path_factory):
  """The scripts of both shells, as files by shell."""
  folder = tmp_path_factory.mktemp('completion')
  paths = {}
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    for shell in ('bash', 'zsh'):
      with open(shell, 'w') as out:
        patch.setattr('sys.stdout', out)
        assert cli.main(['completion', shell]) == 0
      paths[shell] = folder / shell
  return paths


@pytest.fixture
def complete(script, tmp_path):
  """The completions of the last word of a command line, in bash."""
  (tmp_path / 'hypotheses.txt').touch()

  def call(*words):
    done = subprocess.run(
      ['bash', '-c', _TRY, 'try', script['bash'], 't5score', *words],
      cwd=tmp_path,
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())

  return call


def test_verbs_flags_choices_names_and_files(complete):
  assert complete('sco') == {'score'}
  assert complete('board', 'ra') == {'rank'}
  assert '--baseline' in complete('compare', '--bas')
  assert complete('score', '--format', '') == {'jsonl', 'tsv', 'text'}
  assert 't5score-tiny' in complete('score', '-m', 't5')
  assert 'hypotheses.txt' in complete('score', '-m', 'hyp')
  assert complete('score', '--metric', 'chr') == {'chrf'}
  assert complete('score', '-t', 'hyp') == {'hypotheses.txt'}
  assert complete('train', '--gin_file', 'recipes/uscore_w') == {
    'recipes/uscore_word.gin'
  }


def test_every_verb_is_in_both_scripts(script):
  for path in script.values():
    text = path.read_text()
    assert all(verb in text for verb in cli.verbs())
    assert '--remove-chinese-spaces' in text


@pytest.mark.parametrize('shell', ['bash', 'zsh'])
def test_the_shell_reads_it(script, shell):
  if not shutil.which(shell):
    pytest.skip(f'needs {shell}')
  done = subprocess.run([shell, '-n', script[shell]], capture_output=True)
  assert (done.returncode, done.stderr) == (0, b'')
