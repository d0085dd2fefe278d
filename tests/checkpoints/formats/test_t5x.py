"""T5X's layouts are read, on checkpoints made up in them."""

import dataclasses
import logging
import os
import shutil
import subprocess
import sys

import devices
import jax
import ml_dtypes
import numpy as np
import pytest
import t5x_checkpoints
from flax import serialization
from t5_outputs import random_params

from t5score_jax.checkpoints import bundle, layouts, loading
from t5score_jax.checkpoints.formats import t5x
from t5score_jax.checkpoints.source import Options
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.nn.t5 import T5Config

_CONFIG = T5Config(
  vocab_size=384,
  emb_dim=16,
  num_heads=2,
  head_dim=4,
  mlp_dim=24,
  num_encoder_layers=3,
  num_decoder_layers=2,
)
_SCANNED = dataclasses.replace(_CONFIG, scan_layers=True)
_TIED = dataclasses.replace(
  _CONFIG, logits_via_embedding=True, mlp_activations=('relu',), vocab_size=40
)
_PER_LAYER = dataclasses.replace(_CONFIG, relative_attention_per_layer=True)
_WRITERS = {
  'legacy': t5x_checkpoints.write_legacy,
  'bucket': lambda *a: t5x_checkpoints.write_legacy(*a, bucket=True),
  'inline': lambda *a: t5x_checkpoints.write_legacy(
    *a, inline=('scale', 'rel_embedding')
  ),
  'chunks': lambda *a: t5x_checkpoints.write_legacy(
    *a, chunks={'token_embedder/embedding': (7, 16)}
  ),
  'orbax': t5x_checkpoints.write_orbax,
  'zarr': lambda *a: t5x_checkpoints.write_orbax(*a, ocdbt=False),
}


@pytest.fixture(scope='module')
def made():
  """Parameters by configuration."""
  return {
    config: jax.tree.map(np.asarray, random_params(config, seed))
    for seed, config in enumerate((_CONFIG, _SCANNED, _TIED, _PER_LAYER))
  }


def _assert_same(source, params):
  expected = dict(bundle.flatten_names(params))
  assert set(source.weights) == set(expected)
  for name, array in expected.items():
    found = source.weights[name].read()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array, name)


@pytest.mark.parametrize(
  ('config', 'layout'),
  [
    *((_CONFIG, layout) for layout in _WRITERS),
    (_SCANNED, 'legacy'),
    (_SCANNED, 'orbax'),
    (_TIED, 'legacy'),
    (_PER_LAYER, 'orbax'),
  ],
)
def test_what_is_written_is_read(made, config, layout, tmp_path):
  checkpoint = _WRITERS[layout](tmp_path, made[config])
  inner = 'checkpoint' if (checkpoint / 'checkpoint').exists() else 'state'
  for path in (tmp_path, checkpoint, checkpoint / inner):
    assert t5x.detect(path)
    source = t5x.open_source(path, Options())
    assert source.config == config
    assert source.provenance['step'] == 7
    _assert_same(source, made[config])


def test_the_latest_complete_checkpoint_is_meant(made, tmp_path):
  for step in (9, 10, 100):
    t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG], step)
  (tmp_path / 'checkpoint_100' / 'checkpoint').unlink()
  source = t5x.open_source(tmp_path, Options())
  assert source.provenance['step'] == 10


def test_assumptions_are_said_and_can_be_overridden(made, tmp_path):
  t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG])
  source = t5x.open_source(tmp_path, Options())
  assert source.config.mlp_activations == ('gelu', 'linear')
  assert [note.split(':')[0] for note in source.notes] == [
    'activation gelu',
    'vocabulary bytes',
  ]
  told = t5x.open_source(tmp_path, Options('silu', 'bytes'))
  assert told.config.mlp_activations == ('silu', 'linear')
  assert told.notes == ()
  with pytest.raises(CheckpointError, match="--activation: .*'tan' is not one"):
    t5x.open_source(tmp_path, Options('tan'))


