"""The shape of the library: who may import whom.

Imports are read from the source, those inside functions too, so that a lazy
import cannot hide a wrong direction. Modules that are found by name at run time
(metrics, commands, tasks) are not imports in this sense.
"""

import ast
import functools
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Import name -> folder. The names are those of an installed library.
FOLDERS = {
  't5score_jax': ROOT / 't5score_jax',
  't5score_jax.tasks': ROOT / 'tasks',
  't5score_jax.gin_configs': ROOT / 'gin_configs',
}

# A module imports modules of a strictly lower level, or of its own level and
# folder that stand above it in its line.
LEVELS: dict[int, list[str]] = {
  0: [
    't5score_jax',
    'data.files data.tables data.records data.vocab data.subwords data.windows',
    'nn.axes nn.layers',
    'checkpoints.kinds',
    'buckets compilation_cache options tensorflow_settings forks',
    'rendezvous lifeline process_settings processes balance',
    'training.ranges training.adafactor training.optimizers',
    'training.hlo training.flops training.topologies',
  ],
  1: [
    'data.features data.judgments data.task_examples data.denoising data.pairs'
    ' data.pair_shards data.instances',
    'nn.t5 nn.t5_axes nn.decoding nn.bert nn.heads nn.cross_encoder',
    'objectives',
    'shards',
    'training.shares training.partitioning training.state',
    'metrics._loading metrics.base',
    'evaluation.correlation evaluation.permutation evaluation.tie_calibration'
    ' evaluation.soft_accuracy evaluation.clusters evaluation.scores'
    ' evaluation.darr evaluation.swap_tests evaluation.wmt_files'
    ' evaluation.dimensions',
    'leaderboard.schema leaderboard.entries leaderboard.store'
    ' leaderboard.changes leaderboard.score_table leaderboard.ensemble'
    ' leaderboard.overrating leaderboard.ranking',
  ],
  2: [
    'nn.copy_init nn.matching_init',
    'models',
    'regressors',
    'training.inputs training.feeding training.bucketing training.texts'
    ' training.documents'
    ' training.reports training.stopping',
    'checkpoints.weights checkpoints.layouts checkpoints.formats'
    ' checkpoints.folders checkpoints.selection checkpoints.safetensors_files'
    ' checkpoints.stores checkpoints.bundle checkpoints.t5x checkpoints.orbax'
    ' checkpoints.torch_files checkpoints.torch_writer'
    ' checkpoints.huggingface_weights checkpoints.encoders'
    ' checkpoints.estimators checkpoints.comet checkpoints.miniatures'
    ' checkpoints.descriptions'
    ' checkpoints.huggingface_names checkpoints.huggingface_config'
    ' checkpoints.huggingface_tokenizer checkpoints.huggingface_card'
    ' checkpoints.huggingface checkpoints.convert',
    'calibration',
    'evaluation.significance evaluation.pair_bootstrap evaluation.questions'
    ' evaluation.mqm evaluation.mtme_files evaluation.layouts evaluation.parts'
    ' evaluation.agreement evaluation.tables evaluation.wmt20'
    ' evaluation.wmt20_tables evaluation.system_tests evaluation.system_tables'
    ' evaluation.plot_labels evaluation.retention evaluation.plots',
    'leaderboard.sandbox_child leaderboard.sandbox leaderboard.data'
    ' leaderboard.analysis leaderboard.renewal leaderboard.layouts'
    ' leaderboard.wmt_folder leaderboard.folders leaderboard.runs'
    ' leaderboard.outputs leaderboard.submissions leaderboard.reuse'
    ' leaderboard.plots leaderboard.page leaderboard.access leaderboard.jobs'
    ' leaderboard.limits leaderboard.openapi leaderboard.server',
  ],
  3: [
    'checkpoints.native',
    'placement search scoring generation encoding embedding',
    'module_models',
  ],
  4: [
    't5x',
    'text_tables estimates',
    'training.arguments training.precompile training.precompile_scoring'
    ' training.loop',
    'metrics._sacrebleu metrics.t5score metrics.bleu metrics.chrf metrics.ter'
    ' metrics.rouge metrics._token_states metrics.bertscore'
    ' metrics.moverscore metrics.comes metrics.frugalscore',
  ],
  5: [
    'training.evaluators training.regression',
    'inference',
    'fitting crossvalidation',
  ],
  6: [
    'commands._usage'
    ' commands._board_parser commands._board_add commands._board_init'
    ' commands._board_show commands._board_site commands.board',
    'commands._gin commands._metric_arguments commands._score_output'
    ' commands.score commands.train'
    ' commands._score_files commands._correlate_arguments'
    ' commands._correlate_reports commands.correlate commands.compare'
    ' commands.demo commands.calibrate commands._convert_estimator'
    ' commands.convert commands.precompile'
    ' commands.infer commands._record_files commands.pairs commands.annotate'
    ' commands._fitting commands.crossvalidate commands.fit'
    ' commands.retention',
  ],
  7: ['cli'],
  8: ['__main__'],
}

