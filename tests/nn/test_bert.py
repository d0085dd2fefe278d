"""Encoders: NumPy recomputation, padding, batches, folders that are wrong."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
import tiny_encoder
from flax.traverse_util import flatten_dict

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import subwords
from t5score_jax.inference import encoding
from t5score_jax.nn import bert, ragged
from t5score_jax.nn.shapes import param_shapes

TEXTS = [
  'the cat sat on the mat',
  '',
  'unaffordable dogs!',
  'a small green bird ran over the hill, the dog sat.',
  'cat',
  'the cat sat on the mat',
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('encoder'))


@pytest.fixture(scope='module')
def bundle(folder):
  return encoders.load_encoder(folder)


def test_states_by_numpy(bundle):
  states = functools.partial(bert.hidden_states, layers=range(4))
  states = jax.jit(states, static_argnums=1)
  for text in bundle.tokenizer.encode_batch(TEXTS[1:4], 24):
    ours = states(bundle.params, bundle.config, np.array([text.ids]))
    want = tiny_encoder.numpy_states(bundle.params, bundle.config, text.ids)
    np.testing.assert_allclose(ours[:, 0], want, atol=2e-5)


def test_segments_by_numpy(bundle):
  (text,) = bundle.tokenizer.encode_pairs([('the cat', 'a dog ran')], 24)
  assert text.types == [0, 0, 0, 0, 1, 1, 1, 1]
  ours = jax.jit(bert.hidden_states, static_argnums=1)(
    bundle.params, bundle.config, np.array([text.ids]), np.array([text.types])
  )
  want = tiny_encoder.numpy_states(
    bundle.params, bundle.config, text.ids, text.types
  )
  np.testing.assert_allclose(ours[0, 0], want[-1], atol=2e-5)


@pytest.mark.parametrize('pre_norm', [False, True])
@pytest.mark.parametrize(('layers', 'rows'), [((0, 1, 3), None), ((3,), 2)])
def test_padding_that_is_left_out(bundle, pre_norm, layers, rows):
  config = dataclasses.replace(bundle.config, pre_norm=pre_norm)
  params = bert.init_params(config, jax.random.key(0))
  # An empty row, one with padding's id inside, a full one.
  tokens = np.array([[5, 6, 7, 0], [0, 0, 0, 0], [8, 0, 9, 0], [9, 8, 7, 6]])

  def states(room):
    with ragged.room(room):
      return jax.jit(
        lambda p: bert.hidden_states(
          p, config, tokens, None, layers, None, rows
        )
      )(params)

  inside = (tokens != config.pad_id)[:, :rows]
  inside[2, 1] = True
  for room in (10, 12, 16):
    np.testing.assert_allclose(
      states(room)[:, inside], states(None)[:, inside], atol=1e-6
    )


def test_only_what_room_says_is_computed(bundle):
  def operations(room):
    tokens = np.ones((32, 16), np.int32)
    with ragged.room(room):
      function = jax.jit(lambda p: bert.hidden_states(p, bundle.config, tokens))
      return function.lower(bundle.params).cost_analysis()['flops']

  dense = (
    2
    * bundle.config.num_layers
    * sum(
      leaf.size
      for path, leaf in flatten_dict(bundle.params['layers_0']).items()
      if path[-1] == 'kernel'
    )
  )
  saved = operations(None) - operations(128)
  assert saved >= 0.9 * dense * (32 * 16 - 128)


@pytest.mark.parametrize('batch_tokens', [24, 64, 4096])
@pytest.mark.parametrize('layers', [(-1,), (0, 2), (1,)])
def test_batches_and_order_do_not_matter(bundle, batch_tokens, layers):
  encoder = encoding.TextEncoder(bundle, layers, batch_tokens=batch_tokens)
  found = encoder.states(TEXTS)
  backwards = encoder.states(TEXTS[::-1])[::-1]
  for one, other in zip(found, backwards, strict=True):
    want = tiny_encoder.numpy_states(
      bundle.params, bundle.config, one.encoded.ids
    )[[n % 4 for n in layers]]
    np.testing.assert_allclose(one.states, want, atol=2e-5)
    np.testing.assert_allclose(other.states, want, atol=2e-5)


def test_long_texts_are_cut_and_said_so(bundle):
  encoder = encoding.TextEncoder(bundle, max_length=6)
  (found,) = encoder.states(['the cat sat on the mat'])
  assert found.encoded.cut and found.states.shape == (1, 6, 16)
  assert found.encoded.tokens[-1] == '[SEP]'


def test_dropout_needs_a_key(bundle):
  ids = np.array([[2, 5, 6, 3]])
  states = jax.jit(bert.hidden_states, static_argnums=1)
  still = states(bundle.params, bundle.config, ids)
  moved = states(bundle.params, bundle.config, ids, rng=jax.random.key(0))
  assert np.abs(np.asarray(still - moved)).max() > 0.01


def test_every_parameter_has_axes(bundle):
  axes = bert.logical_axes(bundle.params)
  jax.tree.map(
    lambda names, leaf: len(names) == leaf.ndim or pytest.fail(str(names)),
    axes,
    bundle.params,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  with pytest.raises(ValueError, match='unknown/thing'):
    bert.logical_axes({'unknown': {'thing': np.zeros(3)}})


def test_folder_round_trip_is_exact(bundle, tmp_path):
  encoders.save_encoder(bundle, tmp_path / 'x')
  again = encoders.load_encoder(tmp_path / 'x')
  assert again.config == bundle.config
  jax.tree.map(np.testing.assert_array_equal, again.params, bundle.params)
  assert again.tokenizer.fingerprint() == bundle.tokenizer.fingerprint()


def test_bfloat16_folder(bundle, tmp_path):
  encoders.save_encoder(bundle, tmp_path / 'x', dtype='bfloat16')
  again = encoders.load_encoder(tmp_path / 'x')
  word = bundle.params['embeddings']['word']
  np.testing.assert_allclose(
    again.params['embeddings']['word'], word, rtol=2**-8, atol=1e-6
  )


def changed(folder, tmp_path, **settings):
  for file in folder.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | settings))
  return tmp_path


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'model_type': 'gpt2'}, "model_type 'gpt2'"),
    ({'hidden_act': 'mish'}, "hidden_act 'mish'"),
    ({'position_embedding_type': 'relative_key'}, 'relative_key'),
    ({'is_decoder': True}, 'is_decoder'),
    ({'num_hidden_layers': 4}, '16 parameters are missing'),
    ({'intermediate_size': 20}, r'wi/kernel \[16, 24\], expected \[16, 20\]'),
    ({'vocab_size': 99}, r'embeddings/word \[28, 16\]'),
  ],
)
def test_wrong_folders(folder, tmp_path, settings, words):
  with pytest.raises(CheckpointError, match=words):
    encoders.load_encoder(changed(folder, tmp_path, **settings))


def test_damaged_weights(folder, tmp_path):
  path = changed(folder, tmp_path) / encoders.WEIGHTS_FILE
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(CheckpointError, match='not a whole safetensors file'):
    encoders.load_encoder(tmp_path)


def test_shards(folder, bundle, tmp_path):
  import safetensors.numpy

  path = changed(folder, tmp_path) / encoders.WEIGHTS_FILE
  tensors = safetensors.numpy.load_file(path)
  path.unlink()
  names = sorted(tensors)
  places = {}
  for n, part in enumerate((names[::2], names[1::2])):
    file = f'model-{n}.safetensors'
    safetensors.numpy.save_file({k: tensors[k] for k in part}, tmp_path / file)
    places |= dict.fromkeys(part, file)
  (tmp_path / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': places})
  )
  again = encoders.load_encoder(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, again.params, bundle.params)


def test_a_tokenizer_is_needed(folder, tmp_path):
  (changed(folder, tmp_path) / 'vocab.txt').unlink()
  with pytest.raises(FileNotFoundError, match='no tokenizer'):
    encoders.load_encoder(tmp_path)


def test_truncation_of_the_file_is_not_used(bundle, tmp_path):
  bundle.tokenizer.save(tmp_path)
  path = tmp_path / subwords.TOKENIZER_FILE
  found = json.loads(path.read_text())
  found['truncation'] = {
    'direction': 'Right',
    'max_length': 4,
    'strategy': 'LongestFirst',
    'stride': 0,
  }
  path.write_text(json.dumps(found))
  tokenizer = subwords.load_tokenizer(tmp_path)
  (text,) = tokenizer.encode_batch(['the cat sat on the mat'], 24)
  assert len(text.ids) == 8


@pytest.mark.parametrize(
  'options',
  [
    {'layers': (4,)},
    {'layers': ()},
    {'max_length': 25},
    {'batch_tokens': 0},
    {'dtype': 'float16'},
  ],
)
def test_options_out_of_range(bundle, options):
  with pytest.raises(ValueError, match=r'layer|max_length|batch_tokens|dtype'):
    encoding.TextEncoder(bundle, **options)


@pytest.mark.parametrize('change', [{}, {'pre_norm': True}, {'remat': True}])
def test_first_tokens_alone_are_those_of_all(change):
  config = dataclasses.replace(tiny_encoder.CONFIG, **change)
  params = tiny_encoder.random_params(param_shapes(bert.init_params, config))
  tokens = np.array([[2, 5, 6, 7, 3, 0], [2, 9, 3, 0, 0, 0]])
  run = jax.jit(
    bert.hidden_states, static_argnames=('config', 'layers', 'rows')
  )
  for layer, rows in ((1, 1), (config.num_layers, 3)):
    whole = run(params, config, tokens, layers=(layer,))
    part = run(params, config, tokens, layers=(layer,), rows=rows)
    np.testing.assert_allclose(part, whole[:, :, :rows], atol=1e-6)
  with pytest.raises(ValueError, match='needs one layer'):
    bert.hidden_states(params, config, tokens, layers=[1, 2], rows=1)
