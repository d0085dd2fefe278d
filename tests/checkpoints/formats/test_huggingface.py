"""HuggingFace folders without torch: both ways, and what is refused.

`tests/parity/test_huggingface_parity.py` compares with transformers.
"""

import dataclasses
import json
import pathlib
import shutil
import tempfile

import hf_folders
import ml_dtypes
import numpy as np
import pytest
import torch_zip
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.checkpoints import (
  bundle,
  convert,
  layouts,
  loading,
  native,
  registry,
)
from t5score_jax.checkpoints.formats.huggingface import card as huggingface_card
from t5score_jax.checkpoints.formats.huggingface import checkpoint, names
from t5score_jax.checkpoints.source import Options
from t5score_jax.checkpoints.weights import CheckpointError, LazyArray
from t5score_jax.data.vocab import ByteVocabulary, SentencePieceVocabulary
from t5score_jax.nn.t5 import T5Config


def _assert_same(found, expected) -> None:
  assert list(found) == sorted(expected)
  for name, array in expected.items():
    got = found[name].read()
    assert got.dtype == array.dtype, name
    np.testing.assert_array_equal(got, array.read(), err_msg=name)


_sizes = st.integers(1, 5)
_configs = st.builds(
  T5Config,
  vocab_size=st.just(384),
  emb_dim=_sizes,
  num_heads=_sizes,
  head_dim=_sizes,
  mlp_dim=_sizes,
  # 11: names whose order is not that of their letters.
  num_encoder_layers=st.sampled_from([1, 2, 11]),
  num_decoder_layers=st.sampled_from([1, 3]),
  mlp_activations=st.sampled_from(
    [('relu',), ('gelu',), ('silu',), ('gelu', 'linear'), ('silu', 'linear')]
  ),
  logits_via_embedding=st.booleans(),
  dropout_rate=st.sampled_from([0.0, 0.1]),
  relative_attention_num_buckets=st.sampled_from([4, 32]),
  relative_attention_max_distance=st.sampled_from([20, 128]),
  relative_attention_per_layer=st.booleans(),
)


@settings(max_examples=20, deadline=None)
@given(
  config=_configs,
  scan=st.booleans(),
  shard=st.sampled_from([4000, 10**9]),
  max_length=st.integers(2, 99),
)
def test_round_trip_is_exact(config, scan, shard, max_length):
  source = hf_folders.source(
    config, settings={'name': 'x', 'max_length': max_length}
  )
  given_config, given_weights = layouts.relayout(config, source.weights, scan)
  with tempfile.TemporaryDirectory() as folder:
    path = hf_folders.export(
      dataclasses.replace(source, config=given_config, weights=given_weights),
      pathlib.Path(folder) / 'out',
      shard=shard,
    )
    back = checkpoint.open_source(path, Options())
    assert back.notes == ()
    assert back.settings == source.settings
    assert back.vocabulary == source.vocabulary
    if scan and config.relative_attention_per_layer:
      # A single layer has a bias of its own, and shares it.
      config = dataclasses.replace(
        config,
        relative_attention_per_layer=back.config.relative_attention_per_layer,
      )
    assert back.config == config
    _assert_same(
      back.weights, layouts.relayout(given_config, given_weights, False)[1]
    )


def test_names_are_those_of_transformers(tmp_path):
  """The names in google/t5-v1_1-*, written down."""
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  attention = [f'SelfAttention.{p}' for p in 'qkvo']
  mlp = [f'DenseReluDense.{w}' for w in ('wi_0', 'wi_1', 'wo')]
  expected = {'shared', 'lm_head'}
  for side, depth in (('encoder', 2), ('decoder', 1)):
    expected.add(f'{side}.final_layer_norm')
    expected.add(
      f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias'
    )
    for i in range(depth):
      block = f'{side}.block.{i}.layer'
      layers = [attention, mlp]
      if side == 'decoder':
        layers.insert(1, [f'EncDecAttention.{p}' for p in 'qkvo'])
      for j, inner in enumerate(layers):
        expected |= {f'{block}.{j}.{n}' for n in (*inner, 'layer_norm')}
  shapes = {
    name: array.shape for name, array in hf_folders.tensors(path).items()
  }
  assert set(shapes) == {f'{name}.weight' for name in expected}
  assert shapes['shared.weight'] == (384, 6)
  assert shapes['lm_head.weight'] == (384, 6)
  block = 'decoder.block.0.layer'
  assert shapes[f'{block}.1.EncDecAttention.k.weight'] == (8, 6)
  assert shapes[f'{block}.1.EncDecAttention.o.weight'] == (6, 8)
  assert shapes[f'{block}.2.DenseReluDense.wi_1.weight'] == (5, 6)
  assert shapes[f'{block}.0.SelfAttention.relative_attention_bias.weight'] == (
    32,
    2,
  )


