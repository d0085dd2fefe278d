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

from t5score_jax import cli
from t5score_jax.commands import precompile as command
from t5score_jax.models import t5score
from t5score_jax.nn import t5
from t5score_jax.precompile import hlo, topologies, train_step

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
  assert report['memory']['arguments'] == state + batch
  assert report['parameters'] == 123_584
  # The weights of a layer are gathered, their gradients reduced.
  assert report['collectives']['all-gather']['count'] > 20
  assert report['collectives']['all-reduce']['sent'] > 0
  # 6 FLOPs a parameter and token: 16 texts of 8 tokens each way.
  assert report['pairs'] == 8
  side = 4 * 64 * 64 + 3 * 64 * 128
  decoder = side + 4 * 64 * 64 + 384 * 64
  thumb = 6 * 16 * 8 * (side + decoder)
  assert report['model_flops'] == pytest.approx(thumb, rel=0.1)
  assert report['flops_per_pair'] == report['flops'] / 8
  assert report['estimate'] is None


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
  # The weights and what the decoder is given: encoded inputs, their tokens,
  # each target's row, targets.
  given = 4 * 123_584 + 4 * (4 * 8 * 64 + 4 * 8 + 4 + 4 * 16)
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


CONFIG = t5.T5Config(vocab_size=64, emb_dim=16, num_heads=2, head_dim=8)


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


def test_lengths_that_are_missing():
  with pytest.raises(train_step.PrecompileError, match='ratings'):
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
  assert train_step.memory_asked_for(message) == needed


def test_estimate_by_hand():
  chip = topologies.Chip('x', GIB, 1e12, 1e9, 5e8, ('1x1',))
  memory = train_step.Memory(
    arguments=4 * 10**8, outputs=10**8, temporaries=10**8
  )
  gathered = hlo.Collective('all-gather', bytes=10**8, group=4, count=2)
  found = train_step.estimate_of(chip, 4, memory, [gathered], 8e12, 6e12)
  assert found.products == pytest.approx(2.0)
  assert found.memory == pytest.approx(0.5 + 2 * (0.1 + 0.2))
  assert found.links == pytest.approx(2 * 1e8 * 0.75 / 5e8)
  assert found.least == pytest.approx(2.0)
  assert found.most == pytest.approx(2.0 + 1.1 + 0.3)
  assert found.utilization == pytest.approx((1.5 / 3.4, 1.5 / 2.0))


def test_report_that_does_not_fit():
  chip = topologies.CHIPS['v5e']
  report = train_step.report(
    'train step',
    topologies.Topology('v5e:1x1', chip, (None,)),
    [(None, train_step.Memory(needed=22 * GIB))],
    mesh={'data': 1, 'model': 1},
    fully_sharded=False,
    microbatches=1,
    batch={'x': (1, 2)},
    pairs=1,
    unit='pair of texts',
    parameters=10,
    flops=100,
    model_flops=90,
    seconds=1.0,
  )
  assert not report.fits and report.estimate is None
  assert 'at least 22.00 GiB a chip of 15.75: does not fit' in command.as_text(
    report
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
  assert report['estimate']['least'] > 0


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
  # Nothing of the size of the vocabulary's matrix is gathered for the loss.
  whole = 4 * 768 * 250112
  gathered = report['collectives'].get('all-gather', {'bytes': 0.0})
  assert gathered['bytes'] <= 2.1 * whole


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
  # 32 pairs in both directions, 64 tokens each way.
  assert report['batch']['encoder_input_tokens'] == [64, 2, 64]
  assert report['parameters'] == 12_921_057_280 + 2 * 23 * 64 * 32
  assert report['memory']['needed'] <= 8 * GIB
  # Neither the vocabulary's matrix nor its gradient moves.
  assert report['collectives']['all-gather']['bytes'] < 12 * GIB
  assert spent < 120


@pytest.mark.parametrize('option', ['batch', 'partitions', 'microbatches'])
@pytest.mark.parametrize('value', ['0', '-4'])
def test_numbers_are_at_least_one(tiny, capsys, option, value):
  with pytest.raises(SystemExit) as caught:
    cli.main(['precompile', tiny, '--topology=cpu:1', f'--{option}={value}'])
  assert caught.value.code == 2
  told = capsys.readouterr().err
  assert f'argument --{option}: {value}: must be at least 1' in told


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
  with pytest.raises(topologies.TopologyError, match='v5e:4x0'):
    topologies.size_of('v5e:4x0')
