"""A wheel, a source distribution and an editable install, each really tried.

Slow: each install goes into a clean virtual environment, from the package
index, with nothing else in it.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_PRETRAINED_BYTES = 60_000_000
GOOD = 'The cat sat on the mat and looked out of the window.'
BAD = 'Window cat of out the sat on mat looked and.'
REFERENCE = 'The cat was sitting on the mat, looking out of the window.'


def _run(command, **options) -> str:
  """Runs a command and returns what it prints; its errors fail the test."""
  done = subprocess.run(
    [str(part) for part in command],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    **options,
  )
  assert done.returncode == 0, (
    f'{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}'
  )
  return done.stdout


def _copy_of_the_source(folder: pathlib.Path) -> pathlib.Path:
  """Copies what git knows, so that a stray file can't mend a package."""
  target = folder / 'a source with spaces'
  if not (ROOT / '.git').exists():  # an unpacked source distribution
    unwanted = shutil.ignore_patterns('.*', 'build', 'dist', '*.egg-info')
    shutil.copytree(ROOT, target, ignore=unwanted)
    return target
  listed = _run(
    ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
    cwd=ROOT,
  )
  for name in filter(None, listed.split('\0')):
    if (ROOT / name).is_file():
      (target / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, target / name)
  return target


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> pathlib.Path:
  return _copy_of_the_source(tmp_path_factory.mktemp('source'))


@pytest.fixture(scope='module')
def distributions(source, tmp_path_factory) -> dict[str, pathlib.Path]:
  """The source distribution, and the wheel built from it."""
  out = tmp_path_factory.mktemp('dist')
  _run([sys.executable, '-m', 'build', '--outdir', out, source])
  (wheel,) = out.glob('*.whl')
  (sdist,) = out.glob('*.tar.gz')
  return {'wheel': wheel, 'sdist': sdist}


def _clean_environment(folder: pathlib.Path, *what: object) -> pathlib.Path:
  """Makes a virtual environment with only these installed; its bin folder."""
  # The interpreter under this one's virtual environment, if it is in one.
  base = pathlib.Path(getattr(sys, '_base_executable', sys.executable))
  _run([base, '-m', 'venv', folder])
  python = folder / 'bin' / 'python'
  _run([python, '-m', 'pip', 'install', '-q', '--upgrade', 'pip'])
  _run([python, '-m', 'pip', 'install', '-q', *what])
  _run([python, '-m', 'pip', 'check'])
  return folder / 'bin'


