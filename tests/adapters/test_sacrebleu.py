"""Our metrics under sacrebleu's interface, beside sacrebleu's own."""

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

import t5score_jax
from t5score_jax.adapters.sacrebleu import Adapter
from t5score_jax.errors import InputError

A = ['the cat sat on the mat', 'a dog runs', 'it rains today', 'yes it is']
B = ['the cat on the mat', 'dogs run', 'rain', 'no it is not']
STREAMS = [
  ['the cat sat on a mat', 'a dog ran', 'it rains today', 'yes it is'],
  ['a cat sat on the mat', 'the dog runs', None, 'yes'],
]


def test_bleu_is_sacrebleus(monkeypatch):
  monkeypatch.setenv('SACREBLEU_SEED', '7')
  ours, theirs = Adapter(t5score_jax.load('bleu')), BLEU()
  one = ours.corpus_score(A, STREAMS, n_bootstrap=50)
  two = theirs.corpus_score(A, STREAMS, n_bootstrap=50)
  assert one.score == pytest.approx(two.score)
  assert one._ci == pytest.approx(two._ci)
  assert ours.num_refs == theirs.num_refs == -1
  assert 'nrefs:var|bs:50|seed:7' in str(theirs.get_signature())
  signature = ours.get_signature()
  assert signature.info['nrefs'] == 'var' and signature.info['bs'] == 50
  assert '#:var' in signature.format(short=True)


def test_scores_and_signature_are_the_metric_s(random_bundle):
  metric = t5score_jax.load(random_bundle)
  adapter = Adapter(metric)
  expected = metric.score(A, STREAMS[0])
  score = adapter.corpus_score(A, STREAMS[:1])
  assert score.score == pytest.approx(expected.system, abs=1e-6)
  assert score.name == 'T5Score' and 'T5Score = -' in score.format()
  assert str(adapter.get_signature()) == expected.signature
  one = adapter.sentence_score(A[1], [STREAMS[0][1], STREAMS[1][1]])
  best = metric.score([A[1]], [[STREAMS[0][1], STREAMS[1][1]]])
  assert one.score == pytest.approx(best[0], abs=1e-5)
  assert 'nrefs:2' in str(adapter.get_signature())


def test_sources(random_bundle):
  metric = t5score_jax.load(random_bundle, direction='source')
  adapter = Adapter(metric, sources=B)
  score = adapter.corpus_score(A, None)
  assert score.score == pytest.approx(metric.score(A, None, B).system, abs=1e-6)
  with pytest.raises(InputError, match='3 hypotheses but 4 sources'):
    adapter.corpus_score(A[:3], None)


def test_paired_test_takes_it():
  metric = Adapter(t5score_jax.load('chrf'))
  for kind in ('bs', 'ar'):
    _, results = PairedTest(
      [('A', A), ('B', B)], {'chrF': metric}, STREAMS[:1], kind, 40
    )()
    first, second = results['chrF']
    assert first.score > second.score and 0 < second.p_value <= 1


def test_streams_of_another_length():
  with pytest.raises(InputError, match='every stream must have one'):
    Adapter(t5score_jax.load('chrf')).corpus_score(A, [STREAMS[0][:2]])
