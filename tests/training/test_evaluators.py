import json

import fake_training
import jax
import numpy as np
import pytest
import train_on_devices

from t5score_jax.data import records, vocab
from t5score_jax.inputs import datasets
from t5score_jax.models import likelihood, t5score
from t5score_jax.training import evaluators

CONFIG = train_on_devices.config()
BYTES = vocab.ByteVocabulary()


def _segments():
  """Two language pairs, three systems and a human, three segments each."""
  generator = np.random.default_rng(0)
  found = []
  for pair in ('de-en', 'zh-en'):
    for segment in ('1', '2', '3'):
      for system in ('x', 'y', 'z', 'Human-A'):
        found.append(
          records.Segment(
            hypothesis=f'{system} said {segment}',
            source=f'quelle {segment}',
            references=(f'reference {segment}',),
            system=system,
            segment=segment,
            language_pair=pair,
            ratings={'da': float(generator.integers(0, 100))},
          )
        )
  return found


def _evaluator(segments=None, **options):
  segments = _segments() if segments is None else segments
  return evaluators.JudgmentEvaluator(
    segments, CONFIG, BYTES, 'da', **{'max_length': 32, **options}
  )


@pytest.fixture(scope='module')
def params():
  return jax.jit(t5score.GenerativeModel(CONFIG).init)(jax.random.key(0))


def _by_hand(params, source, target):
  """Mean token log-probability of one text given another, without padding."""
  a, b = (
    np.asarray([BYTES.encode(text) + [1]], np.int32)
    for text in (source, target)
  )
  return float(np.mean(_log_probs(params, a, b)))


@jax.jit
def _log_probs(params, inputs, targets):
  encoded = likelihood.encode(params, CONFIG, inputs)
  return likelihood.target_log_probs(
    params, CONFIG, encoded, inputs, np.zeros(1, np.int32), targets
  )


@pytest.mark.parametrize(
  'direction',
  [
    pytest.param('precision', marks=pytest.mark.slow),
    pytest.param('recall', marks=pytest.mark.slow),
    pytest.param('f', marks=pytest.mark.slow),
    'ref_src',
  ],
)
def test_scores_are_those_of_the_texts(params, direction):
  segments = _segments()[:3]
  found = _evaluator(segments, direction=direction).scores(params)
  for segment, score in zip(segments, found, strict=True):
    hyp, ref, src = segment.hypothesis, segment.references[0], segment.source
    precision = _by_hand(params, ref, hyp)
    recall = _by_hand(params, hyp, ref)
    expected = {
      'precision': precision,
      'recall': recall,
      'f': (precision + recall) / 2,
      'ref_src': np.mean(
        [precision, recall]
        + [_by_hand(params, src, hyp), _by_hand(params, hyp, src)]
      ),
    }[direction]
    assert score == pytest.approx(expected, abs=1e-5)


def test_agreement_is_the_mean_over_language_pairs(params):
  segments = _segments()
  evaluator = _evaluator(segments)
  found = evaluator.evaluate(params)
  scores = evaluator.scores(params)
  ratings = np.array([segment.ratings['da'] for segment in segments])
  pearsons, taus = [], []
  for pair in ('de-en', 'zh-en'):
    rows = [i for i, s in enumerate(segments) if s.language_pair == pair]
    pearsons.append(np.corrcoef(ratings[rows], scores[rows])[0, 1])
    concordant = discordant = 0
    for i in rows:
      for j in rows:
        one, other = segments[i], segments[j]
        if one.segment != other.segment or 'Human-A' in (
          one.system,
          other.system,
        ):
          continue
        if ratings[i] - ratings[j] >= 25:
          concordant += scores[i] > scores[j]
          discordant += scores[i] <= scores[j]
    taus.append((concordant - discordant) / (concordant + discordant))
  assert found['pearson'] == pytest.approx(np.mean(pearsons), abs=1e-6)
  assert found['tau'] == pytest.approx(np.mean(taus), abs=1e-6)


def test_other_parameters_give_other_numbers(params):
  evaluator = _evaluator()
  before = evaluator.scores(params)
  moved = jax.tree.map(lambda x: x + 0.1, params)
  assert np.abs(evaluator.scores(moved) - before).max() > 1e-3
  np.testing.assert_allclose(evaluator.scores(params), before, atol=1e-6)


def test_no_tau_without_pairs(params):
  segments = [s for s in _segments() if s.system == 'x']
  assert set(_evaluator(segments).evaluate(params)) == {'pearson'}


def test_lowercase_and_limit(params):
  segments = _segments()
  upper = [
    records.Segment(
      hypothesis=s.hypothesis.upper(),
      references=s.references,
      system=s.system,
      segment=s.segment,
      language_pair=s.language_pair,
      ratings=s.ratings,
    )
    for s in segments
  ]
  low = _evaluator(segments, lowercase=True).scores(params)
  np.testing.assert_allclose(
    _evaluator(upper, lowercase=True).scores(params), low, atol=1e-6
  )
  some = _evaluator(segments, lowercase=True, limit=4).scores(params)
  np.testing.assert_allclose(some, low[[0, 7, 15, 23]], atol=1e-6)


def test_segments_from_a_file(tmp_path):
  path = tmp_path / 'held_out.jsonl'
  rows = [
    {'hypothesis': 'a', 'reference': 'b', 'da': 50},
    {'hypothesis': 'c', 'reference': 'd'},
  ]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  assert len(_evaluator(path)._ratings) == 1


def test_what_cannot_be_evaluated(tmp_path):
  with pytest.raises(evaluators.EvaluatorError, match="rating 'z'"):
    evaluators.JudgmentEvaluator(_segments(), CONFIG, BYTES, 'z')
  with pytest.raises(evaluators.EvaluatorError, match="direction 'both'"):
    _evaluator(direction='both')
  bare = records.Segment(hypothesis='x', ratings={'da': 1.0}, segment='7')
  with pytest.raises(evaluators.EvaluatorError, match="'7'.*no reference"):
    _evaluator([bare])


def test_held_out_loss_is_the_mean_over_its_batches(tmp_path):
  arrays = fake_training.write_arrays(tmp_path / 'arrays')
  dataset = datasets.ArrayDataset(arrays, 8, shuffle=False)
  model = fake_training.LinearModel(dropout_rate=0.5)
  params = model.init(jax.random.key(0))
  found = evaluators.EvaluationLoss(model, dataset, num_batches=3).evaluate(
    params
  )
  loss = weight = 0.0
  for _, batch in zip(range(3), dataset.epoch(), strict=False):
    one, aux = model.loss_fn(params, batch, None)
    loss, weight = loss + float(one), weight + float(aux['weight'])
  assert found['loss'] == pytest.approx(loss / weight, rel=1e-5)
  assert found['weights'] == pytest.approx(weight / 3)
