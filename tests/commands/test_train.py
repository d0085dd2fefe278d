import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fake_training
import numpy as np
import pytest
import train_on_devices

from t5score_jax import cli
from t5score_jax.commands import _gin

ROOT = Path(__file__).resolve().parents[2]

# Trains the linear model by the same loop and macros as the real ones.
_GIN = """
from __gin__ import dynamic_registration

import fake_training
from t5score_jax.inputs import datasets
from t5score_jax.training import loop
from t5score_jax.training import optimizers

include 'runs/train.gin'

MODEL = @fake_training.LinearModel()
VOCABULARY = 'bytes'
DATASET = @datasets.ArrayDataset()
datasets.ArrayDataset:
  path = '{arrays}'
  batch_size = %BATCH_SIZE
OPTIMIZER = @optimizers.adamw()
BATCH_SIZE = 8
LEARNING_RATE = 0.01
loop.Intervals.log_every = 1
"""


@pytest.fixture
def gin_file(tmp_path):
  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  path = tmp_path / 'linear.gin'
  path.write_text(_GIN.format(arrays=arrays))
  return path


def _run(*arguments):
  return cli.main(['train', *map(str, arguments)])


def _train(gin_file, folder, *more, steps=4):
  return _run(
    f'--gin_file={gin_file}',
    f"--gin.MODEL_DIR='{folder}'",
    f'--gin.TRAIN_STEPS={steps}',
    *more,
  )


def _error(capsys):
  """What was printed to stderr: one error, without a traceback."""
  shown = capsys.readouterr().err
  assert shown.startswith('t5score train: '), shown
  assert (
    shown.count('\n') == 1 or 'do not fit' in shown or 'does not fit' in shown
  )
  assert 'In call to configurable' not in shown
  return shown


def test_trains_and_records_its_configuration(tmp_path, gin_file, capsys):
  assert _train(gin_file, tmp_path / 'run') == 0
  shown = capsys.readouterr().err
  assert 'training starts, to step 4; 162 parameters' in shown
  assert 'step 4/4  loss' in shown and 'finished at step 4' in shown
  config = (tmp_path / 'run' / 'config.gin').read_text()
  assert re.search(r'^TRAIN_STEPS = 4$', config, re.M)
  assert re.search(r'^LEARNING_RATE = 0.01$', config, re.M)
  # What was written is itself a configuration, and means the same.
  (tmp_path / 'again.gin').write_text(config)
  shown = f"--gin.MODEL_DIR='{tmp_path}/b'"
  assert _run(f'--gin_file={tmp_path}/again.gin', shown, '--quiet') == 0
  assert capsys.readouterr().err == ''
  names = ('run', 'b')
  one, other = (
    [json.loads(x)['loss'] for x in (tmp_path / name / 'metrics.jsonl').open()]
    for name in names
  )
  assert one == other and len(one) == 4


def test_the_later_wins(tmp_path, gin_file):
  late = tmp_path / 'late.gin'
  late.write_text('TRAIN_STEPS = 2\nLEARNING_RATE = 0.5\n')
  arguments = f'--gin_file={late}', '--gin.LEARNING_RATE=0.25'
  # Flags win over files, wherever they stand.
  assert _train(gin_file, tmp_path / 'run', *arguments, steps=3) == 0
  config = (tmp_path / 'run' / 'config.gin').read_text()
  assert re.search(r'^TRAIN_STEPS = 3$', config, re.M)
  assert re.search(r'^LEARNING_RATE = 0.25$', config, re.M)


def test_flags_may_name_what_files_import(tmp_path, gin_file):
  flags = (
    '--gin.OPTIMIZER=@optimizers.adafactor()',
    '--gin.SCHEDULE=@optimizers.inverse_sqrt()',
    '--gin.loop.Intervals.log_every=2',
  )
  assert _train(gin_file, tmp_path / 'run', *flags, '--quiet') == 0
  config = (tmp_path / 'run' / 'config.gin').read_text()
  assert 'optimizers.adafactor:' in config and 'log_every = 2' in config


def test_gin_search_paths(tmp_path, gin_file, monkeypatch):
  (tmp_path / 'other').mkdir()
  gin_file.rename(tmp_path / 'other' / 'mine.gin')
  path = f'--gin_search_paths={tmp_path / "other"}'
  assert _train('mine.gin', tmp_path / 'run', path, '--quiet') == 0
  monkeypatch.chdir(tmp_path / 'other')
  assert _train('mine.gin', tmp_path / 'run', '--quiet', steps=5) == 0


def test_dry_run(tmp_path, gin_file, capsys):
  assert _train(gin_file, tmp_path / 'run', '--dry_run') == 0
  shown = capsys.readouterr().out
  assert 'parameters: 162' in shown and 'mlp/wi/kernel' in shown
  assert not (tmp_path / 'run').exists()