@settings(max_examples=30, deadline=None)
@given(config=_configs)
def test_names_go_back_and_forth(config):
  for name in layouts.parameter_shapes(config):
    theirs = names.to_theirs(name)
    assert '/' not in theirs
    per_layer = config.relative_attention_per_layer
    assert names.to_ours(theirs, per_layer) == name


def test_bfloat16_is_rounded_once(tmp_path):
  source = hf_folders.source(hf_folders.TINY)
  path = hf_folders.export(source, tmp_path / 'out', dtype='bfloat16')
  said = json.loads((path / 'config.json').read_text())
  assert said['dtype'] == said['torch_dtype'] == 'bfloat16'
  back = checkpoint.open_source(path, Options())
  _assert_same(
    back.weights,
    {n: a.astype(ml_dtypes.bfloat16) for n, a in source.weights.items()},
  )


@pytest.mark.parametrize('dtype', [np.float16, np.float64])
def test_other_floats_are_read(tmp_path, dtype):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  tensors = {n: a.astype(dtype) for n, a in hf_folders.tensors(path).items()}
  hf_folders.replace(path, tensors)
  back = checkpoint.open_source(path, Options())
  array = back.weights['token_embedder/embedding'].read()
  np.testing.assert_array_equal(array, tensors['shared.weight'])
  loaded = loading.load_model(path)
  kernel = loaded.params['decoder']['logits_dense']['kernel']
  assert kernel.dtype == np.float32
  np.testing.assert_array_equal(kernel, tensors['lm_head.weight'].T)


@pytest.mark.parametrize('form', [torch_zip.zipped, torch_zip.sequence])
def test_bin_files_are_read(tmp_path, form):
  source = hf_folders.source(hf_folders.TINY)
  path = hf_folders.export(source, tmp_path / 'out')
  tensors = hf_folders.tensors(path)
  (path / 'model.safetensors').unlink()
  (path / 'pytorch_model.bin').write_bytes(torch_zip.plain(tensors, form))
  assert registry.detect(path) == 'hf'
  _assert_same(checkpoint.open_source(path, Options()).weights, source.weights)


def test_weights_are_not_read_before_they_are_asked_for(tmp_path):
  path = hf_folders.export(
    hf_folders.source(hf_folders.TINY), tmp_path / 'out', shard=2000
  )
  assert (path / 'model.safetensors.index.json').is_file()
  source = checkpoint.open_source(path, Options())
  for shard in path.glob('*.safetensors'):
    shard.unlink()
  with pytest.raises(FileNotFoundError):
    source.weights['token_embedder/embedding'].read()


