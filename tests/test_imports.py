"""The order of folders: who may import whom.

Imports are read from the source, those inside functions too, so that a lazy
import cannot hide a wrong direction. Modules found by name at run time
(metrics, verbs, tasks) are not imports in this sense.
"""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A module imports its own folder and folders to the left of it.
ORDER = (
  'errors version runtime data evaluation nn models inputs tasks gin_configs'
  ' checkpoints inference crosslingual metrics mbr training fitting leaderboard'
  ' precompile adapters service commands cli __main__'
).split()
# Imports to the right, and why.
EXCEPTIONS = {
  ('models.t5x', 'inputs.feature_converters'): 'T5X asks the model for it',
  ('commands.completion', 'cli'): 'it describes the whole command line',
}
TENSORFLOW = set(
  'tensorflow tensorflow_datasets seqio clu airio t5 t5x'.split()
)
JAX = set('jax jaxlib flax optax orbax chex'.split())
MAY_IMPORT_TENSORFLOW = ('tasks', 'inputs', 'models.t5x')


def _modules():
  folders = {
    '': ROOT / 't5score_jax',
    'tasks.': ROOT / 'tasks',
    'gin_configs.': ROOT / 'gin_configs',
  }
  return {
    prefix + '.'.join(path.relative_to(folder).with_suffix('').parts): path
    for prefix, folder in folders.items()
    for path in folder.rglob('*.py')
  }


def _imports(path):
  """Yields the dotted name of each import of a file."""
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}:{node.lineno}: a relative import'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


MODULES = _modules()
NAMES = {module: set(_imports(path)) for module, path in MODULES.items()}


def _library(module):
  """The modules of the library that a module imports; '' is the root."""
  for name in NAMES[module]:
    top, _, name = name.partition('.')
    while top == 't5score_jax' and name not in MODULES and name:
      package = f'{name}.__init__'
      name = package if package in MODULES else name.rpartition('.')[0]
    if top == 't5score_jax':
      yield name


def _reaches(module, seen=None):
  seen = set() if seen is None else seen
  for name in _library(module):
    if name and name not in seen:
      seen.add(name)
      _reaches(name, seen)
  return {n.partition('.')[0] for m in {module, *seen} for n in NAMES[m]}


@pytest.mark.parametrize('module', MODULES)
def test_imports_go_to_the_left(module):
  folder = module.partition('.')[0]
  for name in _library(module):
    assert name, f'{module} imports the package root'
    if folder != '__init__' and (module, name) not in EXCEPTIONS:
      assert ORDER.index(name.partition('.')[0]) <= ORDER.index(folder), name


def test_no_cycles():
  graph = {m: set(_library(m)) for m in MODULES if m != '__init__'}
  graphlib.TopologicalSorter(graph).prepare()


def test_packages_import_nothing():
  for module in MODULES:
    if module.endswith('.__init__'):
      assert not NAMES[module], module


@pytest.mark.parametrize('module', MODULES)
def test_what_scoring_and_evaluation_do_without(module):
  folder = module.partition('.')[0]
  if not module.startswith(MAY_IMPORT_TENSORFLOW):
    tops = {name.partition('.')[0] for name in NAMES[module]}
    assert not tops & TENSORFLOW
  if folder in ('metrics', 'checkpoints'):
    assert not _reaches(module) & TENSORFLOW
  if folder == 'evaluation':
    assert not _reaches(module) & JAX


def test_importing_loads_no_jax():
  program = 'import sys, t5score_jax.cli; print(*sys.modules)'
  loaded = subprocess.check_output([sys.executable, '-c', program], text=True)
  assert not (JAX | TENSORFLOW) & set(loaded.split())
