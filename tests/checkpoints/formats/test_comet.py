"""COMET's checkpoints: settings, what is refused, and our own round trips."""

import dataclasses
import json
import pickle
import zipfile

import jax
import numpy as np
import pytest
import tiny_encoder
import tiny_regressor
import yaml

from t5score_jax import cli
from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.torch import reader, writer
from t5score_jax.checkpoints.source import ContradictionError
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.metrics import registry


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  folder = tiny_encoder.make(tmp_path_factory.mktemp('encoder'))
  return encoders.load_encoder(folder)


def rewrite(folder, stored=None, **settings):
  """Changes hparams.yaml, and writes only `stored` into the .ckpt."""
  path = folder / 'hparams.yaml'
  found = yaml.safe_load(path.read_text()) | settings
  path.write_text(
    yaml.safe_dump({k: v for k, v in found.items() if v != 'gone'})
  )
  tensors, _ = reader.open_checkpoint(folder / comet.WEIGHTS_FILE)
  arrays = {name: array.read() for name, array in tensors.items()}
  writer.write_checkpoint(folder / comet.WEIGHTS_FILE, arrays, stored or {})


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'reference': False, 'layer_norm': True},
    {'final_activation': 'sigmoid'},
    {'layer': 1, 'pooling': 'max'},
  ],
)
def test_round_trips_are_exact(encoder, tmp_path, changes):
  model = tiny_regressor.make(encoder, **changes)
  comet.save_comet(model, tmp_path / 'c')
  assert kinds.of(tmp_path / 'c') == kinds.COMET
  again = comet.load_comet(tmp_path / 'c')
  assert again.config == model.config
  jax.tree.map(np.testing.assert_array_equal, again.params, dict(model.params))
  by_file = comet.load_comet(tmp_path / 'c' / comet.WEIGHTS_FILE, num_heads=2)
  assert by_file.config == again.config


def test_several_outputs_become_their_mean(encoder, tmp_path):
  model = tiny_regressor.make(encoder, outputs=('a', 'b', 'c'))
  regressors.save(model, tmp_path / 'ours')
  comet.save_comet(model, tmp_path / 'c')
  scores = [
    registry.load_metric('comes', model=tmp_path / name).score(
      ['the cat sat', 'a dog'], [['the cat'], ['the dogs']], ['mat', 'hill .']
    )
    for name in ('ours', 'c')
  ]
  np.testing.assert_allclose(scores[1].values, scores[0].values, atol=1e-6)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'activation': 'relu'}, 'relu'),
    ({'final_activation': 'gelu'}, 'gelu'),
    ({'outputs': ('a', 'b'), 'final_activation': 'sigmoid'}, 'a, b'),
    ({'pooling': 'pooler', 'layer': 3}, 'pooler'),
  ],
)
def test_what_comet_cannot_load_is_not_written(
  encoder, tmp_path, changes, words
):
  with pytest.raises(CheckpointError, match=words):
    comet.save_comet(tiny_regressor.make(encoder, **changes), tmp_path / 'c')
  assert not (tmp_path / 'c').exists()


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'word_layer': 24}, 'word_layer'),
    ({'class_identifier': 'ranking_metric'}, 'ranking_met'),
    ({'encoder_model': 'RemBERT'}, "encoder_model 'RemBERT'"),
    ({'activations': 'Swish'}, "activations 'swish'"),
    ({'pool': 'attention'}, "pool 'attention'"),
    # The weights have no such layer.
    ({'pool': 'default'}, 'pooler'),
    ({'layer_transformation': 'entmax'}, "layer_transformation 'entmax'"),
    ({'hidden_sizes': [20, 13]}, 'other shape'),
    ({'class_identifier': 'referenceless_regression_metric'}, 'other shape'),
    ({'layer': 7}, '0 to 3'),
    # COMET's default, which is another size.
    ({'hidden_sizes': 'gone'}, r'expected \[96, 3072\]'),
  ],
)
def test_unsupported_settings_are_named(encoder, tmp_path, settings, words):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  rewrite(tmp_path, **settings)
  with pytest.raises(CheckpointError, match=words):
    comet.load_comet(tmp_path)


