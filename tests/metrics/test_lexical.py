"""BLEU, chrF, TER, ROUGE: the numbers of sacrebleu and rouge-score."""

import gzip
import inspect
import math
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF, TER

from t5score_jax.data import files, records
from t5score_jax.data.records import Segment
from t5score_jax.metrics import _sacrebleu, registry, systems

DATA = pathlib.Path(__file__).parents[2] / '..' / 'shared' / 'data'

# Name, options, sign; sacrebleu's scorer for systems and for segments.
SACREBLEU = [
  ('bleu', {}, 1, BLEU(), BLEU(effective_order=True)),
  (
    'bleu',
    {'tokenize': 'char', 'lowercase': True, 'smooth_method': 'add-k'},
    1,
    BLEU(tokenize='char', lowercase=True, smooth_method='add-k'),
    BLEU(
      tokenize='char',
      lowercase=True,
      smooth_method='add-k',
      effective_order=True,
    ),
  ),
  ('chrf', {}, 1, CHRF(), CHRF()),
  ('chrf++', {}, 1, CHRF(word_order=2), CHRF(word_order=2)),
  (
    'chrf',
    {'beta': 1, 'whitespace': True, 'eps_smoothing': True},
    1,
    CHRF(beta=1, whitespace=True, eps_smoothing=True),
    CHRF(beta=1, whitespace=True, eps_smoothing=True),
  ),
  ('ter', {}, -1, TER(), TER()),
  (
    'ter',
    {'normalized': True, 'case_sensitive': True},
    -1,
    TER(normalized=True, case_sensitive=True),
    TER(normalized=True, case_sensitive=True),
  ),
]
ROUGE = ['rouge1', 'rouge2', 'rouge3', 'rouge4', 'rougeL']


def corpus(references=2, size=24, systems='AB'):
  """Made-up sentences of few words, so that n-grams do match."""
  rng = random.Random(0)
  words = 'The cat, a dog and the old bird sat on (the) mat or ran off.'.split()

  def sentence():
    return ' '.join(rng.choices(words, k=rng.randint(1, 12)))

  shared = [tuple(sentence() for _ in range(references)) for _ in range(size)]
  return [
    Segment(sentence(), references=shared[n], system=system, segment=str(n))
    for system in systems
    for n in range(size)
  ]


@pytest.mark.parametrize('references', [1, 3])
@pytest.mark.parametrize(
  ('name', 'options', 'sign', 'system', 'one'), SACREBLEU
)
def test_scores_are_those_of_sacrebleu(
  name, options, sign, system, one, references
):
  segments = corpus(references)
  random.Random(1).shuffle(segments)
  scores = registry.load_metric(name, **options).score_segments(segments)
  expected = [
    sign * one.sentence_score(s.hypothesis, list(s.references)).score
    for s in segments
  ]
  np.testing.assert_allclose(scores.values, expected, atol=1e-12)
  assert len(set(scores.values.tolist())) > len(segments) / 4
  for found in systems.system_scores(segments, scores, resamples=50):
    members = [s for s in segments if s.system == found.system]
    hypotheses = [s.hypothesis for s in members]
    streams = list(zip(*(s.references for s in members), strict=True))
    value = sign * system.corpus_score(hypotheses, streams).score
    assert found.value == pytest.approx(value, abs=1e-9)
    assert found.low <= found.value <= found.high


def test_bootstrap_values_are_sacrebleus_of_the_resampled_corpus():
  segments = corpus(1, systems='A')
  for name, sign, scorer in (
    ('bleu', 1, BLEU()),
    ('chrf', 1, CHRF()),
    ('ter', -1, TER()),
  ):
    metric = registry.load_metric(name)
    rng = np.random.default_rng(5)
    values = []
    for _ in range(20):
      drawn = [segments[i] for i in rng.integers(24, size=24)]
      values.append(
        sign
        * scorer.corpus_score(
          [s.hypothesis for s in drawn], [[s.references[0] for s in drawn]]
        ).score
      )
    (found,) = systems.system_scores(
      segments, metric.score_segments(segments), resamples=20, seed=5
    )
    np.testing.assert_allclose(
      [found.low, found.high], np.percentile(values, [2.5, 97.5]), rtol=1e-12
    )