@pytest.fixture
def silenced():
  """Libraries may not log, as in `t5score train`."""
  root = logging.getLogger()
  level = root.level
  root.setLevel(logging.CRITICAL)
  yield
  root.setLevel(level)


@pytest.mark.usefixtures('silenced')
def test_assumptions_are_said_when_it_scores(made, tmp_path, caplog):
  t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG])
  loaded = loading.load_model(tmp_path)
  assert 'activation gelu: assumed' in caplog.text
  assert 'vocabulary bytes: assumed' in caplog.text
  jax.tree.map(np.testing.assert_array_equal, loaded.params, made[_CONFIG])
  assert loaded.vocabulary.vocab_size == 384


def test_the_vocabulary_beside_it_is_taken(made, tmp_path, sentencepiece_model):
  large = t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG])
  unknown = t5x_checkpoints.write_legacy(tmp_path / 'tied', made[_TIED])
  assert t5x.open_source(unknown, Options()).vocabulary is None
  with pytest.raises(CheckpointError, match='nothing says which vocabulary'):
    loading.load_model(unknown)
  path = tmp_path / 'vocabulary.model'
  path.write_bytes(sentencepiece_model)
  found = t5x.open_source(large, Options()).vocabulary
  assert found.model_bytes == sentencepiece_model
  with pytest.raises(CheckpointError, match='48 ids, the network only 40'):
    t5x.open_source(unknown, Options(vocabulary=str(path)))


def test_bfloat16_comes_back(made, tmp_path):
  half = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), made[_CONFIG])
  for layout in ('legacy', 'orbax'):
    _WRITERS[layout](tmp_path / layout, half)
    _assert_same(t5x.open_source(tmp_path / layout, Options()), half)


def test_bfloat16_as_integers_of_version_2_comes_back(made, tmp_path):
  half = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), made[_CONFIG])
  bits = jax.tree.map(lambda x: x.view(np.uint16), half)
  checkpoint = t5x_checkpoints.write_legacy(tmp_path, bits)
  _edit(checkpoint, lambda contents: contents.update(version=2))
  _assert_same(t5x.open_source(tmp_path, Options()), half)


def _edit(checkpoint, change):
  path = checkpoint / 'checkpoint'
  contents = serialization.msgpack_restore(path.read_bytes())
  change(contents)
  path.write_bytes(serialization.msgpack_serialize(contents))


_WO = 'target.decoder.layers_1.mlp.wo.kernel'


def _truncate(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda c: shutil.rmtree(c / _WO), f'{_WO}: no such folder'),
    (lambda c: (c / _WO / '.zarray').unlink(), f'{_WO}.*cannot be read'),
    (lambda c: (c / _WO / '.zarray').write_text('{'), 'cannot be read'),
    (lambda c: _truncate(c / 'checkpoint'), 'not a whole checkpoint of T5X'),
    (
      lambda c: _edit(c, lambda x: x.update(version=4)),
      'version 4; this program knows up to 3',
    ),
    (
      lambda c: _edit(c, lambda x: x['optimizer'].pop('target')),
      'not a whole checkpoint of T5X',
    ),
    (
      lambda c: _edit(
        c, lambda x: x['optimizer']['target']['decoder'].pop('layers_1')
      ),
      # All that is left is a smaller network.
      None,
    ),
    (
      lambda c: _edit(
        c, lambda x: x['optimizer']['target']['encoder'].pop('layers_1')
      ),
      r'not those of a T5 network:\n  missing     encoder/layers_1/',
    ),
    (
      lambda c: _edit(
        c, lambda x: x['optimizer']['target'].pop('token_embedder')
      ),
      'not the parameters of a T5 network: token_embedder/embedding',
    ),
  ],
)
def test_damage_is_named(made, tmp_path, damage, message):
  checkpoint = t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG])
  damage(checkpoint)
  if message is None:
    assert t5x.open_source(checkpoint, Options()).config.num_decoder_layers == 1
    return
  with pytest.raises(CheckpointError, match=message) as error:
    t5x.open_source(checkpoint, Options())
  assert str(tmp_path) in str(error.value)


