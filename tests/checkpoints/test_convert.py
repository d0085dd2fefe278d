"""`t5score convert`: values stay, folders appear whole, errors are one line."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import types

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import t5x_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from t5_outputs import random_params

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import (
  convert,
  layouts,
  native,
  registry,
  stores,
  weights,
)
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data.vocab import ByteVocabulary
from t5score_jax.nn.t5 import T5Config
from t5score_jax.training import partitioning

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


def _params(config, seed=0):
  return jax.tree.map(np.asarray, random_params(config, seed))


@pytest.fixture(scope='module')
def t5x_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('t5x')
  return t5x_checkpoints.write_legacy(folder, _params(_CONFIG))


@pytest.fixture(scope='module')
def scanned_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('scanned')
  return t5x_checkpoints.write_legacy(folder, _params(_SCANNED))


def _run(*arguments):
  """Runs the command in this process: exit code, output, errors."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = cli.main(['convert', *map(str, arguments)])
    except SystemExit as stop:
      code = stop.code
  return code, out.getvalue(), err.getvalue()


def _values(path):
  source = convert.open_source(path)
  return source, {n: a.read() for n, a in source.weights.items()}


def _assert_equal(found, expected):
  assert (
    weights.diff(weights.shapes_of(expected), weights.shapes_of(found)) == ''
  )
  for name, array in expected.items():
    assert found[name].tobytes() == array.tobytes(), name


# Round trips.


def _deepest(config):
  return max(config.num_encoder_layers, config.num_decoder_layers)


_STEPS = st.sampled_from(
  [('bundle', None), ('hf', None), ('orbax', False), ('orbax', True)]
)


@settings(deadline=None, max_examples=6)
@given(
  st.builds(
    T5Config,
    vocab_size=st.just(384),
    emb_dim=st.sampled_from([4, 10]),
    num_heads=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    mlp_dim=st.integers(3, 7),
    num_encoder_layers=st.integers(1, 3),
    num_decoder_layers=st.integers(1, 3),
    mlp_activations=st.sampled_from(
      [('relu',), ('gelu', 'linear'), ('relu', 'linear')]
    ),
    logits_via_embedding=st.booleans(),
    relative_attention_per_layer=st.booleans(),
    # Of one layer a side, scanned weights cannot tell whose its bias was.
  ).filter(lambda c: not c.relative_attention_per_layer or _deepest(c) > 1),
  st.lists(_STEPS, min_size=1, max_size=4),
  st.integers(1, 5000),
)
def test_round_trips_are_exact(tmp_path_factory, config, steps, shard_bytes):
  folder = tmp_path_factory.mktemp('trip')
  rng = np.random.default_rng(0)
  params = {
    name: rng.standard_normal(shape).astype(np.float32)
    for name, shape in layouts.parameter_shapes(config).items()
  }
  bundles.save_bundle(
    folder / '0',
    bundles.Bundle(config, bundles.nest(params), ByteVocabulary()),
    'float32',
  )
  number = 0
  for number, (name, scan) in enumerate([*steps, ('bundle', None)], 1):
    convert.write(
      convert.open_source(folder / str(number - 1)),
      folder / str(number),
      name,
      scan_layers=scan,
      max_shard_bytes=shard_bytes,
    )
  source, found = _values(folder / str(number))
  assert source.config == config
  assert source.vocabulary == ByteVocabulary()
  _assert_equal(found, params)


@pytest.mark.parametrize('name', ['bundle', 'hf', 'orbax'])
def test_bfloat16_rounds_once_and_stays(t5x_folder, tmp_path, name):
  arguments = ['--to', name, '--quiet']
  code, _, errors = _run(
    t5x_folder, tmp_path / 'a', *arguments, '--dtype', 'bfloat16'
  )
  assert (code, errors) == (0, '')
  # Without --dtype, what is stored in bfloat16 stays so.
  assert _run(tmp_path / 'a', tmp_path / 'b', *arguments)[0] == 0
  _, found = _values(tmp_path / 'b')
  assert {x.dtype for x in found.values()} == {np.dtype(ml_dtypes.bfloat16)}
  _, original = _values(t5x_folder)
  _assert_equal(
    found, {n: x.astype(ml_dtypes.bfloat16) for n, x in original.items()}
  )


