"""Joined requests: each gets its own scores, errors and statistics."""

import threading

import pytest
import slow_metric

import t5score_jax
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.service import batching


def _segments(*texts, references=()):
  return [Segment(text, references=references) for text in texts]


@pytest.fixture
def make():
  made = []

  def call(metric, most=100, most_waiting=1000):
    made.append((metric, batching.Batcher(metric, most, most_waiting)))
    return made[-1][1]

  yield call
  for metric, batcher in made:
    metric.go.set()
    batcher.stop()


def _held(make, **limits):
  """A batcher that is busy with one request, and its metric."""
  metric = slow_metric.Slow()
  batcher = make(metric, **limits)
  first = batcher.submit(_segments('first'))
  assert metric.entered.wait(20)
  return metric, batcher, first


def test_what_waits_is_joined_and_divided(make):
  metric, batcher, first = _held(make)
  texts = [['a'], ['bb', 'ccc'], [], ['dddd']]
  futures = [batcher.submit(_segments(*t)) for t in texts]
  assert batcher.waiting == 4
  metric.go.set()
  assert first.result(20).scores.values.tolist() == [5]
  for own, future in zip(texts, futures, strict=True):
    result = future.result(20)
    assert result.scores.values.tolist() == [len(t) for t in own]
    assert result.scores.components['twice'].tolist() == [
      2 * len(t) for t in own
    ]
    assert result.truncated == 0
  # An empty request has no references, as the others.
  assert sum(metric.sizes) == 5 and len(metric.sizes) <= 3
  assert (batcher.requests, batcher.texts, batcher.waiting) == (5, 5, 0)


def test_a_batch_has_a_largest_size_and_one_signature(make):
  metric, batcher, _ = _held(make, most=4)
  batcher.submit(_segments('a', 'b', 'c'))
  last = batcher.submit(_segments('d', 'e'))
  other = batcher.submit(_segments('f', references=('x',)))
  single = batcher.submit(_segments('g'))
  metric.go.set()
  for future in (last, other, single):
    future.result(20)
  # 'g' has room beside the first three, 'd' and 'e' have not.
  assert metric.sizes == [1, 4, 2, 1]


def test_a_metric_that_weighs_by_all_segments_is_not_joined(make):
  metric = slow_metric.Slow(independent=False)
  batcher = make(metric)
  futures = [batcher.submit(_segments(t)) for t in 'abc']
  metric.go.set()
  assert [f.result(20).scores[0] for f in futures] == [1, 1, 1]
  assert metric.sizes == [1, 1, 1]


@pytest.mark.parametrize(
  ('text', 'kind'), [('bad', InputError), ('fault', RuntimeError)]
)
def test_an_error_is_that_of_its_request_alone(make, text, kind):
  metric, batcher, _ = _held(make)
  good = batcher.submit(_segments('good'))
  bad = batcher.submit(_segments(text))
  metric.go.set()
  assert good.result(20).scores[0] == 4
  with pytest.raises(kind):
    bad.result(20)
  assert batcher.submit(_segments('next')).result(20).scores[0] == 4


def test_whose_text_was_cut_is_known_only_alone(make):
  metric, batcher, _ = _held(make)
  futures = [batcher.submit(_segments(t)) for t in ('short', 'very long text')]
  metric.go.set()
  assert [f.result(20).truncated for f in futures] == [None, None]
  assert batcher.submit(_segments('very long text')).result(20).truncated == 1


def test_the_queue_has_an_end(make):
  metric, batcher, first = _held(make, most_waiting=3)
  batcher.submit(_segments('a', 'b'))
  with pytest.raises(batching.QueueFullError, match='2 texts wait'):
    batcher.submit(_segments('c', 'd'))
  batcher.submit(_segments('c'))
  metric.go.set()
  first.result(20)
  # A request larger than the queue is taken where nothing waits.
  while batcher.waiting:
    pass
  assert len(batcher.submit(_segments(*'abcde')).result(20).scores) == 5


def test_the_end_answers_what_waits(make):
  metric, batcher, first = _held(make)
  last = batcher.submit(_segments('last'))
  stopping = threading.Thread(target=batcher.stop)
  stopping.start()
  metric.go.set()
  stopping.join(20)
  assert first.done() and last.result(0).scores[0] == 4
  with pytest.raises(batching.StoppedError):
    batcher.submit(_segments('late'))


def test_cancelled_requests_are_not_computed(make):
  metric, batcher, first = _held(make)
  gone = batcher.submit(_segments('gone'))
  assert gone.cancel()
  metric.go.set()
  first.result(20)
  assert batcher.submit(_segments('next')).result(20).scores[0] == 4
  assert metric.sizes == [1, 1]


def test_system_values_are_of_the_own_sums(make):
  """BLEU of a request is not influenced by what it was joined with."""
  bleu = t5score_jax.load('bleu')
  texts = [('the cat sat on the mat', 'the cat sat on a mat'), ('x', 'y z')]
  alone = [bleu.score([h], [r]) for h, r in texts]
  joined = bleu.score(*zip(*texts, strict=True))
  for n, expected in enumerate(alone):
    part = batching._part(joined, slice(n, n + 1))
    assert part.system == pytest.approx(expected.system)
    assert part.signature == expected.signature
