"""Precompilation: on host devices always, for TPUs where libtpu is there."""

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys

import jax
import pytest

from t5score_jax import cli, errors
from t5score_jax.commands import _gin
from t5score_jax.commands import precompile as command
from t5score_jax.models import regression, t5score
from t5score_jax.nn import bert, heads, t5, unified
from t5score_jax.precompile import reports, topologies, train_step

TINY = """\
from __gin__ import dynamic_registration
from t5score_jax.nn import t5
include 'models/tiny.gin'
include 'runs/train_pairs.gin'
t5.T5Config.num_encoder_layers = 1
t5.T5Config.num_decoder_layers = 1
"""
GIB = 2**30

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason='libtpu is not installed'
)


@pytest.fixture
def tiny(tmp_path):
  path = tmp_path / 'tiny_pairs.gin'
  path.write_text(TINY)
  return f'--gin_file={path}'


def _run(*arguments, timeout=500):
  """Runs the command in a process of its own; returns code, reports, errors."""
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
  done = subprocess.run(
    [sys.executable, '-m', 't5score_jax.cli', 'precompile', *arguments],
    env=environment,
    capture_output=True,
    text=True,
    timeout=timeout,
  )
  lines = [x for x in done.stdout.splitlines() if x.startswith('{')]
  return done.returncode, [json.loads(x) for x in lines], done.stderr