def test_scanned_layers_are_taken_apart(scanned_folder, tmp_path):
  expected = dict(bundles.flatten_names(_params(_SCANNED)))
  assert _run(scanned_folder, tmp_path / 'a', '--to', 'bundle')[0] == 0
  source, found = _values(tmp_path / 'a')
  assert source.config == dataclasses.replace(
    _CONFIG, relative_attention_per_layer=True
  )
  kernel = expected['decoder/decoder/encoder_decoder_attention/out/kernel']
  np.testing.assert_array_equal(
    found['decoder/layers_1/encoder_decoder_attention/out/kernel'],
    kernel[:, 1].reshape(8, 16),
  )
  bias = expected['encoder/encoder/relpos_bias/rel_embedding']
  np.testing.assert_array_equal(
    found['encoder/layers_2/relpos_bias/rel_embedding'], bias[:, 2]
  )
  # Orbax keeps them as they are, unless told otherwise.
  assert _run(scanned_folder, tmp_path / 'b', '--to', 'orbax')[0] == 0
  _assert_equal(_values(tmp_path / 'b')[1], expected)
  assert (
    _run(scanned_folder, tmp_path / 'c', '--to', 'orbax', '--no-scan')[0] == 0
  )
  _assert_equal(_values(tmp_path / 'c')[1], found)


def test_chunks_of_many_layers_are_read_once(
  scanned_folder, tmp_path, monkeypatch
):
  """By way of a file in which layers lie one by one."""
  convert.write(convert.open_source(scanned_folder), tmp_path / 'a', 'bundle')
  monkeypatch.setattr(convert, 'BLOCK_BYTES', 1)
  read = []
  fetch = weights.LazyArray.read

  def counted(array, index=None):
    read.append(array)
    return fetch(array, index)

  source = convert.open_source(scanned_folder)
  large = {id(a) for a in source.weights.values() if a.block[1:2] > (1,)}
  monkeypatch.setattr(weights.LazyArray, 'read', counted)
  convert.write(source, tmp_path / 'b', 'bundle')
  assert large and not any(id(array) in large for array in read)
  files = [(tmp_path / x / 'model.safetensors').read_bytes() for x in 'ab']
  assert files[0] == files[1]
  assert sorted(p.name for p in tmp_path.iterdir()) == ['a', 'b']


# What is written is what other programs expect.


def test_orbax_itself_restores_what_is_written(t5x_folder, tmp_path):
  folder = tmp_path / 'run'
  assert _run(t5x_folder, folder, '--to', 'orbax')[0] == 0
  expected = {'params': _params(_CONFIG)}
  with ocp.StandardCheckpointer() as checkpointer:
    found = checkpointer.restore(folder / 'checkpoint_7' / 'state', expected)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  with native.Checkpoints(folder) as checkpoints:
    assert checkpoints.steps == [7]
    shapes = jax.eval_shape(lambda: expected)
    restored = checkpoints.restore(shapes)
  jax.tree.map(np.testing.assert_array_equal, restored, expected)


def test_large_bundles_are_sharded_and_read(t5x_folder, tmp_path):
  code, _, _ = _run(
    t5x_folder, tmp_path / 'b', '--to', 'bundle', '--max-shard-size', '10KB'
  )
  assert code == 0
  names = sorted(p.name for p in (tmp_path / 'b').iterdir())
  assert 'model.safetensors.index.json' in names
  assert len([n for n in names if n.startswith('model-')]) > 3
  assert bundles.is_bundle(tmp_path / 'b')
  loaded = bundles.load_bundle(tmp_path / 'b')
  jax.tree.map(np.testing.assert_array_equal, loaded.params, _params(_CONFIG))
  next((tmp_path / 'b').glob('model-00002-*')).unlink()
  with pytest.raises(CheckpointError, match='model-00002.*no such file'):
    bundles.load_bundle(tmp_path / 'b')


# Training starts from any of them.


@pytest.mark.parametrize('wanted', [_CONFIG, _SCANNED])
@pytest.mark.parametrize('stored', ['t5x', 'bundle', 'orbax', 'scanned'])
def test_training_starts_from_any_layout(t5x_folder, tmp_path, stored, wanted):
  path = t5x_folder
  if stored != 't5x':
    path = tmp_path / 'made'
    arguments = {'scanned': ['orbax', '--scan']}.get(stored, [stored])
    assert _run(t5x_folder, path, '--to', *arguments)[0] == 0
  sharding = partitioning.Partitioner().replicated
  shapes = bundles.nest(
    {
      name: jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
      for name, shape in layouts.parameter_shapes(wanted).items()
    }
  )
  made = native.initial_params(path, shapes)
  found = dict(bundles.flatten_names(made))
  assert all(x.sharding == sharding for x in found.values())
  config, expected = convert.open_source(t5x_folder), None
  _, expected = layouts.relayout(
    config.config, config.weights, wanted.scan_layers
  )
  _assert_equal(
    {n: np.asarray(x) for n, x in found.items()},
    {n: a.read() for n, a in expected.items()},
  )


