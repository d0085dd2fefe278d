"""The documented runs print the numbers that their headers state."""

import copy
import dataclasses
import json
import math
import re
from pathlib import Path

import gin
import jax
import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.checkpoints import uscore
from t5score_jax.commands import _gin
from t5score_jax.crosslingual import pseudo_references
from t5score_jax.fitting import uscore as fitting
from t5score_jax.models import t5score
from t5score_jax.nn import bert, cross_encoder, heads
from t5score_jax.runtime import configurables
from t5score_jax.training import loop, optimizers, partitioning  # noqa: F401 (for gin)

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / 'gin_configs' / 'recipes'
# As the headers say, for other machines and releases of the libraries.
LOSS_TOLERANCE = 0.02
AGREEMENT_TOLERANCE = 0.05


def _run(*arguments):
  return cli.main(['train', *map(str, arguments)])


def _stated(recipe):
  """The numbers of a header: {'loss': ..., 'judgments/pearson': ...}."""
  header = (RECIPES / recipe).read_text().partition('\nfrom ')[0]
  printed = '\n'.join(re.findall(r'^#   (.*)', header, re.M))
  pairs = re.findall(r'\b([a-z_]+(?:/[a-z_]+)?)\s+(-?\d\.\d+)\b', printed)
  return {name: float(value) for name, value in pairs}


def _measured(folder):
  """The last number of each name in a run's metrics.jsonl."""
  found = {}
  for line in (folder / 'metrics.jsonl').read_text().splitlines():
    found.update(json.loads(line))
  return found


def _check(recipe, folder):
  stated, measured = _stated(recipe), _measured(folder)
  assert {'loss', 'held_out/loss', 'judgments/pearson'} <= set(stated)
  for name, value in stated.items():
    is_loss = name.endswith('loss')
    tolerance = LOSS_TOLERANCE if is_loss else AGREEMENT_TOLERANCE
    assert measured[name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.slow
def test_both_stages_of_the_tiny_run(tmp_path):
  pytest.importorskip('seqio')
  model_dir = f"--gin.MODEL_DIR='{tmp_path}/run'"
  assert _run('--gin_file=recipes/tiny_run.gin', model_dir, '--quiet') == 0
  _check('tiny_run.gin', tmp_path / 'run')
  code = _run(
    '--gin_file=recipes/tiny_run_contrastive.gin',
    f"--gin.MODEL_DIR='{tmp_path}/run2'",
    f"--gin.INITIAL_CHECKPOINT_PATH='{tmp_path}/run'",
    '--quiet',
  )
  assert code == 0
  _check('tiny_run_contrastive.gin', tmp_path / 'run2')
  before, after = _measured(tmp_path / 'run'), _measured(tmp_path / 'run2')
  name = 'judgments/pearson'
  assert after[name] > before[name] + 0.1


@pytest.mark.slow
def test_translators_are_trained_on_mined_pairs(tmp_path):
  pytest.importorskip('seqio')
  from t5score_jax.tasks import parallel

  rows = [{'source': f'{x}{y}', 'target': y} for x in 'abcd' for y in 'efgh']
  lines = [json.dumps(row) + '\n' for row in rows]
  (tmp_path / 'pairs').mkdir()
  (tmp_path / 'pairs' / 'de-en.jsonl').write_text(''.join(lines))
  parallel.register(tmp_path / 'pairs', name='translator_pairs')
  code = _run(
    '--gin_file=models/tiny.gin',
    '--gin_file=runs/uscore_translator.gin',
    f"--gin.MODEL_DIR='{tmp_path}/run'",
    "--gin.MIXTURE_OR_TASK_NAME='translator_pairs'",
    '--gin.TASK_FEATURE_LENGTHS={"inputs": 8, "targets": 8}',
    '--gin.TRAIN_STEPS=200',
    '--gin.BATCH_SIZE=16',
    '--gin.LEARNING_RATE=5e-3',
    '--gin.DROPOUT_RATE=0.0',
    '--quiet',
  )
  assert code == 0
  translate = pseudo_references.PseudoReferences(tmp_path / 'run', max_tokens=4)
  sources = [row['source'] for row in rows]
  assert translate(sources) == [row['target'] for row in rows]


def _network(path):
  """A T5 model, or what makes the parameters of another network."""
  if 't5.T5Config' in path.read_text():
    # Scanned layers have a position bias each, as in T5X; the counts are the
    # published ones.
    _gin.configure(
      [str(path), 'runs/train_generative.gin'],
      [
        "MODEL_DIR='x'",
        'TRAIN_STEPS=1',
        "VOCABULARY='bytes'",
        't5.T5Config.scan_layers=False',
      ],
    )
    return gin.query_parameter('%MODEL').scoped_configurable_fn()
  _gin.configure([str(path)], [])
  named = {
    name: gin.query_parameter(f'%{name}').scoped_configurable_fn()
    for name in ('CONFIG', 'ENCODER')
    if f'\n{name} = ' in gin.config_str()
  }
  if 'CONFIG' not in named:
    return lambda rng: bert.init_params(named['ENCODER'], rng)
  if isinstance(named['CONFIG'], bert.BertConfig):
    return lambda rng: cross_encoder.init_params(named['CONFIG'], rng)
  return lambda rng: heads.init_params(named['CONFIG'], rng)


def _layers(model, encoder, decoder):
  config = dataclasses.replace(
    model.config, num_encoder_layers=encoder, num_decoder_layers=decoder
  )
  return t5score.GenerativeModel(config).init


def _count(init):
  shapes = jax.eval_shape(init, jax.random.key(0))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))


