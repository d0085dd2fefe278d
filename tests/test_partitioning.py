import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from t5score_jax.training import partitioning

_PROGRAM = Path(__file__).with_name('train_on_devices.py')


class _Mesh:
  """Stands in for a mesh of eight devices where there is one."""

  shape = {'data': 4, 'model': 2}


def _partitioner(**options):
  partitioner = partitioning.Partitioner(**options)
  partitioner.__dict__['mesh'] = _Mesh()
  return partitioner


def test_rules_place_parameters():
  plain = _partitioner()
  assert plain.spec(('embed', 'mlp'), (16, 32)) == PartitionSpec(None, 'model')
  assert plain.spec(('vocab', 'embed'), (384, 16)) == PartitionSpec('model')
  assert plain.spec(('embed',), (16,)) == PartitionSpec()
  full = _partitioner(fully_sharded=True)
  assert full.spec(('embed', 'mlp'), (16, 32)) == PartitionSpec('data', 'model')
  # One axis of the mesh serves one axis of an array.
  assert plain.spec(('heads', 'mlp'), (4, 4)) == PartitionSpec('model')


def test_dimension_that_does_not_divide_stays_whole():
  # mT5-small has six heads; three would not split over two devices.
  assert _partitioner().spec(('heads', 'kv'), (3, 8)) == PartitionSpec()


def test_own_rules():
  partitioner = _partitioner(rules=[('batch', 'data'), ('mlp', None)])
  assert partitioner.spec(('mlp',), (8,)) == PartitionSpec()
  with pytest.raises(partitioning.MeshError, match="'embed'"):
    partitioner.spec(('embed',), (8,))


def test_errors_name_the_parameter_and_the_numbers():
  with pytest.raises(partitioning.MeshError, match='mlp/wo.*do not fit'):
    partitioning.Partitioner().shardings(
      {'mlp': {'wo': ('mlp', 'embed')}}, {'mlp': {'wo': np.zeros(3)}}
    )
  with pytest.raises(partitioning.MeshError, match='does not divide'):
    _ = partitioning.Partitioner(num_partitions=7).mesh
  with pytest.raises(partitioning.MeshError, match='multiple of 12'):
    _partitioner().check_batch_size(8, microbatches=3)


def _losses(folder, devices, partitions, steps):
  environment = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
  }
  done = subprocess.run(
    [sys.executable, _PROGRAM, folder, str(partitions), str(steps)],
    env=environment,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line)['loss'] for line in lines], done.stderr


def test_eight_devices_train_as_one_does(tmp_path):
  one, _ = _losses(tmp_path / 'one', 1, 1, 6)
  eight, _ = _losses(tmp_path / 'eight', 8, 2, 4)
  assert len(eight) == 4
  np.testing.assert_allclose(eight, one[:4], rtol=1e-5)
  assert abs(one[0] - one[5]) > 1e-3 * one[0]
  # A checkpoint of eight devices goes on with one.
  mixed, told = _losses(tmp_path / 'eight', 1, 1, 6)
  assert 'goes on at step 4' in told
  np.testing.assert_allclose(mixed, one, rtol=1e-5)