def test_biases_of_layers_do_not_start_a_shared_one(scanned_folder):
  shapes = bundles.nest(
    {
      name: jax.ShapeDtypeStruct(shape, np.float32)
      for name, shape in layouts.parameter_shapes(_CONFIG).items()
    }
  )
  with pytest.raises(weights.CheckpointError) as error:
    native.initial_params(scanned_folder, shapes)
  text = str(error.value)
  assert 'missing     encoder/relpos_bias/rel_embedding [2, 32]' in text
  assert (
    'unexpected  encoder/layers_{0-2}/relpos_bias/rel_embedding [2, 32]' in text
  )


# The command line.


def test_dry_run_says_what_would_be_made(t5x_folder, tmp_path):
  code, out, _ = _run(
    t5x_folder, tmp_path / 'x', '--to', 'orbax', '--scan', '--dry-run'
  )
  assert code == 0
  assert not (tmp_path / 'x').exists()
  lines = [' '.join(line.split()) for line in out.splitlines()]
  assert 'encoder/encoder/attention/query/kernel [16, 3, 2, 4]' in lines
  size = sum(
    np.prod(shape) for shape in layouts.parameter_shapes(_SCANNED).values()
  )
  assert any(f'{size:,} parameters, float32' in line for line in lines)
  assert any(
    'mlp_dim=24' in line and 'scan_layers=True' in line for line in lines
  )
  assert any(line.startswith('note: activation gelu') for line in lines)
  code, out, _ = _run(t5x_folder, tmp_path / 'x', '--to', 'hf', '--dry-run')
  assert 'encoder/layers_*/mlp/wo/kernel [24, 16] x 3' in [
    ' '.join(line.split()) for line in out.splitlines()
  ]


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--to', 'comett'], 2, '--to comett: the format is unknown; use '),
    (['--to', 't5x'], 2, '--to t5x: the format is read only; use '),
    (['--from', 'x', '--to', 'hf'], 2, '--from x: the format is unknown'),
    (['--to', 'hf', '--scan'], 2, 'hf has no scanned layers'),
    (['--to', 'hf', '--from', 'orbax'], 1, 'not a complete checkpoint'),
    (['--to', 'bundle', '--vocabulary', 'no/such'], 1, "'no/such'"),
    (['--to', 'bundle', '--activation', 'tanh'], 1, "'tanh' is not one of"),
  ],
)
def test_errors_are_one_line(t5x_folder, tmp_path, arguments, code, message):
  found, out, err = _run(t5x_folder, tmp_path / 'x', *arguments)
  assert (found, out) == (code, '')
  assert err.count('\n') == 1 and err.startswith('t5score convert: ')
  assert message in err
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('format_name', ['bundle', 'orbax', 'hf'])
@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--vocabulary', 'bytes'], '--vocabulary bytes: '),
    (['--activation', 'silu'], '--activation silu: '),
  ],
)
def test_a_model_that_says_what_it_is_keeps_it(
  random_bundle, tmp_path, format_name, arguments, message
):
  source = random_bundle
  if format_name != 'bundle':
    source = tmp_path / 'in'
    assert _run(random_bundle, source, '--to', format_name)[0] == 0
  code, out, err = _run(source, tmp_path / 'x', '--to', 'bundle', *arguments)
  assert (code, out, err.count('\n')) == (2, '', 1)
  assert message in err and 'leave the option out' in err
  assert not (tmp_path / 'x').exists()
  # The same may be said again.
  same = ['--vocabulary', random_bundle / 'vocabulary.model']
  assert _run(source, tmp_path / 'x', '--to', 'bundle', *same)[0] == 0
  loaded = bundles.load_bundle(tmp_path / 'x')
  assert loaded.vocabulary == bundles.load_bundle(random_bundle).vocabulary


def test_formats_are_modules():
  assert registry.readable() == ['bundle', 'hf', 'orbax', 't5x']
  assert set(registry.writable()) < set(registry.readable())
  for name in registry.readable():
    module = registry.load(name)
    assert callable(module.open_source) and callable(module.detect)
    assert hasattr(module, 'write') == (name in registry.writable())


