"""Feature converters and the steps before them, against arrays by hand."""

import itertools

import numpy as np
import pytest

tf = pytest.importorskip('tensorflow')
seqio = pytest.importorskip('seqio')

from t5score_jax.data import judgments  # noqa: E402
from t5score_jax.inputs import feature_converters, preprocessors  # noqa: E402

BYTES = seqio.ByteVocabulary()
# Ids of letters: byte + 3.
A, B, C, D, E = (ord(x) + 3 for x in 'abcde')
LENGTHS = {'inputs': 5, 'targets': 4}


def _groups(*groups):
  """Tokenized groups (shared, hypotheses, ratings), as they are cached."""

  def examples():
    for shared, hypotheses, ratings in groups:
      yield {'shared': shared, 'hypotheses': hypotheses, 'ratings': ratings}

  dataset = tf.data.Dataset.from_generator(
    examples,
    output_signature={
      'shared': tf.TensorSpec([], tf.string),
      'hypotheses': tf.TensorSpec([None], tf.string),
      'ratings': tf.TensorSpec([None], tf.float32),
    },
  )
  return preprocessors.tokenize_judgments(
    dataset, output_features=preprocessors.group_features(BYTES)
  )


GROUP = ('ab', ['c', 'dddddd', 'ee'], [0.0, 1.0, 0.5])


def _pairs(*groups, lengths=None, **options):
  dataset = preprocessors.pair_examples(
    _groups(*groups),
    preprocessors.pair_features(BYTES),
    lengths,
    **options,
  )
  return list(dataset.as_numpy_iterator())


def test_judgments_are_tokenized_without_an_end():
  (example,) = _groups(('ä', ['', 'ab', 'é'], [1.0, 2.0, 3.0]))
  assert example['shared'].numpy().tolist() == [0xC3 + 3, 0xA4 + 3]
  assert example['hypotheses'].to_list() == [
    [],
    [A, B],
    [0xC3 + 3, 0xA9 + 3],
  ]
  assert example['ratings'].numpy().tolist() == [1.0, 2.0, 3.0]


def test_pairs_in_both_directions():
  made = _pairs(GROUP, lengths=LENGTHS)
  # Pairs (1, 0), (1, 2), (2, 0), each as precision and as recall.
  assert [x['ratings'].tolist() for x in made] == [
    [1.0, 0.0],
    [1.0, 0.0],
    [1.0, 0.5],
    [1.0, 0.5],
    [0.5, 0.0],
    [0.5, 0.0],
  ]
  shared = [A, B, 1]

  def rows(array):
    return [[int(i) for i in row if i] for row in array]

  precision, recall = made[0], made[1]
  assert rows(precision['inputs']) == [shared, shared]
  # Cut to the length, the end kept.
  assert rows(precision['targets']) == [[D, D, D, 1], [C, 1]]
  assert rows(recall['inputs']) == [[D, D, D, D, 1], [C, 1]]
  assert rows(recall['targets']) == [shared, shared]


def test_one_direction():
  assert len(_pairs(GROUP, directions=['recall'])) == 3


def test_pairs_are_those_of_judgments():
  ratings = [0.0, 1.0, 1.0, -0.5, 2.0]
  group = ('a', list('vwxyz'), ratings)
  for min_gap in (0.0, 1.0):
    made = _pairs(group, directions=['precision'], min_gap=min_gap)
    letters = [
      [chr(int(row[0]) - 3) for row in example['targets']] for example in made
    ]
    expected = judgments.pairs(ratings, min_gap)
    assert letters == [['vwxyz'[i], 'vwxyz'[j]] for i, j in expected]


def test_pair_converter():
  converter = feature_converters.PairFeatureConverter()
  dataset = preprocessors.pair_examples(
    _groups(GROUP),
    preprocessors.pair_features(BYTES),
    LENGTHS,
    directions=['precision'],
  )
  batch = next(iter(converter(dataset, LENGTHS).as_numpy_iterator()))
  expected = {
    'encoder_input_tokens': [[A, B, 1, 0, 0]] * 2,
    'decoder_input_tokens': [[0, D, D, D], [0, C, 1, 0]],
    'decoder_target_tokens': [[D, D, D, 1], [C, 1, 0, 0]],
    'decoder_loss_weights': [[1, 1, 1, 1], [1, 1, 0, 0]],
    'ratings': [1.0, 0.0],
  }
  assert batch.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(batch[name], value, err_msg=name)


