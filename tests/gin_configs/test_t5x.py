"""The gin files for T5X, read without T5X: statements, names and numbers.

`models/test_t5x_upstream.py` runs them where T5X is installed.
"""

import ast
import importlib
import importlib.util
import pathlib
import re
import sys

import pytest
from gin import config_parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'gin_configs' / 't5x'
FILES = sorted(path.name for path in FOLDER.glob('*.gin'))
SIZES = ('small', 'base', 'large', 'xl', 'xxl')
OBJECTIVES = ('generative', 'pairs', 'groups')
_PREFIX = 't5score_jax/gin_configs/t5x/'


class _References(config_parser.ParserDelegate):
  """Leaves references and macros as text."""

  def configurable_reference(self, scoped_name, evaluate):
    return f'@{scoped_name}()' if evaluate else f'@{scoped_name}'

  def macro(self, name):
    return f'%{name}'


def statements(path):
  """A file's statements, and those of the library's files it includes."""
  with open(path) as stream:
    parser = config_parser.ConfigParser(stream.read(), _References())
  for statement in parser:
    yield statement
    if isinstance(statement, config_parser.IncludeStatement):
      if statement.filename.startswith(_PREFIX):
        name = statement.filename.removeprefix(_PREFIX)
        yield from statements(FOLDER / name)


def bindings(path):
  """Name -> value, the later wins; 'selector.argument' or a macro."""
  found = {}
  for statement in statements(path):
    if isinstance(statement, config_parser.BindingStatement):
      name = '.'.join(
        filter(None, (statement.selector, statement.arg_name or ''))
      )
      scoped = '/'.join(filter(None, (statement.scope, name)))
      found[scoped] = statement.value
  return found


def test_all_files_are_known():
  wanted = {f'mt5_{size}.gin' for size in SIZES}
  wanted |= {f'{name}.gin' for name in OBJECTIVES}
  wanted |= {f'train_{name}.gin' for name in OBJECTIVES}
  wanted |= {'tiny.gin', 'train.gin', 'eval.gin', 'infer.gin'}
  assert set(FILES) == wanted


@pytest.mark.parametrize('name', FILES)
def test_what_a_file_names_is_there(name):
  imported = set()
  for statement in statements(FOLDER / name):
    if isinstance(statement, config_parser.IncludeStatement):
      known = statement.filename.startswith(('t5x/', _PREFIX))
      assert known, statement.filename
    if isinstance(statement, config_parser.ImportStatement):
      module = statement.module
      imported.add(module.rpartition('.')[2])
      if module.startswith('t5score_jax.'):
        assert importlib.util.find_spec(module) is not None, module
  imported |= {'train_script', 'eval_script', 'infer_script'}
  for bound in bindings(FOLDER / name):
    selector = bound.rpartition('/')[2]
    if '.' in selector:
      assert selector.partition('.')[0] in imported, bound


@pytest.mark.parametrize('name', FILES)
def test_head_says_how_to_give_it(name):
  head = (FOLDER / name).read_text().partition('\n\n')[0]
  assert head.startswith('# ')
  assert re.search(r'[Gg]ive\s(#\s)?(before|after)|included by', head), head


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_runs_have_the_numbers_of_this_librarys(objective):
  """What T5X trains with is what `t5score train` does."""
  theirs = bindings(FOLDER / f'train_{objective}.gin')
  path = ROOT / 'gin_configs' / 'runs' / f'train_{objective}.gin'
  ours = bindings(path)
  ours = {**bindings(path.with_name('train.gin')), **ours}
  for name in (
    *('BATCH_SIZE', 'LEARNING_RATE', 'WARMUP_STEPS', 'DROPOUT_RATE'),
    *('TASK_FEATURE_LENGTHS', 'SCHEDULE', 'RANDOM_SEED', 'DATA_SEED'),
    'USE_CACHED_TASKS',
  ):
    assert theirs[name] == ours[name], name
  decay = theirs.get('adafactor.Adafactor.weight_decay_rate', 0.0)
  assert decay == ours.get('optimizers.adafactor.weight_decay', 0.0)
  scaled = 'multiply_by_parameter_scale'
  assert theirs[f'adafactor.Adafactor.{scaled}'] is False
  assert ours[f'optimizers.adafactor.{scaled}'] is False
  if decay:
    assert theirs['adafactor.Adafactor.weight_decay_rate_lr_exponent'] == 1.0
  assert theirs['train/utils.DatasetConfig.pack'] is False
  assert theirs['train_eval/utils.DatasetConfig.pack'] is False


def test_tiny_networks_are_the_same():
  theirs = bindings(FOLDER / 'tiny.gin')
  ours = bindings(ROOT / 'gin_configs' / 'models' / 'tiny.gin')
  shape = {
    name.rpartition('.')[2]: value
    for name, value in theirs.items()
    if name.startswith('network.T5Config.')
  }
  assert shape.pop('dtype') == '%DTYPE'
  # Not written in ours: the default.
  assert shape.pop('mlp_activations') == ('gelu', 'linear')
  assert shape == {
    name.rpartition('.')[2]: value
    for name, value in ours.items()
    if name.startswith('t5.T5Config.')
  }


@pytest.mark.parametrize('name', ['eval.gin', 'infer.gin'])
def test_scores_are_in_float32(name):
  found = bindings(FOLDER / name)
  assert found['DTYPE'] == 'float32'
  assert found['utils.RestoreCheckpointConfig.dtype'] == 'float32'


@pytest.mark.skipif(
  importlib.util.find_spec('t5x') is not None, reason='T5X is installed'
)
def test_without_t5x_the_import_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 't5x', None)
  monkeypatch.delitem(sys.modules, 't5score_jax.models.t5x', raising=False)
  with pytest.raises(ImportError) as error:
    importlib.import_module('t5score_jax.models.t5x')
  last = str(error.value)
  assert last.startswith('t5score_jax.models.t5x needs T5X (')
  assert 'pip install git+https://github.com/google-research/t5x' in last
  assert 'docs/t5x.md' in last
  assert (ROOT / 'docs' / 't5x.md').is_file()


def test_the_model_classes_name_their_objectives():
  """Read from the source: importing it needs T5X."""
  from t5score_jax.models import external, t5score

  tree = ast.parse((ROOT / 't5score_jax' / 'models/t5x.py').read_text())
  found = {}
  for node in tree.body:
    if isinstance(node, ast.ClassDef):
      for line in node.body:
        if isinstance(line, ast.Assign) and line.targets[0].id == 'OBJECTIVE':
          found[node.name] = ast.literal_eval(line.value)
  assert len(found) == 4
  for name, objective in found.items():
    assert name == objective.removesuffix('Model') + 'T5XModel'
    for module in (t5score, external):
      assert issubclass(getattr(module, objective), t5score.T5ScoreModel)
