"""The documents say what is true: their commands run, their names exist.

Every fenced block of commands or Python in README.md and docs/ follows a
comment that says whether it is run here (`<!-- runs -->`, or `<!-- runs with
MODULE, ... -->` where these are installed), or why it isn't (`<!-- does not run
here: ... -->`).
"""

import contextlib
import functools
import importlib.util
import io
import pathlib
import re
from collections.abc import Iterator

import pytest
import shell

import t5score_jax
from t5score_jax import cli

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDES = (
  'README.md',
  *sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / 'docs').rglob('*.md')
  ),
)
DOCUMENTS = (*GUIDES, 'CONTRIBUTING.md', 'CHANGELOG.md')
# [comment] ```language, the block, ```
_FENCE = re.compile(
  r'(?:<!-- (?P<comment>[^>]*?) -->\n)?'
  r'^```(?P<language>\w*)\n(?P<text>.*?)^```$',
  re.MULTILINE | re.DOTALL,
)


def _read(name: str) -> str:
  return (ROOT / name).read_text(encoding='utf-8')


def _blocks(document: str) -> Iterator[tuple[str, str, str]]:
  """Yields (language, comment, text) of the fenced blocks."""
  for found in _FENCE.finditer(document):
    yield found['language'], found['comment'] or '', found['text']


def _runs(comment: str) -> bool:
  """Whether a block is to be run, and what it needs is installed."""
  if needed := re.fullmatch(r'runs with ([\w, ]+)', comment):
    modules = needed[1].split(', ')
    return all(importlib.util.find_spec(name) for name in modules)
  return comment == 'runs'


def _verbs() -> list[str]:
  folder = ROOT / 't5score_jax' / 'commands'
  return sorted(
    path.stem for path in folder.glob('*.py') if path.stem[0] != '_'
  )


@functools.cache
def _help(verb: str) -> str:
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
    cli.main([verb, '--help'])
  return printed.getvalue()


def _commands(text: str) -> Iterator[str]:
  """The command lines of a block, continued lines joined."""
  for line in text.replace('\\\n', ' ').splitlines():
    line = line.strip()
    if line and not line.startswith('#'):
      yield line


def test_fence_reader_reads_comments():
  document = 'a\n<!-- runs -->\n```bash\nls\n```\n```python\nx\n```\n'
  assert list(_blocks(document)) == [
    ('bash', 'runs', 'ls\n'),
    ('python', '', 'x\n'),
  ]


def test_readme_begins_with_the_two_commands():
  first = next(_commands(next(_blocks(_read('README.md')))[2]))
  assert first.startswith('make demo')
  assert _read('README.md').index('make test') < 400


@pytest.mark.parametrize('name', GUIDES)
def test_every_block_is_classified(name):
  for language, comment, text in _blocks(_read(name)):
    if language in ('bash', 'python'):
      assert re.match(r'runs( with [\w, ]+)?$|does not run here: ', comment), (
        f'no comment before the block that begins {text[:60]!r}'
      )
    else:
      assert language in ('text', 'tsv', 'json'), text[:60]


# These train, or score with several networks, and compile for a minute or two.
_SLOW = tuple(
  f'docs/{name}.md'
  for name in ('comes', 'encoders', 'own_data', 'metricx', 'uscore')
)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else [])
    for name in GUIDES
  ],
)
def test_blocks_run(name, tmp_path, tmp_path_factory, monkeypatch):
  """Runs a guide's blocks in order, in one folder, as a reader would."""
  ran = 0
  commands = tmp_path_factory.mktemp('bin')
  monkeypatch.chdir(tmp_path)
  for language, comment, text in _blocks(_read(name)):
    if not _runs(comment):
      continue
    if language == 'bash':
      done = shell.run(text, tmp_path, commands)
      assert done.returncode == 0, f'{text}\n{done.stdout}'
    else:
      exec(text, {'__name__': '__main__'})
    ran += 1
  assert ran >= 3 or name != 'README.md'


@pytest.mark.parametrize('verb', _verbs())
def test_verb_is_documented(verb):
  assert f't5score {verb}`' in _read('docs/index.md')
  assert f't5score {verb}' in _help(verb)


def test_every_page_is_in_the_site():
  navigation = _read('mkdocs.yml').split('\nnav:\n')[1]
  folder = ROOT / 'docs'
  pages = {
    path.relative_to(folder).as_posix()
    for kind in ('md', 'ipynb')
    for path in folder.rglob(f'*.{kind}')
  }
  named = re.findall(r': (\S+\.(?:md|ipynb))$', navigation, re.MULTILINE)
  assert set(named) == pages


def test_options_exist():
  """Options of `t5score VERB` commands, those that aren't run included."""
  seen = 0
  blocks = [block for name in GUIDES for block in _blocks(_read(name))]
  for language, _, text in blocks:
    if language != 'bash':
      continue
    for line in _commands(text):
      for verb, rest in re.findall(r'\bt5score (\w+)([^|;&]*)', line):
        assert verb in _verbs(), line
        for option in re.findall(r'(?<!\S)(--?[a-zA-Z][\w-]*)', rest):
          if option == '--gin':
            option = '--gin.NAME'
          assert re.search(
            rf'(?<![\w-]){re.escape(option)}(?![\w-])', _help(verb)
          ), f'{line}: {option}'
          seen += 1
  assert seen >= 5


@pytest.mark.parametrize('name', DOCUMENTS)
def test_make_targets_exist(name):
  makefile = _read('Makefile')
  for target in re.findall(r'\bmake ([a-z][a-z-]*)\b', _read(name)):
    if target in ('that', 'the', 'a', 'it'):
      continue
    assert re.search(rf'^{target}:', makefile, re.MULTILINE), target


@pytest.mark.parametrize('name', DOCUMENTS)
def test_paths_exist(name):
  """Names in backticks that look like this repository's files are there."""
  folders = [
    ROOT,
    ROOT / 't5score_jax',
    ROOT / 'gin_configs',
    ROOT / 'tests',
  ]
  for path in re.findall(r'`([\w./-]+/[\w./-]*)`', _read(name)):
    if re.search(r'[A-Z]{4}', path) or path.startswith(('/', '..')):
      continue
    assert any((folder / path).exists() for folder in folders), path


@pytest.mark.parametrize('name', DOCUMENTS)
def test_links_into_the_repository_exist(name):
  for target in re.findall(r'\]\(([^)#]+)\)', _read(name)):
    if '://' not in target:
      assert (ROOT / name).parent.joinpath(target).exists(), target


def test_changelog_has_this_version():
  newest = re.search(r'^## \[([^\]]+)\]', _read('CHANGELOG.md'), re.MULTILINE)
  assert newest is not None
  assert newest[1] == t5score_jax.__version__


def test_recipes_say_how_to_run_them():
  recipes = sorted((ROOT / 'gin_configs' / 'recipes').glob('*.gin'))
  assert recipes
  for path in recipes:
    head = path.read_text(encoding='utf-8').split('\n\n')[0]
    assert f'recipes/{path.name}' in head, f'{path.name}: no command'