# Imports that go up a level on purpose: importer, imported, why.
EXCEPTIONS = {
  ('t5score_jax', 't5score_jax.metrics._loading'): (
    'load() is the front door: it imports the metrics when it is called'
  ),
  ('t5score_jax', 't5score_jax.metrics.base'): 'the type of what load() gives',
  ('t5score_jax.metrics._loading', 't5score_jax.metrics.base'): 'likewise',
}

TENSORFLOW = frozenset(
  'tensorflow tensorflow_datasets tensorflow_text seqio clu airio t5 t5x'
  ' keras'.split()
)
JAX = frozenset('jax jaxlib flax optax orbax chex'.split())
MAY_IMPORT_TENSORFLOW = (
  't5score_jax.tasks',
  't5score_jax.data.features',
  't5score_jax.data.task_examples',
  't5score_jax.training.inputs',
  't5score_jax.t5x',
)
# What importing a metric or scoring with one must not bring in.
SCORING_PATH = (
  't5score_jax.scoring',
  't5score_jax.metrics',
  't5score_jax.checkpoints.bundle',
  't5score_jax.commands.score',
  't5score_jax.cli',
)


def _within(name: str, packages: Iterable[str]) -> bool:
  """Whether a dotted name is one of the packages or lies in one."""
  return any(name == p or name.startswith(f'{p}.') for p in packages)


@functools.lru_cache(maxsize=1)
def modules() -> dict[str, pathlib.Path]:
  """All modules of the library: import name -> file."""
  found = {}
  for package, folder in FOLDERS.items():
    for path in sorted(folder.rglob('*.py')):
      parts = path.relative_to(folder).with_suffix('').parts
      if parts[-1] == '__init__':
        parts = parts[:-1]
      found['.'.join((package, *parts))] = path
  return found


def imported_names(source: str, module: str) -> Iterator[tuple[int, str]]:
  """Yields (line, dotted name) of each import in a module's source.

  `from a.b import c` yields `a.b.c`; the caller knows whether `c` is a module.
  `importlib.import_module` and `__import__` with a literal count as well.
  """
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node.lineno, alias.name
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise AssertionError(f'{module}:{node.lineno}: a relative import')
      for alias in node.names:
        yield node.lineno, f'{node.module}.{alias.name}'
    elif isinstance(node, ast.Call) and node.args:
      called = ast.unparse(node.func)
      name = node.args[0]
      if called in ('importlib.import_module', '__import__') and (
        isinstance(name, ast.Constant) and isinstance(name.value, str)
      ):
        yield node.lineno, name.value


def resolve(name: str, known: Iterable[str]) -> str | None:
  """The module of the library that an imported name lies in, else None."""
  known = set(known)
  while name:
    if name in known:
      return name
    name = name.rpartition('.')[0]
  return None


