"""Metrics in general: what `score` takes, system values, loading by name."""

import copy
import importlib
import math
import pickle
import sys
import threading

import numpy as np
import pytest

import t5score_jax
from t5score_jax import metrics
from t5score_jax.data.records import Segment
from t5score_jax.evaluation import bootstrap
from t5score_jax.metrics import base, registry, systems


class Seen(base.Metric):
  """A toy: scores the length, keeps the segments."""

  name = 'seen'

  def signature(self):
    return base.format_signature({'metric': self.name})

  def score_segments(self, segments):
    self.segments = segments
    values = [float(len(s.hypothesis)) for s in segments]
    return base.Scores(np.array(values), self.signature())


def seen(*args):
  metric = Seen()
  scores = metric.score(*args)
  assert len(scores) == len(metric.segments)
  return metric.segments


# What score() takes.

TWO = [
  Segment('a', 's', ('r',)),
  Segment('bb', 't', ('q',)),
]


def test_score_takes_lists_generators_tuples_and_arrays():
  h, r, s = ['a', 'bb'], ['r', 'q'], ['s', 't']
  assert seen(h, r, s) == TWO
  assert seen(tuple(h), tuple(r), tuple(s)) == TWO
  assert seen((x for x in h), iter(r), (x for x in s)) == TWO
  assert seen(np.array(h), np.array(r), np.array(s, object)) == TWO
  segments = seen(np.array(h), np.array(r), np.array(s))
  assert type(segments[0].hypothesis) is str
  assert type(segments[0].references[0]) is str


def test_score_takes_pandas_columns_and_frames():
  pandas = pytest.importorskip('pandas', reason='pandas is not installed')
  frame = pandas.DataFrame(
    {'h': ['a', 'bb'], 'r': ['r', 'q'], 'r2': ['x', 'y'], 's': ['s', 't']},
    index=[7, 3],
  )
  assert seen(frame['h'], frame['r'], frame['s']) == TWO
  assert [s.references for s in seen(frame['h'], frame[['r', 'r2']])] == [
    ('r', 'x'),
    ('q', 'y'),
  ]
  frame.loc[3, 'r'] = None
  with pytest.raises(TypeError, match=r'references\[1\]'):
    seen(frame['h'], frame['r'])


def test_several_references_are_a_list_for_each_hypothesis():
  expected = [('r', 'x'), ('q', 'y')]
  for references in (
    [['r', 'x'], ['q', 'y']],
    (('r', 'x'), ('q', 'y')),
    zip(['r', 'q'], ['x', 'y'], strict=True),
    np.array([['r', 'x'], ['q', 'y']]),
  ):
    segments = seen(['a', 'bb'], references)
    assert [s.references for s in segments] == expected
  segments = seen(['a', 'bb'], ['r', ['q', 'y', 'z']])
  assert [s.references for s in segments] == [('r',), ('q', 'y', 'z')]


def test_references_the_other_way_round_are_explained():
  with pytest.raises(ValueError, match=r'zip\(\*references\)'):
    seen(['a', 'b', 'c'], [['r', 's', 't'], ['x', 'y', 'z']])


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ((['a', 'b'], ['r']), '2 hypotheses but 1 references'),
    ((['a'], ['r', 's']), '1 hypotheses but 2 references'),
    ((['a'], [['r'], ['s']]), '1 hypotheses but 2 references'),
    ((['a'], None, ['s', 't']), '1 hypotheses but 2 sources'),
    (([], ['r']), '0 hypotheses but 1 references'),
    ((['a', 'é\ud800'], ['r', 's']), r'^hypotheses\[1\]: half .*position 2;'),
    ((['a'], ['\udfff']), r'^references\[0\]: half .*U\+DFFF'),
    ((['a'], [['r', 'x\ud800']]), r'^references\[0\]\[1\]: half a surrogate'),
    ((['a'], None, ['\ud800']), r'^sources\[0\]: half a surrogate'),
  ],
)
def test_different_numbers_and_half_characters_are_an_error(arguments, words):
  with pytest.raises(ValueError, match=words):
    seen(*arguments)


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (('text', ['r']), 'hypotheses is one text'),
    ((b'text', ['r']), 'hypotheses is one text'),
    ((['a'], 'text'), 'references is one text'),
    ((['a'], None, 'text'), 'sources is one text'),
    (({'a', 'b'}, ['r', 's']), 'hypotheses is a set'),
    (({'a': 'r'}, ['r']), 'hypotheses is a dict'),
    ((3, ['r']), 'hypotheses is a int'),
    ((None, ['r']), 'hypotheses is a NoneType'),
    ((['a', None], ['r', 's']), r'hypotheses\[1\] is None'),
    ((['a', math.nan], ['r', 's']), r'hypotheses\[1\] is nan'),
    (([b'a'], ['r']), r'hypotheses\[0\] is b'),
    (([['a']], ['r']), r'hypotheses\[0\]'),
    ((['a'], [None]), r'references\[0\] is a NoneType'),
    ((['a'], [['r', None]]), r'references\[0\]\[1\] is None'),
    ((['a'], None, [None]), r'sources\[0\] is None'),
  ],
)
def test_what_is_not_texts_is_an_error(arguments, words):
  with pytest.raises(TypeError, match=words):
    seen(*arguments)


