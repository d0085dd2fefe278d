"""Each corpus's made-up sample through SeqIO: the examples one expects."""

import gzip
import json
import pathlib

import numpy as np
import pytest

tf = pytest.importorskip('tensorflow')
seqio = pytest.importorskip('seqio')

from t5score_jax.data import records, vocab  # noqa: E402
from t5score_jax.data.records import Segment  # noqa: E402
from t5score_jax.errors import InputError  # noqa: E402
from t5score_jax.inputs import datasets, feature_converters  # noqa: E402
from t5score_jax.tasks import (  # noqa: E402
  denoising,
  judged,
  mixtures,
  monolingual,
  mqm,
  mt_prism,
  multisumm,
  paracotta,
  parallel,
  qe20,
  vocabularies,
  wmt_da,
)

SAMPLES = pathlib.Path(__file__).parents[1] / 'samples'
LENGTHS = {'inputs': 128, 'targets': 128}
_DECODE = vocab.ByteVocabulary().decode


def _register(module, **options):
  """Registers a sample under the test's own names."""
  name = module.__name__.rpartition('.')[2]
  return module.register(SAMPLES / name, name=f'sample_{name}', **options)


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  for module in (
    denoising,
    judged,
    monolingual,
    mqm,
    mt_prism,
    multisumm,
    paracotta,
    parallel,
    qe20,
    wmt_da,
  ):
    _register(module)
  yield
  for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
    for name in list(registry.names()):
      if name.startswith('sample_'):
        registry.remove(name)


def _examples(name, split='train', lengths=LENGTHS):
  dataset = seqio.get_mixture_or_task(name).get_dataset(
    sequence_length=lengths, split=split, shuffle=False
  )
  return list(dataset.as_numpy_iterator())


def _texts(name, split='train'):
  """(input, target) of a task for generative training."""
  found = []
  for example in _examples(name, split):
    for side in ('inputs', 'targets'):
      assert example[side][-1] == 1
    found.append(tuple(_DECODE(example[s]) for s in ('inputs', 'targets')))
  return found


def _pairs(name, split='train'):
  """((better input, target), (worse input, target), ratings)."""
  found = []
  for example in _examples(name, split):
    better, worse = (
      tuple(_DECODE(example[side][i]) for side in ('inputs', 'targets'))
      for i in (0, 1)
    )
    assert example['ratings'][0] > example['ratings'][1]
    ratings = tuple(np.round(example['ratings'].astype(float), 3))
    found.append((better, worse, ratings))
  return found


def _groups(name, split='train'):
  """(shared, {hypothesis: rating})."""
  lengths = {**LENGTHS, 'ratings': 8}
  found = []
  for example in _examples(name, split, lengths):
    hypotheses = [_DECODE(row) for row in example['targets']]
    ratings = np.round(example['ratings'].astype(float), 3).tolist()
    found.append(
      (_DECODE(example['inputs']), dict(zip(hypotheses, ratings, strict=True)))
    )
  return found


def test_parallel():
  assert _texts('sample_parallel_toy') == [
    ('The kettle sings on the stove.', 'On the stove, the kettle is singing.'),
    ('He said "no" twice.', 'Twice he said "no".'),
    ('Der Regen hört auf.', 'The rain is stopping.'),
  ]
  both = _texts('sample_parallel_small_both')
  assert both == [
    ('Snow covers the yard.', 'The yard lies under snow.'),
    ('The yard lies under snow.', 'Snow covers the yard.'),
  ]
  validation = _texts('sample_parallel_toy', 'validation')
  assert validation == [('A boat drifts by.', 'A boat is drifting past.')]


def test_parallel_reads_mined_pairs(tmp_path):
  row = {'source': 'Es regnet.', 'target': 'It rains.', 'score': 1.07}
  (tmp_path / 'de-en.jsonl.gz').write_bytes(
    gzip.compress(json.dumps(row).encode() + b'\n')
  )
  parallel.register(tmp_path, name='sample_mined')
  assert _texts('sample_mined_de_en') == [('Es regnet.', 'It rains.')]


def test_paracotta_keeps_lexical_bleu_0_to_20():
  kept = _texts('sample_paracotta_en')
  assert kept == [
    ('The market opens at dawn.', 'Trading begins when the sun comes up.'),
    (
      'My neighbour repairs old clocks.',
      'Ancient timepieces are mended by the man next door.',
    ),
  ]
  read = list(paracotta.read(str(SAMPLES / 'paracotta/en.tsv')))
  scores = {
    (p['inputs'], p['targets']): paracotta.lexical_bleu(
      p['inputs'], p['targets'], 'en'
    )
    for p in read
  }
  assert len(scores) == 4
  assert all((0 <= score <= 20) == (p in kept) for p, score in scores.items())
  # Chinese by characters: as one token, the second pair would have BLEU 0.
  assert _texts('sample_paracotta_zh') == [
    ('今天下午我们去河边散步。', '我们打算下午沿着河走走。')
  ]


