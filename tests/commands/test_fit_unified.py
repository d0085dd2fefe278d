"""`t5score fit` of UniTE's networks, on a made-up corpus, to what scores."""

import dataclasses
import json

import numpy as np
import pytest
import rated_corpus
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.data import instances, records
from t5score_jax.metrics import registry

_GIN = """
from __gin__ import dynamic_registration
from t5score_jax.nn import bert
include 'models/unified.gin'
include 'runs/unified.gin'
ENCODER = @bert.BertConfig()
NUM_LAYERS = {c.num_layers}
bert.BertConfig:
  vocab_size = {c.vocab_size}
  emb_dim = {c.emb_dim}
  num_heads = {c.num_heads}
  mlp_dim = {c.mlp_dim}
  num_layers = %NUM_LAYERS
  max_positions = {c.max_positions}
HIDDEN_SIZES = (6,)
SEPARATORS = 1
TOKEN_TYPES = True
LABELS = ('minor', 'major', 'critical')
WORD_LAYER = 1
XCOMET = True
TAG_SHARE = 0.5
ENCODER_PATH = '{path}'
MAX_LENGTH = 20
LEARNING_RATE = 1e-2
BATCH_SIZE = 8
EPOCHS = 2
FROZEN_EPOCHS = 0.5
"""


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  folder = tmp_path_factory.mktemp('fit')
  config = dataclasses.replace(tiny_encoder.CONFIG, num_layers=1)
  encoder = tiny_encoder.make(folder / 'encoder', config)
  text = _GIN.format(c=config, path=encoder)
  (folder / 'toy.gin').write_text(text)
  rated = rated_corpus.segments('abc')
  records.write_records(folder / 'rated.jsonl', rated)
  rows = [
    {
      'hypothesis': s.hypothesis,
      'errors': [{'start': 0, 'end': 3, 'severity': 'critical'}],
    }
    for s in rated
  ]
  (folder / 'errors.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  return folder


def _fit(place, work, *bindings):
  arguments = [
    *('fit', f'--gin_file={place}/toy.gin', '--quiet'),
    *('--input', place / 'rated.jsonl', '--validation-share', 0.4),
    *('--ratings', 'coherence', '--work', place / work, *bindings),
  ]
  return cli.main([str(a) for a in arguments])


@pytest.mark.slow
def test_a_network_with_tags_is_fitted_scored_and_exported(place, capsys):
  assert _fit(place, 'run', f"--gin.ERRORS='{place}/errors.jsonl'") == 0
  assert 'pearson' in capsys.readouterr().out
  tags = np.load(place / 'run' / 'texts' / 'tags.npy')
  assert set(np.unique(tags)) == {-1, 0, 3}
  model = place / 'run' / 'model'
  assert kinds.of(model) == kinds.XCOMET
  assert kinds.of(place / 'run' / 'run') == kinds.XCOMET
  segments = rated_corpus.segments('d')
  metric = registry.load(model)
  scores = metric.score_segments(segments)
  assert '|length:20|' in scores.signature and scores.spans is not None
  # The run's best checkpoint is the same model.
  again = registry.load(place / 'run' / 'run').score_segments(segments)
  np.testing.assert_allclose(again.values, scores.values, atol=1e-6)
  out = place / 'comet'
  assert cli.main(['convert', '--to', 'comet', str(model), str(out)]) == 0
  loaded = comet.load_comet(out)
  assert loaded.config.xcomet and loaded.config.labels[2] == 'critical'
  lines = (place / 'run' / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert any('tag_loss' in line for line in lines)


def test_what_does_not_fit_is_named(place, capsys):
  for n, (bindings, words) in enumerate(
    (
      (['--gin.ERRORS="none.jsonl"'], 'none.jsonl'),
      ([f"--gin.ERRORS='{place}/rated.jsonl'"], 'line 1'),
      (
        ['--gin.ERRORS="x"', '--gin.LABELS=()', '--gin.XCOMET=False'],
        'no LABELS',
      ),
      (['--gin.FORM="vectors"'], 'jointly'),
    )
  ):
    assert _fit(place, f'refused_{n}', *bindings) != 0
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_crossvalidation_scores_with_the_model_of_each_fold(place, capsys):
  corpus = rated_corpus.segments()
  records.write_records(place / 'six.jsonl', corpus)
  arguments = [
    *('crossvalidate', f'--gin_file={place}/toy.gin', '--quiet'),
    *('--input', place / 'six.jsonl', '--folds', 3, '--ratings', 'coherence'),
    *('--work', place / 'folds', '-o', place / 'folds.jsonl'),
    *('--gin.LABELS=()', '--gin.XCOMET=False', '--gin.SOURCE=False'),
  ]
  assert cli.main([str(a) for a in arguments]) == 0
  assert "Kendall's tau of 3 systems' means, 3 folds" in capsys.readouterr().out
  lines = (place / 'folds.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  judged = instances.averaged(corpus)
  assert len(rows) == len(judged)
  for fold in (1, 2, 3):
    metric = registry.load(place / 'folds' / f'fold_{fold}' / 'model')
    scores = metric.score_segments(judged).values
    for row, score, segment in zip(rows, scores, judged, strict=True):
      assert (row['document'], row['system']) == (
        segment.document,
        segment.system,
      )
      if row['fold'] == fold:
        assert row['predicted_coherence'] == pytest.approx(score, abs=1e-5)
  assert {row['fold'] for row in rows} == {1, 2, 3}