@pytest.fixture(scope='module')
def installed(request, source, distributions, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp(request.param) / 'venv'
  if request.param == 'wheel':
    return _clean_environment(folder, distributions['wheel'])
  return _clean_environment(folder, '--editable', source)


def _environment(home: pathlib.Path) -> dict[str, str]:
  """No variable of this run's that could help or hinder the installed one."""
  kept = {k: os.environ[k] for k in ('PATH', 'LANG') if k in os.environ}
  return {**kept, 'HOME': str(home), 'JAX_PLATFORMS': 'cpu'}


def _names(wheel: pathlib.Path) -> dict[str, int]:
  with zipfile.ZipFile(wheel) as archive:
    return {entry.filename: entry.file_size for entry in archive.infolist()}


def test_wheel_claims_one_import_name(distributions):
  tops = {name.split('/')[0] for name in _names(distributions['wheel'])}
  assert {top for top in tops if not top.endswith('.dist-info')} == {
    't5score_jax'
  }


def test_wheel_holds_all_modules_and_data(source, distributions):
  held = set(_names(distributions['wheel']))
  wanted = {
    path.relative_to(source).as_posix()
    for path in (source / 't5score_jax').rglob('*')
    if path.is_file()
  }
  for folder, pattern in (('tasks', '*.py'), ('gin_configs', '*')):
    wanted |= {
      f't5score_jax/{path.relative_to(source).as_posix()}'
      for path in (source / folder).rglob(pattern)
      if path.is_file()
    }
  assert 't5score_jax/py.typed' in wanted
  assert wanted - held == set()
  code = {name for name in held if '.dist-info/' not in name}
  assert code - wanted == set(), 'files that the source does not have'


def test_embedded_model_is_small(distributions):
  sizes = {
    name: size
    for name, size in _names(distributions['wheel']).items()
    if name.startswith('t5score_jax/pretrained/')
  }
  assert any(name.endswith('model.safetensors') for name in sizes)
  assert sum(sizes.values()) <= MAX_PRETRAINED_BYTES


def test_source_distribution_can_be_tested(source, distributions):
  with tarfile.open(distributions['sdist']) as archive:
    held = {name.partition('/')[2] for name in archive.getnames()}
  for folder in ('t5score_jax', 'tasks', 'gin_configs', 'scripts', 'tests'):
    wanted = {
      path.relative_to(source).as_posix()
      for path in (source / folder).rglob('*')
      if path.is_file()
    }
    assert wanted, folder
    assert wanted - held == set()
  assert {'Makefile', 'LICENSE', 'README.md', 'CHANGELOG.md'} <= held


@pytest.mark.parametrize('installed', ['wheel', 'editable'], indirect=True)
def test_clean_install_scores(installed, tmp_path):
  environment = _environment(tmp_path / 'home')
  options = {'cwd': tmp_path, 'env': environment}
  python, t5score = installed / 'python', installed / 't5score'

  # The base install has no TensorFlow; what follows works without it.
  found = _run(
    [
      python,
      '-c',
      'import importlib.util as u;'
      "print(*map(bool, map(u.find_spec, ['tensorflow', 'seqio', 'torch'])))",
    ],
    **options,
  )
  assert found.split() == ['False'] * 3

  # Nothing of the repository's folders is a top-level name.
  for name in ('tasks', 'gin_configs', 'scripts', 'tests'):
    program = f'import importlib.util as u; print(bool(u.find_spec({name!r})))'
    assert _run([python, '-c', program], **options).strip() == 'False', name

  files = {'hypotheses': [GOOD, BAD], 'references': [REFERENCE, REFERENCE]}
  for name, lines in files.items():
    (tmp_path / name).write_text('\n'.join(lines) + '\n', encoding='utf-8')
  printed = _run(
    [
      *(t5score, 'score', '-m', 't5score-tiny', '--format', 'jsonl'),
      *('-r', 'references', '-t', 'hypotheses', '-o', 'scores', '--quiet'),
    ],
    **options,
  )
  assert 'Traceback' not in printed
  lines = (tmp_path / 'scores').read_text(encoding='utf-8').splitlines()
  scores = [
    record['score'] for record in map(json.loads, lines) if 'score' in record
  ]
  good, bad = scores
  assert good > bad

  # The same numbers from Python.
  program = (
    'import t5score_jax\n'
    f'scores = t5score_jax.load().score({[GOOD, BAD]!r}, {[REFERENCE] * 2!r})\n'
    'print(*(float(value) for value in scores.values))'
  )
  from_python = [
    float(v) for v in _run([python, '-c', program], **options).split()
  ]
  assert from_python == pytest.approx(scores, abs=1e-5)

  # Another metric, found by its file's name.
  _run(
    [
      *(t5score, 'score', '-m', 'chrf', '-r', 'references'),
      *('-t', 'hypotheses', '-o', 'chrf', '--quiet'),
    ],
    **options,
  )
  assert (tmp_path / 'chrf').stat().st_size

  # What needs the training extra says so, in one line, and fails.
  done = subprocess.run(
    [t5score, 'train', '--gin_file=no-such-file.gin'],
    capture_output=True,
    text=True,
    **options,
  )
  assert done.returncode != 0
  assert 'Traceback' not in done.stderr
  assert 'no-such-file.gin' in done.stderr


@pytest.mark.parametrize('installed', ['wheel', 'editable'], indirect=True)
def test_verbs_have_help_without_the_training_extra(installed, tmp_path):
  options = {'cwd': tmp_path, 'env': _environment(tmp_path / 'home')}
  verbs = {
    path.stem
    for path in (ROOT / 't5score_jax' / 'commands').glob('*.py')
    if not path.stem.startswith('_')
  }
  listed = _run([installed / 't5score', '--help'], **options)
  for verb in verbs:
    assert verb in listed
    assert f't5score {verb}' in _run(
      [installed / 't5score', verb, '--help'], **options
    )
  version = _run([installed / 't5score', '--version'], **options)
  assert '0.1.0' in version