# Scores and signatures.


def test_scores_must_be_finite_and_complete():
  base.Scores([], 'x')
  for values in ([[1.0]], [math.nan], [1.0, -math.inf]):
    with pytest.raises(ValueError, match='values'):
      base.Scores(values, 'x')
  with pytest.raises(ValueError, match='recall has 1 rows for 2'):
    base.Scores([1.0, 2.0], 'x', {'recall': [1.0]})
  with pytest.raises(ValueError, match=r'recall\[1\] is nan'):
    base.Scores([1.0, 2.0], 'x', {'recall': [1.0, math.nan]})
  corpus = base.Corpus(np.array([[1.0, math.nan]]), lambda sums: 0.0)
  with pytest.raises(ValueError, match='statistics'):
    base.Scores([1.0], 'x', corpus=corpus)


def test_signature():
  version = t5score_jax.__version__
  signature = base.format_signature({'metric': 'm', 'path': 'a:b'})
  assert signature == f'metric:m|path:a:b|version:{version}'
  for settings in ({'a|b': 1}, {'a': 'x|y'}, {'a:b': 1}, {'a': 'x\ny'}):
    with pytest.raises(ValueError, match='signature'):
      base.format_signature(settings)


def test_what_a_metric_needs():
  one = Segment('h', references=('a',), system='A', segment='9')
  two = Segment('h', references=('a', 'b'))
  assert base.require_references([one, one], 'm') == '1'
  assert base.require_references([two], 'm') == '2'
  assert base.require_references([one, two], 'm') == 'var'
  assert base.require_references([], 'm') == 'var'
  with pytest.raises(ValueError, match='m needs references, .* number 2 has'):
    base.require_references([one, Segment('h')], 'm')
  with pytest.raises(
    ValueError, match="number 1 .system 'A', segment '9'. has"
  ):
    base.require_sources([one], 'm')
  base.require_sources([Segment('h', source='')], 'm')


# System values.


def segments_of(*systems):
  return [Segment('h', system=s, language_pair=p) for s, p in systems]


def system_means(segments, values, **options):
  return systems.system_scores(segments, base.Scores(values, ''), **options)


def test_system_means_are_by_system_and_language_pair_in_order():
  order = [('B', 'x'), ('A', 'x'), ('B', 'y'), ('B', 'x'), ('A', 'x')]
  found = system_means(segments_of(*order), np.array([1.0, 2, 3, 4, 6]))
  assert [(s.system, s.language_pair, s.value, s.segments) for s in found] == [
    ('B', 'x', 2.5, 2),
    ('A', 'x', 4.0, 2),
    ('B', 'y', 3.0, 1),
  ]
  assert (found[2].low, found[2].high) == (3.0, 3.0)
  assert system_means([], np.array([])) == []
  with pytest.raises(ValueError, match='1 segments but 2 scores'):
    system_means(segments_of(('A', 'x')), np.array([1.0, 2.0]))