def levels() -> dict[str, tuple[int, int]]:
  """Module -> (level, place in its line of the table above)."""
  placed = {}
  for level, lines in LEVELS.items():
    for line in lines:
      for place, name in enumerate(line.split()):
        full = name if name == 't5score_jax' else f't5score_jax.{name}'
        assert full not in placed, f'{full} stands twice in LEVELS'
        placed[full] = (level, place)
  return placed


def upward_imports(
  sources: Mapping[str, str], placed: Mapping[str, tuple[int, int]]
) -> list[str]:
  """Says which imports go up or sideways against the table of levels."""
  wrong = []
  for module, source in sources.items():
    if module not in placed:
      continue
    level, place = placed[module]
    for line, name in imported_names(source, module):
      target = resolve(name, placed)
      if target in (None, module) or (module, target) in EXCEPTIONS:
        continue
      other_level, other_place = placed[target]
      siblings = module.rpartition('.')[0] == target.rpartition('.')[0]
      if other_level < level or (
        siblings and other_level == level and other_place < place
      ):
        continue
      wrong.append(
        f'{module}:{line} [{level}] imports {target} [{other_level}]'
      )
  return wrong


def reached(
  start: str, sources: Mapping[str, str], also_lazy: bool = True
) -> dict[str, str]:
  """Everything that a module imports, directly or through the library.

  Returns:
    Top-level foreign package or module of the library -> who imports it.
  """
  found: dict[str, str] = {}
  waiting = [start]
  while waiting:
    module = waiting.pop()
    source = sources[module]
    for line, name in imported_names(source, module):
      target = resolve(name, sources)
      if (module, target) in EXCEPTIONS and not also_lazy:
        continue
      key = target or name.partition('.')[0]
      if key not in found:
        found[key] = f'{module}:{line}'
        if target:
          waiting.append(target)
  return found


@pytest.fixture(scope='module')
def sources() -> dict[str, str]:
  return {
    name: path.read_text(encoding='utf-8') for name, path in modules().items()
  }


def test_every_module_has_a_level():
  packages = {n for n, path in modules().items() if path.stem == '__init__'}
  wanted = {n for n in modules() if not _within(n, ['t5score_jax.tasks'])}
  placed = set(levels())
  # A package's __init__ holds a docstring, so it needs no level of its own;
  # see test_package_inits_import_nothing.
  assert wanted - packages - placed == set(), 'modules without a level'
  assert placed - set(modules()) == set(), 'levels without a module'


def test_package_inits_import_nothing(sources):
  for name, path in modules().items():
    if path.stem == '__init__' and name != 't5score_jax':
      assert list(imported_names(sources[name], name)) == [], name


def test_imports_go_down_the_levels(sources):
  assert upward_imports(sources, levels()) == []


def test_exceptions_are_still_needed(sources):
  for importer, imported in EXCEPTIONS:
    names = imported_names(sources[importer], importer)
    assert imported in {resolve(name, sources) for _, name in names}


def test_tasks_import_data_only(sources):
  for module, source in sources.items():
    if _within(module, ['t5score_jax.tasks']):
      for line, name in imported_names(source, module):
        target = resolve(name, sources)
        assert target is None or _within(
          target, ['t5score_jax.data', 't5score_jax.tasks']
        ), f'{module}:{line} imports {target}'


def test_tensorflow_stays_in_training_data(sources):
  wrong = [
    f'{module}:{line} imports {name}'
    for module, source in sources.items()
    if not _within(module, MAY_IMPORT_TENSORFLOW)
    for line, name in imported_names(source, module)
    if name.partition('.')[0] in TENSORFLOW
  ]
  assert wrong == []


def test_scoring_reaches_no_tensorflow(sources):
  for module in sources:
    if _within(module, SCORING_PATH):
      found = reached(module, sources)
      bad = {key: found[key] for key in TENSORFLOW & set(found)}
      assert not bad, f'{module} reaches {bad}'