def test_settings_mean_what_they_mean_to_comet(encoder, tmp_path):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  # Until COMET 2, neither setting existed.
  rewrite(tmp_path, layer_norm='gone', layer_transformation='gone')
  config = comet.load_comet(tmp_path).config
  assert config.layer_norm and config.layer_transformation == 'softmax'
  # Absent beside the other, it is COMET's default all the same.
  rewrite(tmp_path, layer_transformation='sparsemax')
  config = comet.load_comet(tmp_path).config
  assert config.layer_norm and config.layer_transformation == 'sparsemax'
  # The .ckpt counts, but for the correction of published models.
  stored = {'layer_norm': False, 'pool': 'cls', 'activations': 'SIGMOID'}
  rewrite(tmp_path, stored, pool='max', layer_transformation='sparsemax_patch')
  config = comet.load_comet(tmp_path).config
  assert (config.pooling, config.layer_norm) == ('cls', False)
  assert config.activation == 'sigmoid'
  assert config.layer_transformation == 'softmax'
  assert (
    comet.load_comet(
      tmp_path, layer_transformation='sparsemax'
    ).config.layer_transformation
    == 'sparsemax'
  )


@pytest.mark.parametrize('kind', ['XLM-RoBERTa', 'MiniLM'])
def test_the_default_pool_is_the_first_token_of_the_last_layer(
  encoder, tmp_path, kind
):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  rewrite(tmp_path, pool='default', encoder_model=kind)
  config = comet.load_comet(tmp_path).config
  assert (config.pooling, config.layer) == ('cls', 3)
  offset = {'XLM-RoBERTa': 2, 'MiniLM': 0}[kind]
  assert (config.encoder.position_offset, config.encoder.pad_id) == (offset, 1)


def test_the_default_pool_of_bert_is_its_pooler(encoder, tmp_path):
  model = tiny_regressor.make(encoder, pooling='pooler', layer=3)
  comet.save_comet(tiny_regressor.make(encoder, pooling='cls'), tmp_path)
  rewrite(tmp_path, pool='default', layer=1)
  tensors, stored = reader.open_checkpoint(tmp_path / comet.WEIGHTS_FILE)
  arrays = {name: array.read() for name, array in tensors.items()}
  pooler = model.params['pooler']
  arrays['encoder.model.pooler.dense.weight'] = pooler['kernel'].T
  arrays['encoder.model.pooler.dense.bias'] = pooler['bias']
  writer.write_checkpoint(tmp_path / comet.WEIGHTS_FILE, arrays, stored)
  again = comet.load_comet(tmp_path)
  assert again.config == model.config
  jax.tree.map(np.testing.assert_array_equal, again.params, dict(model.params))


def test_texts_are_cut_where_comet_cuts_them(encoder, tmp_path):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  metric = registry.load_metric('comes', model=tmp_path)
  # COMET leaves four of the 24 positions unused, 510 of XLM-R's 514.
  assert '|length:20|' in metric.signature()
  long, cut = ' '.join(['dog'] * 30), ' '.join(['dog'] * 18)
  scores = metric.score([long, cut], [['cat'], ['cat']], ['mat', 'mat'])
  assert scores.values[0] == pytest.approx(scores.values[1], abs=1e-6)
  assert scores.truncated == 1
  regressors.save(comet.load_comet(tmp_path), tmp_path / 'ours')
  ours = registry.load_metric('comes', model=tmp_path / 'ours')
  assert '|length:20|' in ours.signature()