def test_differences_are_listed(tmp_path):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  tensors = hf_folders.tensors(path)
  del tensors['encoder.block.0.layer.1.DenseReluDense.wo.weight']
  del tensors['encoder.block.1.layer.1.DenseReluDense.wo.weight']
  tensors['decoder.final_layer_norm.weight'] = np.ones(7, np.float32)
  tensors['classification_head.weight'] = np.ones((2, 3), np.float32)
  hf_folders.replace(path, tensors)
  with pytest.raises(CheckpointError) as error:
    checkpoint.open_source(path, Options())
  message = str(error.value)
  assert 'missing     encoder/layers_{0-1}/mlp/wo/kernel [5, 6]' in message
  assert 'unexpected  classification_head.weight [2, 3]' in message
  assert 'other shape decoder/decoder_norm/scale [7], expected [6]' in message


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'layer_norm_epsilon': 1e-5}, 'layer_norm_epsilon is 1e-05; only 1e-06'),
    ({'pad_token_id': 3}, 'pad_token_id is 3; only 0'),
    ({'decoder_start_token_id': 2}, 'decoder_start_token_id is 2'),
    ({'num_experts': 8}, r'the setting num_experts \(8\) is not known'),
    ({'quantization_config': {'bits': 4}}, 'quantization_config'),
    ({'feed_forward_proj': 'gelu'}, 'the exact gelu is another function'),
    ({'feed_forward_proj': 'gated-tanh'}, "'tanh'"),
    ({'feed_forward_proj': 'double-gelu'}, "feed_forward_proj is 'double-gelu"),
    ({'feed_forward_proj': 'relu'}, 'missing .*mlp/wi/kernel'),
    ({'d_model': 'wide'}, "d_model is 'wide'"),
    ({'d_kv': None}, "does not say 'd_kv'"),
    ({'d_kv': 5}, 'attention/key/kernel'),
    ({'vocab_size': 400}, r'\[384, 6\], expected \[400, 6\]'),
    ({'architectures': ['T5EncoderModel']}, 'an encoder alone cannot score'),
    ({'model_type': 'switch_transformers'}, "'switch_transformers': only t5"),
    ({'model_type': 'umt5'}, 'layers_1/relpos_bias'),
    ({'tie_word_embeddings': True}, 'lm_head.weight is another matrix'),
    ({'tie_word_embeddings': None}, 'tie_word_embeddings is true'),
  ],
)
def test_what_the_network_is_not_is_refused(tmp_path, changes, message):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  hf_folders.edit(path, **changes)
  with pytest.raises(CheckpointError, match=f'(?s){message}') as error:
    checkpoint.open_source(path, Options())
  assert str(path) in str(error.value)


def test_encoders_alone_are_refused(tmp_path):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  tensors = hf_folders.tensors(path)
  hf_folders.replace(
    path, {n: a for n, a in tensors.items() if n[:3] not in ('dec',)}
  )
  with pytest.raises(CheckpointError, match='no weights of a decoder'):
    checkpoint.open_source(path, Options())


def test_folders_that_are_none(tmp_path):
  with pytest.raises(CheckpointError, match='no such folder'):
    checkpoint.open_source(tmp_path / 'none', Options())
  with pytest.raises(CheckpointError, match=r'config.json: no such file'):
    checkpoint.open_source(tmp_path, Options())
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  (path / 'model.safetensors').unlink()
  with pytest.raises(CheckpointError, match='has neither model.safetensors'):
    checkpoint.open_source(path, Options())
  (path / 'config.json').write_text('{')
  assert not checkpoint.detect(path)
  with pytest.raises(CheckpointError, match='not JSON'):
    checkpoint.open_source(path, Options())


def test_settings_that_change_nothing_are_passed_over(tmp_path):
  """What transformers 5.24 writes, and what google/mt5-* have."""
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  hf_folders.edit(
    path,
    classifier_dropout=0.0,
    dense_act_fn='gelu_new',
    initializer_factor=1.0,
    is_decoder=False,
    is_gated_act=True,
    output_past=True,
    scalable_attention=True,
    task_specific_params={'summarization': {'prefix': 'summarize: '}},
    scale_decoder_outputs=False,
    tie_word_embeddings=True,
    transformers_version='5.24.0',
  )
  back = checkpoint.open_source(path, Options())
  assert back.config == hf_folders.TINY


def test_activation_may_be_said_again(tmp_path):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  checkpoint.open_source(path, Options(activation='gelu'))
  with pytest.raises(CheckpointError, match='config.json says gelu'):
    checkpoint.open_source(path, Options(activation='relu'))


@pytest.mark.parametrize(
  ('changes', 'before', 'expected'),
  [
    ({}, None, 't5'),
    ({}, 'mt5', 'mt5'),
    ({'vocab_size': 250112}, None, 'mt5'),
    ({'vocab_size': 250112, 'logits_via_embedding': True}, 'mt5', 't5'),
    ({'relative_attention_per_layer': True}, None, 'umt5'),
  ],
)
def test_model_type(sentencepiece_model, changes, before, expected):
  from t5score_jax.checkpoints.formats.huggingface.config import (
    choose_model_type,
  )

  config = dataclasses.replace(hf_folders.TINY, **changes)
  vocabulary = SentencePieceVocabulary(sentencepiece_model)
  assert choose_model_type(config, vocabulary, before) == expected
  if expected == 'mt5':
    assert choose_model_type(config, ByteVocabulary(), before) == 't5'


