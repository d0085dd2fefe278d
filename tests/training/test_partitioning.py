import json
import re
import subprocess
import sys
import warnings

import devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_on_devices
from jax.sharding import PartitionSpec

from t5score_jax.nn import axes
from t5score_jax.training import partitioning


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


def test_vocabulary_is_sharded_over_all_devices():
  full = _partitioner(fully_sharded=True)
  both = ('model', 'data')
  # 'vocab' stands before 'embed' in the rules, wherever it stands in an array.
  assert full.spec(('vocab', 'embed'), (384, 16)) == PartitionSpec(both)
  assert full.spec(('embed', 'vocab'), (16, 384)) == PartitionSpec(None, both)
  # Two divide 6, eight don't: the other axis takes what is left.
  assert full.spec(('embed', 'vocab'), (16, 6)) == PartitionSpec(
    'data', 'model'
  )


def test_a_second_rule_counts_where_the_first_is_taken():
  partitioner = _partitioner(
    rules=[('batch', 'data'), ('mlp', 'data'), ('mlp', ['model'])]
  )
  assert partitioner.spec(('batch', 'mlp'), (8, 8)) == PartitionSpec(
    'data', 'model'
  )
  assert partitioner.spec(('mlp',), (8,)) == PartitionSpec('data')


def test_activations_are_placed_where_their_axes_divide():
  def traced(*shape):
    return str(
      jax.make_jaxpr(lambda x: axes.constrain(x, ('batch', 'heads')))(
        jnp.zeros(shape)
      )
    )

  partitioner = partitioning.Partitioner()
  assert 'sharding_constraint' not in traced(4, 6)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    with partitioner.context():
      assert "('data', 'model')" in traced(4, 6)
      assert axes.mesh_size() == 1 and axes.is_sharded('logits')
  assert not axes.is_sharded('logits')


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


def _train_here(folder, steps, *kinds):
  for kind in kinds:
    train_on_devices.train(folder / kind, kind, partitions=1, steps=steps)


def _train_on_eight(folder, steps, *kinds):
  done = subprocess.run(
    [sys.executable, train_on_devices.__file__, folder, '2', str(steps)]
    + [*kinds],
    env=devices.environment(8),
    capture_output=True,
    text=True,
    timeout=500,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]


def _losses(folder, kind):
  path = folder / kind / 'run' / 'metrics.jsonl'
  return [json.loads(line)['loss'] for line in path.read_text().splitlines()]


def _compare(tmp_path, *kinds):
  one, eight = tmp_path / 'one', tmp_path / 'eight'
  _train_here(one, 6, *kinds)
  _train_on_eight(eight, 4, *kinds)
  for kind in kinds:
    expected = _losses(one, kind)
    np.testing.assert_allclose(_losses(eight, kind), expected[:4], rtol=1e-5)
    assert abs(expected[0] - expected[5]) > 1e-3 * expected[0]
    info = (eight / kind / 'run' / 'model-info.txt').read_text()
    assert "'data': 4, 'model': 2" in info
    place = "'model', None, 'data'" if kind == 'sharded' else "'model'"
    assert re.search(rf'encoder/\w+/mlp/wo/kernel .*{place}', info)


@pytest.mark.slow
def test_eight_devices_train_as_one_does(tmp_path, capfd):
  _compare(tmp_path, 'generative')
  # One device continues from a checkpoint of eight.
  _train_here(tmp_path / 'eight', 6, 'generative')
  assert 'at step 4' in capfd.readouterr().err
  np.testing.assert_allclose(
    _losses(tmp_path / 'eight', 'generative'),
    _losses(tmp_path / 'one', 'generative'),
    rtol=1e-5,
  )


@pytest.mark.slow
def test_eight_devices_hold_one_copy_and_train_as_one_does(tmp_path):
  _compare(tmp_path, 'sharded')


@pytest.mark.slow
def test_eight_devices_train_on_judgments_as_one_does(tmp_path):
  _compare(tmp_path, 'pair', 'group')
