"""COMET's joint metrics: published settings, round trips, conversion."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_encoder
import tiny_unified
import yaml

from t5score_jax import cli
from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.checkpoints.formats.comet import settings as comet_settings
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError

# As published; wmt22-cometkiwi-da has settings of an earlier COMET as well.
KIWI = {
  'activations': 'Tanh',
  'class_identifier': 'unified_metric',
  'dropout': 0.1,
  'encoder_model': 'XLM-RoBERTa',
  'final_activation': None,
  'hidden_sizes': [3072, 1024],
  'input_segments': ['mt', 'src'],
  'layer': 'mix',
  'layer_norm': False,
  'layer_transformation': 'sparsemax_patch',
  'loss_lambda': 0.65,
  'pool': 'avg',
  'pretrained_model': 'microsoft/infoxlm-large',
  'sent_layer': 'mix',
  'word_layer': 24,
  'word_level_training': False,
  'word_weights': [0.15, 0.85],
}
XCOMET = {
  'class_identifier': 'xcomet_metric',
  'hidden_sizes': [2560, 1280],
  'cross_entropy_weights': [0.08, 0.486, 0.505, 0.533],
  'word_level_training': True,
}


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  folder = tiny_encoder.make(tmp_path_factory.mktemp('encoder'))
  return encoders.load_encoder(folder)


def _config(settings, layers, tmp_path):
  encoder = dataclasses.replace(tiny_encoder.CONFIG, num_layers=layers)
  path = tmp_path / comet_settings.FILE
  merged = comet_settings.merge(path, settings, {})
  return comet_settings.regressor_config(merged, encoder, path)


def test_published_settings_are_understood(tmp_path):
  kiwi = _config(KIWI, 24, tmp_path)
  assert kiwi.inputs == ('source',) and not kiwi.num_tags and not kiwi.xcomet
  assert (kiwi.layer_transformation, kiwi.layer_norm) == ('softmax', False)
  # Its 23 versions on XLM-R XL leave more to COMET's defaults.
  unite = _config({'class_identifier': 'unified_metric'}, 24, tmp_path)
  assert unite.inputs == ('source', 'reference', 'unified')
  assert unite.layer_norm and unite.layer_transformation == 'sparsemax'
  xcomet = _config(XCOMET, 36, tmp_path)
  assert xcomet.xcomet and xcomet.labels == tiny_unified.LABELS
  assert (xcomet.word_layer, xcomet.separators) == (36, 2)
  tagged = {**KIWI, 'word_level_training': True}
  assert _config(tagged, 24, tmp_path).labels == ('minor', 'major')
  bert = _config({**KIWI, 'encoder_model': 'BERT'}, 24, tmp_path)
  assert (bert.separators, bert.token_types) == (1, True)
  with pytest.raises(CheckpointError, match='word_layer=24: use 0 to 3'):
    _config(tagged, 3, tmp_path)


@pytest.mark.parametrize(
  ('changes', 'kind'),
  [
    ({'reference': False}, kinds.COMET_UNIFIED),
    ({'source': False, 'layer': 1}, kinds.COMET_UNIFIED),
    ({'labels': ('minor', 'major'), 'word_layer': 3}, kinds.COMET_UNIFIED),
    ({'xcomet': True}, kinds.COMET_XCOMET),
  ],
)
def test_round_trips_are_exact(encoder, tmp_path, changes, kind):
  model = tiny_unified.make(encoder, **changes)
  comet.save_comet(model, tmp_path / 'c')
  assert kinds.of(tmp_path / 'c') == kind
  assert kinds.of(tmp_path / 'c' / comet.WEIGHTS_FILE) == kind
  again = comet.load_comet(tmp_path / 'c')
  assert again.config == model.config
  jax.tree.map(np.testing.assert_array_equal, again.params, dict(model.params))
  # COMET leaves two of 24 positions of a joint sequence unused.
  assert again.settings['max_length'] == 22
  regressors.save(again, tmp_path / 'ours')
  ours = regressors.load(tmp_path / 'ours')
  assert ours.config == model.config and ours.settings == again.settings


def test_commands_convert_both_ways(encoder, tmp_path, capsys):
  model = tiny_unified.make(encoder, xcomet=True)
  regressors.save(model, tmp_path / 'ours')
  places = [str(tmp_path / name) for name in ('ours', 'c', 'again', 'encoder')]
  assert cli.main(['convert', '--to', 'comet', *places[:2]]) == 0
  assert 'tags of words' in capsys.readouterr().out
  written = yaml.safe_load((tmp_path / 'c' / 'hparams.yaml').read_text())
  assert written['class_identifier'] == 'xcomet_metric'
  assert cli.main(['convert', '--to', 'estimator', *places[1:3]]) == 0
  assert regressors.load(tmp_path / 'again').config == model.config
  assert cli.main(['convert', '--to', 'hf', places[1], places[3]]) == 0
  found = encoders.load_encoder(tmp_path / 'encoder').params
  jax.tree.map(np.testing.assert_array_equal, found, encoder.params)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'separators': 2}, 'separators'),
    ({'xcomet': True, 'labels': ('bad',)}, 'minor, major, critical'),
    ({'activation': 'relu'}, 'relu'),
  ],
)
def test_what_comet_cannot_load_is_not_written(
  encoder, tmp_path, changes, words
):
  with pytest.raises(CheckpointError, match=words):
    comet.save_comet(tiny_unified.make(encoder, **changes), tmp_path / 'c')
  assert not (tmp_path / 'c').exists()