def test_dry_run_of_a_real_network(tmp_path, capsys):
  arrays = tmp_path / 'arrays'
  arrays.mkdir()
  for key, value in train_on_devices.make_arrays('group').items():
    np.save(arrays / f'{key}.npy', value)
  files = 'models/tiny.gin', 'runs/train_groups.gin', 'runs/arrays.gin'
  code = _run(
    *(f'--gin_file={name}' for name in files),
    f"--gin.MODEL_DIR='{tmp_path}/run'",
    f"--gin.ARRAYS='{arrays}'",
    '--gin.TRAIN_STEPS=10',
    '--dry_run',
  )
  shown = capsys.readouterr()
  assert code == 0, shown.err
  assert 'parameters: 222,208' in shown.out
  assert re.search(
    r"^token_embedder/embedding +\(384, 64\) +\('model',\)",
    shown.out,
    re.M,
  )
  assert re.search(r'^hypothesis_tokens +\(8, 4, 6\) +int32', shown.out, re.M)


def test_interrupted(tmp_path, gin_file):
  text = gin_file.read_text()
  gin_file.write_text(
    text.replace('@datasets.ArrayDataset', '@fake_training.InterruptedDataset')
    + f"""
fake_training.InterruptedDataset:
  path = '{tmp_path / 'arrays'}'
  batch_size = 8
  at = 9
  number = {int(signal.SIGTERM)}
"""
  )
  assert _train(gin_file, tmp_path / 'run', '--quiet', steps=200) == 75
  [checkpoint] = (tmp_path / 'run').glob('checkpoint_*')
  assert int(checkpoint.name.partition('_')[2]) < 60
  # The same command goes on; this time nobody interrupts it.
  never = '--gin.fake_training.InterruptedDataset.at=-1'
  assert _train(gin_file, tmp_path / 'run', never, '--quiet', steps=60) == 0
  assert list(fake_training.losses(tmp_path)) == list(range(1, 61))


def test_no_configuration(capsys):
  assert _run() == 2
  assert 'at least one --gin_file' in _error(capsys)


def test_missing_gin_file(tmp_path, capsys):
  assert _train('runs/no_such.gin', tmp_path / 'run') == 2
  assert 'runs/no_such.gin' in _error(capsys)


def test_gin_file_that_includes_a_missing_one(tmp_path, capsys):
  (tmp_path / 'a.gin').write_text("include 'runs/tarin.gin'\n")
  assert _train(tmp_path / 'a.gin', tmp_path / 'run') == 2
  shown = _error(capsys)
  assert 'no gin file runs/tarin.gin' in shown and 'a.gin' in shown


def test_missing_search_path(tmp_path, gin_file, capsys):
  path = f'--gin_search_paths={tmp_path / "nothing"}'
  assert _train(gin_file, tmp_path / 'run', path) == 2
  assert f'no folder {tmp_path / "nothing"}' in _error(capsys)


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('loop.train.modle_dir = 1', "'modle_dir'"),
    ('loop.tarin.model = 1', 'tarin'),
    ('nothing.such = 1', "'nothing'"),
    ('import no_such_module', "'no_such_module'"),
    ('A = = 1', 'line'),
    (
      'loop.Intervals.log_every = 0',
      'log_every = 0: must be',
    ),
    ("optimizers.adamw.clip = 'x'", "'clip'"),
    ('OPTIMIZER = @optimizers.adam()', 'training.optimizers has no adam ('),
  ],
)
def test_wrong_gin_file(tmp_path, gin_file, capsys, text, words):
  gin_file.write_text(gin_file.read_text() + '\n' + text + '\n')
  assert _train(gin_file, tmp_path / 'run') == 2
  assert words in _error(capsys)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--gin.TRAIN_STEP=3', 'nothing in the gin files uses TRAIN_STEP; did you'),
    ('--gin.LEARNING_RAET=3', 'did you mean LEARNING_RATE?'),
    ('--gin.loop.train.modle=3', "'modle'"),
    ('--gin.EVALUATORS=one two', 'not one that gin reads'),
    ('--gin.EVALUATORS=3', 'EVALUATORS = 3: must be'),
    ('--gin.EVALUATORS=[3]', 'EVALUATORS = [3]: must be'),
    ('--gin.OPTIMIZER=None', 'OPTIMIZER = None: must be'),
    ('--gin.OPTIMIZER=@optimizers.adamw', 'OPTIMIZER = <'),
    ('--gin.MODEL=@fake_training.LinearModel', '@LinearModel()'),
    ("--gin.DATASET='x'", "DATASET = 'x': must be"),
    ('--gin.SELECTION=3', 'SELECTION = 3: must be'),
    ('--gin.MICROBATCHES=0', 'MICROBATCHES = 0: must be'),
    ('--gin.TRAIN_STEPS=True', 'TRAIN_STEPS = True: must be'),
    ('--gin.EMA_DECAY=1', 'EMA_DECAY = 1: must be'),
    ('--gin.SETTINGS=3', 'SETTINGS = 3: must be'),
    ('--process_count=2', '--process_index need --coordinator_address'),
    (
      '--gin.SETTINGS=name',
      'needs quotes of its own: --gin.SETTINGS="\'name\'"',
    ),
  ],
)
def test_wrong_flag(tmp_path, gin_file, capsys, flag, words):
  assert _train(gin_file, tmp_path / 'run', flag) == 2
  assert words in _error(capsys)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ("--gin.TRAIN_STEPS='abc'", "TRAIN_STEPS = 'abc': must be"),
    ("--gin.LEARNING_RATE='x'", "learning_rate = 'x': must be"),
    ('--gin.WARMUP_STEPS=0.5', 'warmup_steps = 0.5: must be'),
    ('--gin.BATCH_SIZE=0', 'batch_size = 0: must be'),
    ("--gin.BATCH_SIZE='8'", "batch_size = '8': must be"),
    (
      '--gin.BATCH_SIZE=-4',
      'batch_size = -4: must be',
    ),
    ("--gin.loop.Intervals.save_every='x'", "save_every = 'x': must be"),
    ("--gin.optimizers.adamw.frozen={'a': 'x'}", 'adamw: '),
  ],
)
def test_wrong_values_are_named(tmp_path, gin_file, capsys, flag, words):
  assert _train(gin_file, tmp_path / 'run', flag) in (1, 2)
  assert words in _error(capsys)
  assert not (tmp_path / 'run').exists()


