"""T5X itself trains, evaluates and scores with this library's objectives.

What is compared is computed by this library alone: its own trainer from T5X's
first checkpoint, its own scores of T5X's last.
"""

import json
import pathlib

import numpy as np
import pytest

pytest.importorskip(
  't5x',
  reason='T5X is not installed: pip install '
  'git+https://github.com/google-research/t5x (see docs/t5x.md)',
  exc_type=ImportError,
)

import t5x_runs  # noqa: E402
from flax.traverse_util import flatten_dict  # noqa: E402

from t5score_jax import cli
from t5score_jax.checkpoints import loading  # noqa: E402
from t5score_jax.commands import score, train  # noqa: E402
from t5score_jax.tasks import made_up  # noqa: E402

pytestmark = pytest.mark.slow

GIN = pathlib.Path(__file__).resolve().parents[2] / 'gin_configs' / 't5x'
LAST = f'checkpoint_{t5x_runs.STEPS}'


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """`runs(kind)`: a folder that T5X trained, and what it logged."""
  done = {}

  def get(kind):
    if kind not in done:
      folder = tmp_path_factory.mktemp('t5x') / kind
      done[kind] = folder, t5x_runs.train(kind, folder)
    return done[kind]

  return get


def _call(command, *arguments):
  verb = command.__name__.rpartition('.')[2]
  return cli.main([verb, *map(str, arguments)])


def _library_losses(kind, checkpoint, folder, more=''):
  """The losses of `t5score train` from a checkpoint of T5X's, by step."""
  extra = folder.parent / f'{folder.name}.gin'
  extra.write_text(
    'from __gin__ import dynamic_registration\n'
    'from t5score_jax.nn import t5\n'
    'from t5score_jax.tasks import made_up\n'
    'from t5score_jax.training import loop\n'
    'from t5score_jax.training import optimizers\n'
    'loop.Intervals.log_every = 1\n'
    'optimizers.adafactor.min_dim_size_to_factor = '
    f'{t5x_runs.MIN_DIM_SIZE_TO_FACTOR}\n'
    # T5X decays every parameter.
    f"optimizers.adafactor.no_decay = '(?!)'\n{more}"
  )
  settings = {
    'MODEL_DIR': str(folder),
    'INITIAL_CHECKPOINT_PATH': str(checkpoint),
    'MIXTURE_OR_TASK_NAME': t5x_runs.TASKS[kind],
    'TASK_FEATURE_LENGTHS': t5x_runs.LENGTHS[kind],
    'TRAIN_STEPS': t5x_runs.STEPS,
    'BATCH_SIZE': t5x_runs.BATCH_SIZE,
    'LEARNING_RATE': t5x_runs.LEARNING_RATE,
    'WARMUP_STEPS': t5x_runs.WARMUP_STEPS,
    'DROPOUT_RATE': 0.0,
  }
  files = ('models/tiny.gin', f'runs/train_{kind}.gin', extra)
  code = _call(
    train,
    *(f'--gin_file={name}' for name in files),
    *(f'--gin.{name}={value!r}' for name, value in settings.items()),
    '--quiet',
  )
  assert code == 0
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return {x['step']: x['loss'] for x in lines if x['kind'] == 'train'}


def _params(folder):
  return flatten_dict(loading.load_model(folder).params, sep='/')


def _assert_same_losses(left, right):
  assert list(left) == list(right) == list(range(1, t5x_runs.STEPS + 1))
  np.testing.assert_allclose(
    list(left.values()), list(right.values()), rtol=0, atol=1e-4
  )


@pytest.mark.parametrize('kind', list(t5x_runs.TASKS))
def test_losses_equal_those_of_this_library(kind, runs, tmp_path):
  folder, logged = runs(kind)
  ours = _library_losses(kind, folder / 'checkpoint_0', tmp_path / 'run')
  _assert_same_losses(logged['loss'], ours)
  _assert_same_weights(folder, tmp_path / 'run')


def _assert_same_weights(trained, run):
  """Of the last checkpoints; they have moved by far more."""
  start = _params(trained / 'checkpoint_0')
  theirs = _params(trained / LAST)
  ours = _params(run)
  assert set(ours) == set(theirs) == set(start)
  for name, value in theirs.items():
    np.testing.assert_allclose(ours[name], value, atol=1e-4, err_msg=name)
  moved = max(np.abs(theirs[name] - start[name]).max() for name in start)
  assert moved > 1e-2