def test_evaluation_reaches_no_jax(sources):
  for module in sources:
    if _within(module, ['t5score_jax.evaluation', 't5score_jax.leaderboard']):
      found = reached(module, sources)
      bad = {key: found[key] for key in JAX & set(found)}
      assert not bad, f'{module} reaches {bad}'


def test_metrics_reach_no_training(sources):
  for module in sources:
    if _within(module, ['t5score_jax.metrics']):
      found = reached(module, sources)
      bad = {
        key: by
        for key, by in found.items()
        if _within(key, ['t5score_jax.training'])
      }
      assert not bad, f'{module} reaches {bad}'


def test_scripts_and_tests_are_never_imported(sources):
  everything = dict(sources)
  for path in (ROOT / 'scripts').rglob('*.py'):
    everything[f'scripts.{path.stem}'] = path.read_text(encoding='utf-8')
  for module, source in everything.items():
    for line, name in imported_names(source, module):
      assert name.partition('.')[0] not in ('scripts', 'tests'), (
        f'{module}:{line} imports {name}'
      )


@pytest.mark.parametrize(
  ('module', 'forbidden'),
  [
    ('t5score_jax.metrics.t5score', TENSORFLOW),
    ('t5score_jax.commands.score', TENSORFLOW),
    ('t5score_jax.evaluation.agreement', JAX | TENSORFLOW),
    ('t5score_jax.cli', JAX | TENSORFLOW),
    ('t5score_jax', JAX | TENSORFLOW),
  ],
)
def test_what_an_import_really_loads(module, forbidden):
  program = (
    f'import sys, {module}\n'
    f'found = sorted({set(forbidden)!r} & set(sys.modules))\n'
    'sys.exit("loaded: " + " ".join(found) if found else 0)'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr


# The checks themselves, on made-up sources: each must be able to fail.


def _names(source: str) -> list[str]:
  return [n for _, n in imported_names(textwrap.dedent(source), 'm')]


def test_reader_finds_all_kinds_of_imports():
  assert _names("""
      import a.b as c
      from d import e, f
      def g():
        import h
      importlib.import_module('i.j')
      importlib.import_module(f'i.{name}')
      """) == ['a.b', 'd.e', 'd.f', 'h', 'i.j']
  with pytest.raises(AssertionError, match='relative'):
    _names('from . import a')


def test_resolve_takes_the_longest_module():
  known = ['p', 'p.a', 'p.a.b']
  assert resolve('p.a.b.Class', known) == 'p.a.b'
  assert resolve('p.a.c', known) == 'p.a'
  assert resolve('numpy.linalg', known) is None


def test_upward_and_sideways_imports_are_reported():
  placed = {'p.low': (0, 0), 'p.first': (1, 0), 'p.second': (1, 1)}
  assert (
    upward_imports(
      {'p.first': 'import p.low', 'p.second': 'import p.first'}, placed
    )
    == []
  )
  assert upward_imports({'p.low': 'def f():\n  import p.first'}, placed) == [
    'p.low:2 [0] imports p.first [1]'
  ]
  assert upward_imports({'p.first': 'from p import second'}, placed) == [
    'p.first:1 [1] imports p.second [1]'
  ]


def test_reached_goes_through_the_library():
  sources = {'p.a': 'from p import b', 'p.b': 'def f():\n  import seqio'}
  assert reached('p.a', sources) == {'p.b': 'p.a:1', 'seqio': 'p.b:2'}


def test_parity_tests_are_collected_without_what_they_compare_with():
  """`make test` collects them in an environment without the parity extra."""
  heavy = {'torch', 'transformers', 'bert_score'}
  for path in sorted((ROOT / 'tests').rglob('test_*.py')):
    for node in ast.parse(path.read_text()).body:
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module or '']
      found = heavy & {name.partition('.')[0] for name in names}
      assert not found, f'{path}: use pytest.importorskip for {sorted(found)}'