def test_unknown_folders_are_not_guessed_at(tmp_path):
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x' / 'readme.txt').write_text('hello')
  code, _, err = _run(tmp_path / 'x', tmp_path / 'y', '--to', 'bundle')
  assert code == 1
  assert 'not a checkpoint of a known format (bundle, ' in err
  code, _, err = _run(tmp_path / 'z', tmp_path / 'y', '--to', 'bundle')
  assert code == 1 and "z': there is no such folder" in err


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('google/mt5-base', 'hf download google/mt5-base'),
    ('google/byt5-small', 'hf download google/byt5-small'),
    ('Unbabel/wmt20-comet-da', 'hf download Unbabel/wmt20-comet-da'),
    ('t5score-tinny', "did you mean 't5score-tiny'?"),
  ],
)
@pytest.mark.parametrize('format_name', ['bundle', 'estimator'])
def test_unknown_names_are_explained(tmp_path, name, words, format_name):
  code, _, err = _run(name, tmp_path / 'y', '--to', format_name)
  assert code == 1 and words in err
  # Nothing else is advised beside a download.
  assert ('did you mean' in err) == ('did you' in words)


def test_nothing_is_overwritten(t5x_folder, tmp_path):
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'precious').write_text('x')
  (tmp_path / 'file').write_text('x')
  for name in ('full', 'file'):
    code, _, err = _run(t5x_folder, tmp_path / name, '--to', 'bundle')
    assert code == 1
    assert f'{name}: is there already; it is left as it is' in err
  (tmp_path / 'empty').mkdir()
  assert _run(t5x_folder, tmp_path / 'empty', '--to', 'bundle')[0] == 0
  assert [p.name for p in (tmp_path / 'full').iterdir()] == ['precious']


def test_damage_met_on_the_way_leaves_nothing(tmp_path):
  params = jax.tree.map(np.copy, _params(_CONFIG))
  params['decoder']['layers_1']['mlp']['wo']['kernel'][3, 3] = np.nan
  checkpoint = t5x_checkpoints.write_legacy(tmp_path / 'in', params)
  for name in ('bundle', 'orbax', 'hf'):
    code, _, err = _run(checkpoint, tmp_path / 'out', '--to', name, '--quiet')
    assert code == 1
    assert err.count('\n') == 1
    assert 'decoder/layers_1/mlp/wo/kernel is not finite' in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ['in']


def test_a_disk_too_small_is_found_out_before(
  t5x_folder, tmp_path, monkeypatch
):
  small = types.SimpleNamespace(total=10, used=0, free=10)
  monkeypatch.setattr(convert.shutil, 'disk_usage', lambda place: small)
  code, _, err = _run(
    t5x_folder, tmp_path / 'new' / 'out', '--to', 'hf', '--quiet'
  )
  assert code == 1 and err.count('\n') == 1
  assert 'GB, and the disk has 0.00 GB left' in err
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  'name', ['bundle', pytest.param('orbax', marks=pytest.mark.slow)]
)
def test_a_disk_that_fills_up_leaves_nothing(t5x_folder, tmp_path, name):
  """A limit on the size of files stands for a full disk."""
  done = subprocess.run(
    ['bash', '-c', 'trap "" XFSZ; ulimit -f 8; exec "$@"', '-']
    + [sys.executable, '-m', 't5score_jax', 'convert', '--quiet', '--to', name]
    + [t5x_folder, tmp_path / 'out'],
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert 'File too large' in done.stderr
  assert done.stderr.count('\n') == 1
  assert str(tmp_path) in done.stderr
  assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_chunks_fit_blocks_and_the_limit(data):
  shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
  block = tuple(data.draw(st.integers(1, size)) for size in shape)
  apart = data.draw(st.sampled_from([None, len(shape) - 1]))
  limit = data.draw(st.integers(4, 8000))
  array = weights.LazyArray(shape, np.dtype('f4'), np.zeros, block)
  chunks = stores._chunks(array, limit, apart)
  nbytes = 4 * np.prod(chunks)
  assert nbytes <= limit
  for axis, (chunk, part, size) in enumerate(
    zip(chunks, block, shape, strict=True)
  ):
    assert chunk == size or chunk % part == 0 or part % chunk == 0
    if axis == apart:
      assert chunk <= part
  # Nothing could be twice as large.
  for axis, chunk in enumerate(chunks):
    if chunk < shape[axis] and axis != apart and block == (1,) * len(block):
      assert 2 * nbytes > limit


# What diffs and lazy arrays do.


def test_json_of_a_shard_index_is_the_librarys(t5x_folder, tmp_path):
  _run(t5x_folder, tmp_path / 'a', '--to', 'bundle', '--max-shard-size', '9k')
  index = json.loads(
    (tmp_path / 'a' / 'model.safetensors.index.json').read_text()
  )
  arrays = safetensors_files.open_folder(tmp_path / 'a')
  assert set(index['weight_map']) == set(arrays)
  assert index['metadata']['total_size'] == sum(
    array.nbytes for array in arrays.values()
  )
