"""A task, lengths or a converter that do not fit end in one line."""

import pytest

tf = pytest.importorskip('tensorflow')
seqio = pytest.importorskip('seqio')

from t5score_jax.errors import InputError  # noqa: E402
from t5score_jax.inputs import datasets, preprocessors  # noqa: E402

BYTES = seqio.ByteVocabulary()
LENGTHS = {'inputs': 8, 'targets': 8}
TEXT = tf.TensorSpec([], tf.string)
TEXTS = {'inputs': TEXT, 'targets': TEXT}
GROUPS = {
  'shared': TEXT,
  'hypotheses': tf.TensorSpec([None], tf.string),
  'ratings': tf.TensorSpec([None], tf.float32),
}
ENCODE = [
  seqio.preprocessors.tokenize,
  seqio.preprocessors.append_eos_after_trim,
]
PAIRS = [preprocessors.tokenize_judgments, preprocessors.pair_examples]


def _drop(dataset):
  return dataset.filter(lambda example: False)


def _group(*ratings):
  hypotheses = [chr(ord('a') + n) for n in range(len(ratings))]
  return {'shared': 'x', 'hypotheses': hypotheses, 'ratings': list(ratings)}


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  text = {'inputs': 'ab', 'targets': 'c'}
  tasks = {
    'empty': ([], TEXTS, ENCODE, preprocessors.text_features),
    'text': ([text], TEXTS, ENCODE, preprocessors.text_features),
    'dropped': ([text], TEXTS, [_drop, *ENCODE], preprocessors.text_features),
    'no_targets': (
      [{'inputs': 'ab'}],
      {'inputs': TEXT},
      ENCODE,
      preprocessors.text_features,
    ),
    'pairs': ([_group(1, 2)], GROUPS, PAIRS, preprocessors.pair_features),
    'single': ([_group(1)], GROUPS, PAIRS, preprocessors.pair_features),
    'ties': ([_group(1, 1)], GROUPS, PAIRS, preprocessors.pair_features),
  }
  for name, (rows, signature, steps, features) in tasks.items():

    def read(split, shuffle_files, seed=None, rows=rows, signature=signature):
      return tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=signature
      )

    seqio.TaskRegistry.add(
      f'checked_{name}',
      source=seqio.FunctionDataSource(read, splits=['train']),
      preprocessors=steps,
      output_features=features(BYTES),
    )
  yield
  for name in tasks:
    seqio.TaskRegistry.remove(f'checked_{name}')


def _batch(task, lengths=LENGTHS, converter='encoder_decoder'):
  dataset = datasets.SeqioDataset(
    f'checked_{task}', lengths, converter, 2, shuffle=False
  )
  return next(dataset.batches())


def test_what_fits_is_read():
  assert _batch('text')['encoder_input_tokens'].shape == (2, 8)
  pairs = _batch('pairs', converter='pair')
  assert pairs['ratings'].tolist() == [[2, 1], [2, 1]]


@pytest.mark.parametrize(
  ('task', 'lengths', 'converter', 'named'),
  [
    ('empty', LENGTHS, 'encoder_decoder', "checked_empty.*'train'"),
    ('dropped', LENGTHS, 'encoder_decoder', "checked_dropped.*'train'"),
    ('no_targets', LENGTHS, 'encoder_decoder', 'checked_no_targets.*targets'),
    ('single', LENGTHS, 'pair', 'checked_single.*t5score fit'),
    ('ties', LENGTHS, 'pair', 'checked_ties.*different ratings'),
    ('text', {'inputs': 8}, 'encoder_decoder', "lacks.*'targets'"),
    ('text', {**LENGTHS, 'x': 8}, 'encoder_decoder', "'x'.*inputs, targets"),
    ('text', {**LENGTHS, 'inputs': 0}, 'encoder_decoder', 'inputs must be'),
    ('text', {**LENGTHS, 'inputs': '8'}, 'encoder_decoder', 'inputs must be'),
    ('pairs', {'targets': 8}, 'pair', "lacks.*'inputs'"),
    ('text', LENGTHS, 'pair', "rank 1.*rank 2.*'encoder_decoder'"),
    ('text', LENGTHS, 'group', "'targets'.*rank 1.*'encoder_decoder'"),
    ('pairs', LENGTHS, 'group', "rank 2.*rank 1.*'pair'"),
    ('pairs', LENGTHS, 'encoder_decoder', "rank 2.*rank 1.*'pair'"),
    ('text', LENGTHS, seqio.EncDecFeatureConverter, 'EncDecFeatureConverter'),
    ('text', LENGTHS, 3, 'feature_converter = 3'),
  ],
)
def test_what_does_not_fit_is_one_line(task, lengths, converter, named):
  with pytest.raises(InputError, match=named) as caught:
    _batch(task, lengths, converter)
  assert '\n' not in str(caught.value)