def test_a_damaged_chunk_is_named_when_it_is_read(made, tmp_path):
  checkpoint = t5x_checkpoints.write_legacy(tmp_path, made[_CONFIG])
  _truncate(checkpoint / _WO / '0.0')
  with pytest.raises(CheckpointError, match=f'{_WO}.*cannot be read') as error:
    loading.load_model(checkpoint)
  assert '\n' not in str(error.value)


def test_a_damaged_store_is_named(made, tmp_path):
  checkpoint = t5x_checkpoints.write_orbax(tmp_path, made[_CONFIG])
  _truncate(checkpoint / 'state' / 'manifest.ocdbt')
  with pytest.raises(CheckpointError, match='state: cannot be read') as error:
    t5x.open_source(checkpoint, Options())
  assert '\n' not in str(error.value)


def test_other_folders_are_not_taken_for_t5x(made, tmp_path, random_bundle):
  assert not t5x.detect(random_bundle)
  assert not t5x.detect(tmp_path / 'nothing')
  (tmp_path / 'tf').mkdir()
  (tmp_path / 'tf' / 'checkpoint').write_text('model_checkpoint_path: "m-1"\n')
  assert not t5x.detect(tmp_path / 'tf')
  with pytest.raises(CheckpointError, match='not a T5X checkpoint'):
    t5x.open_source(tmp_path / 'tf', Options())


_SAVE_ON_EIGHT = """
import pathlib, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import t5x_checkpoints
from t5score_jax.checkpoints import bundle, native
params = bundle.load_bundle(sys.argv[1]).params
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('data', 'model'))
def put(x):
  spec = P('data', 'model') if x.ndim == 2 and x.shape[0] % 4 == 0 else P()
  return jax.device_put(x, NamedSharding(mesh, spec))
params = jax.tree.map(put, params)
t5x_checkpoints.write_orbax(pathlib.Path(sys.argv[2]), params)
# Read back to other places: every device gets a part of each row.
def want(x):
  spec = P(None, ('data', 'model')) if x.shape[-1] % 8 == 0 else P()
  spec = P() if x.ndim == 1 else spec
  sharding = NamedSharding(mesh, spec)
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
shapes = jax.tree.map(want, params)
found = native.initial_params(sys.argv[2], shapes)
def check(found, shape, expected):
  assert found.sharding == shape.sharding
  np.testing.assert_array_equal(found, expected)
jax.tree.map(check, found, shapes, params)
"""


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_is_read_on_one_and_eight(
  bytes_bundle, tmp_path
):
  subprocess.run(
    [sys.executable, '-c', _SAVE_ON_EIGHT, bytes_bundle, tmp_path],
    check=True,
    env=devices.environment(
      8, PYTHONPATH=os.path.dirname(t5x_checkpoints.__file__)
    ),
  )
  source = t5x.open_source(tmp_path, Options())
  assert source.weights['token_embedder/embedding'].block < (384, 16)
  _assert_same(source, bundle.load_bundle(bytes_bundle).params)


@pytest.mark.parametrize('stored', [_CONFIG, _SCANNED, _PER_LAYER])
def test_layouts_of_layers_are_equivalent(made, stored, tmp_path):
  t5x_checkpoints.write_orbax(tmp_path, made[stored])
  source = t5x.open_source(tmp_path, Options())
  other = not stored.scan_layers
  config, weights = layouts.relayout(source.config, source.weights, other)
  assert config.scan_layers == other
  back, again = layouts.relayout(config, weights, not other)
  # What was read of scanned layers has a bias a layer from then on.
  per_layer = stored.scan_layers or stored.relative_attention_per_layer
  assert back == dataclasses.replace(
    stored, relative_attention_per_layer=per_layer
  )
  _assert_same(dataclasses.replace(source, weights=again), made[stored])