def test_paracotta_can_keep_all():
  paracotta.register(
    SAMPLES / 'paracotta', name='sample_all_paracotta', bleu_range=None
  )
  assert len(_texts('sample_all_paracotta_en')) == 4


def test_mt_prism():
  # The second of three WikiMatrix pairs has a margin of 1.01 < 1.04.
  assert _texts('sample_mt_prism_de_en') == [
    ('Die Burg steht auf einem Hügel.', 'The castle stands on a hill.'),
    ('Der Fluss ist kurz.', 'The river is short.'),
  ]
  # Parallel lines; a pair with an empty side is left out.
  assert _texts('sample_mt_prism_en_fr') == [
    ('We sold the old mill.', 'Nous avons vendu le vieux moulin.'),
    ('The road is closed.', 'La route est fermée.'),
  ]


def test_wmt_da_by_year():
  reference = 'The dog is asleep under the table.'
  groups = dict(_groups('sample_wmt_da_2031_de_en_groups'))
  assert groups[reference] == {
    'The dog sleeps under the table.': 0.81,
    'The dog is sleeping below table.': 0.12,
    'Dog under the table slept the.': -0.95,
  }
  honey = 'She buys bread, cheese and "real" honey.'
  assert list(groups) == [reference, honey]
  pairs = _pairs('sample_wmt_da_2031_de_en_pairs')
  # 3 pairs and 1 pair, in both directions.
  assert len(pairs) == 8
  best, worst = (
    'The dog sleeps under the table.',
    ('Dog under the table slept the.'),
  )
  assert ((reference, best), (reference, worst), (0.81, -0.95)) in pairs
  assert ((best, reference), (worst, reference), (0.81, -0.95)) in pairs
  # 2032: a text alone has no pair; 2033: people are left out.
  assert [
    shared for shared, _ in _groups('sample_wmt_da_2032_de_en_groups')
  ] == ['It will rain tomorrow.']
  assert _groups('sample_wmt_da_2033_de_en_groups_source') == [
    (
      'Der Zug kommt spät.',
      {'The train arrives late.': 0.9, 'The train comes latish.': -0.1},
    )
  ]
  assert len(_pairs('sample_wmt_da_2031_en_fi_pairs_source')) == 2


def test_wmt_da_raw_scores():
  wmt_da.register(
    SAMPLES / 'wmt_da',
    name='sample_raw_wmt_da',
    options=judged.Options(rating='raw', min_gap=25, directions=['precision']),
    kinds=['pairs'],
  )
  ratings = [r for *_, r in _pairs('sample_raw_wmt_da_2031_de_en_pairs')]
  # 88 and 64.5 differ by 23.5.
  assert ratings == [(88.0, 31.0), (64.5, 31.0), (85.0, 48.0)]


def test_mixtures_of_wmt_da_span_years():
  names = {
    name.removeprefix('sample_wmt_da_')
    for name in seqio.MixtureRegistry.names()
    if name.startswith('sample_wmt_da_')
  }
  years = ['2031', '2032', '2033', '2031_2032', '2031_2033', '2032_2033']
  kinds = ['pairs', 'groups', 'pairs_source', 'groups_source']
  expected = {f'{year}_{kind}' for year in years for kind in kinds}
  assert names == expected | set(kinds)
  mixture = seqio.MixtureRegistry.get('sample_wmt_da_2031_pairs')
  members = {task.name for task in mixture.tasks}
  assert members == {
    'sample_wmt_da_2031_de_en_pairs',
    'sample_wmt_da_2031_en_fi_pairs',
  }


def test_mqm_from_errors():
  groups = _groups('sample_mqm_newstest2031_en_de_groups')
  # Weights: (5 + .1 + 0) / 2 raters, 25 for a non-translation, 5, neutral 0.
  assert groups == [
    (
      'Die Fähre fährt mittags ab.',
      {
        'Die Fähre geht am Mittag.': -2.55,
        'Die Fähre verlässt Mittag.': -5.0,
      },
    ),
    (
      'Niemand öffnete die Tür.',
      {
        'Keiner antwortete der Tür.': -25.0,
        'Niemand hat "die Tür" beantwortet.': 0.0,
      },
    ),
  ]


def test_mqm_from_averages():
  groups = _groups('sample_mqm_ted2031_zh_en_groups_source')
  assert groups == [
    (
      '他说："好"。',
      {'He said "good".': -0.5, 'Him say good.': -4.0},
    )
  ]