def test_the_bootstrap_is_that_of_a_plain_loop(monkeypatch):
  values = np.random.default_rng(1).normal(size=7)
  segments = segments_of(*[('A', 'x')] * 7)
  rng = np.random.default_rng(3)
  means = [values[rng.integers(7, size=7)].mean() for _ in range(200)]
  expected = np.percentile(means, [2.5, 97.5])
  (whole,) = system_means(segments, values, resamples=200, seed=3)
  np.testing.assert_allclose([whole.low, whole.high], expected, rtol=1e-12)
  # In blocks of 3 draws: the same numbers.
  monkeypatch.setattr(bootstrap, 'CHUNK_NUMBERS', 21)
  (blocks,) = system_means(segments, values, resamples=200, seed=3)
  assert blocks == whole
  (other,) = system_means(segments, values, resamples=200, seed=4)
  assert other.low != whole.low
  (none,) = system_means(segments, values, resamples=0)
  assert (none.value, none.low, none.high) == (whole.value, None, None)


def test_an_interval_does_not_depend_on_the_other_systems():
  values = np.random.default_rng(1).normal(size=20)
  alone = system_means(segments_of(*[('A', 'x')] * 10), values[:10])
  both = system_means(
    segments_of(*[('A', 'x')] * 10, *[('B', 'x')] * 10), values
  )
  assert both[0] == alone[0]


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
  rng = np.random.default_rng(0)
  segments = segments_of(*[('A', 'x')] * 100)
  inside = 0
  for seed in range(300):
    (found,) = system_means(
      segments, rng.normal(5, 1, size=100), resamples=300, seed=seed
    )
    inside += found.low <= 5 <= found.high
  # Binomial(300, about .945): six standard deviations are .08.
  assert 0.87 < inside / 300 < 0.995


def test_a_corpus_value_comes_from_sums_not_from_means():
  # A ratio: (1 + 9) / (2 + 10), where the mean of ratios is .7.
  statistics = np.array([[1.0, 2.0], [9.0, 10.0]])
  scores = base.Scores(
    statistics[:, 0] / statistics[:, 1],
    'x',
    corpus=base.Corpus(statistics, lambda sums: sums[0] / sums[1]),
  )
  assert scores.system == 10 / 12
  assert base.Scores([0.5, 0.9], 'x').system == 0.7
  (found,) = systems.system_scores(segments_of(*[('A', 'x')] * 2), scores)
  assert found.value == 10 / 12
  assert (found.low, found.high) == (0.5, 0.9)
  with pytest.raises(ValueError, match='no segments'):
    _ = base.Scores([], 'x').system


# Loading by name.