def test_gin_files_that_include_themselves(tmp_path, gin_file, capsys):
  (tmp_path / 'a.gin').write_text("# include 'a.gin'\ninclude 'a.gin'\n")
  path = f'--gin_search_paths={tmp_path}'
  assert _train('a.gin', tmp_path / 'run', path) == 2
  assert _error(capsys).endswith('/a.gin includes itself\n')
  for one, other in ('bc', 'cb'):
    (tmp_path / f'{one}.gin').write_text(f"include '{other}.gin'\n")
  assert _train('b.gin', tmp_path / 'run', path) == 2
  shown = _error(capsys)
  assert shown.endswith('/c.gin, which includes ' + str(tmp_path / 'b.gin\n'))
  # Twice beside each other is no circle.
  (tmp_path / 'd.gin').write_text('RANDOM_SEED = 1\n')
  gin_file.write_text(gin_file.read_text() + "include 'd.gin'\n" * 2)
  assert _train(gin_file, tmp_path / 'run', path, '--dry_run') == 0


def test_a_missing_extra_is_named(tmp_path, gin_file, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'seqio', None)
  gin_file.write_text('import seqio\n' + gin_file.read_text())
  assert _train(gin_file, tmp_path / 'run') == 2
  shown = _error(capsys)
  assert "pip install 't5score-jax[train]' installs it" in shown
  assert '/' not in shown


def test_misspelt_macros_are_found_before_anything_is_imported(
  tmp_path, gin_file, capsys
):
  gin_file.write_text('import no_such_module\n' + gin_file.read_text())
  assert _train(gin_file, tmp_path / 'run', '--gin.TRAIN_STEP=3') == 2
  assert 'did you mean TRAIN_STEPS?' in _error(capsys)


@pytest.mark.slow
def test_tensorflow_is_not_heard(tmp_path):
  environment = {k: v for k, v in os.environ.items() if 'TF_CPP' not in k}
  done = subprocess.run(
    [
      *(sys.executable, '-m', 't5score_jax.cli', 'train', '--quiet'),
      '--gin_file=recipes/tiny_run.gin',
      f"--gin.MODEL_DIR='{tmp_path}/run'",
      '--gin.BATCH_SIZE=0',
    ],
    env=environment,
    capture_output=True,
    text=True,
    timeout=300,
  )
  words = 'batch_size = 0: must be an integer >= 1'
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr == f't5score train: {words}\n'
  assert list(tmp_path.iterdir()) == []


