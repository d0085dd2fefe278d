"""Vocabularies: the ids are SeqIO's and ByT5's, without TensorFlow."""

import copy
import io
import os
import pickle
import shutil
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies

from t5score_jax.data import vocab
from t5score_jax.errors import OptionError

TEXTS = [
  '',
  ' ',
  'Die Katze sitzt auf der Matte.',
  'die  katze\tsitzt',
  'Ä é ß 猫坐在垫子上 😀 שלום',
  'a <extra_id_0> b <extra_id_3>',
  'x\u2028y',
]


def train(**options):
  """A small model, trained on the spot."""
  words = 'die katze sitzt auf der matte hund und maus im haus'.split()
  lines = [' '.join(words[i:] + words[:i]) for i in range(len(words))] * 4
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    **{
      'vocab_size': 40,
      'hard_vocab_limit': False,
      'pad_id': 0,
      'eos_id': 1,
      'unk_id': 2,
      'bos_id': -1,
      'minloglevel': 2,
      **options,
    },
  )
  return model.getvalue()


@pytest.fixture(scope='module')
def model():
  return train()


@pytest.fixture(scope='module')
def model_path(model, tmp_path_factory):
  path = tmp_path_factory.mktemp('vocabulary') / 'vocabulary.model'
  path.write_bytes(model)
  return str(path)


# Against SeqIO.


@pytest.fixture(scope='module')
def seqio_pairs(model_path):
  seqio = pytest.importorskip('seqio', reason='SeqIO is not installed')
  return [
    (vocab.ByteVocabulary(0), seqio.ByteVocabulary()),
    (vocab.ByteVocabulary(), seqio.ByteVocabulary(extra_ids=125)),
    *(
      (
        vocab.SentencePieceVocabulary(model_path, extra_ids),
        seqio.SentencePieceVocabulary(model_path, extra_ids),
      )
      for extra_ids in (0, 1, 100)
    ),
  ]


def test_ids_are_those_of_seqio(seqio_pairs):
  for ours, theirs in seqio_pairs:
    for text in TEXTS:
      assert ours.encode(text) == theirs.encode(text), (ours, text)
    assert ours.encode_batch(TEXTS) == [theirs.encode(t) for t in TEXTS]


def test_sizes_and_special_ids_are_those_of_seqio(seqio_pairs):
  for ours, theirs in seqio_pairs:
    assert ours.vocab_size == theirs.vocab_size
    assert ours.extra_ids == theirs.extra_ids
    assert (ours.pad_id, ours.eos_id, ours.unk_id) == (
      theirs.pad_id,
      theirs.eos_id,
      theirs.unk_id,
    )


def test_decoding_is_that_of_seqio(seqio_pairs):
  rng = np.random.default_rng(0)
  for ours, theirs in seqio_pairs:
    for text in TEXTS:
      ids = ours.encode(text)
      assert ours.decode(ids) == theirs.decode(ids)
      assert ours.decode([*ids, 1, 5, 6]) == theirs.decode([*ids, 1, 5, 6])
    for _ in range(50):
      ids = rng.integers(0, ours.vocab_size + 20, size=12).tolist()
      assert ours.decode(ids) == theirs.decode(ids)


# By themselves.


def test_bytes_are_byt5s():
  # The ByT5 tokenizer's rule: the UTF-8 byte + 3; </s> is not added.
  vocabulary = vocab.ByteVocabulary()
  assert vocabulary.vocab_size == 384
  assert vocabulary.base_vocab_size == 259
  assert vocabulary.encode('Life ä') == [79, 108, 105, 104, 35, 198, 167]
  assert vocabulary.decode([0, 79, 300, 108, 2, 198, 1, 79]) == 'Li'


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
  strategies.lists(
    strategies.text(strategies.characters(exclude_categories=['Cs']))
  )
)
def test_bytes_round_trip(texts):
  vocabulary = vocab.ByteVocabulary()
  rows = vocabulary.encode_batch(texts)
  assert rows == [vocabulary.encode(text) for text in texts]
  assert [vocabulary.decode(ids) for ids in rows] == texts


def test_sentinels_stand_at_the_end_in_falling_order(model):
  vocabulary = vocab.SentencePieceVocabulary(model, 4)
  assert vocabulary.vocab_size == vocabulary.base_vocab_size + 4
  last = vocabulary.vocab_size - 1
  assert vocabulary.encode('<extra_id_0> <extra_id_3>') == [last, last - 3]
  assert vocabulary.decode([last, last - 3]) == '<extra_id_0> <extra_id_3>'


def test_decode_takes_arrays_and_clips_what_is_no_id(model):
  vocabulary = vocab.SentencePieceVocabulary(model)
  ids = np.asarray(vocabulary.encode('die katze'), np.int32)
  assert vocabulary.decode(ids) == 'die katze'
  assert vocabulary.decode([*ids, 10**6, -1]) == vocabulary.decode([*ids, 2, 2])
  assert vocabulary.decode([]) == ''