def test_networks_that_transformers_has_not_are_refused(tmp_path):
  config = dataclasses.replace(
    hf_folders.TINY, mlp_activations=('linear', 'gelu')
  )
  with pytest.raises(CheckpointError, match='transformers has none but'):
    hf_folders.export(hf_folders.source(config), tmp_path / 'out')


def test_folder_scores_as_the_bundle(random_bundle, tmp_path):
  from t5score_jax.metrics import t5score

  source = bundle.open_source(random_bundle, Options())
  path = hf_folders.export(source, tmp_path / 'out', shard=5000)
  texts = {
    'hypotheses': ['the cat sees the moon.', ''],
    'references': ['a dog sees the moon.', 'some bread'],
  }
  found = t5score.Metric(str(path)).score(**texts)
  expected = t5score.Metric(str(random_bundle)).score(**texts)
  np.testing.assert_array_equal(found.values, expected.values)
  assert found.signature == expected.signature
  assert f'    {found.signature}\n' in (path / 'README.md').read_text()


@pytest.mark.parametrize(
  'asked',
  [
    {},
    {'direction': 'source', 'lowercase': True, 'name': 'a|b c'},
    {'direction': 'ref_src', 'max_length': 32},
    {'direction': 'recall'},
  ],
)
def test_signature_is_the_metrics(tmp_path, asked):
  from t5score_jax.metrics import t5score

  path = hf_folders.export(
    hf_folders.source(hf_folders.TINY, settings=asked), tmp_path / 'out'
  )
  card = (path / 'README.md').read_text().replace('nrefs:1|refs:max|', '')
  assert f'    {t5score.Metric(str(path)).signature()}\n' in card


@pytest.mark.parametrize('block', [(1, 7), (3, 7), (40, 1), (40, 7)])
def test_hash_is_the_bundles(monkeypatch, tmp_path, block):
  """Whatever the order in which an array is stored."""
  monkeypatch.setattr(huggingface_card, 'BLOCK_BYTES', 100)
  array = np.random.default_rng(0).standard_normal((40, 7)).astype(np.float32)
  params = {'a': {'kernel': array, 'scale': array[0]}, 'b': array[:, 0]}
  lazy = {
    name: LazyArray.of(values) for name, values in bundle.flatten_names(params)
  }
  lazy['a/kernel'] = dataclasses.replace(lazy['a/kernel'], block=block)
  expected = bundle.checkpoint_hash(params)
  assert huggingface_card.checkpoint_hash(lazy, tmp_path) == expected
  assert list(tmp_path.iterdir()) == []


def test_progress_ends_where_it_should(tmp_path):
  source = hf_folders.source(hf_folders.TINY)
  seen = []
  convert.write(source, tmp_path / 'out', 'hf', progress=seen.append)
  assert abs(sum(seen) - 4 * source.size) <= len(seen)


def test_training_starts_from_a_folder(tmp_path):
  import jax

  source = hf_folders.source(hf_folders.TINY)
  path = hf_folders.export(source, tmp_path / 'out')
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  shapes = bundle.nest(
    {
      name: jax.ShapeDtypeStruct(array.shape, np.float32, sharding=device)
      for name, array in source.weights.items()
    }
  )
  params = native.initial_params(path, shapes)
  for name, array in bundle.flatten_names(params):
    np.testing.assert_array_equal(array, source.weights[name].read())


def test_convert_verb_goes_both_ways(random_bundle, tmp_path, capsys):
  from t5score_jax import cli

  arguments = ['convert', '--quiet', '--from']
  out, back = tmp_path / 'hf', tmp_path / 'back'
  first = ['bundle', '--to', 'hf', str(random_bundle), str(out)]
  second = ['hf', '--to', 'bundle', str(out), str(back)]
  assert cli.main(arguments + first) == 0, capsys.readouterr()
  assert cli.main(arguments + second) == 0, capsys.readouterr()
  for name in ('model.safetensors', 'vocabulary.model', 'config.json'):
    assert (back / name).read_bytes() == (random_bundle / name).read_bytes()
  shutil.rmtree(out)