def test_what_else_is_written_while_tensorflow_comes_is_kept():
  chatter = 'E0000 00:00:1795888910.235433   18773 a.cc:52] failed call\n'
  code = (
    'import os, sys\n'
    'from t5score_jax.runtime import tensorflow_settings\n'
    'with tensorflow_settings.quietly():\n'
    f'  os.write(2, {chatter.encode()!r})\n'
    "  print('kept', file=sys.stderr)\n"
    "print('after', file=sys.stderr)\n"
  )
  for first, variable, expected in (
    ('', {}, 'kept\nafter\n'),
    # Which sets the variable.
    ('import jax\n', {}, 'kept\nafter\n'),
    # An earlier block, in which nothing imports TensorFlow.
    (
      'from t5score_jax.runtime import tensorflow_settings as first\n'
      'with first.quietly():\n  pass\n',
      {},
      'kept\nafter\n',
    ),
    ('', {'TF_CPP_MIN_LOG_LEVEL': '0'}, chatter + 'kept\nafter\n'),
  ):
    environment = {k: v for k, v in os.environ.items() if 'TF_CPP' not in k}
    done = subprocess.run(
      [sys.executable, '-c', first + code],
      env={**environment, **variable},
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert done.stderr == expected


def test_macro_without_a_value(tmp_path, gin_file, capsys):
  assert _run(f'--gin_file={gin_file}', '--gin.TRAIN_STEPS=3') == 2
  assert _error(capsys) == (
    't5score train: MODEL_DIR has no value: give --gin.MODEL_DIR=VALUE\n'
  )


@pytest.mark.parametrize(
  ('path', 'message'),
  [
    ('nothing', "no model 'nothing'"),
    ('t5score-tinny', "did you mean 't5score-tiny'?"),
    ('t5score-tiny', 'do not fit this model'),
  ],
)
def test_initial_weights_that_cannot_be_used_leave_no_folder(
  tmp_path, gin_file, path, message, capsys
):
  flag = f"--gin.INITIAL_CHECKPOINT_PATH='{path}'"
  assert _train(gin_file, tmp_path / 'run', flag) == 1
  assert message in _error(capsys)
  assert not (tmp_path / 'run').exists()


def test_a_missing_vocabulary_names_what_can_be_given(
  tmp_path, gin_file, capsys
):
  flag = "--gin.VOCABULARY='t5score-tinny'"
  assert _train(gin_file, tmp_path / 'run', flag) in (1, 2)
  error = _error(capsys)
  assert "'t5score-tinny'" in error and 't5score-tiny' in error
  assert not (tmp_path / 'run').exists()


def test_model_dir_of_another_model(tmp_path, gin_file, capsys):
  assert _train(gin_file, tmp_path / 'run', '--quiet') == 0
  flag = '--gin.fake_training.LinearModel.hidden=24'
  assert _train(gin_file, tmp_path / 'run', flag, steps=8) == 1
  shown = _error(capsys)
  assert 'params/mlp/wi/kernel [8, 16], expected [8, 24]' in shown


def test_multiplier_of_no_parameter(tmp_path, gin_file, capsys):
  flag = "--gin.optimizers.adamw.multipliers={'decoder': 0.5}"
  assert _train(gin_file, tmp_path / 'run', flag) == 1
  assert "['decoder'] match no parameter" in _error(capsys)


def test_missing_data(tmp_path, gin_file, capsys):
  flag = f"--gin.datasets.ArrayDataset.path='{tmp_path}/nothing'"
  assert _train(gin_file, tmp_path / 'run', flag) == 1
  assert 'no such folder of .npy arrays' in _error(capsys)
  assert not (tmp_path / 'run').exists()


def test_loss_that_explodes(tmp_path, gin_file, capsys):
  flag = '--gin.LEARNING_RATE=1e30'
  assert _train(gin_file, tmp_path / 'run', flag, '--quiet', steps=20) == 1
  assert 'Try a lower learning rate' in _error(capsys)


def test_help_is_complete(capsys):
  with pytest.raises(SystemExit) as stopped:
    _run('--help')
  assert stopped.value.code == 0
  shown = capsys.readouterr().out
  for flag in (
    *('--gin_file', '--gin.NAME', '--gin_search_paths', '--run_mode'),
    *('--dry_run', '--quiet', 'exit code', '130', '75'),
    *('--coordinator_address', '--process_count', '--process_index'),
  ):
    assert flag in shown
  # Every macro that the shared files read is explained.
  config = ''.join(
    (ROOT / 'gin_configs' / 'runs' / name).read_text()
    for name in ('train.gin', 'arrays.gin')
  )
  for macro in set(re.findall(r'%([A-Z_]+)', config)):
    assert re.search(rf'\b{macro}\b', shown), macro


def test_help_names_files_that_exist(capsys):
  with pytest.raises(SystemExit):
    _run('--help')
  shown = capsys.readouterr().out
  for name in re.findall(r'--gin_file=(\S+)', shown):
    assert (ROOT / 'gin_configs' / name).is_file(), name


def test_references_are_read_before_their_modules_are():
  """In a process that has read no gin file yet."""
  for value in ('@nowhere.linear()', '%NAME', '[@nowhere.a(), %B]'):
    assert _gin._checked(f'X={value}') == f'X = {value}'
  with pytest.raises(_gin.ConfigurationError, match='quotes of its own'):
    _gin._checked('X=/data/a@b')
