"""MetricX's two stages, by the recipes' files, on a tiny network."""

import json

import jax
import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.checkpoints.bundle import flatten_names
from t5score_jax.data import prompts
from t5score_jax.data.records import Segment
from t5score_jax.data.vocab import ByteVocabulary
from t5score_jax.errors import OptionError
from t5score_jax.inputs import datasets, rated_records, rated_texts
from t5score_jax.metrics import registry
from t5score_jax.models import regression
from t5score_jax.nn import t5

CONFIG = t5.T5Config(
  vocab_size=384,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=32,
  num_encoder_layers=1,
  num_decoder_layers=1,
  logits_via_embedding=True,
)
SEGMENTS = [
  Segment('a', source='x', references=('r', 'q'), ratings={'z': 0.5}),
  Segment('bc', source='y', ratings={'z': -3.0}),
  Segment('d', references=('s',), ratings={'z': 2.0}),
  Segment('e', source='w', references=('t',)),
]


def _dataset(segments=SEGMENTS, **options):
  parts = rated_records.Parts(segments, segments[:1], 'file', 'a note')
  lengths = {'inputs': 64}
  given = {'slope': -12.5, 'offset': 12.5, 'shuffle': False, **options}
  return rated_texts.RatedTextsDataset(
    parts, 'z', ByteVocabulary(), lengths, 2, **given
  )


def _texts(dataset):
  return [
    (ByteVocabulary().decode(ids), float(rating[0]))
    for batch in dataset.epoch()
    for ids, rating in zip(
      batch['encoder_input_tokens'], batch['ratings'], strict=True
    )
  ]


def test_each_record_is_an_example_in_every_form_whose_texts_it_has():
  assert _texts(_dataset()) == [
    ('source:  candidate: a reference: r', 6.25),
    ('source: x candidate: a', 6.25),
    ('source: x candidate: a reference: r', 6.25),
    ('source: y candidate: bc', 25.0),
    ('source:  candidate: d reference: s', 0.0),
  ]
  assert _texts(_dataset(version=23, forms=['source'], part='validation')) == [
    ('candidate: a source: x', 6.25)
  ]


def test_inputs_have_no_end():
  for batch in _dataset().epoch():
    assert not np.any(batch['encoder_input_tokens'] == 1)


def test_errors_of_data():
  for options, problem in (
    ({'version': 25}, 'version'),
    ({'version': 23, 'forms': prompts.FORMS}, 'forms'),
    ({'part': 'test'}, 'part'),
    ({'segments': SEGMENTS[3:]}, 'no record'),
  ):
    with pytest.raises(datasets.DatasetError, match=problem):
      _dataset(**options)
  with pytest.raises(OptionError, match='output_id'):
    regression.FirstStepModel(CONFIG)


def test_the_loss_is_the_square_error_of_the_logit():
  model = regression.FirstStepModel(CONFIG, output_id=9)
  params = model.init(jax.random.key(0))
  batch = next(_dataset().batches())
  predictions = np.asarray(jax.jit(model.predict)(params, batch))
  (loss, aux), gradient = jax.jit(
    jax.value_and_grad(lambda p: model.loss_fn(p, batch, None), has_aux=True)
  )(params)
  expected = np.sum((predictions - batch['ratings']) ** 2)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  assert aux['weight'] == 2
  clamped = regression.FirstStepModel(CONFIG, output_id=9, clamped=True)
  np.testing.assert_allclose(
    jax.jit(clamped.predict)(params, batch),
    np.clip(predictions, 0, 25),
    rtol=1e-5,
  )
  # Every part of the network learns, but for what one token does not need.
  attention = 'decoder/layers_0/self_attention'
  assert {name for name, g in flatten_names(gradient) if not np.any(g)} == {
    f'{attention}/query/kernel',
    f'{attention}/key/kernel',
    'decoder/relpos_bias/rel_embedding',
  }


# Different enough for a hundred steps.
GOOD, BAD = 'a' * 16, 'Z' * 16


def _records(path, rating, value):
  rows = []
  for n in range(40):
    hypothesis = GOOD if n % 2 else BAD
    rows.append(
      {
        'document': str(n // 4),
        'source': 'q',
        'hypothesis': hypothesis,
        'reference': 'r',
        rating: value(n % 2),
      }
    )
  path.write_text('\n'.join(map(json.dumps, rows)))
  return repr(str(path))


@pytest.mark.slow
def test_both_stages_are_trained_and_score(tmp_path):
  da = _records(tmp_path / 'da.jsonl', 'z', lambda good: 0.9 if good else -0.9)
  mqm = _records(tmp_path / 'mqm.jsonl', 'mqm', lambda good: 0 if good else -5)
  network = [f't5.T5Config.num_{s}coder_layers=1' for s in ('en', 'de')]
  common = [
    '--gin_file=models/tiny.gin',
    *(f'--gin.{one}' for one in network),
    '--gin.OUTPUT_ID=200',
    '--gin.LENGTH=64',
    '--gin.BATCH_SIZE=8',
    '--gin.EVAL_EVERY=100',
    # The last checkpoint: a correlation is 1 before predictions differ by much.
    '--gin.SELECTION=None',
    '--gin.OPTIMIZER=@optimizers.adamw()',
    '--quiet',
  ]
  first = [
    *common,
    '--gin_file=runs/metricx.gin',
    f'--gin.MODEL_DIR={str(tmp_path / "first")!r}',
    f'--gin.RECORDS={da}',
    "--gin.RATING='z'",
    '--gin.TRAIN_STEPS=200',
    '--gin.LEARNING_RATE=3e-3',
  ]
  assert cli.main(['train', *first]) == 0
  second = [
    *common,
    '--gin_file=runs/metricx.gin',
    '--gin_file=runs/metricx_mqm.gin',
    f'--gin.MODEL_DIR={str(tmp_path / "second")!r}',
    f'--gin.INITIAL_CHECKPOINT_PATH={str(tmp_path / "first")!r}',
    f'--gin.RECORDS={mqm}',
    "--gin.RATING='mqm'",
    f'--gin.DA_RECORDS={da}',
    "--gin.DA_RATING='z'",
    '--gin.TRAIN_STEPS=100',
    '--gin.LEARNING_RATE=2e-3',
  ]
  assert cli.main(['train', *second]) == 0
  for run in ('first', 'second'):
    assert registry.choose(tmp_path / run).metric == 'metricx'
    for options in ({}, {'source_based': True}):
      metric = registry.load(tmp_path / run, **options)
      good, bad = metric.score([GOOD, BAD], ['r'] * 2, ['q'] * 2)
      assert good > bad + 0.5, (run, options)
  assert 'version' in (tmp_path / 'second' / 'config.json').read_text()