def test_scanned_layers_of_scalable_t5(tmp_path):
  path = GIN / 'tiny.gin'
  text = path.read_text().replace(
    'examples.t5 import', 'examples.scalable_t5 import'
  )
  network = tmp_path / 'scalable.gin'
  network.write_text(text + "network.T5Config.remat_policy = 'minimal'\n")
  logged = t5x_runs.train('pairs', tmp_path / 't5x', network=network)
  ours = _library_losses(
    'pairs',
    tmp_path / 't5x' / 'checkpoint_0',
    tmp_path / 'run',
    't5.T5Config.scan_layers = True\n',
  )
  _assert_same_losses(logged['loss'], ours)
  _assert_same_weights(tmp_path / 't5x', tmp_path / 'run')


# Each way of running the step, on the kind of batch that it could break.
_WAYS = {
  'library network': ('pairs', {'LIBRARY_NETWORK': True}, '', 1),
  'mean': ('generative', {'LOSS_NORMALIZING_FACTOR': 'mean'}, '', 1),
  'microbatches': ('groups', {'MICROBATCHES': 2}, '', 1),
  'model parallel': (
    'groups',
    {'LIBRARY_NETWORK': True},
    'partitioning.PjitPartitioner:\n'
    '  num_partitions = None\n'
    '  model_parallel_submesh = (1, 2, 1, 1)\n',
    4,
  ),
}


@pytest.mark.parametrize('way', list(_WAYS))
def test_other_ways_lose_as_much(way, runs, tmp_path):
  kind, bindings, more, devices = _WAYS[way]
  _, logged = runs(kind)
  found = t5x_runs.train(kind, tmp_path / 'run', more, devices, **bindings)
  _assert_same_losses(found['loss'], logged['loss'])
  if devices > 1:
    text = (tmp_path / 'run' / 'model-info.txt').read_text()
    assert "'model'" in text


@pytest.mark.parametrize('kind', ['pairs', 'groups'])
def test_eval_counts_ranked_pairs(kind, runs, tmp_path):
  folder, _ = runs(kind)
  found = t5x_runs.evaluate(kind, folder / LAST, tmp_path / 'eval')
  lines = t5x_runs.infer(kind, folder / LAST, tmp_path / 'scores')
  scores = np.array([line['score'] for line in lines])
  # Pairs stand with the better first; groups have the made-up systems' order,
  # from best to worst.
  better = np.arange(scores.shape[1])
  valid = better[:, None] < better[None, :]
  right = (scores[:, :, None] > scores[:, None, :]) & valid
  accuracy = right.sum() / (valid.sum() * len(scores))
  step = t5x_runs.STEPS
  assert found['pairs'] == {step: valid.sum() * len(scores)}
  assert found['pair_accuracy'][step] == pytest.approx(accuracy, abs=1e-6)
  assert found['tau'][step] == pytest.approx(2 * accuracy - 1, abs=1e-6)


@pytest.mark.parametrize('library_network', [False, True])
def test_scores_equal_those_of_t5score_score(library_network, runs, tmp_path):
  """Of a checkpoint that was trained on groups, read by `t5score score`."""
  folder, _ = runs('groups')
  lines = t5x_runs.infer(
    'generative',
    folder / LAST,
    tmp_path / 'infer',
    LIBRARY_NETWORK=library_network,
  )
  assert len(lines) == len(made_up.meanings('validation'))
  for side in ('inputs', 'targets'):
    texts = [line['inputs'][f'{side}_pretokenized'] for line in lines]
    (tmp_path / side).write_text('\n'.join(texts) + '\n')
  code = _call(
    score,
    *('--model', folder / LAST, '--direction', 'precision'),
    *('--hypotheses', tmp_path / 'targets'),
    *('--references', tmp_path / 'inputs'),
    *('--max-length', t5x_runs.LENGTHS['generative']['targets']),
    *('--output', tmp_path / 'scores.jsonl', '--quiet'),
  )
  assert code == 0
  written = (tmp_path / 'scores.jsonl').read_text().splitlines()
  np.testing.assert_allclose(
    [json.loads(line)['score'] for line in written],
    [line['score'] for line in lines],
    rtol=0,
    atol=1e-4,
  )
