"""Converting takes the memory of a few blocks, whatever the model's size."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import large_checkpoint
import pytest

from t5score_jax.nn.t5 import T5Config

# 1.02 GB in float32; its largest array is 263 MB.
_CONFIG = T5Config(
  vocab_size=64256,
  emb_dim=1024,
  num_heads=16,
  head_dim=64,
  mlp_dim=2816,
  num_encoder_layers=5,
  num_decoder_layers=4,
)
# The program itself takes 200, the blocks on their way 200 to 500, by how the
# threads of TensorStore happen to run; with the whole model it would be 1,170.
_LIMIT_MIB = 900

# Not getrusage(): its peak goes on from that of the process that forked, here
# the one of all tests.
_STATUS = pathlib.Path('/proc/self/status')
_MEASURED = """
import pathlib, re, sys
from t5score_jax import cli
code = cli.main(sys.argv[1:])
status = pathlib.Path('/proc/self/status').read_text()
peak = int(re.search(r'VmHWM:\\s*(\\d+) kB', status)[1])
print(f'peak {peak // 1024} MiB')
sys.exit(code)
"""


def _convert(*arguments: object) -> int:
  """Converts in a process of its own; returns its peak memory in MiB."""
  done = subprocess.run(
    [sys.executable, '-c', _MEASURED, 'convert', '--quiet']
    + list(map(str, arguments)),
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    text=True,
  )
  assert done.returncode == 0, done.args  # what it says is below, captured
  found = re.search(r'peak (\d+) MiB', done.stdout)
  assert found is not None
  return int(found[1])


@pytest.fixture(scope='module', params=[False, True], ids=['', 'scanned'])
def large(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('large') / 't5x'
  config = dataclasses.replace(_CONFIG, scan_layers=request.param)
  assert large_checkpoint.make(folder, config) > 1.0e9
  yield folder
  shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.skipif(
  not _STATUS.exists(), reason='the peak of one process is read from /proc'
)
def test_memory_does_not_grow_with_the_model(large, tmp_path):
  orbax, bundle, hf = (tmp_path / name for name in ('a', 'b', 'c'))
  shards = ('--dtype', 'bfloat16', '--max-shard-size', '300MB')
  peaks = {
    'orbax': _convert(large, orbax, '--to', 'orbax', '--vocabulary', 'bytes'),
    'bundle': _convert(orbax, bundle, '--to', 'bundle'),
  }
  shutil.rmtree(orbax)  # a gigabyte, as what it came from
  peaks['hf'] = _convert(bundle, hf, '--to', 'hf', *shards)
  shutil.rmtree(bundle)
  peaks['back'] = _convert(hf, tmp_path / 'd', '--to', 'orbax')
  assert len(list(hf.glob('model-*.safetensors'))) > 1
  assert max(peaks.values()) < _LIMIT_MIB, peaks