# What only completes other files.
PARTS = {'regressor.gin', 'unified.gin'}


def _is_large(path):
  """Larger sizes differ from base in numbers that a file lists alike."""
  return re.search('_(large|xl|xxl)$', path.stem) is not None


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, marks=pytest.mark.slow if _is_large(path) else [])
    for path in sorted((RECIPES.parent / 'models').glob('*'))
    if path.name not in PARTS
  ],
  ids=str,
)
def test_networks_have_as_many_parameters_as_stated(path):
  network = _network(path)
  if isinstance(network, t5score.GenerativeModel):
    # Layers are alike: tracing one of each side is enough.
    one = _count(_layers(network, 1, 1))
    count = sum(
      (depth - 1) * (_count(_layers(network, *more)) - one)
      for depth, more in (
        (network.config.num_encoder_layers, (2, 1)),
        (network.config.num_decoder_layers, (1, 2)),
      )
    )
    count += one
  else:
    count = _count(network)
  header = ' '.join(re.findall('^#(.*)$', path.read_text(), re.M))
  exact = re.search(r'([\d,]{5,}) parameters', header)
  rounded = re.search(r'([\d.]+) M parameters', header)
  if exact:
    assert f'{count:,}' == exact[1]
  else:
    assert f'{count / 1e6:.1f}' == rounded[1]


# As the Hub counts the published weights.
PUBLISHED = {
  't5_1_1_small': 76_961_152,
  't5_1_1_base': 247_577_856,
  't5_1_1_large': 783_150_080,
  't5_1_1_xl': 2_849_757_184,
  't5_1_1_xxl': 11_135_332_352,
  'mt5_small': 300_176_768,
  'mt5_base': 582_401_280,
  'mt5_large': 1_229_581_312,
  'mt5_xl': 3_742_619_648,
  'mt5_xxl': 12_921_057_280,
  'byt5_small': 299_637_760,
  'byt5_base': 581_653_248,
  'byt5_large': 1_228_183_552,
  'byt5_xl': 3_737_801_728,
  'byt5_xxl': 12_906_899_328,
  'umt5_small': 306_601_984,
  'umt5_base': 592_043_520,
  'umt5_xl': 3_768_356_864,
  'umt5_xxl': 12_972_531_712,
}


def test_every_published_size_has_a_file_that_states_its_count():
  for name, count in PUBLISHED.items():
    text = (RECIPES.parent / 'models' / f'{name}.gin').read_text()
    assert f'{count:,} parameters' in text.replace('\n# ', ' '), name


# Of `t5score uscore`: several trainings, each with settings of its own.
PLANS = sorted(
  path
  for path in RECIPES.glob('uscore*.gin')
  if not path.name.startswith('uscore_translator_')
)


@pytest.mark.parametrize('path', PLANS, ids=str)
def test_plans_have_the_weights_that_they_state(path):
  _gin.configure([str(path)], [])
  plan = configurables.call(fitting.Plan)
  weights = uscore.WEIGHTS[plan.weights]
  # In the first paragraph; results, further down, are numbers too.
  stated = set(
    re.findall(r'(?<![\d.])\.\d+', path.read_text().split('\n#\n')[0])
  )
  chosen = {f'{w:g}'[1:] for w in dataclasses.astuple(weights)}
  assert stated <= chosen | {f'{1 - weights.word:g}'[1:]}
  expected = {
    'uscore_word': ('wmd', 'pseudo', 'lm'),
    'uscore_sentence': ('sentence',),
  }
  assert plan.parts == expected.get(path.stem, fitting.PARTS)
  # What the files bind are the defaults, which are the paper's.
  usual = dataclasses.replace(plan, parts=fitting.PARTS, weights='paper')
  assert usual == fitting.Plan()