@pytest.mark.parametrize('extra_ids', [None, 0, 3])
def test_a_saved_vocabulary_is_the_same(model, tmp_path, extra_ids):
  vocabulary = vocab.SentencePieceVocabulary(model, extra_ids)
  path = tmp_path / 'vocabulary.model'
  path.write_bytes(vocabulary.model_bytes)
  for again in (
    vocab.load_vocabulary(path),
    vocab.load_vocabulary(path, extra_ids=extra_ids),
    copy.deepcopy(vocabulary),
    pickle.loads(pickle.dumps(vocabulary)),
  ):
    assert again == vocabulary
    assert hash(again) == hash(vocabulary)
    assert again.extra_ids == (extra_ids or 0)
    assert again.encode_batch(TEXTS) == vocabulary.encode_batch(TEXTS)


def test_fingerprints_tell_vocabularies_apart(model):
  vocabularies = [
    vocab.ByteVocabulary(),
    vocab.ByteVocabulary(0),
    vocab.SentencePieceVocabulary(model),
    vocab.SentencePieceVocabulary(model, 2),
    vocab.SentencePieceVocabulary(train(model_type='char')),
  ]
  assert len({v.fingerprint() for v in vocabularies}) == 5
  assert len(set(vocabularies)) == 5
  assert all(len(v.fingerprint()) == 64 for v in vocabularies)
  assert vocabularies[0] != 'bytes'


def test_load_vocabulary(model_path, tmp_path):
  assert vocab.load_vocabulary('bytes') == vocab.ByteVocabulary(125)
  assert vocab.load_vocabulary('bytes', 0) == vocab.ByteVocabulary(0)
  assert vocab.load_vocabulary(model_path, 5).extra_ids == 5
  with pytest.raises(FileNotFoundError, match='nowhere.*t5score-tiny'):
    vocab.load_vocabulary(str(tmp_path / 'nowhere.model'))


def test_a_model_names_its_vocabulary(model_path, tmp_path):
  assert vocab.load_vocabulary('t5score-tiny').vocab_size == 4096
  run = tmp_path / 'run'
  (run / 'checkpoint_3').mkdir(parents=True)
  with pytest.raises(FileNotFoundError, match='run: has no vocabulary'):
    vocab.load_vocabulary(run)
  (run / 'config.json').write_text('{"vocabulary": "bytes", "extra_ids": 7}')
  found = vocab.load_vocabulary(run / 'checkpoint_3')
  assert found == vocab.ByteVocabulary(7)
  shutil.copy(model_path, run / 'vocabulary.model')
  assert vocab.load_vocabulary(str(run)) == vocab.load_vocabulary(model_path)


@pytest.mark.parametrize('content', [b'', b'junk', b'{"hypothesis": "h"}\n'])
def test_what_is_no_model(tmp_path, content):
  path = tmp_path / 'broken.model'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='broken.model: not a SentencePiece'):
    vocab.load_vocabulary(path)


def test_a_cut_model(model):
  with pytest.raises(ValueError, match='not a SentencePiece model'):
    vocab.SentencePieceVocabulary(model[: len(model) // 2])


def test_other_special_ids_are_refused():
  # SentencePiece's own defaults.
  model = train(pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
  with pytest.raises(ValueError, match=r'\(-1, 2, 0\), not \(0, 1, 2\)'):
    vocab.SentencePieceVocabulary(model)


def test_contradicting_sentinels_are_refused(model):
  saved = vocab.SentencePieceVocabulary(model, 3).model_bytes
  with pytest.raises(ValueError, match='already has 3 sentinels'):
    vocab.SentencePieceVocabulary(saved, 5)
  with pytest.raises(ValueError, match='-1'):
    vocab.SentencePieceVocabulary(model, -1)
  with pytest.raises(ValueError, match='-1'):
    vocab.ByteVocabulary(-1)


@pytest.mark.parametrize('text', [None, 3, b'bytes', ['a']])
def test_only_strings_are_encoded(model, text):
  for vocabulary in (
    vocab.ByteVocabulary(),
    vocab.SentencePieceVocabulary(model),
  ):
    with pytest.raises(TypeError, match='must be a str'):
      vocabulary.encode(text)
    with pytest.raises(TypeError, match='must be a str'):
      vocabulary.encode_batch(['a', text])


# For a model.


def test_truncation_keeps_the_end_symbol():
  vocabulary = vocab.ByteVocabulary()

  def encode(max_length):
    return vocab.encode_batch_for_model(['abc', ''], vocabulary, max_length)

  assert encode(5) == ([[100, 101, 102, 1], [1]], [False, False])
  assert encode(4) == ([[100, 101, 102, 1], [1]], [False, False])
  assert encode(3) == ([[100, 101, 1], [1]], [True, False])
  assert encode(1) == ([[1], [1]], [True, False])
  with pytest.raises(OptionError, match='max_length'):
    encode(0)


def test_importing_the_data_layer_imports_neither_jax_nor_tensorflow():
  program = (
    'import sys, t5score_jax, t5score_jax.data.vocab, t5score_jax.data.records,'
    ' t5score_jax.metrics.base\n'
    "heavy = {'jax', 'flax', 'tensorflow', 'seqio'} & set(sys.modules)\n"
    'sys.exit(repr(heavy) if heavy else 0)'
  )
  subprocess.run(
    [sys.executable, '-c', program], check=True, env={**os.environ}
  )