TOY = '''"""A metric in one file."""

from t5score_jax.metrics import base


class Metric(base.Metric):
  """The hypothesis' length."""

  VARIANTS = {'long': {'factor': 10}}

  def __init__(self, factor=1):
    self.name = 'toy'
    self.factor = factor

  def signature(self):
    return base.format_signature({'metric': 'toy', 'factor': self.factor})

  def score_segments(self, segments):
    values = [self.factor * len(s.hypothesis) for s in segments]
    return base.Scores(values, self.signature())
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
  (tmp_path / 'toy_metric.py').write_text(TOY)
  monkeypatch.setattr(metrics, '__path__', [*metrics.__path__, str(tmp_path)])
  importlib.invalidate_caches()
  yield
  sys.modules.pop('t5score_jax.metrics.toy_metric', None)


def test_a_metric_is_one_file(toy):
  assert 'toy_metric' in registry.available_metrics()
  for name in ('toy_metric', 'Toy-Metric', 'toymetric'):
    scores = registry.load_metric(name).score(['abc', ''])
    assert scores.values.tolist() == [3, 0]
  assert registry.load_metric('toymetric-long').score(
    ['abc']
  ).values.tolist() == [30]
  assert registry.load_metric('toymetriclong', factor=2).factor == 2
  with pytest.raises(TypeError, match="Did you mean 'factor'.* has factor"):
    registry.load_metric('toymetric', facto=2)


def test_shared_code_is_no_metric():
  names = registry.available_metrics()
  assert {'bleu', 'chrf', 'rouge', 'ter'} <= set(names)
  assert 'base' not in names
  assert not any(name.startswith('_') for name in names)


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('blue', "did you mean 'bleu'.*bleu, chrf"),
    ('chrf+++', r"did you mean 'chrf\+\+'"),
    ('rouge-5', 'rouge1, rouge2'),
    ('_sacrebleu', 'no metric'),
    ('base', 'no metric'),
    ('', 'no metric'),
  ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(name, words):
  with pytest.raises(ValueError, match=words):
    registry.load_metric(name)


def test_load_loads_t5score(monkeypatch):
  calls = []
  monkeypatch.setattr(
    registry,
    'load_metric',
    lambda name, **options: calls.append((name, options)),
  )
  t5score_jax.load()
  t5score_jax.load('some/folder', direction='recall')
  t5score_jax.load('chrf++', lowercase=True)
  t5score_jax.load('some/folder', 'comes', windows=True)
  assert calls == [
    ('t5score', {'model': 't5score-tiny'}),
    ('t5score', {'model': 'some/folder', 'direction': 'recall'}),
    ('chrf++', {'lowercase': True}),
    ('comes', {'model': 'some/folder', 'windows': True}),
  ]


@pytest.mark.parametrize('name', ['bleu', 'chrf++', 'ter', 'rouge-2'])
def test_scores_can_be_pickled(name):
  scores = t5score_jax.load(name)(['a cat sat', ''], ['the cat sat', 'a'])
  for again in (pickle.loads(pickle.dumps(scores)), copy.deepcopy(scores)):
    assert list(again) == list(scores)
    assert again.system == scores.system
    assert again.signature == scores.signature


def test_scores_are_a_sequence_and_an_array():
  scores = base.Scores(np.array([1.0, 2.0, 4.0], np.float32), 'x')
  assert scores[1] == 2.0 and type(scores[-1]) is float
  assert scores[1:].tolist() == [2.0, 4.0]
  with pytest.raises(IndexError):
    scores[3]
  array = np.asarray(scores)
  assert array.dtype == np.float32 and array.tolist() == [1.0, 2.0, 4.0]
  assert np.asarray(scores, np.float64).dtype == np.float64
  array = np.array(scores)
  array[0] = 9
  assert scores[0] == 1.0
  pandas = pytest.importorskip('pandas')
  assert pandas.Series(list('abc')).to_frame('h').assign(s=scores)[
    's'
  ].tolist() == [1.0, 2.0, 4.0]


def test_scores_compare_by_identity():
  one, two = (base.Scores(np.zeros(2), 'x') for _ in range(2))
  assert one == one and one != two and len({one, two}) == 2


class Reporting(Seen):
  """Reports its segments, and waits for another thread to do so."""

  def __init__(self):
    self.barrier = threading.Barrier(2)

  def score_segments(self, segments):
    for done in range(len(segments)):
      self.barrier.wait(20)
      self.progress(done + 1, len(segments))
    return super().score_segments(segments)


def test_progress_is_of_the_call_also_in_threads():
  metric = Reporting()
  seen_by = {'a': [], 'b': []}

  def score(text):
    report = seen_by[text]
    metric(
      [text] * 2, progress=lambda done, total: report.append((done, total))
    )

  threads = [threading.Thread(target=score, args=[text]) for text in 'ab']
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert seen_by == {'a': [(1, 2), (2, 2)], 'b': [(1, 2), (2, 2)]}
  assert metric.progress is None


def test_progress_must_be_a_function():
  with pytest.raises(TypeError, match='progress is True'):
    Seen()(['a'], progress=True)
  with pytest.raises(TypeError, match='progress is 5'):
    t5score_jax.load('bleu', progress=5)
  metric = Seen()
  metric.progress = print
  assert metric.progress is print
  metric.progress = None


def test_a_metric_prints_its_signature():
  assert Seen().signature() in repr(Seen())


def test_an_empty_name_is_no_model():
  with pytest.raises(registry.ChoiceError, match="''"):
    t5score_jax.load('')


def test_unequal_numbers_of_single_references_are_not_transposed():
  with pytest.raises(ValueError, match='1 hypotheses but 2') as caught:
    seen(['a'], ['b', 'c'])
  assert 'zip' not in str(caught.value)