def _split_groups(*groups, lengths):
  dataset = preprocessors.group_examples(
    _groups(*groups), preprocessors.group_features(BYTES), lengths
  )
  return feature_converters.GroupFeatureConverter()(dataset, lengths)


def test_group_converter():
  lengths = {**LENGTHS, 'ratings': 4}
  (batch,) = _split_groups(GROUP, lengths=lengths).as_numpy_iterator()
  expected = {
    'shared_tokens': [A, B, 1, 0, 0],
    'hypothesis_tokens': [
      [C, 1, 0, 0],
      [D, D, D, 1],
      [E, E, 1, 0],
      [0, 0, 0, 0],
    ],
    'ratings': [0.0, 1.0, 0.5, 0.0],
    'group_mask': [1.0, 1.0, 1.0, 0.0],
  }
  assert batch.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(batch[name], value, err_msg=name)
  assert batch['hypothesis_tokens'].dtype == np.int32
  assert batch['group_mask'].dtype == np.float32


def test_large_groups_are_dealt_into_parts():
  letters = 'bcdefgh'
  group = ('a', list(letters), list(range(7)))
  lengths = {**LENGTHS, 'ratings': 3}
  parts = list(_split_groups(group, lengths=lengths).as_numpy_iterator())
  assert [int(p['group_mask'].sum()) for p in parts] == [3, 2, 2]
  seen = {}
  for part in parts:
    assert part['shared_tokens'].tolist() == [A, 1, 0, 0, 0]
    for row, rating in zip(
      part['hypothesis_tokens'], part['ratings'], strict=True
    ):
      if row[0]:
        seen[chr(row[0] - 3)] = rating
  assert seen == dict(zip(letters, range(7), strict=True))


@pytest.mark.parametrize(
  ('lengths', 'message'),
  [
    ({**LENGTHS, 'ratings': 1}, r'\(the group size\) is 1 < 2'),
    ({**LENGTHS, 'ratings': 5}, 'is 4, less than the group size 5'),
  ],
)
def test_group_sizes_that_cannot_be(lengths, message):
  with pytest.raises(ValueError, match=message):
    _split_groups(GROUP, lengths=lengths)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'directions': []}, 'directions must be of'),
    ({'directions': ['f']}, r"not \['f'\]"),
    ({'min_gap': -0.5}, 'min_gap is -0.5'),
  ],
)
def test_pair_options_that_cannot_be(options, message):
  with pytest.raises(ValueError, match=message):
    _pairs(GROUP, **options)


def test_encoder_decoder_converter_does_not_pack():
  dataset = tf.data.Dataset.from_tensors(
    {'inputs': tf.constant([A, 1]), 'targets': tf.constant([B, C, 1])}
  )
  converter = feature_converters.EncDecFeatureConverter()
  (batch,) = converter(dataset, LENGTHS).as_numpy_iterator()
  assert batch['encoder_input_tokens'].tolist() == [A, 1, 0, 0, 0]
  assert batch['decoder_input_tokens'].tolist() == [0, B, C, 1]
  assert batch['decoder_target_tokens'].tolist() == [B, C, 1, 0]
  assert batch['decoder_loss_weights'].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
  'converter',
  [
    feature_converters.PairFeatureConverter,
    feature_converters.GroupFeatureConverter,
  ],
)
def test_judgments_are_not_packed(converter):
  with pytest.raises(ValueError, match='cannot pack: set pack = False'):
    converter(pack=True)


def test_every_pair_of_a_group_is_in_its_group_example():
  """What makes 10 decodes instead of 90 equal the pairs' loss."""
  size = feature_converters.GROUP_SIZE
  group = ('a', list('bcdefghijklmnopq'), list(range(size)))
  lengths = {'inputs': 20, 'targets': 20}
  (batch,) = _split_groups(group, lengths=lengths).as_numpy_iterator()
  assert batch['ratings'].shape == (size,)
  assert batch['hypothesis_tokens'].shape == (size, 20)
  texts = [
    bytes(int(i) - 3 for i in r if i > 1) for r in batch['hypothesis_tokens']
  ]
  by_group = {
    (texts[i], texts[j])
    for i, j in itertools.permutations(range(size), 2)
    if batch['ratings'][i] > batch['ratings'][j]
  }
  by_pairs = {
    tuple(bytes(int(i) - 3 for i in row if i > 1) for row in pair['targets'])
    for pair in _pairs(group, directions=['precision'])
  }
  assert len(by_group) == size * (size - 1) / 2
  assert by_group == by_pairs
