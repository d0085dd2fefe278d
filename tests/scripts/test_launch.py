"""The launchers: here for real, on clusters by stand-ins of their tools."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import devices
import fake_training
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / 'scripts' / 'launch'
LAUNCHERS = ('hosts.sh', 'slurm.sh', 'tpu_pod.sh')
_MODEL_DIR = "--gin.MODEL_DIR='/tmp/a b'"


@pytest.fixture
def tools(tmp_path, monkeypatch):
  """A folder of stand-ins, first in PATH; `say` prints what it is given."""
  folder = tmp_path / 'tools'
  folder.mkdir()
  monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')

  def add(name, text):
    path = folder / name
    path.write_text(f'#!/usr/bin/env bash\n{text}\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)

  add('say', 'printf "<%s>" "A=$A" "$@"; echo')
  return add


def _launch(name, *arguments, **options):
  return subprocess.run(
    [str(SCRIPTS / name), *map(str, arguments)],
    capture_output=True,
    text=True,
    timeout=300,
    **options,
  )


def _said(index, count, address):
  """What a process of `train` with a folder of two words was given."""
  return (
    f'<A=1 2><-m><t5score_jax><train><{_MODEL_DIR}>'
    f'<--coordinator_address={address}><--process_count={count}>'
    f'<--process_index={index}>'
  )


@pytest.mark.parametrize('name', LAUNCHERS)
def test_help_is_the_head_of_the_script(name):
  assert subprocess.run(['bash', '-n', SCRIPTS / name]).returncode == 0
  done = _launch(name, '--help')
  assert done.returncode == 0 and f'scripts/launch/{name}' in done.stdout
  assert '--dry_run' in done.stdout and 'set -euo' not in done.stdout


@pytest.mark.parametrize(
  ('name', 'arguments', 'words'),
  [
    *((name, [], 'no command after --') for name in LAUNCHERS),
    ('hosts.sh', ['--local', '2'], 'no command after --'),
    ('hosts.sh', ['--local', 'two', '--', 'train'], '--local two: a'),
    ('hosts.sh', ['--', 'train'], '--hosts or --local is needed'),
    ('hosts.sh', ['--hosts', 'a', '--local=1', '--', 'x'], 'either'),
    ('hosts.sh', ['train'], 'before train a -- is missing'),
    ('slurm.sh', ['--', 'train'], '--nodes : a number is needed'),
    ('slurm.sh', ['--node', '2', '--', 'x'], 'no option --node'),
    ('tpu_pod.sh', ['--zone', 'z', '--', 'x'], '--name is needed'),
    ('tpu_pod.sh', ['--name'], '--name needs a value'),
  ],
)
def test_wrong_usage(name, arguments, words):
  done = _launch(name, *arguments)
  assert done.returncode == 2 and done.stdout == ''
  assert done.stderr.startswith(f'{name}: ') and words in done.stderr
  assert done.stderr.count('\n') == 1


def test_hosts(tools):
  tools('ssh', 'host=$3; [[ $4 == *say* ]] && echo "to $host"; bash -c "$4"')
  options = ('--hosts', 'me@a,b', '--python', 'say', '--env', 'A=1 2')
  done = _launch('hosts.sh', *options, '--', 'train', _MODEL_DIR)
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == ['to me@a', _said(0, 2, 'a:8476')]
  assert done.stderr.splitlines() == [
    '[1] to b',
    f'[1] {_said(1, 2, "a:8476")}',
  ]


def test_hosts_without_running(tools):
  tools('ssh', 'exit 9')
  options = ('--hosts', 'a,b', '--dry_run')
  done = _launch('hosts.sh', *options, '--', 'train')
  assert done.returncode == 0
  assert [line.split()[:4] for line in done.stdout.splitlines()] == [
    ['ssh', '-o', 'BatchMode=yes', host] for host in 'ab'
  ]


@pytest.mark.parametrize('per_gpu', [True, False])
@pytest.mark.parametrize('code', [0, 75, 1])
def test_slurm(tools, tmp_path, per_gpu, code):
  tools('sbatch', f'cat >{tmp_path}/job.sh')
  tools(
    'scontrol', 'if [ $1 = show ]; then echo n1; echo n2; else echo "$*"; fi'
  )
  tools('say', f'printf "<%s>" "A=$A" "$@"; echo; exit {code}')
  # Its first word is an option; all processes run one after the other.
  tools(
    'srun',
    'shift; code=0; for i in 0 1; do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" ||'
    ' code=$?; done; exit $code',
  )
  options = ['--nodes', '2', '--python', 'say', '--env', 'A=1 2']
  options += ['--sbatch', '--time=1:00', '--directory', '/some where']
  if per_gpu:
    options += ['--gpus', '4', '--process_per_gpu']
  submitted = _launch('slurm.sh', *options, '--', 'train', _MODEL_DIR)
  assert submitted.returncode == 0, submitted.stderr
  job = (tmp_path / 'job.sh').read_text()
  for line in (
    *('--nodes=2', '--time=1:00', '--signal=TERM@180', '--requeue'),
    f'--ntasks-per-node={4 if per_gpu else 1}',
  ):
    assert f'\n#SBATCH {line}\n' in job
  assert ('export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n' in job) == per_gpu
  done = subprocess.run(
    ['bash', tmp_path / 'job.sh'],
    env={**os.environ, 'SLURM_NTASKS': '2', 'SLURM_JOB_ID': '77'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == code, done.stderr
  expected = [_said(index, 2, 'n1:8476') for index in range(2)]
  expected += ['requeue 77'] if code == 75 else []
  assert done.stdout.splitlines() == expected
  dry = _launch('slurm.sh', '--dry_run', *options, '--', 'train')
  assert dry.stdout.startswith('#!/usr/bin/env bash\n#SBATCH')


def test_tpu_pod(tools, tmp_path):
  tools(
    'curl',
    'case ${@: -1} in *agent-worker-number) echo "$WORKER";;'
    ' *endpoints) echo "u:8470:10.0.0.5,v:8470:10.0.0.6,w:8470:10.0.0.7";;'
    ' *) exit 22;; esac',
  )
  # Three workers in a row, each with the command of the last argument.
  tools(
    'gcloud',
    'for i in 0 1 2; do echo "${@:1:$#-1}"; '
    'WORKER=$i bash -c "${@: -1:1}" dummy; done',
  )
  # The command is --command=TEXT: gcloud's own way.
  text = (tmp_path / 'tools' / 'gcloud').read_text()
  (tmp_path / 'tools' / 'gcloud').write_text(
    text.replace('"${@: -1:1}"', '"$(x=${@: -1:1}; echo "${x#--command=}")"')
  )
  options = ['--name', 'n', '--zone', 'z', '--python', 'say', '--env', 'A=1 2']
  options += ['--log', tmp_path / 'a log', '--directory', tmp_path]
  done = _launch('tpu_pod.sh', *options, '--', 'train', _MODEL_DIR)
  assert done.returncode == 0, done.stderr
  said = [_said(index, 3, '10.0.0.5:8476') for index in range(3)]
  called = 'compute tpus tpu-vm ssh n --zone=z --worker=all'
  assert done.stdout.splitlines() == [x for s in said for x in (called, s)]
  assert (tmp_path / 'a log').read_text().splitlines() == said
  setup = ('--setup', 'pip install it', '--dry_run')
  dry = _launch('tpu_pod.sh', *options, *setup, '--', 'train')
  first, second = dry.stdout.splitlines()
  assert first.startswith(f'gcloud {called} --command=pip')
  assert '--process_index=' in second


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
  batch_size = 8
OPTIMIZER = @optimizers.adamw()
LEARNING_RATE = 0.01
loop.Intervals.log_every = 1
"""