def test_system_values_are_what_the_sacrebleu_command_prints(tmp_path):
  segments = corpus(2, systems='A')
  files.write_lines(tmp_path / 'hyp', (s.hypothesis for s in segments))
  for n in range(2):
    files.write_lines(tmp_path / f'ref{n}', (s.references[n] for s in segments))
  printed = subprocess.run(
    [sys.executable, '-m', 'sacrebleu', tmp_path / 'ref0', tmp_path / 'ref1']
    + ['-i', tmp_path / 'hyp', '-m', 'bleu', 'chrf', 'ter', '-b', '-w', '9']
    + ['-f', 'text'],
    check=True,
    capture_output=True,
    text=True,
  ).stdout.split()
  values = [
    registry.load_metric(name).score_segments(segments).system
    for name in ('bleu', 'chrf', 'ter')
  ]
  assert printed == [f'{abs(value):.9f}' for value in values]
  assert values[2] < 0


@pytest.mark.parametrize('kind', ROUGE)
@pytest.mark.parametrize('stemmer', [False, True])
def test_rouge_is_that_of_rouge_score(kind, stemmer):
  segments = corpus(2)
  segments.append(
    Segment('running dogs', references=('a dog runs', 'dogs run'))
  )
  metric = registry.load_metric(kind, stemmer=stemmer)
  scores = metric.score_segments(segments)
  scorer = rouge_scorer.RougeScorer([kind], use_stemmer=stemmer)
  expected = np.array(
    [
      max(
        (scorer.score(r, s.hypothesis)[kind] for r in s.references),
        key=lambda score: score.fmeasure,
      )
      for s in segments
    ]
  )
  np.testing.assert_array_equal(scores.components['precision'], expected[:, 0])
  np.testing.assert_array_equal(scores.components['recall'], expected[:, 1])
  np.testing.assert_array_equal(scores.values, expected[:, 2])
  assert scores.system == pytest.approx(expected[:, 2].mean())
  assert scores.notes == ()


def test_rouge_by_hand():
  # 3 of 4 words in both; the longest common subsequence is "the sat mat".
  hypothesis, reference = 'the cat sat mat', 'sat the sat on mat'
  for name, precision, recall in (
    ('rouge-1', 3 / 4, 3 / 5),
    ('ROUGE-2', 0 / 3, 0 / 4),
    ('rouge-l', 3 / 4, 3 / 5),
    ('rouge', 3 / 4, 3 / 5),
  ):
    scores = registry.load_metric(name).score([hypothesis], [reference])
    f = 2 * precision * recall / (precision + recall or 1)
    assert scores.values[0] == pytest.approx(f)


def test_rouge_of_other_scripts():
  hypotheses, references = ['猫坐在垫子上', 'ok'], ['猫在垫子上', 'ok']
  plain = registry.load_metric('rouge-1').score(hypotheses, references)
  assert plain.values.tolist() == [0, 1]
  assert '1 of 2 hypotheses score 0' in plain.notes[0]
  char = registry.load_metric('rouge-1', tokenize='char')
  scores = char.score(hypotheses, references)
  # 5 characters of 6 and of 5.
  assert scores.values[0] == pytest.approx(2 * 5 / 11)
  assert scores.notes == ()
  assert 'tok:char' in scores.signature
  mixed = registry.load_metric('rouge-1', tokenize='13a').score(
    ['A b'], ['a B']
  )
  assert mixed.values[0] == 1


ALL = ['bleu', 'chrf', 'chrf++', 'ter', *ROUGE]


@pytest.mark.parametrize('name', ALL)
def test_empty_texts_have_a_defined_score(name):
  metric = registry.load_metric(name)
  scores = metric.score(['', '', 'a b', ' '], ['a b c', '', '', 'a b c'])
  expected = [-100, 0, -100, -100] if name == 'ter' else [0, 0, 0, 0]
  assert scores.values.tolist() == expected
  assert math.isfinite(scores.system)
  assert not np.signbit(scores.values).all()
  nothing = metric.score([], [])
  assert len(nothing) == 0
  assert systems.system_scores([], nothing) == []


@pytest.mark.parametrize('name', ALL)
def test_higher_is_better(name):
  reference = 'the old cat sat on the mat and ran off'
  worse = 'an old cat sat on the mat'
  scores = registry.load_metric(name).score(
    [reference, worse, 'something else'], [reference] * 3
  )
  best, middle, least = scores.values
  assert best > middle > least
  assert best == pytest.approx({'t': 0, 'r': 1}.get(name[0], 100))


@pytest.mark.parametrize('name', ALL)
def test_references_are_needed(name):
  with pytest.raises(ValueError, match='needs references, .* number 2'):
    registry.load_metric(name).score_segments([corpus()[0], Segment('h')])