@pytest.mark.parametrize(
  'path', sorted({*RECIPES.glob('*.gin')} - {*PLANS}), ids=str
)
def test_every_recipe_gives_model_optimizer_and_mesh(path, tmp_path):
  if 'jax.tasks' in path.read_text() or path.name.startswith(
    ('t5score_', 'uscore_translator_')
  ):
    pytest.importorskip('seqio')
  bindings = []
  if path.name.startswith(('comes_', 'comet', 'xcomet_', 'e5_')):
    # Steps are counted from the instances of a fold.
    np.save(tmp_path / 'ratings.npy', np.zeros((100, 4)))
    bindings = [f'ARRAYS = {str(tmp_path)!r}']
  if path.name.startswith('e5_'):  # And from the lengths of their texts.
    for role in ('hypothesis', 'source'):
      np.save(tmp_path / f'{role}.npy', np.zeros(100, int))
    (tmp_path / 'texts').mkdir()
    np.save(tmp_path / 'texts' / 'tokens.npy', np.zeros((1, 9), int))
    np.save(tmp_path / 'texts' / 'lengths.npy', np.array([9]))
    bindings.append(f'TEXTS = {str(tmp_path / "texts")!r}')
  _gin.configure([str(path)], [], more=bindings)
  # All that doesn't read files; macros that the header's command gives are in
  # none of it.
  made = {
    name: copy.deepcopy(gin.query_parameter(f'loop.train.{name}'))
    for name in (
      'model',
      'optimizer',
      'partitioner',
      'intervals',
      'train_steps',
    )
  }
  config = made['model'].config
  assert getattr(config, 'encoder', config).vocab_size > 0
  assert float(made['optimizer'].schedule(0)) >= 0
  assert made['train_steps'] > 0
  assert isinstance(made['partitioner'], partitioning.Partitioner)
  head = path.read_text().partition('\n\n')[0]
  assert re.search(r'A6000|v5e|CPU|core', head), 'no hardware'
  assert re.search(r'Expected|Measured|prints', head), 'no result'


@pytest.mark.parametrize('size', ['base', 'large', 'xl', 'xxl'])
def test_recipes_have_the_settings_of_table_6(size):
  pytest.importorskip('seqio')
  steps = {'base': 300_000, 'large': 200_000, 'xl': 50_000, 'xxl': 50_000}
  for stage, expected in (
    ('generative', (10_000, 10, 1000, 5e-5, 0.1, 500)),
    ('contrastive', (steps[size], 32, 0, 1e-5, 0.05, None)),
  ):
    _gin.configure([f'recipes/t5score_{size}_{stage}.gin'], [])
    found = {
      name: copy.deepcopy(gin.query_parameter(f'%{name}'))
      for name in (
        'TRAIN_STEPS',
        'BATCH_SIZE',
        'WARMUP_STEPS',
        'LEARNING_RATE',
        'DROPOUT_RATE',
      )
    }
    assert tuple(found.values()) == expected[:5]
    intervals = copy.deepcopy(gin.query_parameter('loop.train.intervals'))
    every = expected[5] or (10_000 if size in ('base', 'large') else 5000)
    assert intervals.save_every == every


@pytest.mark.parametrize('stage', ['generative', 'contrastive'])
def test_recipes_of_the_paper_step_as_its_trainer_does(stage):
  pytest.importorskip('seqio')
  _gin.configure([f'recipes/t5score_base_{stage}.gin'], [])
  optimizer = copy.deepcopy(gin.query_parameter('loop.train.optimizer'))
  # Linear decay to 0, and steps that do not depend on a parameter's scale.
  last = gin.query_parameter('%TRAIN_STEPS')
  rate = gin.query_parameter('%LEARNING_RATE')
  assert float(optimizer.schedule(last)) == 0.0
  params = {'small': np.full((4, 4), 0.01), 'large': np.full((4, 4), 5.0)}
  gradients = jax.tree.map(np.ones_like, params)
  transformation = optimizer.transformation
  state = transformation.init(params)
  updates, _ = transformation.update(gradients, state, params)
  decay = 0.01 if stage == 'contrastive' else 0.0
  first = float(optimizer.schedule(0))
  warmup = 1000 if stage == 'generative' else 1
  assert first == pytest.approx(rate / warmup)
  for name, param in params.items():
    np.testing.assert_allclose(
      updates[name], -first * (1 + decay * param), rtol=1e-5
    )


