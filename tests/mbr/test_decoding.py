"""Choices among candidates, against NumPy recomputation."""

import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax.errors import InputError, OptionError
from t5score_jax.mbr import decoding, pruning
from t5score_jax.mbr.candidates import Item
from t5score_jax.metrics import base, registry

Options = decoding.Options


class Hashed(base.Metric):
  """Any number for any pair of texts; counts the pairs."""

  name = 'hashed'

  def __init__(self):
    self.pairs = []

  def signature(self, **observed):
    return 'hashed'

  def score_segments(self, segments):
    base.require_references(segments, self.name)
    pairs = [(s.hypothesis, *s.references) for s in segments]
    self.pairs += pairs
    return base.Scores([utility(*pair) for pair in pairs], 'hashed')


def utility(hypothesis, reference):
  return zlib.crc32(f'{hypothesis}|{reference}'.encode()) / 2**32


def matrix(candidates, references):
  return np.array([[utility(h, r) for r in references] for h in candidates])


def best(values):
  return int(np.argmax(values))


texts = st.lists(st.sampled_from('abcdef'), min_size=1, max_size=8)


@given(st.lists(texts, min_size=1, max_size=3))
def test_the_mean_over_samples_counts_duplicates(samples):
  items = [Item(tuple(some)) for some in samples]
  metric = Hashed()
  chosen, _ = decoding.decode(metric, items, Options())
  for some, (choice,) in zip(samples, chosen, strict=True):
    means = matrix(some, some).mean(axis=1)
    assert choice.score == pytest.approx(means.max())
    assert choice.index == some.index(some[best(means)])
    assert choice.text == some[choice.index]
  # No pair of a segment is scored twice.
  assert len(metric.pairs) == sum(len(set(some)) ** 2 for some in samples)


@given(texts)
def test_without_a_candidate_itself(some):
  (choices,), _ = decoding.decode(
    Hashed(), [Item(tuple(some))], Options(exclude_self=True, top=10)
  )
  values = matrix(some, some)
  for choice in choices:
    others = [n for n in range(len(some)) if n != choice.index]
    others = others or [choice.index]
    wanted = values[choice.index, others].mean()
    assert choice.score == pytest.approx(wanted)
  scores = [choice.score for choice in choices]
  assert scores == sorted(scores, reverse=True)
  assert len(scores) == len(set(some))


def test_weights_and_other_references():
  item = Item(('a', 'b', 'c'), references=('x', 'y', 'x'), numbers=(1, 2, 5))
  (choices,), _ = decoding.decode(
    Hashed(), [item], Options(weights='weights', top=3)
  )
  wanted = matrix('abc', 'xyx') @ np.array([1, 2, 5]) / 8
  assert [c.index for c in choices] == np.argsort(-wanted).tolist()
  np.testing.assert_allclose(
    [c.score for c in choices], np.sort(wanted)[::-1], rtol=1e-12
  )
  logs = dataclasses.replace(item, numbers=tuple(np.log([1, 2, 5]) - 800))
  (again,), _ = decoding.decode(
    Hashed(), [logs], Options(weights='log_probs', top=3)
  )
  np.testing.assert_allclose(
    [c.score for c in again], [c.score for c in choices]
  )


def test_equal_candidates_keep_their_order():
  constant = Hashed()
  constant.score_segments = lambda s: base.Scores(np.ones(len(s)), '')
  (choices,), _ = decoding.decode(
    constant, [Item(tuple('cab'))], Options(top=3)
  )
  assert [c.index for c in choices] == [0, 1, 2]


def noisy(rng, count):
  """Candidates whose quality differs, and samples of them."""
  names = tuple(f't{n}' for n in range(count))
  quality = rng.normal(0, 1, count)
  metric = Hashed()

  def score(segments):
    pairs = [(s.hypothesis, *s.references) for s in segments]
    metric.pairs += pairs
    return base.Scores(
      [quality[int(h[1:])] + utility(h, r) for h, r in pairs], ''
    )

  metric.score_segments = score
  values = quality[:, None] + matrix(names, names)
  return names, metric, values


def test_pruning_finds_the_best_with_fewer_pairs():
  rng = np.random.default_rng(5)
  items, pairs = [], 0
  for _ in range(5):
    names, metric, values = noisy(rng, 64)
    items.append(Item(names))
    (choices,), _ = decoding.decode(
      metric, [Item(names)], Options('pruned', top=2)
    )
    means = values.mean(axis=1)
    assert choices[0].index == best(means)
    assert len(choices) == 2
    pairs += len(metric.pairs)
    assert len(metric.pairs) == len(set(metric.pairs))
  assert pairs < 0.5 * 5 * 64**2


def test_a_round_drops_what_wins_too_rarely():
  # Utilities of two candidates on four samples: the second is better on one.
  values = np.array([[2.0, 2.0, 2.0, 0.0], [1.0, 1.0, 1.0, 4.0]])
  state = pruning._State(np.arange(4), np.arange(2), values, used=4)
  # The second is the best. The first is as good in resamples without sample 3,
  # for 2 (4 - k) >= (4 - k) + 4 k only if k = 0: a share (3/4)^4 = .316.
  for confidence, kept in ((0.66, False), (0.72, True)):
    settings = pruning.Settings(confidence=confidence, resamples=20000)
    assert pruning._kept(state, 1, settings).tolist() == [kept, True]
  assert pruning._kept(state, 2, pruning.Settings(confidence=0)).all()


def test_pruning_with_all_samples_is_plain():
  names, metric, _ = noisy(np.random.default_rng(0), 8)
  plain, _ = decoding.decode(metric, [Item(names)], Options(top=8))
  pruned, _ = decoding.decode(metric, [Item(names)], Options('pruned', top=8))
  assert plain == pruned


def test_reranking_reads_no_references():
  metric = registry.load_metric('chrf')
  with pytest.raises(OptionError, match='rerank needs a metric'):
    decoding.decode(metric, [Item(('a',))], Options('rerank'))
  metric = Hashed()
  metric.reads_references = False
  with pytest.raises(OptionError, match='--method rerank'):
    decoding.decode(metric, [Item(('a',))], Options())
  metric.score_segments = lambda s: base.Scores(
    [len(x.hypothesis) + len(x.source) for x in s], ''
  )
  items = [Item(('a', 'ccc', 'bb'), 's'), Item(('', 'b'), 't')]
  chosen, _ = decoding.decode(metric, items, Options('rerank', top=2))
  assert [[(c.text, c.score) for c in some] for some in chosen] == [
    [('ccc', 4), ('bb', 3)],
    [('b', 2), ('', 1)],
  ]


def test_what_contradicts_is_refused():
  for settings in (
    {'method': 'no'},
    {'method': 'pruned', 'exclude_self': True},
    {'method': 'rerank', 'weights': 'weights'},
  ):
    with pytest.raises(OptionError):
      Options(**settings)
  with pytest.raises(OptionError, match='cannot average references'):
    decoding.decode(Hashed(), [Item(('a',))], Options('aggregate'))
  metric = registry.load_metric('chrf')
  with pytest.raises(OptionError, match='pseudo-references'):
    decoding.decode(
      metric, [Item(('a',), references=('b',))], Options(exclude_self=True)
    )
  with pytest.raises(OptionError, match='confidence'):
    pruning.Settings(confidence=1)


def test_missing_sources_are_named():
  class Sourced(Hashed):
    def score_segments(self, segments):
      base.require_sources(segments, self.name)

  item = Item(('a',), shown={'segment': '7'})
  with pytest.raises(InputError, match="segment '7'"):
    decoding.decode(Sourced(), [item], Options())