def _local(folder, count, *flags, per_process=2):
  arrays = fake_training.write_arrays(folder / 'arrays')
  (folder / 'linear.gin').write_text(_GIN.format(arrays=arrays))
  return subprocess.Popen(
    [str(SCRIPTS / 'hosts.sh'), '--local', str(count)]
    + ['--host_devices', str(per_process), '--python', sys.executable, '--']
    + ['train', f'--gin_file={folder}/linear.gin']
    + [f"--gin.MODEL_DIR='{folder}/run'", *flags],
    env=devices.environment(
      PYTHONPATH=str(SCRIPTS.parents[1] / 'tests' / 'support')
    ),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
def test_local_processes_are_stopped_and_go_on(tmp_path):
  """SIGTERM to the launcher, as a scheduler gives it: all save and end."""
  launcher = _local(tmp_path, 2, '--gin.TRAIN_STEPS=1000000')
  metrics = tmp_path / 'run' / 'metrics.jsonl'
  deadline = time.monotonic() + 120
  while time.monotonic() < deadline and launcher.poll() is None:
    if metrics.is_file() and metrics.read_text().count('\n') > 3:
      break
    time.sleep(0.2)
  launcher.send_signal(signal.SIGTERM)
  out, error = launcher.communicate(timeout=120)
  assert launcher.returncode == 75, error[-3000:]
  assert out == '' and 'preempted at step' in error
  [checkpoint] = (tmp_path / 'run').glob('checkpoint_*')
  step = int(checkpoint.name.partition('_')[2])
  launcher = _local(tmp_path, 2, f'--gin.TRAIN_STEPS={step + 5}', '--quiet')
  _, error = launcher.communicate(timeout=120)
  assert launcher.returncode == 0, error[-3000:]
  steps = [json.loads(line)['step'] for line in metrics.open()]
  assert steps == list(range(1, step + 6))


@pytest.mark.slow
def test_local_processes_fail_together(tmp_path):
  launcher = _local(
    tmp_path, 2, '--gin.TRAIN_STEPS=3', '--gin.datasets.ArrayDataset.path="/no"'
  )
  _, error = launcher.communicate(timeout=120)
  assert launcher.returncode == 1, error[-3000:]
  assert '/no: no such folder' in error
  # JAX may end the other process, whose lines begin with its number, with one.
  first = [line for line in error.splitlines() if not line.startswith('[1]')]
  assert 'Traceback' not in ''.join(first)