def test_comes_has_the_settings_of_table_4(tmp_path):
  np.save(tmp_path / 'ratings.npy', np.zeros((44_880, 4)))
  more = [f'ARRAYS = {str(tmp_path)!r}']
  _gin.configure(['recipes/comes_xlmr_large.gin'], [], more=more)
  train = {
    name: copy.deepcopy(gin.query_parameter(f'loop.train.{name}'))
    for name in ('model', 'optimizer', 'intervals', 'train_steps', 'selection')
  }
  config = train['model'].config
  assert config.hidden_sizes == (3072, 1024) and config.dropout_rate == 0.15
  assert config.pooling == 'mean' and config.layer == 'mix'
  assert len(config.outputs) == 4 and config.reference
  # 44,880 instances in batches of 40 are 1,122 steps an epoch.
  assert train['train_steps'] == 5 * 1122
  assert train['intervals'].eval_every == 1122
  assert train['selection'].metric == 'validation/pearson'
  optimizer = train['optimizer']
  assert dict(optimizer.frozen) == {
    '^encoder/embeddings/': -1,
    '^encoder/': 1122,
  }
  shapes = jax.eval_shape(train['model'].init, jax.random.key(0))
  factors = optimizers.layerwise_multipliers(24, 0.95, 1 / 3.1)
  assert factors['^encoder/layers_23/'] * 3.1e-5 == pytest.approx(1e-5)
  found = copy.deepcopy(gin.query_parameter('optimizers.adamw.multipliers'))
  assert found == pytest.approx(factors)
  optimizers.learning_rate_multipliers(shapes, factors)
  for step in (0, 5000):
    assert float(optimizer.schedule(step)) == pytest.approx(3.1e-5)
  _gin.configure(['recipes/comes_xlmr_large_mt.gin'], [], more=more)
  optimizer = copy.deepcopy(gin.query_parameter('loop.train.optimizer'))
  assert float(optimizer.schedule(0)) == pytest.approx(1e-5)
  _gin.configure(['recipes/comes_xlmr_large_qe.gin'], [], more=more)
  model = copy.deepcopy(gin.query_parameter('loop.train.model'))
  assert model.config.hidden_sizes == (2048, 1024)
  assert not model.config.reference


@pytest.mark.parametrize(
  ('recipe', 'layers', 'rate', 'encoder_rate', 'decay'),
  [
    ('cometkiwi_xlmr_large', 24, 1.5e-5, 1e-6, 0.95),
    ('xcomet_xlmr_xl', 36, 3.66e-6, 1e-6, 0.983),
  ],
)
def test_joint_metrics_have_the_settings_they_were_published_with(
  tmp_path, recipe, layers, rate, encoder_rate, decay
):
  np.save(tmp_path / 'ratings.npy', np.zeros((32_000, 1)))
  more = [f'ARRAYS = {str(tmp_path)!r}']
  _gin.configure([f'recipes/{recipe}.gin'], [], more=more)
  model = copy.deepcopy(gin.query_parameter('loop.train.model'))
  xcomet = layers == 36
  config = model.config
  assert config.encoder.num_layers == layers and config.xcomet == xcomet
  assert config.reference == xcomet and config.encoder.pre_norm == xcomet
  assert config.num_tags == (4 if xcomet else 0)
  optimizer = copy.deepcopy(gin.query_parameter('loop.train.optimizer'))
  assert float(optimizer.schedule(100)) == pytest.approx(rate)
  assert dict(optimizer.frozen)['^encoder/'] == 300
  found = copy.deepcopy(gin.query_parameter('optimizers.adamw.multipliers'))
  factors = optimizers.layerwise_multipliers(layers, decay, encoder_rate / rate)
  assert found == pytest.approx(factors)


def test_the_made_up_corpus_is_what_it_says():
  pytest.importorskip('seqio')
  from t5score_jax.tasks import made_up

  train_set = set(made_up.meanings('train'))
  held_out = set(made_up.meanings('validation'))
  assert len(train_set) == 630 and len(held_out) == 90
  assert not train_set & held_out
  segments = made_up.segments()
  assert len(segments) == 4 * 90
  for row in range(0, len(segments), 4):
    group = segments[row : row + 4]
    assert len({s.references for s in group}) == 1
    assert [s.system for s in group] == ['alpha', 'beta', 'gamma', 'delta']
  for pair in made_up.text_pairs('train'):
    assert pair['inputs'] != pair['targets']