def test_signatures_say_what_was_done():
  version = f'sacrebleu:{sacrebleu.__version__}'
  scores = registry.load_metric('bleu').score(['a'], [['a', 'b']])
  assert scores.signature.startswith(
    'metric:BLEU|nrefs:2|case:mixed|eff:yes|systemeff:no|tok:13a|smooth:exp'
  )
  assert version in scores.signature
  assert 'nw:2' in registry.load_metric('chrf++').signature()
  assert 'sign:negated' in registry.load_metric('ter').signature()
  signatures = [
    registry.load_metric(name, **options).signature()
    for name, options in [
      *((name, options) for name, options, *_ in SACREBLEU),
      *((name, {}) for name in ROUGE),
      ('rouge', {'stemmer': True}),
      ('rouge', {'tokenize': 'zh'}),
      ('bleu', {'smooth_method': 'floor', 'smooth_value': 0.01}),
      ('bleu', {'smooth_method': 'floor', 'smooth_value': 0.001}),
      ('bleu', {'max_ngram_order': 2}),
      ('ter', {'no_punct': True}),
      ('ter', {'asian_support': True}),
      ('chrf', {'lowercase': True}),
      ('chrf', {'char_order': 4}),
    ]
  ]
  assert len(set(signatures)) == len(signatures)


def test_bleu_says_when_the_tokenizer_does_not_fit():
  segments = [Segment('猫', references=('猫',), language_pair='en-zh')]
  note = registry.load_metric('bleu').score_segments(segments).notes[0]
  assert "tokenize='zh'" in note
  fitting = registry.load_metric('bleu', tokenize='zh')
  assert fitting.score_segments(segments).notes == ()
  assert registry.load_metric('bleu').score_segments(corpus()).notes == ()


@pytest.mark.parametrize(
  ('name', 'options', 'words'),
  [
    ('bleu', {'tokenize': '14a'}, '13a'),
    ('bleu', {'smooth_method': 'add'}, 'add-k'),
    ('bleu', {'max_ngram_order': 0}, 'at least 1'),
    ('chrf', {'char_order': 0}, 'at least 1'),
    ('rouge', {'variant': '5'}, '1, 2, 3, 4 or L'),
    ('rouge', {'tokenize': '14a'}, '13a'),
    ('rouge', {'tokenize': '13a', 'stemmer': True}, 'stemmer'),
  ],
)
def test_options_are_checked(name, options, words):
  with pytest.raises(ValueError, match=words):
    registry.load_metric(name, **options)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'tau'), [('bleu', 0.0932), ('chrf', 0.1322)])
def test_wmt20_tau_of_the_official_pairs(name, tau):
  """Agreement with WMT20's zh-en pairs, as known from the same texts.

  (agreeing - disagreeing) / all; a tie of the metric disagrees. Reference A.
  """
  texts = DATA / 'wmt20_mqm_da.zh-en.tsv.gz'
  if not texts.exists():
    pytest.skip(f'{texts} is not there')
  with gzip.open(DATA / 'wmt20_darr.tsv.gz', 'rt', encoding='utf-8') as file:
    pairs = [
      (segment, better, worse)
      for pair, segment, better, worse in (
        line.rstrip('\n').split('\t') for line in file
      )
      if pair == 'zh-en'
    ]
  judged = {(s, system) for s, *both in pairs for system in both}
  segments = [
    segment
    for segment in records.stream_records(
      texts,
      columns={
        'hypothesis': 'hyp',
        'reference': 'ref_A',
        'segment': 'seg_id',
        'language_pair': 'lp',
      },
      quoting='csv',
    )
    if (segment.segment, segment.system) in judged
  ]
  scores = registry.load_metric(name).score_segments(segments)
  value = {
    (s.segment, s.system): score
    for s, score in zip(segments, scores.values, strict=True)
  }
  agree = sum(value[s, better] > value[s, worse] for s, better, worse in pairs)
  assert len(pairs) > 60_000
  assert 2 * agree / len(pairs) - 1 == pytest.approx(tau, abs=5e-5)


@pytest.mark.parametrize('hook', _sacrebleu.HOOKS)
@pytest.mark.parametrize('kind', [BLEU, CHRF, TER])
def test_sacrebleu_has_the_private_methods_that_are_used(kind, hook):
  method = getattr(kind, hook, None)
  advice = (
    f'sacrebleu {sacrebleu.__version__}: metrics/_sacrebleu.py calls '
    f'{kind.__name__}.{hook}({", ".join(_sacrebleu.HOOKS[hook])}), which has '
    'changed; adapt it or require an earlier sacrebleu in setup.py'
  )
  assert method is not None, advice
  _, *parameters = inspect.signature(method).parameters.values()
  required = [p.name for p in parameters if p.default is p.empty]
  assert len(required) == len(_sacrebleu.HOOKS[hook]), advice
