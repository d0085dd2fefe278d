"""Training on from an embedded model: its vocabulary and settings stay."""

import numpy as np
import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import loading


def _run(*arguments):
  return cli.main(['train', *map(str, arguments)])


@pytest.mark.slow
def test_fine_tuning_an_embedded_model_keeps_its_vocabulary_and_settings(
  tmp_path, capsys
):
  rng = np.random.default_rng(0)
  arrays = tmp_path / 'arrays'
  arrays.mkdir()
  for name in ('encoder_input_tokens', 'decoder_target_tokens'):
    np.save(arrays / f'{name}.npy', rng.integers(3, 4000, (4, 2, 4)))
  np.save(arrays / 'ratings.npy', rng.random((4, 2)))

  def run(name, *more, model='t5score-tiny'):
    return _run(
      '--gin_file=models/t5score_tiny.gin',
      '--gin_file=runs/train_pairs.gin',
      '--gin_file=runs/arrays.gin',
      f"--gin.ARRAYS='{arrays}'",
      f"--gin.MODEL_DIR='{tmp_path / name}'",
      f"--gin.VOCABULARY='{model}'",
      f"--gin.INITIAL_CHECKPOINT_PATH='{model}'",
      '--gin.BATCH_SIZE=4',
      '--gin.TRAIN_STEPS=1',
      *more,
    )

  assert run('run') == 0
  assert "settings for scoring: {'max_length': 256}" in capsys.readouterr().err
  metric = t5score_jax.load(str(tmp_path / 'run'))
  assert '|length:256|' in metric.signature()
  before = loading.load_model('t5score-tiny')
  assert loading.load_model(tmp_path / 'run').vocabulary == before.vocabulary
  # The resumed run keeps them, and a run of its own settings has none of them.
  assert run('run') == 0
  assert '|length:256|' in t5score_jax.load(str(tmp_path / 'run')).signature()
  own = "--gin.SETTINGS={'max_length': 32}"
  assert run('own', own, '--quiet') == 0
  assert '|length:32|' in t5score_jax.load(str(tmp_path / 'own')).signature()
  # So does a run from the model in Hugging Face's format.
  export = str(tmp_path / 'export')
  assert cli.main(['convert', '--to', 'hf', 't5score-tiny', export]) == 0
  assert run('exported', '--quiet', model=export) == 0
  metric = t5score_jax.load(str(tmp_path / 'exported'))
  assert '|length:256|' in metric.signature()