def test_mqm_weights():
  assert mqm.weight('Non-translation!', 'Major') == 25
  assert mqm.weight('Fluency/Punctuation', 'minor') == 0.1
  assert mqm.weight('Fluency/Punctuation', 'Major') == 5
  assert mqm.weight('Accuracy/Omission', 'Minor') == 1
  assert mqm.weight('No-error', 'no-error') == 0
  with pytest.raises(KeyError):
    mqm.weight('Accuracy/Omission', 'Critical')


def test_qe20_pairs_segments_of_one_language_pair():
  segments = {s.hypothesis: s for s in qe20.segments(SAMPLES / 'qe20', 'train')}
  assert len(segments) == 5
  pairs = _pairs('sample_qe20_en_de_pairs')
  # Two couples of five segments, in both directions; one is left over.
  assert len(pairs) == 4
  couples = set()
  for better, worse, ratings in pairs:
    texts = []
    for one, other in (better, worse):
      source, hypothesis = (one, other) if other in segments else (other, one)
      assert segments[hypothesis].source == source
      texts.append(hypothesis)
    found = tuple(segments[text].ratings['z'] for text in texts)
    assert ratings == found
    couples.add(tuple(texts))
  assert len(couples) == 2
  assert len({text for couple in couples for text in couple}) == 4


def test_qe20_has_a_dev_split_to_choose_checkpoints_by():
  task = seqio.TaskRegistry.get('sample_qe20_en_de_pairs')
  assert set(task.splits) == {'train', 'validation', 'test'}
  dev = qe20.segments(SAMPLES / 'qe20', 'validation')
  assert [(s.source, s.hypothesis, s.ratings) for s in dev] == [
    ('The shed is locked.', 'Der Schuppen ist zu.', {'z': 0.3, 'da': 75.0}),
    ('Fog hides the hills.', 'Nebel versteckt.', {'z': -0.8, 'da': 30.0}),
  ]
  assert {r for *_, r in _pairs('sample_qe20_en_de_pairs', 'validation')} == {
    (0.3, -0.8)
  }
  # Both test segments have one rating: no preference.
  assert _pairs('sample_qe20_en_de_pairs', 'test') == []


def test_multisumm():
  gold = 'the town reopened its swimming pool . entry is free in june .'
  assert _groups('sample_multisumm_en_groups') == [
    (
      gold,
      {
        'the swimming pool of the town reopened .': 0.75,
        'a pool , a pool in the town .': -0.25,
      },
    )
  ]
  # By focus the second article's summaries are tied, by coverage not.
  multisumm.register(
    SAMPLES / 'multisumm',
    name='sample_coverage',
    options=judged.Options(rating='coverage', directions=['recall']),
  )
  assert [r for *_, r in _pairs('sample_coverage_en_pairs')] == [
    (0.6, 0.5),
    (0.2, -0.2),
  ]
  # File names with zeros that the table lacks.
  assert [s for s, _ in _groups('sample_multisumm_zh_groups')] == [
    '市图书馆周末延长开放时间'
  ]


def test_records_as_a_corpus():
  groups = _groups('sample_judged_2034_de_en_groups')
  assert groups == [
    (
      'The stove is warm.',
      {
        'The oven is warm.': 0.6,
        'The oven warm is.': -0.4,
        'The stove is hot.': 0.1,
      },
    )
  ]


def test_denoising_loses_nothing():
  texts = [
    x['targets'] for x in denoising.read(str(SAMPLES / 'denoising/toy.txt'))
  ]
  sentinels = range(384 - 1, 259 - 1, -1)
  examples = _examples('sample_denoising_toy')
  assert len(examples) == len(texts)
  for text, example in zip(texts, examples, strict=True):
    inputs, targets = (example[side].tolist() for side in ('inputs', 'targets'))
    assert inputs.pop() == targets.pop() == 1
    spans = {}
    for token in targets:
      if token in sentinels:
        spans[token] = []
      else:
        spans[next(reversed(spans))].append(token)
    assert list(spans) == list(sentinels[: len(spans)])
    restored = []
    for token in inputs:
      restored += spans.get(token, [token])
    assert _DECODE(restored) == text
    noise = sum(map(len, spans.values()))
    assert noise == max(1, round(0.15 * len(text.encode())))


def test_monolingual_inputs_are_the_end_alone():
  lines = (SAMPLES / 'monolingual/toy.txt').read_text().split('\n')
  texts = [line for line in lines if line.strip()]
  assert len(texts) < len(lines) - 1  # One is blank.
  examples = _examples('sample_monolingual_toy')
  assert [x['inputs'].tolist() for x in examples] == [[1]] * len(texts)
  targets = [x['targets'].tolist() for x in examples]
  assert [_DECODE(ids[:-1]) for ids in targets] == texts
  assert all(ids[-1] == 1 for ids in targets)