@pytest.mark.slow
def test_bytes_on_a_device_are_those_counted_by_hand(tiny):
  code, [report], _ = _run(
    tiny,
    '--topology=cpu:8',
    '--batch=8',
    '--lengths=8,8',
    '--partitions=2',
    '--fully_sharded',
    '--json',
  )
  assert code == 0
  assert report['mesh'] == {'data': 4, 'model': 2}
  # Width 64, 4 heads of 16, inner width 128, 384 bytes; data 4, model 2.
  embedding = 384 // 8 * 64
  biases = 2 * (4 // 2) * 32
  attention = 3 * 4 * (64 // 4) * (64 // 2)
  mlp = 2 * 3 * (64 // 4) * (128 // 2)
  norms = 7 * 64 // 4
  parameters = embedding + biases + attention + mlp + norms
  # Full second moments (all matrices are small), two numbers that stand for
  # none beside each of 28, and three counters.
  state = 2 * 4 * parameters + 28 * 2 * 4 + 3 * 4
  batch = (8 // 4) * 2 * (8 + 8 + 1) * 4
  assert report['memory']['aliased'] == state
  # Kernels are gathered over 'data' for the forward and the backward pass.
  assert report['collectives']['all-gather']['bytes'] > 4 * 4 * parameters
  assert report['collectives']['all-reduce']['count'] > 0
  assert report['memory']['arguments'] == state + batch
  assert report['parameters'] == 123_584
  # 6 FLOPs a parameter and token: 16 texts of 8 tokens each way.
  assert report['pairs'] == 8
  side = 4 * 64 * 64 + 3 * 64 * 128
  decoder = side + 4 * 64 * 64 + 384 * 64
  thumb = 6 * 16 * 8 * (side + decoder)
  assert report['model_flops'] == pytest.approx(thumb, rel=0.1)
  assert report['flops_per_pair'] == report['flops'] / 8
  assert report['roofline'] is None


def test_text_on_one_host_device(tiny, capsys):
  code = cli.main(
    ['precompile', tiny, '--topology=cpu:1', '--batch=4', '--lengths=8,8']
  )
  shown = capsys.readouterr().out
  assert code == 0
  assert 'train step on cpu:1: 1 chip(s), data 1 x model 1' in shown
  assert '4 x pair of hypotheses in one direction' in shown
  assert '123,584' in shown and 'fits' in shown


def test_scoring_on_one_host_device(tiny, capsys):
  code = cli.main(
    [
      *('precompile', tiny, '--topology=cpu:1', '--run_mode=score'),
      *('--batch=4', '--lengths=8,16', '--json'),
    ]
  )
  report = json.loads(capsys.readouterr().out)
  assert code == 0
  assert report['what'] == 'scoring step'
  # The weights and what is multiplied by the vocabulary, which takes the most
  # memory: hidden states and targets.
  given = 4 * 123_584 + 4 * (4 * 16 * 64 + 4 * 16)
  assert report['memory']['arguments'] == given
  side = 4 * 64 * 64 + 3 * 64 * 128
  thumb = 2 * 4 * (8 * (side + 2 * 64 * 64) + 16 * (side + 2 * 64 * 64))
  thumb += 2 * 4 * 16 * 384 * 64
  assert report['flops'] == pytest.approx(thumb, rel=0.1)


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--topology=v7:4x4'], 2, 'write KIND:SHAPE'),
    (['--topology=v5e'], 2, 'write KIND:SHAPE'),
    (['--topology=auto:v9'], 2, 'the kind is one of v4, v5e'),
    (['--topology=cpu:64'], 1, 'JAX has started with'),
    (['--topology=cpu:1', '--lengths=8'], 2, 'two or three numbers'),
    (['--topology=cpu:1', '--batch=3', '--microbatches=2'], 1, 'multiple of 2'),
    (['--topology=cpu:1', '--partitions=2'], 1, 'does not divide the 1'),
    (
      ['--topology=cpu:1', '--run_mode=score', '--partitions=2'],
      1,
      'cannot be divided',
    ),
  ],
)
def test_what_is_wrong_is_said_in_one_line(
  tiny, capsys, arguments, code, message
):
  assert jax.devices()  # From here on their number is fixed.
  assert cli.main(['precompile', tiny, *arguments]) == code
  captured = capsys.readouterr()
  assert message in captured.err
  assert captured.err.count('\n') == 1 and not captured.out


def test_without_libtpu(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(topologies.TopologyError, match=r'pip install .*\[tpu\]'):
    topologies.get('v5e:4x4')


CONFIG = t5.T5Config(
  vocab_size=64,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  num_encoder_layers=1,
  num_decoder_layers=1,
)


@pytest.mark.parametrize(
  ('model', 'keys', 'pairs'),
  [
    (t5score.GenerativeModel, {'encoder_input_tokens': (6, 4)}, 6),
    (t5score.PairModel, {'decoder_target_tokens': (6, 2, 5)}, 6),
    (t5score.GroupModel, {'hypothesis_tokens': (6, 3, 5)}, 18),
    (t5score.ParaphraseModel, {'shared_tokens': (6, 4)}, 18),
  ],
)
def test_batches_are_what_models_read(model, keys, pairs):
  lengths = {'inputs': 4, 'targets': 5, 'ratings': 3}
  shapes, count, _ = train_step.batch_shapes(model(CONFIG), 6, lengths)
  assert count == pairs
  for key, shape in keys.items():
    assert shapes[key].shape == shape
  # It can be traced, so nothing is missing.
  network = model(CONFIG)
  params = jax.eval_shape(network.init, jax.random.key(0))
  jax.eval_shape(network.loss_fn, params, shapes, jax.random.key(0))


ENCODER = bert.BertConfig(64, 16, 2, 24, 1, 12)


@pytest.mark.parametrize(
  ('model', 'keys'),
  [
    (
      regression.CrossEncoderModel(ENCODER),
      {'tokens': (6, 12), 'token_types': (6, 12)},
    ),
    (
      regression.RegressorModel(heads.RegressorConfig(ENCODER, ('a', 'b'))),
      {'source_tokens': (6, 12), 'reference_tokens': (6, 12)},
    ),
    (
      regression.UnifiedModel(
        unified.UnifiedConfig(
          ENCODER, ('a',), labels=('bad',), word_layer=1, reference=False
        )
      ),
      # Two tokens fewer than a joint sequence has.
      {'source_tokens': (6, 10), 'hypothesis_tags': (6, 10)},
    ),
    (
      regression.UnifiedModel(
        unified.UnifiedConfig(ENCODER, ('a',), source=False), max_length=9
      ),
      {'reference_tokens': (6, 7)},
    ),
  ],
)
def test_batches_of_encoders(model, keys):
  lengths = train_step.default_lengths(model)
  shapes, count, _ = train_step.batch_shapes(model, 6, lengths)
  assert count == 6
  shown = {key: shapes[key].shape for key in keys}
  assert shown == keys
  if isinstance(model, regression.UnifiedModel):
    roles = {f'{role}_tokens' for role in regression.ROLES}
    assert roles & set(shapes) == {'hypothesis_tokens', *keys} & roles
    # Longer texts than the network joins are none that it gets.
    assert train_step.batch_shapes(model, 6, {'inputs': 99})[0] == shapes
  params = jax.eval_shape(model.init, jax.random.key(0))
  jax.eval_shape(model.loss_fn, params, shapes, jax.random.key(0))


def test_lengths_that_are_missing():
  with pytest.raises(errors.ConfigurationError, match='ratings'):
    train_step.batch_shapes(
      t5score.GroupModel(CONFIG), 6, {'inputs': 4, 'targets': 5}
    )


@pytest.mark.parametrize(
  ('message', 'needed'),
  [
    (
      'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory '
      'in memory space hbm. Used 22.30G of 15.75G hbm. Exceeded hbm capacity '
      'by 6.55G.',
      int(22.3 * GIB),
    ),
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required '
      'for HLO temporaries (30.44G) exceeds available HBM (15.75G).',
      int(30.44 * GIB),
    ),
    ('RESOURCE_EXHAUSTED: something new', 0),
    ('INVALID_ARGUMENT: Used 1G of 2G', None),
  ],
)
def test_what_xla_says_of_too_large_a_program(message, needed):
  assert reports.memory_asked_for(message) == needed


def test_roofline_by_hand():
  chip = topologies.Chip('x', GIB, 1e12, 1e9, ('1x1',))
  memory = reports.Memory(arguments=4 * 10**8, outputs=10**8, temporaries=10**8)
  assert reports.roofline(chip, 4, memory, 8e12, 6e12) == reports.Roofline(
    products=2.0, memory=0.5 + 2 * 0.1, seconds=2.0, utilization=1.5 / 2.0
  )


def test_report_that_does_not_fit():
  report = reports.make(
    topologies.Topology('v5e:1x1', topologies.CHIPS['v5e'], (None,)),
    reports.Memory(needed=22 * GIB),
    flops=100,
    model_flops=90,
    what='train step',
    mesh={'data': 1, 'model': 1},
    fully_sharded=False,
    microbatches=1,
    batch={'x': (1, 2)},
    pairs=1,
    unit='pair of texts',
    parameters=10,
    collectives={},
    seconds=1.0,
  )
  assert not report.fits and report.roofline is None
  assert (
    'at least 22.00 GiB per chip of 15.75: does not fit'
    in command.as_text(report)
  )


def test_a_compiler_that_ends_the_process_is_reported(capfd):
  def crash():
    print('pages of addresses', file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

  with pytest.raises(topologies.TopologyError, match='signal 9'):
    command._survived(crash)
  assert capfd.readouterr().err == ''
  assert command._survived(lambda: 2) == 2


@needs_libtpu
def test_a_slice_that_is_not_there(tiny):
  code, [report], _ = _run(
    tiny, '--topology=v5e:2x2', '--batch=8', '--lengths=8,8', '--json'
  )
  assert code == 0
  assert report['chips'] == 4 and report['usable'] == 15.75 * GIB
  assert 0 < report['memory']['needed'] < 0.1 * GIB
  assert report['roofline']['seconds'] > 0


@needs_libtpu
@pytest.mark.slow
def test_what_does_not_fit_ends_with_one():
  code, [report], errors = _run(
    *('--gin_file=models/mt5_base.gin', '--gin_file=runs/train_generative.gin'),
    *('--topology=v5e:1x1', '--batch=256', '--lengths=128,128', '--json'),
  )
  assert code == 1 and not report['fits']
  assert report['memory']['needed'] > report['usable']
  assert 'Traceback' not in errors


@needs_libtpu
@pytest.mark.slow
def test_mt5_base_fits_with_room():
  code, [report], _ = _run(
    *('--gin_file=models/mt5_base.gin', '--gin_file=runs/train_generative.gin'),
    *('--topology=v5e:4x4', '--batch=128', '--lengths=128,128', '--json'),
  )
  # T5X's network needs 22.3 GiB for the same.
  assert code == 0 and report['memory']['needed'] < 8 * GIB


@needs_libtpu
@pytest.mark.slow
def test_supervised_xxl_takes_half_of_sixteen_chips():
  pytest.importorskip('seqio')
  before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
  code, [report], _ = _run(
    '--gin_file=recipes/t5score_xxl_contrastive.gin',
    *('--topology=v5e:4x4', '--json'),
    timeout=1200,
  )
  spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
  assert code == 0
  # 32 pairs in one direction, 64 tokens each way.
  assert report['batch']['encoder_input_tokens'] == [32, 2, 64]
  assert report['parameters'] == 12_921_057_280 + 2 * 23 * 64 * 32
  assert report['memory']['needed'] <= 8 * GIB
  assert spent < 120


@pytest.mark.parametrize('option', ['batch', 'partitions', 'microbatches'])
@pytest.mark.parametrize('value', ['0', '-4'])
def test_numbers_are_at_least_one(tiny, capsys, option, value):
  with pytest.raises(SystemExit) as caught:
    cli.main(['precompile', tiny, '--topology=cpu:1', f'--{option}={value}'])
  assert caught.value.code == 2
  shown = capsys.readouterr().err
  assert f'argument --{option}: {value}: must be at least 1' in shown


@pytest.mark.parametrize('name', ['BATCH_SIZE', 'MICROBATCHES'])
@pytest.mark.parametrize('value', ['0', "'x'"])
def test_numbers_of_gin_are_at_least_one(tiny, capsys, name, value):
  code = cli.main(
    [
      *('precompile', tiny, '--topology=cpu:1', '--lengths=8,8'),
      f'--gin.{name}={value}',
    ]
  )
  assert code == 2
  assert f'{name} = {value}: must be' in capsys.readouterr().err


def test_a_slice_without_chips():
  with pytest.raises(errors.UsageError, match='v5e:4x0'):
    topologies.size_of('v5e:4x0')


@pytest.mark.slow
def test_metricx_trains_and_scores(capsys):
  arguments = [
    'precompile',
    '--gin_file=models/tiny.gin',
    '--gin_file=runs/metricx.gin',
    '--gin.OUTPUT_ID=7',
    '--gin.t5.T5Config.num_encoder_layers=1',
    '--gin.t5.T5Config.num_decoder_layers=1',
    '--gin.t5.T5Config.logits_via_embedding=False',
    '--topology=cpu:1',
    '--batch=2',
    '--lengths=8,1',
    '--json',
  ]
  found = {}
  for mode in ('train', 'score'):
    assert cli.main([*arguments, f'--run_mode={mode}']) == 0
    found[mode] = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert found['train']['batch'] == {
    'encoder_input_tokens': [2, 8],
    'ratings': [2, 1],
  }
  # All of the output matrix but one column, in float32.
  whole = 4 * found['train']['parameters']
  weights = found['score']['memory']['arguments'] - 4 * 2 * 8
  assert weights == whole - 4 * 64 * (384 - 1)


def test_runs_that_count_steps_in_their_data_need_none():
  # FROZEN_STEPS and EVAL_STEPS of runs/comes.gin are counted in ARRAYS.
  _gin.configure(
    ['models/comes_minilm.gin', 'runs/comes.gin'],
    ['NUM_LAYERS=1', "OUTPUTS=('score',)"],
    '',
  )
  command._set_unused()
  optimizer = command._configured('optimizer')
  assert optimizer.frozen == {'^encoder/embeddings/': -1, '^encoder/': 1}


def test_scoring_with_encoders_is_refused(capsys):
  arguments = ['--gin_file=recipes/comes_minilm.gin', '--run_mode=score']
  arguments += ['--gin.MODEL=@regression.RegressorModel()']
  arguments += ['--gin.regression.RegressorModel.config=%CONFIG']
  assert cli.main(['precompile', '--topology=cpu:1', *arguments]) == 2
  assert 'compiles T5 networks, not' in capsys.readouterr().err