def test_the_number_of_heads_is_never_guessed(encoder, tmp_path, capsys):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path / 'c')
  config = tmp_path / 'c' / 'config.json'
  described = config.read_text()
  with pytest.raises(ContradictionError, match='4 attention heads'):
    comet.load_comet(tmp_path / 'c', num_heads=4)
  config.unlink()
  places = ['--to', 'estimator', str(tmp_path / 'c'), str(tmp_path / 'd')]
  assert cli.main(['convert', *places]) == 1
  assert '--num-heads' in capsys.readouterr().err
  assert cli.main(['convert', '--num-heads', '4', *places]) == 0
  assert regressors.load(tmp_path / 'd').config.encoder.num_heads == 4
  metric = registry.load_metric('comes', model=tmp_path / 'c', num_heads=4)
  assert metric.score(['a'], [['b']], ['c']).values.shape == (1,)
  for count in (-1, 3):
    with pytest.raises(CheckpointError, match=f'^{count} attention heads'):
      comet.load_comet(tmp_path / 'c', num_heads=count)
  # The encoder's folder, named as the tokenizer, has its config.json.
  found = comet.load_comet(tmp_path / 'c', tiny_encoder.make(tmp_path / 'e'))
  assert found.config.encoder == encoder.config
  # Published encoders are known by their names.
  rewrite(tmp_path / 'c', pretrained_model='microsoft/infoxlm-large')
  assert comet.load_comet(tmp_path / 'c').config.encoder.num_heads == 16
  other = json.loads(described) | {'hidden_size': 32}
  config.write_text(json.dumps(other))
  with pytest.raises(CheckpointError, match='hidden_size 32'):
    comet.load_comet(tmp_path / 'c')


def test_a_tokenizer_has_to_be_given(encoder, tmp_path):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  for name in ('tokenizer.json', 'tokenizer_config.json'):
    (tmp_path / name).unlink()
  with pytest.raises(CheckpointError, match='option tokenizer'):
    comet.load_comet(tmp_path)


def test_a_tokenizer_with_more_ids_than_rows_is_refused(
  encoder, tmp_path, capsys
):
  model = tiny_regressor.make(encoder)
  small = dataclasses.replace(model.config.encoder, vocab_size=9)
  config = dataclasses.replace(model.config, encoder=small)
  params = tiny_regressor.params(config)
  made = regressors.Regressor(config, params, model.tokenizer)
  regressors.save(made, tmp_path / 'a')
  comet.save_comet(made, tmp_path / 'c')
  for load in (regressors.load, comet.load_comet):
    with pytest.raises(CheckpointError, match='only 9 rows'):
      load(tmp_path / ('a' if load is regressors.load else 'c'))
  places = [str(tmp_path / 'c'), str(tmp_path / 'd')]
  assert cli.main(['convert', '--to', 'estimator', *places]) == 1
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and 'only 9 rows' in error
  assert not (tmp_path / 'd').exists()


def test_damaged_settings_are_named_by_line(encoder, tmp_path):
  comet.save_comet(tiny_regressor.make(encoder), tmp_path)
  (tmp_path / 'hparams.yaml').write_text('pool: avg\nlayer: mix: 3\n')
  with pytest.raises(CheckpointError, match='hparams.yaml, line 2') as damaged:
    comet.load_comet(tmp_path)
  assert '\n' not in str(damaged.value)


class Attack:
  """What a hostile pickle would do."""

  def __reduce__(self):
    return (exec, ("open('attacked', 'w').close()",))


def test_nothing_in_a_checkpoint_is_executed(encoder, tmp_path, monkeypatch):
  """Objects beside the weights become placeholders; the weights are read."""
  monkeypatch.chdir(tmp_path)
  comet.save_comet(tiny_regressor.make(encoder), tmp_path / 'c')
  path = tmp_path / 'c' / comet.WEIGHTS_FILE
  with zipfile.ZipFile(path) as archive:
    entries = {n: archive.read(n) for n in archive.namelist()}
  attack = pickle.dumps(Attack(), protocol=2)[2:-1]  # without PROTO and STOP
  entry = b'(X' + (9).to_bytes(4, 'little') + b'callbacks' + attack + b'u.'
  entries['archive/data.pkl'] = entries['archive/data.pkl'][:-1] + entry
  with zipfile.ZipFile(path, 'w') as archive:
    for name, data in entries.items():
      archive.writestr(name, data)
  found, settings = reader.open_checkpoint(path)
  assert 'estimator.ff.0.weight' in found
  assert settings['layer_transformation'] == 'sparsemax'
  assert not (tmp_path / 'attacked').exists()
  # The entry is really there, and really harmful.
  with pytest.raises(CheckpointError, match=r'builtin.*\.exec'):
    reader.open_file(path)
  assert comet.load_comet(tmp_path / 'c')