def test_language_rates_are_the_square_root():
  counts = {'a': 100, 'b': 300, 'c': 1600, 'd': 0}
  languages = {'a': 'de', 'b': 'de', 'c': 'fr', 'd': 'cs'}
  # sqrt(400) : sqrt(1600) = 1 : 2; within de 1 : 3.
  made = mixtures.language_rates(counts, languages)
  assert made == pytest.approx({'a': 1 / 12, 'b': 1 / 4, 'c': 2 / 3, 'd': 0})
  by_size = mixtures.language_rates(counts, languages, exponent=1)
  assert by_size == pytest.approx({'a': 0.05, 'b': 0.15, 'c': 0.8, 'd': 0})
  with pytest.raises(ValueError, match='no examples in any of a'):
    mixtures.language_rates({'a': 0}, {'a': 'de'})


def test_a_mixture_samples_by_these_rates():
  mixture = seqio.MixtureRegistry.get('sample_parallel')
  # 3 examples and 1.
  rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
  share = 3**0.5 / (1 + 3**0.5)
  assert rates == pytest.approx(
    {'sample_parallel_toy': share, 'sample_parallel_small': 1 - share}
  )
  dataset = mixture.get_dataset(
    LENGTHS, split='train', shuffle=False, seed=0, num_epochs=None
  )
  snow = 'Snow covers the yard.'
  drawn = [
    _DECODE(x['inputs']) == snow for x in dataset.take(400).as_numpy_iterator()
  ]
  # Three standard deviations.
  assert abs(np.mean(drawn) - (1 - share)) < 3 * (0.25 / 400) ** 0.5


def test_vocabulary_of_the_tasks_is_ours(sentencepiece_model, tmp_path):
  path = tmp_path / 'small.model'
  path.write_bytes(sentencepiece_model)
  text = 'The ferry, "Fähre", leaves.'
  for spec, extra_ids in (
    ('bytes', None),
    ('bytes', 0),
    (path, None),
    (path, 100),
  ):
    theirs = vocabularies.seqio_vocabulary(spec, extra_ids)
    ours = vocab.load_vocabulary(spec, extra_ids)
    assert theirs.encode_tf(text).numpy().tolist() == ours.encode(text)
    assert theirs.vocab_size == ours.vocab_size
    assert vocabularies.sentinels(theirs) == ours.extra_ids


@pytest.mark.slow
def test_features_of_a_task_go_through_its_converter():
  dataset = seqio.get_dataset(
    'sample_wmt_da_2031_de_en_pairs',
    LENGTHS,
    dataset_split='train',
    shuffle=False,
    seed=1,
    feature_converter=feature_converters.PairFeatureConverter(),
  )
  batch = next(dataset.batch(4).as_numpy_iterator())
  assert batch['encoder_input_tokens'].shape == (4, 2, 128)
  assert np.all(batch['ratings'][:, 0] > batch['ratings'][:, 1])


@pytest.mark.slow
def test_order_is_the_seeds():
  task = seqio.TaskRegistry.get('sample_wmt_da_2031_de_en_pairs')

  def order(seed):
    dataset = task.get_dataset(LENGTHS, 'train', shuffle=True, seed=seed)
    return [x['ratings'].tolist() for x in dataset.as_numpy_iterator()]

  first, again, other = order(1), order(1), order(2)
  assert first == again
  assert sorted(first) == sorted(other) and first != other


def test_compressed_corpus(tmp_path):
  content = (SAMPLES / 'parallel/toy.tsv').read_bytes()
  (tmp_path / 'toy.tsv.gz').write_bytes(gzip.compress(content))
  parallel.register(tmp_path, name='sample_gz')
  assert _texts('sample_gz_toy') == _texts('sample_parallel_toy')


def test_one_hypothesis_per_segment_makes_no_pair(tmp_path):
  """Named with the remedy, of a mixture too."""
  for lp in ('de-en', 'en-de'):
    records.write_records(
      tmp_path / f'{lp}.jsonl',
      [
        Segment('a', references=(r,), ratings={'z': len(r)})
        for r in ('b', 'cd')
      ],
    )
  judged.register(tmp_path, name='sample_single')
  name = 'sample_single_pairs'
  dataset = datasets.SeqioDataset(name, LENGTHS, 'pair', 2)
  with pytest.raises(InputError, match=f'{name}: .*t5score fit') as caught:
    next(dataset.batches())
  assert '\n' not in str(caught.value)
